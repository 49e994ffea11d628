"""What a faster configuration must keep: time to first token, room in GPU memory, a log without new warnings, drafts.

Judged against the start as it was measured in the same run. A limit is *hard* where one look settles it: a GPU without
room, a draft that drafts nothing. Time to first token and warnings are *soft*: a busy moment breaks them, too, so that
a point is judged by most of its boots, and the start, which they are taken from, by none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from specdash.tune.measuring import warning_titles

if TYPE_CHECKING:
    from specdash.tune.measuring import Measured
    from specdash.tune.problem import BootResult, Point

_MIB = 1 << 20


@dataclass(slots=True)
class Norm:
    """What the start does, as far as it was measured."""

    ttfts: list[float] = field(default_factory=list)
    warnings: frozenset[str] | None = None

    def learn(self, result: BootResult, start: Point, warnings: frozenset[str] | None = None) -> None:
        """Take in a boot; those of other points teach nothing."""
        if result.point != start or result.failure:
            return
        if result.ttft_s is not None:
            self.ttfts.append(result.ttft_s)
        if warnings is not None:
            self.warnings = (self.warnings or frozenset()) | warnings


@dataclass(slots=True)
class Conduct:
    """How often each point broke a soft limit."""

    boots: dict[Point, list[str]] = field(default_factory=dict)
    """One entry a boot: what it broke, in words, empty for one that kept them all."""

    def add(self, point: Point, broke: str) -> str:
        """Take in a boot; why the point is ruled out now: most of its boots broke a limit, and this one did. Else
        empty."""
        told = self.boots.setdefault(point, [])
        told.append(broke)
        bad = sum(bool(one) for one in told)
        if not broke or 2 * bad <= len(told):
            return ""
        return broke if len(told) == 1 else f"{broke} (in {bad} of {len(told)} boots a limit was broken)"

    def split(self, point: Point) -> str:
        """What was broken in just half of a point's boots, so that one more has to decide; empty where it has not."""
        told = self.boots.get(point, [])
        broken = [one for one in told if one]
        return broken[-1] if broken and 2 * len(broken) == len(told) else ""


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
            most = median(norm.ttfts) * (1 + self.ttft) + self.ttft_slack_s
            if result.ttft_s > most:
                return f"time to first token {result.ttft_s:.2f} s, at most {most:.2f} s are allowed"
        new = measured.warnings - norm.warnings if self.warnings and norm.warnings is not None else frozenset()
        return f"new in the log: {warning_titles(new)}" if new else ""
