"""The tuner: which configuration to boot next, and at the end which one to keep, within a budget of restarts.

It measures the start, two points that tell the most (a deep draft without a gate, a gated one beside n-grams), and
then whatever point is worth the most: the expected gain of the final choice by one more boot, repeated boots included.
The last boots race the best point against the start where it is not yet sure.

Pure and deterministic: whoever drives it boots, measures and restores. Its state is the list of results told so far.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np

from specdash.core.errors import UsageError
from specdash.system.data import dataclass
from specdash.system.text import between, change, counted, percent
from specdash.tune.model import race
from specdash.tune.model.acceptance import BootTally
from specdash.tune.model.model import Field, PhysicsDoubt, survey, worth
from specdash.tune.model.problem import NextBoot, Stage, TuneOutcome, WorkloadShares, noise_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from specdash.tune.model.acceptance import Parameters
    from specdash.tune.model.model import Posterior, Surface
    from specdash.tune.model.problem import BootResult, Point, Task
    from specdash.tune.model.race import RaceVerdict

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int_]


# What boots that ran out of memory say of other points.
#
# A model that drafts needs memory that grows with the draft length; copying from the text (the n-gram types) needs
# none of the GPU's, and a gate none at all. So where one length does not fit, longer ones of the same draft do not
# either, with whatever n-gram type beside it; and between it and the longest that fits the limit may lie anywhere.

_NGRAM = "ngram"


def outgrown(points: Sequence[Point], place: int) -> list[int]:
    """The points that need at least the memory of the one that did not fit, itself included."""
    item = points[place]
    drafted = _drafts(item)
    if drafted:
        return [at for at, point in enumerate(points) if _drafts(point) == drafted and _length(point) >= _length(item)]
    longest = item.ngram_max or 0
    return [at for at, point in enumerate(points) if point.types == item.types and (point.ngram_max or 0) >= longest]


def chance_to_fit(points: Sequence[Point], fitting: Iterable[int], failing: Iterable[int]) -> NDArray[np.float64]:
    """By point: the limit of each draft lies anywhere between the longest that fits and the shortest that does not."""
    lowest, highest = _longest(points, fitting), _shortest(points, failing)
    chances = np.ones(len(points))
    for at, point in enumerate(points):
        limit = highest.get(_drafts(point))
        if limit is not None:
            known = min(lowest.get(_drafts(point), 0), limit - 1)
            chances[at] = np.clip((limit - _length(point)) / (limit - known), 0.0, 1.0)
    return chances


def _longest(points: Sequence[Point], places: Iterable[int]) -> dict[tuple[str, ...], int]:
    found: dict[tuple[str, ...], int] = {}
    for at in places:
        key = _drafts(points[at])
        found[key] = max(found.get(key, 0), _length(points[at]))
    return found


def _shortest(points: Sequence[Point], places: Iterable[int]) -> dict[tuple[str, ...], int]:
    found: dict[tuple[str, ...], int] = {}
    for at in places:
        key = _drafts(points[at])
        if key:
            found[key] = min(found.get(key, _length(points[at])), _length(points[at]))
    return found


def _drafts(point: Point) -> tuple[str, ...]:
    return tuple(name for name in point.types if not name.startswith(_NGRAM))


def _length(point: Point) -> int:
    return point.n_max or 0


@dataclass(frozen=True, slots=True)
class Settings:
    """Hyper-parameters, chosen on development seeds."""

    doubts: PhysicsDoubt = field(default_factory=PhysicsDoubt)
    rules: race.Rules = field(default_factory=race.Rules)
    deep: int = 8
    """Length of the deep probe."""
    gated: int = 6
    """Length of the gated probe."""
    gate: float = 0.75
    copied: int = 48
    race: int = 3
    """How many of the last boots may go to a race."""
    confirmed: int = 2
    """Boots that the point to be promoted must have, where the budget allows."""
    fresh: int = 2
    """Likewise of the start: one of them is a fresh baseline at the end."""
    plain: float = 4.0
    """A gap of so many times what boots make of nothing needs no second boot of the point. A fresh one of the start is
    always made: what its only boot lost to someone else's work looks like a gain of every other point."""
    hopeless: float = 3.0
    """Standard deviations by which a point must be worse than the best one to be left out for good."""
    enough: float = 1e-6
    """Stop exploring before the budget when no boot is expected to gain more than this share."""


