"""Runs a verification: the baseline's answers, the candidate's, and the baseline again where they differ."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specdash.bench.verify import (
    EPSILON,
    Answer,
    Report,
    Run,
    Side,
    Verdict,
    Way,
    Weights,
    against_itself,
    first_difference,
    judge,
)
from specdash.bench.verify_prompts import LEAST_TOKENS
from specdash.bench.verify_server import together
from specdash.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from specdash.bench.verify_prompts import Prompt
    from specdash.bench.verify_server import Server

    Opening = Callable[[], AbstractContextManager[Server]]
    """Brings a server up, or connects to one; it is gone, or left alone, afterwards."""

TOKENS = 256
SPARE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to compare. `parallel` None: as many requests at once as both servers have slots."""

    tokens: int = TOKENS
    parallel: int | None = None
    runs: int = 1
    epsilon: float = EPSILON


@dataclass(frozen=True, slots=True)
class Step:
    """One report of progress: what is done now, the share that is done, seconds left where they can be told."""

    words: str
    share: float
    left_s: float | None = None


@dataclass(slots=True)
class Facts:
    """What is known of one server once it answered."""

    url: str = ""
    model: str = ""
    build: str = ""
    slots: int = 0
    speculates: bool | None = None


@dataclass(slots=True)
class Verification:
    """One verification. `report` fills as it goes; the tokens stay here, for showing what is around a difference."""

    prompts: tuple[Prompt, ...]
    effort: Effort
    on_step: Callable[[Step], None]
    done: frozenset[str] = frozenset()
    """What makes answers reproducible and is set on both sides already: see `verify.advice`."""
    report: Report = field(default_factory=Report)
    facts: dict[Side, Facts] = field(default_factory=dict)
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    """The prompts as token ids."""
    texts: dict[tuple[int, ...], str] = field(default_factory=dict)
    """What short runs of tokens around differences say."""
    _answers: list[tuple[Side, Way, int, int, Answer]] = field(default_factory=list)
    _opinions: dict[tuple[int, tuple[int, ...]], Weights] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)
    _done: float = 0.0
    _work: float = 1.0
    at_once: int = 1

    def run(self, baseline: Opening, candidate: Opening) -> None:
        """Do it all. Raises `SpecdashError`; after that, as after Ctrl-C, `report` has what was found by then."""
        self._plan(self.effort.parallel or 2)
        try:
            self._told("starting the baseline")
            with baseline() as server:
                self._know(Side.BASELINE, server)
                self._tokenise(server)
                self._ask_all(Side.BASELINE, server)
            self._told("starting the candidate")
            with candidate() as server:
                self._know(Side.CANDIDATE, server)
                self._ask_all(Side.CANDIDATE, server)
                self._ask_opinions(server)
            if self._differing():
                self._told("starting the baseline again, to weigh the differences")
                with baseline() as server:
                    self._settle(server)
            else:
                self._settle(None)
            if self._unasked():
                self._told("starting the candidate again, to ask about a difference")
                with candidate() as server:
                    self._ask_late(server)
        except BaseException:
            self.report.stopped = True
            self._settle_cheaply()
            raise

    def _plan(self, at_once: int) -> None:
        ways = [Way.SEQUENTIAL, Way.SEQUENTIAL, Way.CACHED, Way.PARALLEL]
        each = [1.0, 1.0, 1.0, 1.0 / at_once**0.5]
        runs = self.effort.runs
        self._work = len(self.prompts) * (sum(each[:2]) + sum(each[2:]) + runs * sum(each[1:])) * 1.02
        self.report.planned = len(self.prompts) * runs * (len(ways) - 1)

    def _know(self, side: Side, server: Server) -> None:
        self.facts[side] = Facts(server.url, server.model, server.build, len(server.slots.slots), server.speculates)
        if side is Side.BASELINE and server.speculates:
            raise InputError(f"{server.name} speculates, so it is no baseline; start it with LLAMA_SPEC_TYPE=none")
        if side is Side.CANDIDATE and server.speculates is False:
            self.report.notes.append("the candidate does not speculate: this compares the engine with itself")
        if server.speculates is None:
            self.report.notes.append(f"{server.name} does not tell whether it speculates; a newer llama.cpp does")
        self.at_once = self.effort.parallel or min(facts.slots for facts in self.facts.values())
        most = min(facts.slots for facts in self.facts.values())
        if self.at_once > most:
            self.report.notes.append(f"{server.name} has {most} slots: {most} requests at once, not {self.at_once}")
            self.at_once = most
        room = server.slot_context
        for prompt, tokens in zip(self.prompts, self.tokens, strict=False):
            _check_room(prompt, tokens, self.effort.tokens, room, server.name)

    def _tokenise(self, server: Server) -> None:
        for prompt in self.prompts:
            text = server.templated(prompt.messages) if prompt.messages else prompt.text
            tokens = server.tokenised(text)
            _check_room(prompt, tokens, self.effort.tokens, server.slot_context, server.name)
            self.tokens.append(tokens)
        short = [one.name for one, tokens in zip(self.prompts, self.tokens, strict=True) if len(tokens) < LEAST_TOKENS]
        if short:
            self.report.notes.append(
                f"shorter than {LEAST_TOKENS} tokens, where some backends switch kernels: {', '.join(short)}"
            )

    def _ask_all(self, side: Side, server: Server) -> None:
        twice = side is Side.BASELINE
        for number in range(1, (max(2, self.effort.runs) if twice else self.effort.runs) + 1):
            self._in_turn(side, Way.SEQUENTIAL, number, server)
        for number in range(1, (1 if twice else self.effort.runs) + 1):
            self._in_turn(side, Way.CACHED, number, server)
            self._at_once(side, number, server)

    def _in_turn(self, side: Side, way: Way, number: int, server: Server) -> None:
        for index, tokens in enumerate(self.tokens):
            self._told(f"{side} {way}, {self.prompts[index].name}")
            cached = way is Way.CACHED
            if cached:
                # So that the prompt is in the slot's cache, whichever slot and prompt came last.
                server.answer(tokens, 1, cached=True)
            self._keep(side, way, number, index, server.answer(tokens, self.effort.tokens, cached=cached), 1.0)

    def _at_once(self, side: Side, number: int, server: Server) -> None:
        if self.at_once < 2:
            return
        indices = list(range(len(self.tokens)))
        while len(indices) < self.at_once:
            indices += indices[: self.at_once - len(indices)]
        self._told(f"{side} {Way.PARALLEL}, {self.at_once} at once")
        found = together(server, [self.tokens[index] for index in indices], self.effort.tokens, self.at_once)
        for index, answer in zip(indices, found, strict=True):
            self._keep(side, Way.PARALLEL, number, index, answer, self.at_once**-0.5)

    def _keep(self, side: Side, way: Way, number: int, index: int, answer: Answer, work: float) -> None:
        if len(answer.tokens) != self.effort.tokens:
            self.report.notes.append(
                f"{side} {way}, {self.prompts[index].name}: {len(answer.tokens)} tokens, not {self.effort.tokens}"
            )
        self._answers.append((side, way, number, index, answer))
        self._done += work

    def _reference(self, index: int) -> Answer:
        return next(answer for side, _, _, at, answer in self._answers if side is Side.BASELINE and at == index)

    def _differing(self) -> bool:
        return any(one[4].tokens != self._reference(one[3]).tokens for one in self._answers)

    def _ask_opinions(self, server: Server) -> None:
        for side, _, _, index, answer in self._answers:
            expected = self._reference(index).tokens
            at = first_difference(expected, answer.tokens)
            if side is Side.BASELINE or at is None or at >= min(len(expected), len(answer.tokens)):
                continue
            key = (index, answer.tokens[: at + 1])
            if key not in self._opinions:
                self._told("asking the candidate about the differences")
                text = (*self.tokens[index], *answer.tokens[:at])
                self._opinions[key] = server.weights(text, expected[at], answer.tokens[at])

    def _unasked(self) -> list[int]:
        """Where in the report a real difference lies behind near ties, so that the candidate was not asked about it."""
        return [
            number
            for number, run in enumerate(self.report.runs)
            if run.side is Side.CANDIDATE and run.verdict is Verdict.DAMAGED and len(run.differences) > 1
        ]

    def _ask_late(self, server: Server) -> None:
        for number in self._unasked():
            run = self.report.runs[number]
            one = run.differences[-1]
            if one.expected is None or one.got is None:
                continue
            text = (*self.tokens[run.prompt], *run.answer.tokens[: one.at])
            told = server.weights(text, one.expected, one.got)
            late = replace(one, candidate_gap=told.gap, candidate_first=told.first)
            self.report.runs[number] = replace(run, differences=(*run.differences[:-1], late))
            self._note_texts(self.report.runs[number], server)

    def _settle(self, server: Server | None) -> None:
        """Judge everything; without a server where nothing differs."""
        for side in Side:
            for one_side, way, number, index, answer in self._answers:
                if one_side is not side or answer is self._reference(index):
                    continue
                run = self._judged(_unjudged(side, way, number, index, answer, self._reference(index)), server)
                if side is Side.CANDIDATE:
                    run = against_itself(run, self.report.of(Side.BASELINE))
                self.report.runs.append(run)
                self._note_texts(run, server)

    def _judged(self, run: Run, server: Server | None) -> Run:
        reference = self._reference(run.prompt)
        at = first_difference(reference.tokens, run.answer.tokens)
        if at is None or server is None:
            return replace(run, verdict=Verdict.IDENTICAL, checked=run.length)
        asked = server
        prompt = self.tokens[run.prompt]

        def weigh(prefix: tuple[int, ...], expected: int, got: int) -> Weights:
            self._told(f"weighing {self.prompts[run.prompt].name} at token {len(prefix) + 1}")
            return asked.weights((*prompt, *prefix), expected, got)

        def resume(prefix: tuple[int, ...], left: int) -> tuple[int, ...]:
            return asked.answer((*prompt, *prefix), left).tokens

        own = self._opinions.get((run.prompt, run.answer.tokens[: at + 1])) if run.side is Side.CANDIDATE else None
        return judge(run, reference, weigh=weigh, resume=resume, candidate=own, epsilon=self.effort.epsilon)

    def _note_texts(self, run: Run, server: Server | None) -> None:
        if server is None:
            return
        for one in run.differences:
            single = [(token,) for token in (one.expected, one.got, one.candidate_first) if token is not None]
            for tokens in (context(run.answer.tokens[: one.at]), *single):
                if tokens and tokens not in self.texts:
                    self.texts[tokens] = server.text(tokens)

    def _settle_cheaply(self) -> None:
        """Cut short: what is the same can be said, and so can where the rest differs, unweighed."""
        if self.report.runs:
            return
        for side, way, number, index, answer in self._answers:
            reference = self._reference(index)
            if answer is not reference and answer.tokens == reference.tokens:
                run = _unjudged(side, way, number, index, answer, reference)
                self.report.runs.append(replace(run, verdict=Verdict.IDENTICAL, checked=run.length))
            elif answer is not reference:
                at = first_difference(reference.tokens, answer.tokens)
                self.report.notes.append(
                    f"{side} {way}, {self.prompts[index].name}: differs at token {(at or 0) + 1}, not weighed yet"
                )

    def _told(self, words: str) -> None:
        passed, share = time.monotonic() - self._began, min(0.99, self._done / self._work)
        left = passed / share * (1 - share) if share > 0.02 and passed > 1 else None
        self.on_step(Step(words, share, left))


CONTEXT_TOKENS = 12


def context(before: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens before a difference that are shown."""
    return before[-CONTEXT_TOKENS:]


def _unjudged(side: Side, way: Way, number: int, index: int, answer: Answer, reference: Answer) -> Run:
    return Run(side, way, number, index, answer, Verdict.UNDECIDED, len(reference.tokens))


def _check_room(prompt: Prompt, tokens: tuple[int, ...], wanted: int, room: int | None, name: str) -> None:
    if room is not None and len(tokens) + wanted + SPARE_TOKENS > room:
        raise InputError(
            f"{prompt.name}: {len(tokens)} tokens and {wanted} more do not fit into a slot of {name} ({room} tokens); "
            "lower --tokens, or raise LLAMA_CTX_SIZE"
        )
