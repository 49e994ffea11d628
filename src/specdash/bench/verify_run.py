"""Runs a verification: the baseline's answers, the candidate's, and the baseline again where they differ."""

from __future__ import annotations

import dataclasses
import math
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

from specdash.bench.engines import (
    OFF,
    SPEC_TYPE,
    last_words,
    memory_problem,
    on_free_port,
    own_engine,
    plan_beside,
    without_speculation,
)
from specdash.bench.verify import (
    EPSILON,
    LEAST_TOKENS,
    Agreement,
    GreedyAnswer,
    SendMode,
    VerifiedAnswer,
    VerifyReport,
    VerifySide,
    Weights,
    against_itself,
    first_difference,
    judge,
)
from specdash.core.errors import InputError, RefusedError, SpecdashError
from specdash.core.structs import Masked
from specdash.llama.client import BlockingClient
from specdash.llama.server_answers import integer, mapping, natural
from specdash.llama.server_answers import text as as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from specdash.backend.launch import LaunchPlan
    from specdash.bench.verify import VerifyPrompt
    from specdash.core.readings import Slots

    Opening = Callable[[], AbstractContextManager["VerifyServer"]]
    """Brings a server up, or connects to one; it is gone, or left alone, afterwards."""


# A llama-server as `specdash verify` uses it: greedy answers as token ids, and what it thinks of a place in a text.

SILENCE_S = 600.0
"""An answer may take so long: it comes whole."""
_POLL_S = 0.2
LIKELY = 128
"""How many of the likely tokens are looked at for the two in question."""
SEED = 1
GREEDY: Mapping[str, Any] = {
    "temperature": 0.0, "top_k": 1, "seed": SEED, "ignore_eos": True, "stream": False, "return_tokens": True,
    "samplers": ["top_k", "temperature"],
}  # fmt: skip
"""The same for everybody; without the end of text, so that all answers are as long as was asked."""