class SpecTuner:
    """Implements `problem.Tuner`. Raises `UsageError` for a task whose start is not among its points."""

    def __init__(self, task: Task, seed: int = 0, settings: Settings | None = None) -> None:
        if task.start not in task.points:
            raise UsageError(f"start {task.start.name}: it must be one of the points to choose from")
        self.task, self.settings = task, settings or Settings()
        # Nothing is drawn: the seed only orders points that are worth the same.
        self._order = np.random.default_rng(seed).permutation(len(task.points)) * 1e-12
        kinds = tuple(dict.fromkeys(kind for kind, _ in task.workload.shares))
        self._weights = weights_of(kinds, task.workload)
        self.field = Field.of(task.points, kinds, self.settings.doubts)
        self._start = task.points.index(task.start)
        self._results: list[BootResult] = []
        self._tallies: list[BootTally] = []
        self._failed: dict[int, BootResult] = {}
        self._asked: NextBoot | None = None
        self._surface: Surface | None = None
        self._parameters: Parameters | None = None
        self._fitted = 0
        self._probes = self._plan()

    @property
    def results(self) -> tuple[BootResult, ...]:
        """What it was told: all the state there is."""
        return tuple(self._results)

    def ask(self) -> NextBoot | None:
        """The next boot; the same until it was told."""
        if self._asked is None and len(self._results) < self.task.budget.restarts:
            self._asked = self._next()
        return self._asked

    def tell(self, result: BootResult) -> None:
        """What a boot measured. Raises `UsageError` for a point that is not the task's."""
        if result.point not in self.field.points:
            raise UsageError(f"result of {result.point.name}: no point of this task")
        self._asked = None
        self._results.append(result)
        place = self.field.points.index(result.point)
        if result.failure:
            self._rule_out(place, result)
        tally = BootTally(result, self.field.kinds)
        if tally.prompt:
            self._tallies.append(tally)
            self._surface = None

    def outcome(self) -> TuneOutcome:
        """The verdict so far."""
        start, boots = self.task.start, len(self._results)
        surface = self.surface()
        if surface is None or self._start not in surface.booted:
            return TuneOutcome(start, False, restarts=boots, why=_why_unmeasured(self._results))
        verdict, least = self._verdict(surface, self._posterior(surface)), self.task.least_gain
        noise = surface.timing.noise
        is_more = noise >= max(self.field.doubts.boots)
        said = noise_words(noise, is_more=is_more)
        if verdict is None:
            why = _why_none_better(sum(place not in self._failed for place in surface.booted.tolist()), said)
            return TuneOutcome(start, False, restarts=boots, why=why, noise=noise, noise_is_more=is_more)
        best, confirmed = self.field.points[verdict.place], verdict.against >= self.settings.fresh
        ok = verdict.promoted(least) and (confirmed or self.remaining() > 0)
        why = _verdict_words(best, verdict, least, said, confirmed=confirmed)
        chosen = best if ok else start
        return TuneOutcome(
            chosen, ok, verdict.gain, verdict.low, verdict.high, boots, why, noise, confirmed, noise_is_more=is_more
        )

    def remaining(self) -> int:
        """Restarts that it will ask for at most."""
        return max(self.task.budget.restarts - len(self._results), 0)

    def _rule_out(self, place: int, failed: BootResult) -> None:
        """The point, and where memory ran out those that need as much; what did boot before needs no guess."""
        self._failed.setdefault(place, failed)
        if not failed.out_of_memory:
            return
        booted = {self.field.points.index(result.point) for result in self._results if not result.failure}
        for other in outgrown(self.field.points, place):
            if other not in booted:
                self._failed.setdefault(other, failed)

    def _next(self) -> NextBoot | None:
        left, points = self.task.budget.restarts - len(self._results), self.field.points
        measured = [points.index(result.point) for result in self._results]
        for place, why in self._probes:
            if place not in measured and place not in self._failed:
                return NextBoot(points[place], Stage.CALIBRATE, why)
        surface = self.surface()
        if surface is None or self._start in self._failed:
            return None
        posterior = self._posterior(surface)
        verdict = self._verdict(surface, posterior)
        asked = self._confirmed(verdict, left) or (self._raced(verdict) if left <= self.settings.race else None)
        if asked is not None:
            return asked
        kept_back = max(self.settings.fresh - measured.count(self._start), 0)
        return (
            self._explored(surface, posterior, left - kept_back)
            or self._confirmed(verdict, 0)
            or self._raced(verdict)
            or self._plain_engine(surface)
        )

    def _explored(self, surface: Surface, posterior: Posterior, left: int) -> NextBoot | None:
        """The boot that is worth the most, of so many that are left to explore; None where none is worth anything."""
        points = self.field.points
        candidates = self._candidates(posterior)
        booted = np.zeros(len(points), dtype=bool)
        booted[surface.booted] = True
        outgrown = [place for place, failed in self._failed.items() if failed.out_of_memory]
        fits = chance_to_fit(points, surface.booted.tolist(), outgrown)
        # Any point may be chosen after later boots; what is booted last, or surely best, must be booted to be chosen.
        for choosable in (booted,) if left <= 1 else (np.ones_like(booted), booted):
            choosable[list(self._failed)] = False
            value = worth(posterior, candidates, choosable, surface.timing.noise) * fits[candidates]
            value += self._order[candidates]
            if value.max() >= self.settings.enough:
                chosen = int(candidates[np.argmax(value)])
                ruled_out = len(points) - len(self._failed) - candidates.size
                why = _why_explored(posterior, surface, chosen, float(value.max()), ruled_out)
                return NextBoot(points[chosen], Stage.EXPLORE, why)
        return None

    def _plain_engine(self, surface: Surface) -> NextBoot | None:
        """No run ends with boots to spare before the engine without drafts was measured: it is what no one doubts."""
        for place, point in enumerate(self.field.points):
            if not point.types and place not in self._failed and place not in surface.booted:
                return NextBoot(point, Stage.EXPLORE, _WHY_OFF)
        return None

    def _confirmed(self, verdict: RaceVerdict | None, left: int) -> NextBoot | None:
        """The boots that a promotion still lacks, when there is only budget for them."""
        if verdict is None or verdict.hope < self.task.least_gain or not (verdict.winnable or left <= 1):
            return None
        plain = verdict.low > 0 and verdict.gap > self.settings.plain * verdict.error
        lacking = [self._start] * (self.settings.fresh - verdict.against)
        lacking += [] if plain else [verdict.place] * (self.settings.confirmed - verdict.boots)
        if not lacking or left > len(lacking):
            return None
        why = _why_confirmed(self.field.points[verdict.place], verdict, fresh=lacking[0] == self._start)
        return NextBoot(self.field.points[lacking[0]], Stage.CONFIRM, why)

    def _raced(self, verdict: RaceVerdict | None) -> NextBoot | None:
        """The best point against the start, whichever has fewer boots, where it is not yet sure."""
        if verdict is None or verdict.hope < self.task.least_gain or verdict.low > 0 or not verdict.winnable:
            return None
        place = verdict.place if verdict.boots <= verdict.against else self._start
        return NextBoot(self.field.points[place], Stage.RACE, _why_raced(self.field.points[verdict.place], verdict))

    def _candidates(self, posterior: Posterior) -> Ints:
        """Points that may still be booted: those that failed, and those that the physics rules out, are not."""
        alive = np.array([place for place in range(len(self.field.points)) if place not in self._failed])
        sd = posterior.sd
        best = alive[np.argmin(posterior.mean[alive] + sd[alive])]
        limit = posterior.mean[best] + self.settings.hopeless * sd[best]
        hopeful = posterior.mean[alive] - self.settings.hopeless * sd[alive] <= limit
        return np.asarray(alive[hopeful])

    def _verdict(self, surface: Surface, posterior: Posterior) -> RaceVerdict | None:
        order = [
            int(place)
            for place in surface.booted[np.argsort(posterior.mean[surface.booted], kind="stable")]
            if place not in self._failed
        ]
        return race.verdict(
            surface, order, self._start, self._tallies, self._weights, self.settings.rules, self.task.least_gain
        )

    def _posterior(self, surface: Surface) -> Posterior:
        return surface.posterior(self._weights)

    def surface(self) -> Surface | None:
        """What all boots together say; None before anything was measured."""
        if self._surface is None and self._tallies:
            points = {tally.point for tally in self._tallies}
            again = len(points) == self._fitted
            self._surface = survey(self.field, self._tallies, self._parameters, same_text=again)
            self._parameters, self._fitted = self._surface.parameters, len(points)
        return self._surface

    def _plan(self) -> list[tuple[int, str]]:
        """The boots that tell the most, whatever they show."""
        design, settings = self.field.design, self.settings
        depth, copy = np.log1p(design.depth), np.log1p(design.copy)
        plan = [(self._start, _WHY_START)]
        if design.depth.any():
            off = 9.0 * (design.copy > 0) + 9.0 * design.gate
            plan.append((int(np.argmin(np.abs(depth - np.log1p(settings.deep)) + off)), _WHY_DEEP))
        away = np.abs(depth - np.log1p(settings.gated)) + np.abs(design.gate - settings.gate)
        plan.append((int(np.argmin(away + np.abs(copy - np.log1p(settings.copied)))), _WHY_GATED))
        if not design.depth.any():
            plan.append((int(np.argmin(design.copy)), _WHY_OFF))
        return list({place: (place, why) for place, why in reversed(plan)}.values())[::-1]


