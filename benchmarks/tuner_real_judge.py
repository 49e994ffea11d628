"""How much a choice loses, by a sweep of real boots.

*Regret* of a point is 1 - its speed / the best point's. The best of many single measurements is partly the luckiest, so
the best is never judged by the boots that made it the best: for every round of the sweep, it is chosen by all other
rounds, and this round says how it compares with the point that is judged; regret is the mean over rounds. Both were
booted in the same round, minutes apart at most. A point as good as the best so has a regret around 0, of either sign.
`naive` is 1 - speed / the largest mean speed, and too large by the luck of the largest.

*Intervals* (95 %) are of a bootstrap: prompts are drawn again within each class, the same for all points; boots are
drawn again as the noise that all points' boots show together (logarithms, without each point's and each round's mean,
scaled for what those means took), because three boots a point tell too little of their own; the runs of the tuner are
drawn again. Selection and judgement are done anew in every draw. What the draws add to the figure by being noisier than
it is taken off: the interval is the figure plus the quantiles of the draws around their own mean.

A way to choose is its weights over points, by round that it is judged by: what it saw must be of other rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.tuner_lab.beliefs import beliefs, from_results
from benchmarks.tuner_lab.harness import Figure
from specdash.tune.model.heuristic import Knobs
from specdash.tune.model.heuristic import tune as formula
from specdash.tune.model.problem import BootResult, Point, PromptResult, mixture_speed
from specdash.tune.model.tuner import SpecTuner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from benchmarks.tuner_real_cells import SweepBoot
    from specdash.tune.model.problem import Task

    Floats = NDArray[np.float64]

DRAWS = 2000
RANDOM_DRAWS = 400
REPLAYS = 6
"""Runs of the tuner on recorded boots, for each round that is held out."""
_ROLLED_BACK = 0.35
_FORMULA_BOOTS = 4


@dataclass(frozen=True, slots=True)
class Judged:
    """What a way to choose loses against the best, and gains over the start."""

    regret: Figure
    naive: float
    gain: Figure


class Sweep:
    """The boots of a cell. Raises `ValueError` without one whole round."""

    def __init__(self, task: Task, boots: Sequence[SweepBoot]) -> None:
        self.task = task
        held = {(boot.result.point, boot.turn): boot.result for boot in boots if not boot.result.failure}
        turns = [turn for turn in sorted({boot.turn for boot in boots}) if _whole(held, task.points, turn)]
        self.points = tuple(point for point in task.points if any((point, turn) in held for turn in turns))
        self.failed = tuple(point for point in task.points if point not in self.points)
        self.turns = [turn for turn in turns if all((point, turn) in held for point in self.points)]
        if not self.turns or task.start not in self.points:
            raise ValueError("no round of all points was measured")
        self.results = [[held[point, turn] for turn in self.turns] for point in self.points]
        self.start = self.points.index(task.start)
        first = self.results[0][0].prompts
        self.prompts = [prompt_result.prompt for prompt_result in first]
        self._kinds = np.array([prompt_result.kind for prompt_result in first])
        self._shares = dict(task.workload.shares)
        self._seconds = np.array([[_column(boot, self.prompts, seconds=True) for boot in row] for row in self.results])
        self._tokens = np.array([[_column(boot, self.prompts, seconds=False) for boot in row] for row in self.results])
        """(point, round, prompt)"""
        self._drawn: tuple[Floats, ...] | None = None
        self.cost = self._cost(np.ones(len(self.prompts)))
        """Seconds a token of the workload: (point, round)."""

    def on(self, shares: dict[str, float]) -> Sweep:
        """The same boots on another mix."""
        other = object.__new__(Sweep)
        other.__dict__.update(self.__dict__)
        other._shares = shares
        other._drawn = None
        other.cost = other._cost(np.ones(len(self.prompts)))
        return other

    @property
    def mean_cost(self) -> Floats:
        """Seconds a token of each point, over all rounds."""
        return np.asarray(self.cost.mean(1))

    @property
    def best(self) -> int:
        """The point that was fastest in all."""
        return int(np.argmin(self.mean_cost))

    @property
    def noise(self) -> float | None:
        """Standard deviation of the logarithm of speed from boot to boot, None with one round."""
        return float(self._residuals().std()) if len(self.turns) > 1 else None

    def place(self, point: Point) -> int:
        """Of a point among those that were measured; the start for one that was not."""
        return self.points.index(point) if point in self.points else self.start

    def certainly(self, *points: Point) -> Floats:
        """Weights of a way that chose these, each as often: (round, point)."""
        weights = np.zeros((len(self.turns), len(self.points)))
        for point in points:
            weights[:, self.place(point)] += 1 / len(points)
        return weights

    def others(self, turn: int) -> list[int]:
        """The rounds that may choose where this one judges; itself where there is no other."""
        return [index for index in range(len(self.turns)) if index != turn] or [turn]

    def judge(self, weights: Floats, runs: Sequence[Point] = ()) -> Judged:
        """`runs` are the choices of the runs that the weights are of, so that they are drawn again."""
        values = np.array([(weights * row).sum(1).mean() for row in (self._regrets(self.cost), self._gains(self.cost))])
        some = np.broadcast_to(weights, (DRAWS, *weights.shape))
        if runs:
            places = np.array([self.place(run) for run in runs])
            chosen = np.random.default_rng(9).choice(places, (DRAWS, places.size))
            counts = (chosen[:, :, None] == np.arange(len(self.points))).mean(1)
            some = np.broadcast_to(counts[:, None, :], some.shape)
        drawn = np.stack([(some * draw).sum(2).mean(1) for draw in self._draws()], axis=1)
        spread = drawn - drawn.mean(0)
        low, high = np.quantile(spread, (0.025, 0.975), axis=0)
        figures = [Figure(*(float(x) for x in (v, v + a, v + b))) for v, a, b in zip(values, low, high, strict=True)]
        mean = self.mean_cost
        naive = float((weights.mean(0) * (1 - mean.min() / mean)).sum())
        return Judged(figures[0], naive, figures[1])

    def _draws(self) -> tuple[Floats, Floats]:
        """Regrets and gains of every draw: (draw, round, point)."""
        if self._drawn is None:
            random = np.random.default_rng(7)
            pool = self._residuals().ravel()
            costs = []
            for _ in range(DRAWS):
                base = self._cost(self._drawn_prompts(random)).mean(1)
                costs.append(base[:, None] * np.exp(random.choice(pool, self.cost.shape)))
            self._drawn = tuple(np.stack([of(cost) for cost in costs]) for of in (self._regrets, self._gains))
        return self._drawn[0], self._drawn[1]

    def _regrets(self, cost: Floats) -> Floats:
        """(round, point): the best is chosen by the other rounds."""
        even = cost / cost.mean(0)
        found = np.empty((cost.shape[1], cost.shape[0]))
        for turn in range(cost.shape[1]):
            best = int(np.argmin(even[:, self.others(turn)].mean(1)))
            found[turn] = 1 - cost[best, turn] / cost[:, turn]
        return found

    def _gains(self, cost: Floats) -> Floats:
        return np.asarray((cost[self.start] / cost - 1).T)

    def _cost(self, prompts: Floats) -> Floats:
        """With so many of each prompt."""
        total = np.zeros(self._seconds.shape[:2])
        for kind, share in self._shares.items():
            of = prompts * (self._kinds == kind)
            if share > 0:
                total += share * (self._seconds @ of) / (self._tokens @ of)
        return total

    def _drawn_prompts(self, random: np.random.Generator) -> Floats:
        counts = np.zeros(len(self.prompts))
        for kind in set(self._kinds.tolist()):
            own = np.flatnonzero(self._kinds == kind)
            np.add.at(counts, random.choice(own, own.size), 1.0)
        return counts

    def _residuals(self) -> Floats:
        logs = np.log(self.cost)
        count, rounds = logs.shape
        if rounds < 2 or count < 2:
            return np.zeros_like(logs)
        left = logs - logs.mean(1, keepdims=True) - logs.mean(0, keepdims=True) + logs.mean()
        return np.asarray(left * np.sqrt(count * rounds / ((count - 1) * (rounds - 1))))


def random_search(sweep: Sweep, boots: int = 12) -> Floats:
    """The start and other points drawn without putting back, one boot each; the fastest is taken."""
    random = np.random.default_rng(3)

    def choose(turn: int) -> int:
        rest = [index for index in range(len(sweep.points)) if index != sweep.start]
        some = [sweep.start, *random.permutation(rest)[: boots - 1].tolist()]
        seen = [sweep.cost[entry, random.choice(sweep.others(turn))] for entry in some]
        return int(some[int(np.argmin(seen))])

    return _weights(sweep, choose, RANDOM_DRAWS)


def swept_once(sweep: Sweep) -> Floats:
    """Every point booted once, all in one round; the fastest is taken."""
    random = np.random.default_rng(5)
    return _weights(sweep, lambda turn: int(np.argmin(sweep.cost[:, random.choice(sweep.others(turn))])), 40)


def by_formula(sweep: Sweep) -> Point:
    """What UAP's formula says last, rounded to a point of the start's type: draft length, and gate where there is
    one. Counters are the same in every boot, so that the first is as good as any."""
    start = sweep.task.start
    like = [point for point in sweep.points if point.types == start.types]
    knobs, at = Knobs(), start
    for _ in range(_FORMULA_BOOTS):
        prompts = sweep.results[sweep.place(at)][0].prompts
        drafted = sum(prompt.drafted for prompt in prompts)
        if not drafted:
            break
        accepted = sum(prompt.accepted for prompt in prompts) / drafted
        knobs = formula(accepted, (1 - accepted) * _ROLLED_BACK, base=knobs)
        said = min(like, key=lambda point: _far(point, knobs))
        if said == at:
            break
        at = said
    return at


def replayed(sweep: Sweep, restarts: int) -> tuple[Floats, list[BootResult]]:
    """The tuner on recorded boots of other rounds than the one that judges: the choices' weights. Besides, the boots of
    one of these runs."""
    from benchmarks.tuner_real_cells import on

    random = np.random.default_rng(11)
    told: list[BootResult] = []

    def choose(turn: int) -> int:
        tuner = SpecTuner(on(sweep.task, restarts=restarts), seed=int(random.integers(1000)))
        while (asked := tuner.ask()) is not None:
            if asked.point in sweep.points:
                rounds = sweep.results[sweep.points.index(asked.point)]
                tuner.tell(rounds[int(random.choice(sweep.others(turn)))])
            else:
                tuner.tell(BootResult(asked.point, failure="it failed in the sweep"))
        told[:] = tuner.results
        return sweep.place(tuner.outcome().chosen)

    return _weights(sweep, choose, REPLAYS), told


def curve_errors(sweep: Sweep, results: Sequence[BootResult]) -> dict[int, float]:
    """Of the speeds that the tuner predicts of ungated drafts after these boots, by draft length: shares."""
    told = {belief.point: belief.speed for belief in beliefs(from_results(sweep.task, results))}
    return {
        point.n_max: float(told[point] * sweep.mean_cost[place] - 1)
        for place, point in enumerate(sweep.points)
        if point.n_max is not None and not point.p_min and point in told
    }


def _weights(sweep: Sweep, choose: Callable[[int], int], draws: int) -> Floats:
    weights = np.zeros((len(sweep.turns), len(sweep.points)))
    for turn in range(len(sweep.turns)):
        for _ in range(draws):
            weights[turn, choose(turn)] += 1 / draws
    return weights


def _far(point: Point, knobs: Knobs) -> float:
    longest = point.n_max if point.n_max is not None else point.ngram_max or 0
    off = 0.0 if point.n_max is None else 4 * abs((point.p_min or 0.0) - knobs.p_min)
    least = 0.0 if point.ngram_min is None else 0.01 * abs(point.ngram_min - knobs.draft_min)
    return abs(longest - knobs.draft_max) + off + least


def _whole(held: dict[tuple[Point, int], BootResult], points: Sequence[Point], turn: int) -> bool:
    """Whether a round is worth looking at: points that fail always are no reason to drop it, a round cut short is."""
    return sum((point, turn) in held for point in points) >= max(2, len(points) // 2)


def _column(boot: BootResult, prompts: Sequence[str], *, seconds: bool) -> list[float]:
    own: dict[str, PromptResult] = {prompt.prompt: prompt for prompt in boot.prompts}
    rows = [own[prompt] for prompt in prompts if prompt in own]
    if len(rows) != len(prompts):
        # A prompt with impossible figures was left out: the others stand for it.
        rows = [own.get(prompt, rows[0]) for prompt in prompts]
    return [row.seconds if seconds else float(row.tokens) for row in rows]


def speed_of(boot: BootResult, task: Task) -> float:
    """Tokens a second on the task's workload; 0 where it failed."""
    return mixture_speed(boot.prompts, task.workload) or 0.0
