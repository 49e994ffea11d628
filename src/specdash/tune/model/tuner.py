"""The tuner: which configuration to boot next, and at the end which one to keep, within a budget of restarts.

It measures the start and the engine without drafts, one point of every chain, and then goes from the fastest point to
halfway between it and the next measured one, knob by knob. The point that looks best is booted again, and the start
too: only boots that did not choose a point say what it gains, so that noise is not crowned.

Pure and deterministic: its driver boots, measures and restores. Its state is the list of results.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specdash.core.errors import UsageError
from specdash.system.stats import student
from specdash.system.text import change, counted, gain, percent
from specdash.tune.model.gains import Gain, boot_noise, gain_of
from specdash.tune.model.problem import NextBoot, Stage, TuneOutcome, mixture_speed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.tune.model.problem import BootResult, Point, Task

USUAL_NOISE = 0.012
"""Standard deviation of the logarithm of speed from boot to boot on a quiet machine; the least that is
believed."""
_ROUGH, _BELIEVED = 2.0, 4
"""Repeated boots that show less than so many times the usual noise count for so many more of them."""
_ALPHA, Z_90 = 0.1, 1.645
"""Of the interval: outside it, both sides together; a normal quantile."""
_FRESH = 2
"""Boots that the start and the point to be promoted have at least."""
KNOBS = ("n_max", "p_min", "n_min")
_MIDDLE, _NGRAM_MIDDLE = 4, 32
"""Draft length at which the search of a chain begins."""


def outgrown(point: Point, failed: Point) -> bool:
    """Whether a point needs at least the memory of one that did not fit. Memory of a model that drafts grows with the
    draft length, with any n-gram type beside it; a gate needs none."""
    drafts, alike = (tuple(name for name in each.types if not name.startswith("ngram")) for each in (failed, point))
    same = alike == drafts if drafts else point.types == failed.types
    return same and (point.n_max or 0) >= (failed.n_max or 0)


class SpecTuner:
    """Implements `problem.Tuner`. Raises `UsageError` for a task whose start is not among its points."""

    def __init__(self, task: Task) -> None:
        if task.start not in task.points:
            raise UsageError(f"start {task.start.name}: it must be one of the points to choose from")
        self.task = task
        self._results: list[BootResult] = []

    @property
    def results(self) -> tuple[BootResult, ...]:
        """Every boot so far: all the state there is."""
        return tuple(self._results)

    def tell(self, result: BootResult) -> None:
        """What a boot measured. Raises `UsageError` for a point that is not the task's."""
        if result.point not in self.task.points:
            raise UsageError(f"result of {result.point.name}: no point of this task")
        self._results.append(result)

    def ask(self) -> NextBoot | None:
        """The next boot."""
        left = self.task.budget.restarts - len(self._results)
        if left <= 0:
            return None
        if not self._results:
            return NextBoot(self.task.start, Stage.CALIBRATE, "the configuration in force, to compare everything with")
        if any(result.failure for result in self._results if result.point == self.task.start):
            return None
        last = self._confirmation()
        explored = self._explored() if last is None or left > _FRESH else None
        return explored or last

    def outcome(self) -> TuneOutcome:
        """The verdict so far."""
        start, count = self.task.start, len(self._results)
        if not self._boots(start):
            reason = next((result.failure for result in self._results if result.failure), "nothing was measured yet")
            return TuneOutcome(start, False, restarts=count, why=f"the start was not measured: {reason}")
        best, noise = self._candidate(), self._noise()[0]
        if best == start:
            measured = len({result.point for result in self._results if not result.failure})
            why = f"none of the {measured} points that were booted and keep the limits is better than the start"
            return TuneOutcome(start, False, restarts=count, why=f"no improvement found: {why}", noise=noise)
        found, confirmed = self._gain(best), len(self._boots(start)) >= _FRESH and len(self._boots(best)) >= _FRESH
        low, high = found.low or 0.0, found.high or 0.0
        sure = low > 0 and found.gain >= self.task.least_gain
        boots = f"{counted(len(self._boots(best)), 'boot')} of it and {len(self._boots(start))} of the start"
        why = (
            f"{best.name} is {gain(found.gain, low, high)} against the start, from {boots}; "
            f"boots of one configuration differ by {percent(noise, 1)}"
        )
        if sure and not confirmed:
            why = f"no improvement confirmed: {why}; no fresh boot of both confirmed it"
        elif not sure:
            reason = (
                f"that is less than the {percent(self.task.least_gain)} that are worth a restart"
                if low > 0
                else "the interval holds no gain too"
            )
            why = f"no improvement found: {why}; {reason}"
        ok = sure and confirmed
        return TuneOutcome(best if ok else start, ok, found.gain, low, high, count, why, noise)

    def _boots(self, point: Point) -> list[BootResult]:
        return [result for result in self._results if result.point == point and result.prompts and not result.failure]

    def _speed(self, point: Point) -> float:
        """Mean of the logarithms of its boots' speeds."""
        speeds = [mixture_speed(boot.prompts, self.task.workload) for boot in self._boots(point)]
        known = [math.log(speed) for speed in speeds if speed]
        return sum(known) / len(known) if known else -math.inf

    def _fails(self, point: Point) -> bool:
        """Whether it failed, or needs as much memory as one that had too little; what is compared with never does."""
        if point == self.task.start:
            return False
        failed = [result for result in self._results if result.failure]
        if any(result.point == point for result in failed):
            return True
        return not self._boots(point) and any(row.out_of_memory and outgrown(point, row.point) for row in failed)

    def _usable(self) -> list[Point]:
        return [point for point in self.task.points if not self._fails(point)]

    def _best(self) -> Point:
        """The fastest of those that were measured and did not fail."""
        return max((point for point in self._usable() if self._boots(point)), key=self._speed)

    def _candidate(self) -> Point:
        """What is to be promoted: the fastest of those that were booted again, where one is better than the start."""
        usable = self._usable()
        again = [point for point in usable if point != self.task.start and len(self._boots(point)) >= _FRESH]
        found = max(again, key=self._speed, default=self.task.start)
        return found if self._speed(found) > self._speed(self.task.start) else self._best()

    def _noise(self) -> tuple[float, float]:
        """From boot to boot: what repeated boots show, at least what is usual; and Student's quantile that goes with
        it, which is large while few repeats show much."""
        seen, freedom = boot_noise(self._results, self.task.workload)
        if seen is None or seen <= _ROUGH * USUAL_NOISE:
            freedom += _BELIEVED
        return max(seen or 0.0, USUAL_NOISE), student(freedom, _ALPHA)

    def _gain(self, point: Point) -> Gain:
        """Over the start, by the boots after the one that made it look best, where there are any."""
        mine = self._boots(point)
        noise, reach = self._noise()
        fresh, theirs = mine[1:] or mine, self._boots(self.task.start)
        found = gain_of(fresh, theirs, self.task.workload, noise * reach, Z_90) or Gain(0.0)
        if found.low is not None:
            return found
        # Too few prompts to show how differently they gain: boots alone say how far it may be off.
        middle, off = math.log1p(found.gain), noise * reach * math.sqrt(1 / len(fresh) + 1 / len(theirs))
        return Gain(found.gain, math.expm1(middle - off), math.expm1(middle + off))

    def _lacking(self) -> int:
        """Boots that the best point and the start still need."""
        return sum(max(_FRESH - len(self._boots(point)), 0) for point in (self.task.start, self._candidate()))

    def _confirmation(self) -> NextBoot | None:
        """The best point again, or the start, as long as the gain is neither sure nor gone."""
        best, start = self._candidate(), self.task.start
        gain = self._speed(best) - self._speed(start)
        if best == start or gain < math.log1p(self.task.least_gain):
            return None
        lacking = self._lacking() > 0
        found = self._gain(best)
        if not lacking and (found.low or 0.0) > 0:
            return None
        again = start if len(self._boots(start)) <= len(self._boots(best)) else best
        why = f"{best.name} is {change(found.gain)} against the start: " + (
            "a boot that did not choose it confirms it, or does not" if lacking else "both are booted in turn"
        )
        return NextBoot(again, Stage.CONFIRM if lacking else Stage.RACE, why)

    def _explored(self) -> NextBoot | None:
        """The plain engine, one point of each chain, then what lies beside the fastest."""
        usable = self._usable()
        chains: dict[tuple[str, ...], list[Point]] = {}
        for point in usable:
            chains.setdefault(point.types, []).append(point)
        for types, points in sorted(chains.items(), key=lambda row: len(row[0]) > 0):
            if not any(self._boots(point) for point in points):
                why = (
                    "a first look at this way to draft" if types else "without drafts, to know what a plain step costs"
                )
                return NextBoot(min(points, key=_from_middle), Stage.EXPLORE if types else Stage.CALIBRATE, why)
        ranked = sorted((point for point in usable if self._boots(point)), key=self._speed, reverse=True)
        for point in ranked:
            if self._speed(point) < self._speed(ranked[0]) - _HOPELESS:
                break
            if (found := self._beside(point, usable)) is not None:
                why = f"beside {point.name}, the fastest way to draft so far that has unmeasured neighbours"
                return NextBoot(found, Stage.EXPLORE, why)
        return None

    def _beside(self, point: Point, usable: Sequence[Point]) -> Point | None:
        """The middle of the gap to the next measured point, of the knob where that gap is the widest."""
        widest: list[Point] = []
        width = 0.0
        for knob in KNOBS:
            line = [other for other in usable if replace(other, **{knob: getattr(point, knob)}) == point]
            line.sort(key=lambda other: getattr(other, knob) or 0)
            place = line.index(point)
            for side in (line[place + 1 :], line[:place][::-1]):
                gap = side[: next((at for at, other in enumerate(side) if self._boots(other)), len(side))]
                if len(gap) / len(line) > width:
                    widest, width = gap, len(gap) / len(line)
        return widest[(len(widest) - 1) // 2] if widest else None


_HOPELESS = 0.05
"""How much slower than the fastest (logarithm) a point may be for its neighbours to be worth a boot."""


def _from_middle(point: Point) -> float:
    middle = _NGRAM_MIDDLE if (point.moved or "").startswith("ngram") else _MIDDLE
    return abs(math.log1p(point.n_max or 0) - math.log1p(middle)) + math.log1p(point.p_min or 0)
