"""How acceptance and speed change while an answer grows: from verification steps and progress lines. Bounded."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdash.core.log_facts import DecodeProgress, DecodeTiming, VerificationSteps
from specdash.core.token_speed import DECODE, speed
from specdash.insight.speedup_picture import GroupFigures

if TYPE_CHECKING:
    from specdash.core.log_facts import LogFact

BOUNDS = (64, 256, 1024, 4096)
"""Tokens of the answer at which a stretch ends and the next begins."""
NAMES = ("0–64", "64–256", "256–1k", "1k–4k", "4k+")
PERIOD_S = 60.0
KEPT = 60


@dataclass(slots=True)
class _Stretch:
    answers: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: float = 0.0
    seconds: float = 0.0


@dataclass(slots=True)
class _Answer:
    """One running answer. `traced` counts the tokens of its steps; a step without a draft leaves no trace, so the
    progress lines' count overrules it."""

    task: int
    traced: int = 0
    told: int = 0
    told_s: float = 0.0
    reached: int = -1


@dataclass(slots=True)
class _Period:
    begin: float
    stretches: tuple[_Stretch, ...] = field(default_factory=lambda: tuple(_Stretch() for _ in NAMES))


class AnswerProgress:
    """Adds up per stretch of the answers, by minutes."""

    def __init__(self) -> None:
        self._answers: dict[tuple[int | None, int | None], _Answer] = {}
        self._periods: deque[_Period] = deque(maxlen=KEPT)

    def note(self, at: float, fact: LogFact) -> None:
        """Take in a fact of monotonic `at`; others than those about decode are passed over."""
        if isinstance(fact, VerificationSteps):
            answer = self._answer(fact.origin, fact.slot, fact.task)
            place = _place(max(answer.traced, answer.told))
            answer.traced += fact.accepted + fact.steps + fact.replays
            one = self._stretch(at, place, answer)
            one.steps += fact.steps
            one.drafted += fact.generated
            one.accepted += fact.accepted
        elif isinstance(fact, DecodeProgress):
            if fact.tokens_per_second > 0:
                self._told(at, self._answer(fact.origin, fact.slot, fact.task), fact.n_decoded, fact.tokens_per_second)
        elif isinstance(fact, DecodeTiming) and fact.task is not None and fact.ms > 0 and fact.tokens > 0:
            answer = self._answer(fact.origin, fact.slot, fact.task)
            self._told(at, answer, fact.tokens, fact.tokens * 1000.0 / fact.ms)
            self._answers.pop((fact.origin, fact.slot), None)

    def clear(self) -> None:
        """Another server begins: its tasks count anew."""
        self._answers.clear()

    def figures(self, now: float, window_s: float) -> tuple[GroupFigures, ...]:
        """Per stretch that any answer of the window reached, shortest first."""
        sums = [_Stretch() for _ in NAMES]
        for period in self._periods:
            if period.begin + PERIOD_S < now - window_s:
                continue
            for total, one in zip(sums, period.stretches, strict=True):
                total.answers += one.answers
                total.steps += one.steps
                total.drafted += one.drafted
                total.accepted += one.accepted
                total.tokens += one.tokens
                total.seconds += one.seconds
        return tuple(
            GroupFigures(
                name=name,
                requests=one.answers,
                acceptance=one.accepted / one.drafted if one.drafted else None,
                mean_accepted_length=1.0 + one.accepted / one.steps if one.steps else None,
                decode_rate=speed(one.tokens, one.seconds * 1000.0, DECODE),
            )
            for name, one in zip(NAMES, sums, strict=True)
            if one.answers
        )

    def _answer(self, origin: int | None, slot: int | None, task: int | None) -> _Answer:
        key = (origin, slot)
        found = self._answers.get(key)
        if found is None or found.task != task:
            found = self._answers[key] = _Answer(task if task is not None else -1)
        return found

    def _told(self, at: float, answer: _Answer, tokens: int, rate: float) -> None:
        """The answer has `tokens` now, at `rate` on the average; what came since the last word is spread evenly."""
        spent = tokens / rate
        grown, took = tokens - answer.told, spent - answer.told_s
        if grown <= 0 or took <= 0:
            return
        for place in range(_place(answer.told), _place(tokens - 1) + 1):
            first = max(answer.told, BOUNDS[place - 1] if place else 0)
            last = min(tokens, BOUNDS[place]) if place < len(BOUNDS) else tokens
            one = self._stretch(at, place, answer)
            one.tokens += last - first
            one.seconds += took * (last - first) / grown
        answer.told, answer.told_s = tokens, spent

    def _stretch(self, at: float, place: int, answer: _Answer) -> _Stretch:
        if not self._periods or at >= self._periods[-1].begin + PERIOD_S:
            self._periods.append(_Period(at))
        stretches = self._periods[-1].stretches
        while answer.reached < place:
            answer.reached += 1
            stretches[answer.reached].answers += 1
        return stretches[place]


def _place(tokens: int) -> int:
    return next((index for index, bound in enumerate(BOUNDS) if tokens < bound), len(BOUNDS))