def weights_of(kinds: tuple[str, ...], workload: WorkloadShares) -> Floats:
    """The classes' shares of the tokens."""
    shares = dict(workload.shares)
    return np.array([shares.get(kind, 0.0) for kind in kinds])


# What the tuner says of its steps and its verdict, in sentences for people.

_WHY_START = "the configuration in force, which everything is compared with"
_WHY_DEEP = "a deep draft without a gate tells how many tokens are right at every position, and what each costs"
_WHY_GATED = "a gated draft beside n-grams tells what the gate keeps and how much of the text is copied"
_UNCONFIRMED = "no fresh boot of the start confirmed it"
_WHY_OFF = "without drafts, to know what a plain step costs"


def _why_explored(posterior: Posterior, surface: Surface, chosen: int, value: float, ruled_out: int) -> str:
    """Why this point is booted next."""
    best = int(surface.booted[np.argmin(posterior.mean[surface.booted])])
    ahead = float(np.expm1(posterior.mean[best] - posterior.mean[chosen]))
    again, doubt = chosen in surface.booted, percent(float(posterior.sd[chosen]), 1)
    reason = (
        "booted again, because boots differ by more than the best points do"
        if again
        else f"predicted {change(ahead)} against the best one measured, give or take {doubt}"
    )
    pruned = f"; {ruled_out} points are ruled out" if ruled_out else ""
    return f"{reason}; one boot of it is expected to better the final choice by {percent(max(value, 0.0), 2)}{pruned}"