@dataclasses.dataclass(slots=True)
class VerifyServer:
    """One running server. Use as a context manager; `close` makes a waiting request fail."""

    url: str
    key: str | None = dataclasses.field(default=None, repr=False)
    name: str = "the server"
    limit_s: float = SILENCE_S
    slots: Slots = dataclasses.field(init=False)
    model: str = dataclasses.field(init=False)
    build: str = dataclasses.field(init=False)
    _client: BlockingClient = dataclasses.field(init=False, repr=False)
    _cancel: Event = dataclasses.field(init=False, repr=False, default_factory=Event)

    def __post_init__(self) -> None:
        """Raises `UnreachableError` when no one answers, `SpecdashError` when it is no llama-server of today."""
        self._client = BlockingClient(self.url, self.key, cancel=self._cancel)
        props = self._client.props()
        if props.role == "router":
            raise RefusedError(
                f"{self.url} is a router; name one of its models' own servers (`specdash targets` lists them)"
            )
        self.slots = self._client.slots()
        self.model = props.model_path or props.model_alias or ""
        self.build = props.build_info or ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections; the server stops what it was asked for."""
        self._cancel.set()

    @property
    def speculates(self) -> bool | None:
        """Whether its slots draft; None where it does not tell."""
        drafting = self.slots.drafting
        return all(drafting) if drafting is not None else None

    @property
    def slot_context(self) -> int | None:
        """Tokens that fit into one slot, where it shows that."""
        return self.slots.least_context

    def tokenised(self, text: str) -> tuple[int, ...]:
        """The text as this server's tokens, with what stands at the beginning of any text."""
        return tuple(self._client.tokens(text))

    def templated(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The prompt that the model's chat template makes of messages and tools."""
        return self._client.prompt(messages, tools)

    def text(self, tokens: Sequence[int]) -> str:
        return as_text(mapping(self._client.look("/detokenize", {"tokens": list(tokens)}).json).get("content")) or ""

    def answer(self, prompt: Sequence[int], tokens: int, *, cached: bool = False) -> GreedyAnswer:
        """The greedy answer of just so many tokens. Raises `SpecdashError` saying what went wrong."""
        answer = self._complete(prompt, tokens, cached=cached)
        found = answer.get("tokens")
        if not isinstance(found, list) or not all(isinstance(entry, int) for entry in found):
            raise SpecdashError(f"{self.url}: its answers have no token ids; a newer llama.cpp gives them")
        timings = mapping(answer.get("timings"))
        return GreedyAnswer(
            tuple(found),
            natural(timings.get("draft_n")) or 0,
            natural(timings.get("draft_n_accepted")) or 0,
            natural(timings.get("cache_n")) or 0,
        )

    def weights(self, text: Sequence[int], expected: int, got: int) -> Weights:
        """What it thinks of two tokens after the text, which it reads again as one prompt. Draftless by nature."""
        answer = self._complete(text, 1, n_probs=LIKELY)
        places = answer.get("completion_probabilities")
        place = mapping(places[0]) if isinstance(places, list) and places else {}
        likely = place.get("top_logprobs")
        if not isinstance(likely, list):
            raise SpecdashError(f"{self.url}: its answers have no probabilities; a newer llama.cpp gives them")
        found = {integer(mapping(entry).get("id")): _logprob(mapping(entry).get("logprob")) for entry in likely}
        return Weights(found.get(expected), found.get(got), integer(place.get("id")))

    def _complete(self, prompt: Sequence[int], tokens: int, *, cached: bool = False, **more: Any) -> dict[str, Any]:
        body = {**GREEDY, "prompt": list(prompt), "n_predict": tokens, "cache_prompt": cached, **more}
        try:
            return mapping(self._client.look("/completion", body, self.limit_s).json)
        except SpecdashError as error:
            raise SpecdashError(f"{self.name}: {error}") from None


def _logprob(value: object) -> float | None:
    """None also for what cannot be a log probability, such as that of a NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value > 0.01:
        return None
    return float(value)


def together(server: VerifyServer, prompts: Sequence[Sequence[int]], tokens: int, at_once: int) -> list[GreedyAnswer]:
    """The answers to all prompts, `at_once` of them at a time. Ctrl-C ends it: the server's connections are closed."""
    pool = ThreadPoolExecutor(min(at_once, len(prompts)), "verify")
    try:
        waiting = [pool.submit(server.answer, prompt, tokens) for prompt in prompts]
        while not all(future.done() for future in waiting):
            wait(waiting, _POLL_S, FIRST_EXCEPTION)
            failed = next((future for future in waiting if future.done() and future.exception() is not None), None)
            if failed is not None:
                failed.result()
        return [future.result() for future in waiting]
    except BaseException:
        # No one waits for answers that no one wants any more.
        server.close()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


# The two servers of a verification: engines of our own from an env file, or servers that run already.


_OUR_OWN = ("host", "port", "slots", "metrics", "parallel")


class EngineInPlace(Masked, Struct, frozen=True):
    """A server that runs already, and is left as it is. `key` is its API key, the secret itself."""

    hidden = ("key",)

    url: str
    key: str | None = None
    name: str = "the server"

    @property
    def words(self) -> str:
        return self.url

    @property
    def steady(self) -> frozenset[str]:
        """Nothing is known of its settings."""
        return frozenset()

    @contextmanager
    def open(self, limit_s: float) -> Iterator[VerifyServer]:
        with VerifyServer(self.url, self.key, self.name, limit_s) as server:
            yield server


class OwnedEngine(Masked, Struct, frozen=True):
    """An engine that is started for the verification alone. `values` are the env that it comes of, secrets included."""

    hidden = ("values",)

    plan: LaunchPlan
    values: Mapping[str, str]
    name: str = "the server"

    @property
    def words(self) -> str:
        """For people: the engine, and how it speculates."""
        settings = " ".join(f"{name}={value}" for name, value in self.plan.speculation if name != "spec-draft-model")
        draft = self.plan.settings.draft_model
        return f"{self.plan.engine.words}, {settings or 'no speculation'}{f' with {Path(draft).name}' if draft else ''}"

    @property
    def synthetic(self) -> bool:
        """Whether acceptance is drawn, and not found out."""
        return any(name.startswith("spec-synth-") for name in self.plan.settings.parameters)

    @property
    def steady(self) -> frozenset[str]:
        """What of the settings makes answers reproducible: see `verify.advice`."""
        settings = self.plan.settings
        apart = "kv-unified" in settings.parameters and settings.value("kv-unified") is False
        plain = settings.value("flash-attn") in ("off", False)
        return frozenset(name for name, holds in (("kv-unified", apart), ("flash-attn", plain)) if holds)

    def check_memory(self) -> None:
        """Raise `RefusedError` when it does not fit into memory beside what runs now."""
        problem = memory_problem(self.values)
        if problem is not None:
            raise RefusedError(
                f"{self.name} does not fit beside what runs now: {problem}; stop the service meanwhile, or say --force"
            )

    @contextmanager
    def open(self, limit_s: float) -> Iterator[VerifyServer]:
        """Start it, and stop it afterwards."""
        plan = on_free_port(self.plan, "verify")
        with (
            own_engine(plan, name=self.name) as place,
            VerifyServer(place.url, place.key, self.name, limit_s) as server,
        ):
            if server.speculates is False and plan.settings.spec_types:
                raise SpecdashError(
                    f"{self.name} runs without speculation although {','.join(plan.settings.spec_types)} was asked "
                    f"for, so there is nothing to compare: {last_words(plan.log)}"
                )
            yield server


def own_server(
    values: Mapping[str, str],
    env_file: str,
    name: str,
    log: Path,
    *,
    engine: str | None,
    parallel: int | None,
    speculates: bool = True,
) -> OwnedEngine:
    """An engine of the env's settings, or of them but for speculation. Raises `SpecdashError` for what the backend
    itself would refuse."""
    slots: dict[str, Any] = {} if parallel is None else {"parallel": parallel}
    plan = plan_beside(values, env_file, log, "verify", engine=engine, speculates=speculates, **slots)
    return OwnedEngine(plan, values if speculates else {**values, SPEC_TYPE: OFF}, name)


def unlike(baseline: OwnedEngine, candidate: OwnedEngine) -> list[str]:
    """In what the two differ beside speculation: one line a parameter."""
    plain = without_speculation(candidate.plan.settings)
    before, after = baseline.plan.settings, plain
    names = [name for name in {**before.parameters, **after.parameters} if name not in _OUR_OWN]
    return [
        f"{name} is {before.value(name)} in the baseline and {after.value(name)} in the candidate"
        for name in names
        if before.value(name) != after.value(name)
    ]


TOKENS = 256
SPARE_TOKENS = 16


class VerifyEffort(Struct, frozen=True):
    """How much to compare. `parallel` None: as many requests at once as both servers have slots."""

    tokens: int = TOKENS
    parallel: int | None = None
    runs: int = 1
    epsilon: float = EPSILON


class ServerFacts(Struct):
    """What is known of one server once it answered."""

    url: str = ""
    model: str = ""
    build: str = ""
    slots: int = 0
    speculates: bool | None = None


class Verification(Struct):
    """One verification. `report` fills as it goes; the tokens stay here, for showing what is around a difference."""

    prompts: tuple[VerifyPrompt, ...]
    effort: VerifyEffort
    on_step: Callable[[float, str], None]
    """Gets the share that is done, and what is done now."""
    done: frozenset[str] = frozenset()
    """What makes answers reproducible and is set on both sides already: see `verify.advice`."""
    report: VerifyReport = field(default_factory=VerifyReport)
    facts: dict[VerifySide, ServerFacts] = field(default_factory=dict)
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    """The prompts as token ids."""
    texts: dict[tuple[int, ...], str] = field(default_factory=dict)
    """What short runs of tokens around differences say."""
    _answers: list[VerifiedAnswer] = field(default_factory=list)
    """As they came, not judged yet."""
    _opinions: dict[tuple[int, tuple[int, ...]], Weights] = field(default_factory=dict)
    _done: float = 0.0
    _work: float = 1.0
    at_once: int = 1

    def run(self, baseline: Opening, candidate: Opening) -> None:
        """Do it all. Raises `SpecdashError`; after that, as after Ctrl-C, `report` has what was found by then."""
        self._plan(self.effort.parallel or 2)
        try:
            self._told("starting the baseline")
            with baseline() as server:
                self._know(VerifySide.BASELINE, server)
                self._tokenise(server)
                self._ask_all(VerifySide.BASELINE, server)
            self._told("starting the candidate")
            with candidate() as server:
                self._know(VerifySide.CANDIDATE, server)
                self._ask_all(VerifySide.CANDIDATE, server)
                self._ask_opinions(server)
            if any(self._apart(run) is not None for run in self._answers):
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
        ways = [SendMode.SEQUENTIAL, SendMode.SEQUENTIAL, SendMode.CACHED, SendMode.PARALLEL]
        each = [1.0, 1.0, 1.0, 1.0 / at_once**0.5]
        runs = self.effort.runs
        self._work = len(self.prompts) * (sum(each[:2]) + sum(each[2:]) + runs * sum(each[1:])) * 1.02
        self.report.planned = len(self.prompts) * runs * (len(ways) - 1)

    def _know(self, side: VerifySide, server: VerifyServer) -> None:
        self.facts[side] = ServerFacts(
            server.url, server.model, server.build, len(server.slots.slots), server.speculates
        )
        if side is VerifySide.BASELINE and server.speculates:
            raise InputError(f"{server.name} speculates, so it is no baseline; start it with LLAMA_SPEC_TYPE=none")
        if side is VerifySide.CANDIDATE and server.speculates is False:
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

    def _tokenise(self, server: VerifyServer) -> None:
        for prompt in self.prompts:
            text = server.templated(prompt.messages) if prompt.messages else prompt.text
            tokens = server.tokenised(text)
            _check_room(prompt, tokens, self.effort.tokens, server.slot_context, server.name)
            self.tokens.append(tokens)
        short = [
            prompt.name for prompt, tokens in zip(self.prompts, self.tokens, strict=True) if len(tokens) < LEAST_TOKENS
        ]
        if short:
            self.report.notes.append(
                f"shorter than {LEAST_TOKENS} tokens, where some backends switch kernels: {', '.join(short)}"
            )

    def _ask_all(self, side: VerifySide, server: VerifyServer) -> None:
        twice = side is VerifySide.BASELINE
        for number in range(1, (max(2, self.effort.runs) if twice else self.effort.runs) + 1):
            self._in_turn(side, SendMode.SEQUENTIAL, number, server)
        for number in range(1, (1 if twice else self.effort.runs) + 1):
            self._in_turn(side, SendMode.CACHED, number, server)
            self._at_once(side, number, server)

    def _in_turn(self, side: VerifySide, way: SendMode, number: int, server: VerifyServer) -> None:
        for index, tokens in enumerate(self.tokens):
            self._told(f"{side} {way}, {self.prompts[index].name}")
            cached = way is SendMode.CACHED
            if cached:
                # So that the prompt is in the slot's cache, whichever slot and prompt came last.
                server.answer(tokens, 1, cached=True)
            self._keep(side, way, number, index, server.answer(tokens, self.effort.tokens, cached=cached), 1.0)

    def _at_once(self, side: VerifySide, number: int, server: VerifyServer) -> None:
        if self.at_once < 2:
            return
        indices = list(range(len(self.tokens)))
        while len(indices) < self.at_once:
            indices += indices[: self.at_once - len(indices)]
        self._told(f"{side} {SendMode.PARALLEL}, {self.at_once} at once")
        found = together(server, [self.tokens[index] for index in indices], self.effort.tokens, self.at_once)
        for index, answer in zip(indices, found, strict=True):
            self._keep(side, SendMode.PARALLEL, number, index, answer, self.at_once**-0.5)

    def _keep(
        self, side: VerifySide, way: SendMode, number: int, index: int, answer: GreedyAnswer, work: float
    ) -> None:
        if len(answer.tokens) != self.effort.tokens:
            self.report.notes.append(
                f"{side} {way}, {self.prompts[index].name}: {len(answer.tokens)} tokens, not {self.effort.tokens}"
            )
        first = next((kept.length for kept in self._answers if kept.prompt == index), len(answer.tokens))
        self._answers.append(VerifiedAnswer(side, way, number, index, answer, Agreement.UNDECIDED, first))
        self._done += work

    def _reference(self, index: int) -> VerifiedAnswer:
        """The baseline's first answer to a prompt."""
        return next(run for run in self._answers if run.prompt == index)

    def _apart(self, run: VerifiedAnswer) -> int | None:
        """Where it differs from the baseline's first answer."""
        return first_difference(self._reference(run.prompt).answer.tokens, run.answer.tokens)

    def _ask_opinions(self, server: VerifyServer) -> None:
        for run in self._answers:
            at, tokens = self._apart(run), run.answer.tokens
            expected = self._reference(run.prompt).answer.tokens
            if run.side is VerifySide.BASELINE or at is None or at >= min(len(expected), len(tokens)):
                continue
            key = (run.prompt, tokens[: at + 1])
            if key not in self._opinions:
                self._told("asking the candidate about the differences")
                self._opinions[key] = server.weights((*self.tokens[run.prompt], *tokens[:at]), expected[at], tokens[at])

    def _unasked(self) -> list[int]:
        """Where in the report a real difference lies behind near ties, so that the candidate was not asked about it."""
        return [
            number
            for number, run in enumerate(self.report.runs)
            if run.side is VerifySide.CANDIDATE and run.verdict is Agreement.DAMAGED and len(run.differences) > 1
        ]

    def _ask_late(self, server: VerifyServer) -> None:
        for number in self._unasked():
            run = self.report.runs[number]
            difference = run.differences[-1]
            if difference.expected is None or difference.got is None:
                continue
            text = (*self.tokens[run.prompt], *run.answer.tokens[: difference.at])
            weights = server.weights(text, difference.expected, difference.got)
            late = replace(difference, candidate_gap=weights.gap, candidate_first=weights.first)
            self.report.runs[number] = replace(run, differences=(*run.differences[:-1], late))
            self._note_texts(self.report.runs[number], server)

    def _settle(self, server: VerifyServer | None) -> None:
        """Judge everything; without a server where nothing differs."""
        for run in self._asked_again():
            judged = self._judged(run, server)
            if run.side is VerifySide.CANDIDATE:
                judged = against_itself(judged, self.report.of(VerifySide.BASELINE))
            self.report.runs.append(judged)
            self._note_texts(judged, server)

    def _asked_again(self) -> list[VerifiedAnswer]:
        """All but each prompt's first answer, which the others are held against; the baseline's first."""
        return [run for run in self._answers if run is not self._reference(run.prompt)]

    def _judged(self, run: VerifiedAnswer, server: VerifyServer | None) -> VerifiedAnswer:
        at = self._apart(run)
        if at is None or server is None:
            return replace(run, verdict=Agreement.IDENTICAL, checked=run.length)
        asked, prompt = server, self.tokens[run.prompt]

        def weigh(prefix: tuple[int, ...], expected: int, got: int) -> Weights:
            self._told(f"weighing {self.prompts[run.prompt].name} at token {len(prefix) + 1}")
            return asked.weights((*prompt, *prefix), expected, got)

        def resume(prefix: tuple[int, ...], left: int) -> tuple[int, ...]:
            return asked.answer((*prompt, *prefix), left).tokens

        own = self._opinions.get((run.prompt, run.answer.tokens[: at + 1]))
        own = own if run.side is VerifySide.CANDIDATE else None
        reference = self._reference(run.prompt).answer
        return judge(run, reference, weigh=weigh, resume=resume, candidate=own, epsilon=self.effort.epsilon)

    def _note_texts(self, run: VerifiedAnswer, server: VerifyServer | None) -> None:
        if server is None:
            return
        for difference in run.differences:
            single = [
                (token,)
                for token in (difference.expected, difference.got, difference.candidate_first)
                if token is not None
            ]
            for tokens in (context(run.answer.tokens[: difference.at]), *single):
                if tokens and tokens not in self.texts:
                    self.texts[tokens] = server.text(tokens)

    def _settle_cheaply(self) -> None:
        """Cut short: what is the same, and where the rest differs, unweighed."""
        for run in self._asked_again() if not self.report.runs else ():
            at = self._apart(run)
            if at is None:
                self.report.runs.append(replace(run, verdict=Agreement.IDENTICAL, checked=run.length))
            else:
                where = f"{run.side} {run.way}, {self.prompts[run.prompt].name}"
                self.report.notes.append(f"{where}: differs at token {at + 1}, not weighed yet")

    def _told(self, words: str) -> None:
        self.on_step(min(0.99, self._done / self._work), words)


CONTEXT_TOKENS = 12


def context(before: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens before a difference that are shown."""
    return before[-CONTEXT_TOKENS:]


def _check_room(prompt: VerifyPrompt, tokens: tuple[int, ...], wanted: int, room: int | None, name: str) -> None:
    if room is not None and len(tokens) + wanted + SPARE_TOKENS > room:
        raise InputError(
            f"{prompt.name}: {len(tokens)} tokens and {wanted} more do not fit into a slot of {name} ({room} tokens); "
            "lower --tokens, or raise LLAMA_CTX_SIZE"
        )
