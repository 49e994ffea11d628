"""What a faster configuration must keep: time to first token, room in GPU memory, a log without new warnings, drafts.

Judged against the start as it was measured in the same run. A limit is *hard* where one look settles it: a GPU without
room, a draft that drafts nothing. Time to first token and warnings are *soft*: a busy moment breaks them, too. So a
time counts only beyond what boots of one point differ by, no point is ruled out by one boot, and the start, which the
limits are taken from, by none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log, sqrt
from statistics import fmean, median
from typing import TYPE_CHECKING

from specdash.tune.measuring import warning_titles

if TYPE_CHECKING:
    from specdash.tune.measuring import Measured
    from specdash.tune.problem import BootResult, Point

_MIB = 1 << 20
_SURE = 2.0
"""Standard deviations of the difference of two boots from which a time is longer than chance makes it."""
_CONFIRMED = 2
"""Boots that have to break a soft limit before it counts."""


@dataclass(slots=True)
class Norm:
    """What the start does, as far as it was measured."""

    ttfts: list[float] = field(default_factory=list)
    warnings: frozenset[str] | None = None
    by_point: dict[Point, list[float]] = field(default_factory=dict)
    """Logarithms of the times to first token of every point's boots."""

    def learn(self, result: BootResult, start: Point, warnings: frozenset[str] | None = None) -> None:
        """Take in a boot. The norm is the start's; how much times differ from boot to boot, all points tell."""
        if result.ttft_s is not None and result.ttft_s > 0 and result.prompts:
            self.by_point.setdefault(result.point, []).append(log(result.ttft_s))
        if result.point != start or result.failure:
            return
        if result.ttft_s is not None:
            self.ttfts.append(result.ttft_s)
        if warnings is not None:
            self.warnings = (self.warnings or frozenset()) | warnings

    def longest(self, share: float, slack_s: float, point: Point | None = None) -> float:
        """The longest time to first token of one boot of this point that keeps the limit, in seconds: what is allowed,
        and as much more as boots of one point may differ by, as all the others' show."""
        groups = [boots for one, boots in self.by_point.items() if len(boots) > 1 and one != point]
        freedom = sum(len(one) - 1 for one in groups)
        squares = sum((value - fmean(one)) ** 2 for one in groups for value in one)
        sd = sqrt(squares / freedom) if freedom else 0.0
        allowed = median(self.ttfts) * (1 + share) + slack_s
        return allowed * exp(_SURE * sd * sqrt(1 + 1 / len(self.ttfts)))


@dataclass(slots=True)
class Conduct:
    """How often each point broke a soft limit."""

    boots: dict[Point, list[str]] = field(default_factory=dict)
    """One entry a boot: what it broke, in words, empty for one that kept them all."""

    def add(self, point: Point, broke: str) -> str:
        """Take in a boot; why the point is ruled out now: most of its boots broke a limit, two at least, and this one
        did. Else empty."""
        told = self.boots.setdefault(point, [])
        told.append(broke)
        bad = sum(bool(one) for one in told)
        if not broke or bad < _CONFIRMED or 2 * bad <= len(told):
            return ""
        return f"{broke} (in {bad} of {len(told)} boots a limit was broken)"

    def split(self, point: Point) -> str:
        """What was broken in half of a point's boots, or in its only one, so that one more has to decide; empty where
        it has not."""
        told = self.boots.get(point, [])
        broken = [one for one in told if one]
        return broken[-1] if broken and 2 * len(broken) >= len(told) else ""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits. None: not a limit."""

    ttft: float | None = 0.05
    """By which share the median time to first token may grow."""
    ttft_slack_s: float = 0.05
    """And this much besides, as short times vary by more than a share of them."""
    free_mib: int | None = 256
    """GPU memory that must stay free, where it can be told."""
    warnings: bool = True
    """Whether classes of warnings that the start does not have are refused."""

    @property
    def words(self) -> tuple[str, ...]:
        """One line each."""
        found = []
        if self.ttft is not None:
            slack = f" and {self.ttft_slack_s * 1000:.0f} ms"
            found.append(f"median time to first token at most {self.ttft:.0%}{slack} above the start's")
        if self.free_mib is not None:
            found.append(f"{self.free_mib} MiB of GPU memory free, where there is a GPU")
        if self.warnings:
            found.append("no class of warnings in the log that the start does not have")
        return tuple(found)

    def hard(self, result: BootResult, measured: Measured) -> str:
        """Which limit a boot breaks that rules its point out at once, in words; empty when none."""
        drafting = [name for name in result.point.types if not name.startswith("ngram")]
        if drafting and not sum(one.drafted for one in result.prompts):
            return f"it runs, and {drafting[0]} drafted nothing"
        free = measured.seen.memory_free_bytes
        if self.free_mib is not None and free is not None and free < self.free_mib * _MIB:
            return f"only {free / _MIB:.0f} MiB of GPU memory are free ({self.free_mib} wanted)"
        return ""

    def soft(self, result: BootResult, measured: Measured, norm: Norm) -> str:
        """Which limit a boot breaks that a busy moment may break, too; empty when none."""
        if self.ttft is not None and norm.ttfts and result.ttft_s is not None:
            most = norm.longest(self.ttft, self.ttft_slack_s, result.point)
            if result.ttft_s > most:
                return f"time to first token {result.ttft_s:.2f} s, at most {most:.2f} s are allowed"
        new = measured.warnings - norm.warnings if self.warnings and norm.warnings is not None else frozenset()
        return f"new in the log: {warning_titles(new)}" if new else ""
