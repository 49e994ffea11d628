"""Applies and the before/after card as the picture has them: types only. Meaning and method: docs/experiments.md.

Rates are tokens per second, fractions 0 to 1, times seconds, moments Unix time. None is unknown, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from specdash.core.applies import ApplyKind

if TYPE_CHECKING:
    from specdash.core.applies import Outcome

ENOUGH = 12
"""Requests that each side needs before anything is said of a difference."""


@dataclass(frozen=True, slots=True)
class ApplyMark:
    """One apply: when it changed what runs (`wall`, and how long ago), how it ended, and what it changed in short."""

    number: int
    age_s: float
    wall: float
    outcome: Outcome
    kind: ApplyKind
    text: str
    """`DRAFT_MAX 4→12`; of several changes the first one and how many more. Secrets are masked."""

    @property
    def is_undo(self) -> bool:
        """Whether it went back to an earlier state."""
        return self.kind is ApplyKind.ROLLBACK


class MeasureName(StrEnum):
    """What is compared."""

    ACCEPTANCE = "acceptance"
    """Accepted over generated draft tokens."""
    DECODE = "decode"
    PREFILL = "prefill"
    TTFT = "ttft"
    """Seconds to the first token."""


class Verdict(StrEnum):
    """What can be said of a difference."""

    BETTER = "better"
    WORSE = "worse"
    UNCLEAR = "no clear difference"
    TOO_FEW = "not enough data"


@dataclass(frozen=True, slots=True)
class Side:
    """One measure of the requests of one side: how many, the median (of acceptance the ratio of sums), and the
    quartiles of single requests."""

    count: int = 0
    value: float | None = None
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure before and after. `change` is after less before, with its 95 % interval; None without a value on
    either side, and the interval None where data do not suffice."""

    name: MeasureName
    source: str
    """Where the values come from, in words."""
    before: Side
    after: Side
    is_relative: bool
    """Whether `change` is a share of the value before (0.12 is 12 % more), or a difference of fractions."""
    change: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Verdict = Verdict.TOO_FEW

    @property
    def words(self) -> str:
        """The verdict in words, with how many requests there are where they do not suffice."""
        if self.verdict is not Verdict.TOO_FEW:
            return str(self.verdict)
        return f"{self.verdict} ({min(self.before.count, self.after.count)} of {ENOUGH} requests)"


@dataclass(frozen=True, slots=True)
class ExperimentCard:
    """What the newest apply changed in practice."""

    mark: ApplyMark
    profile: str | None
    measures: tuple[Measure, ...]
    caveats: tuple[str, ...] = ()
    """What makes the comparison unfair, in sentences without a full stop."""
