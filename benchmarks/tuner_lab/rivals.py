"""What a tuner is compared with: what people do today, and what costs nothing to think of. None of them is advice.

Each picks the best of its own single measurements, as people do who sweep; that is also how they come to crown noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specdash.tune.model.heuristic import Knobs, tune
from specdash.tune.model.problem import BootResult, NextBoot, Point, Stage, Task, TuneOutcome, mixture_speed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_MTP = "draft-mtp"
_ROLLED_BACK = 0.35
"""Of what is rejected, in UAP's own simulation."""


class Keep:
    """Spends nothing and stays at a point: the start, or llama.cpp's defaults, whatever it started from."""

    def __init__(self, task: Task, at: Point | None = None) -> None:
        self._task, self._at = task, at or task.start

    def ask(self) -> NextBoot | None:
        """Never anything."""
        return None

    def tell(self, result: BootResult) -> None:
        """Not called."""

    def outcome(self) -> TuneOutcome:
        """The point."""
        return TuneOutcome(self._at, improved=self._at != self._task.start, why="kept")


class Listed:
    """Boots a list of points once each, as far as the budget goes, and takes the fastest."""

    def __init__(self, task: Task, listed: Iterable[Point]) -> None:
        self._task = task
        self._left = list(dict.fromkeys(listed))[: task.budget.restarts]
        self.measured: dict[Point, float] = {}

    def ask(self) -> NextBoot | None:
        """The next of the list."""
        return NextBoot(self._left[0], Stage.EXPLORE, "next of the list") if self._left else None

    def tell(self, result: BootResult) -> None:
        """Remembers its speed; a failure has none."""
        self._left.remove(result.point)
        speed = None if result.failure else mixture_speed(result.prompts, self._task.workload)
        if speed is not None:
            self.measured[result.point] = speed

    def outcome(self) -> TuneOutcome:
        """The fastest of those measured; the start where none was."""
        return _fastest(self._task, self.measured)


def sweep(task: Task) -> Listed:
    """The start, and the draft layers with n_max 1 to 6 without a gate: what people do."""
    lengths = [point for point in task.points if point.types == (_MTP,) and not point.p_min and (point.n_max or 0) <= 6]
    return Listed(task, (task.start, *lengths))


def at_random(task: Task, seed: int) -> Listed:
    """The start, and points drawn without putting back."""
    order = np.random.default_rng(seed).permutation(len(task.points))
    return Listed(task, (task.start, *(task.points[place] for place in order)))


def exhaustive(task: Task) -> Listed:
    """Every point once, if the budget is as large."""
    return Listed(task, task.points)


class Formula:
    """UAP's formula: from the acceptance of one boot to the next one's knobs, until it repeats itself.

    `blind` takes what the formula says last, as UAP does; else the fastest boot is taken.
    """

    MOST_BOOTS = 4

    def __init__(self, task: Task, *, blind: bool = False) -> None:
        self._task, self._blind = task, blind
        self._measured: dict[Point, float] = {}
        self._knobs = Knobs()
        self._next: Point | None = task.start
        self._said: Point | None = None

    def ask(self) -> NextBoot | None:
        """The start, then what the formula makes of it."""
        most = min(self.MOST_BOOTS, self._task.budget.restarts)
        if self._next is None or len(self._measured) >= most:
            return None
        return NextBoot(self._next, Stage.EXPLORE, "the formula's next answer")

    def tell(self, result: BootResult) -> None:
        """Feeds the formula its acceptance and takes its answer, rounded to a point of the task."""
        self._next = None
        speed = None if result.failure else mixture_speed(result.prompts, self._task.workload)
        if speed is None:
            return
        self._measured[result.point] = speed
        drafted = sum(prompt.drafted for prompt in result.prompts)
        if result.point.n_max is None or not drafted:
            wanted = Knobs(draft_max=3, p_min=0.0)
        else:
            acceptance = sum(prompt.accepted for prompt in result.prompts) / drafted
            self._knobs = wanted = tune(acceptance, (1 - acceptance) * _ROLLED_BACK, base=self._knobs)
        self._said = self._nearest(wanted)
        self._next = None if self._said in self._measured else self._said

    def outcome(self) -> TuneOutcome:
        """Its last answer if blind, else its fastest boot."""
        if self._blind and self._said is not None:
            return TuneOutcome(self._said, improved=self._said != self._task.start, why="what the formula says")
        return _fastest(self._task, self._measured)

    def _nearest(self, knobs: Knobs) -> Point | None:
        copied = self._task.start.ngram_max
        some = [point for point in self._task.points if _MTP in point.types and point.ngram_max == copied]

        def distance(point: Point) -> float:
            return abs((point.n_max or 0) - knobs.draft_max) + 4 * abs((point.p_min or 0.0) - knobs.p_min)

        return min(some, key=distance) if some else None


def _fastest(task: Task, measured: dict[Point, float]) -> TuneOutcome:
    if not measured:
        return TuneOutcome(task.start, improved=False, why="nothing was measured")
    best = max(measured, key=measured.__getitem__)
    before = measured.get(task.start)
    gain = measured[best] / before - 1 if before else None
    return TuneOutcome(best, improved=best != task.start, gain=gain, restarts=len(measured), why="the fastest boot")


RIVALS: dict[str, Callable[[Task, int], Keep | Listed | Formula]] = {
    "keep": lambda task, _: Keep(task),
    "defaults": lambda task, _: Keep(task, Point((_MTP,), n_max=3, p_min=0.0)),
    "formula": lambda task, _: Formula(task),
    "formula-blind": lambda task, _: Formula(task, blind=True),
    "sweep": lambda task, _: sweep(task),
    "random": at_random,
    "exhaustive": lambda task, _: exhaustive(task),
}
"""By name: the start, llama.cpp's defaults, UAP's formula, the n_max sweep, random search, every point once."""
