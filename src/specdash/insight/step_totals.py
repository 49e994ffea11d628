"""Verification steps and replays of a server, added up so that any window of them costs two looks."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Self

from specdash.insight.counter_log import KEEP_S

if TYPE_CHECKING:
    from specdash.core.log_facts import VerificationSteps

GRAIN_S = 1.0
"""Steps of so many seconds are one entry: a window is off by at most that much."""


@dataclass(frozen=True, slots=True)
class StepSums:
    """Steps of all slots, as `VerificationSteps` has them.

    `span_s` is the time between neighbouring steps of one task, replays among them, and `span_calls` how many of the
    decode calls that time is of: all but the first of a task, and those without a time stamp.
    """

    steps: int = 0
    generated: int = 0
    accepted: int = 0
    replays: int = 0
    replayed: int = 0
    replay_s: float = 0.0
    span_s: float = 0.0
    span_calls: int = 0

    def __add__(self, other: Self) -> StepSums:
        return StepSums(*(a + b for a, b in zip(_values(self), _values(other), strict=True)))

    def __sub__(self, other: Self) -> StepSums:
        return StepSums(*(a - b for a, b in zip(_values(self), _values(other), strict=True)))

    @property
    def calls(self) -> int:
        """Decode calls: steps and replays."""
        return self.steps + self.replays

    @property
    def tokens(self) -> int:
        """Tokens that they brought: those accepted, and one a call."""
        return self.accepted + self.calls

    @property
    def decode_s(self) -> float | None:
        """The time of all calls; None where the log has no time stamps."""
        return self.span_s * self.calls / self.span_calls if self.span_calls else None


_values = attrgetter(*(one.name for one in fields(StepSums)))


class StepTotals:
    """Totals since the server's start, and what they were at times of the last hour."""

    def __init__(self) -> None:
        self.total = StepSums()
        self._began = float("-inf")
        """When the newest entry began."""
        self._times: list[float] = []
        self._totals: list[StepSums] = []
        """The totals at these times."""

    def note(self, at: float, steps: VerificationSteps, since_s: float | None) -> None:
        """Take in steps that ended at monotonic `at`; `since_s` is the time stamp of the task's step before them."""
        begin = since_s if since_s is not None else steps.first_s
        calls = steps.steps + steps.replays - (since_s is None)
        timed = begin is not None and steps.at_s is not None and calls > 0
        self.total += StepSums(
            steps.steps,
            steps.generated,
            steps.accepted,
            steps.replays,
            steps.replayed,
            steps.replay_s,
            max(0.0, (steps.at_s or 0.0) - (begin or 0.0)) if timed else 0.0,
            calls if timed else 0,
        )
        if self._times and at < self._began + GRAIN_S:
            self._times[-1] = max(at, self._times[-1])
            self._totals[-1] = self.total
            return
        self._began = at
        self._times.append(at)
        self._totals.append(self.total)
        if self._times[0] < at - 2 * KEEP_S:
            gone = bisect_right(self._times, at - KEEP_S)
            del self._times[:gone], self._totals[:gone]

    def clear(self) -> None:
        """Another server begins."""
        self.total = StepSums()
        self._began = float("-inf")
        self._times.clear()
        self._totals.clear()

    def since(self, moment: float) -> StepSums:
        """What came after monotonic `moment`."""
        place = bisect_right(self._times, moment) - 1
        return self.total if place < 0 else self.total - self._totals[place]