def _why_raced(best: Point, verdict: RaceVerdict) -> str:
    """Why a point that was booted already is booted again."""
    return (
        f"{best.name} is {change(verdict.gain)} against the start, and the lower bound "
        f"{change(verdict.low)} is not above 0: "
        "both are booted in turn"
    )


def _why_confirmed(best: Point, verdict: RaceVerdict, *, fresh: bool) -> str:
    """Why the boots of the end are what they are."""
    what = "a fresh boot of the start" if fresh else "a boot that did not choose it"
    return f"{best.name} is {change(verdict.gain)} against the start: {what} confirms it, or does not"


def _why_unmeasured(results: Sequence[BootResult]) -> str:
    """Why nothing can be said."""
    failures = [result.failure for result in results if result.failure]
    return f"the start was not measured: {failures[0]}" if failures else "nothing was measured yet"


def _why_none_better(points: int, noise: str) -> str:
    """Why the start stays, where no point looked better."""
    return (
        f"no improvement found: by what all boots together say, none of the {points} points that were booted and "
        f"keep the limits is better than the start (boots of one configuration differ by {noise})"
    )


def _verdict_words(best: Point, verdict: RaceVerdict, least: float, noise: str, *, confirmed: bool) -> str:
    """The verdict, with its evidence."""
    evidence = (
        f"{best.name} is {change(verdict.gain)} against the start, {between(verdict.low, verdict.high)}, "
        f"from {counted(verdict.boots, 'boot')} of it and {verdict.against} of the start; "
        f"boots of one configuration differ by {noise}"
    )
    if verdict.promoted(least):
        return evidence if confirmed else f"{evidence}; {_UNCONFIRMED}"
    if verdict.low > 0:
        return f"no improvement found: {evidence}; that is less than the {percent(least)} that are worth a restart"
    return f"no improvement found: {evidence}; the interval holds no gain too"
