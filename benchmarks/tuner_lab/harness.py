"""Judges tuners on grounds whose true speeds are known: how much they leave on the table, and whom they harm.

`judge` drives one tuner on one ground; `run` on many simulated ones. The seeds that are set aside are opened by a flag
alone, and every opening is written down. Terms: *regret* is what the chosen point's true speed lacks to the best
point's; *harm* is a choice whose true speed is below 99 % of the start's.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from benchmarks.tuner_lab.grid import GENERATOR, HARM, HELD_OUT, OPENED, Equal, Noise
from benchmarks.tuner_lab.simulator import Environment
from specdash.core.errors import UsageError
from specdash.system.text import utc_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from specdash.tune.model.problem import BootResult, NextBoot, Point, Task, TuneOutcome, Tuner

    Factory = Callable[[Task, int], Tuner]

HARMED = 0.99
_RESAMPLES = 4000


class Ground(Protocol):
    """What a tuner can be judged on."""

    def task(self, budget: int) -> Task:
        """What it is given."""

    def boot(self, point: Point, number: int) -> BootResult:
        """What boot `number` measures."""

    def true_speed(self, point: Point) -> float:
        """Tokens per second without any disturbance."""

    def regret(self, point: Point) -> float:
        """Share of the best true speed that the point lacks."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One tuner on one ground."""

    seed: int
    start: str
    chosen: str
    regret: float
    start_regret: float
    ratio: float
    """True speed of the choice over that of the start."""
    restarts: int
    improved: bool
    gain: float | None
    covered: bool | None
    """Whether the true gain lies in the interval that was told; None where none was."""
    thought_s: float
    """Processor time of the tuner, all decisions together."""
    slowest_s: float
    """Its longest decision."""

    @property
    def harmed(self) -> bool:
        """Whether the service would have been better left alone."""
        return self.ratio < HARMED


@dataclass(frozen=True, slots=True)
class Figure:
    """A statistic over grounds with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Score:
    """All trials of one tuner under one condition, summed up."""

    tuner: str
    noise: str
    restarts: int
    equal: Equal
    grounds: int
    within_97: Figure
    within_95: Figure
    median_regret: Figure
    p95_regret: Figure
    mean_regret: Figure
    worst_regret: float
    harmed: Figure
    promoted: Figure
    """Share of grounds on which something else than the start was chosen: false promotions where all are equal."""
    covered: float | None
    mean_restarts: float
    mean_thought_s: float
    slowest_s: float
    generator: int = GENERATOR
    trials: tuple[Trial, ...] = field(default=(), repr=False)


def judge(factory: Factory, ground: Ground, budget: int, seed: int) -> Trial:
    """Drives one tuner to its end. Raises `UsageError` for one that asks for more boots than it was given."""
    task = ground.task(budget)
    tuner = _Timed(factory, task, seed)
    boots = 0
    while (wanted := tuner.ask()) is not None:
        if boots >= budget:
            raise UsageError(f"the tuner asks for boot {boots + 1}: its budget is {budget}")
        tuner.tell(ground.boot(wanted.point, boots))
        boots += 1
    outcome = tuner.outcome()
    before = ground.true_speed(task.start)
    ratio = ground.true_speed(outcome.chosen) / before
    covered = None
    if outcome.improved and outcome.low is not None and outcome.high is not None:
        covered = outcome.low <= ratio - 1 <= outcome.high
    return Trial(
        seed=seed,
        start=task.start.name,
        chosen=outcome.chosen.name,
        regret=ground.regret(outcome.chosen),
        start_regret=ground.regret(task.start),
        ratio=ratio,
        restarts=boots,
        improved=outcome.chosen != task.start,
        gain=outcome.gain,
        covered=covered,
        thought_s=tuner.thought_s,
        slowest_s=tuner.slowest_s,
    )


class _Timed:
    """A tuner, and the processor time it takes."""

    def __init__(self, factory: Factory, task: Task, seed: int) -> None:
        self.thought_s = self.slowest_s = 0.0
        began = time.process_time()
        self._tuner = factory(task, seed)
        self._count(began)

    def ask(self) -> NextBoot | None:
        began = time.process_time()
        wanted = self._tuner.ask()
        self._count(began)
        return wanted

    def tell(self, result: BootResult) -> None:
        began = time.process_time()
        self._tuner.tell(result)
        self._count(began)

    def outcome(self) -> TuneOutcome:
        began = time.process_time()
        found = self._tuner.outcome()
        self._count(began)
        return found

    def _count(self, began: float) -> None:
        took = time.process_time() - began
        self.thought_s += took
        self.slowest_s = max(self.slowest_s, took)


def run(
    factory: Factory,
    name: str,
    noise: Noise,
    seeds: Sequence[int],
    budget: int,
    *,
    equal: Equal = Equal.NOTHING,
    held_out: bool = False,
    ledger: Path | None = None,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Score:
    """One tuner on one simulated environment a seed. Raises `UsageError` for set-aside seeds without `held_out`.

    Opened seeds are appended to `ledger`, a file of JSON lines, before the first of them is drawn.
    """
    opened = set_aside(seeds)
    if opened and not held_out:
        raise UsageError(f"seeds {opened[0]} to {opened[-1]} are set aside: they are opened with --held-out alone")
    if opened and ledger is not None:
        write_down(ledger, name, noise, opened, budget, equal=equal)
    trials = []
    for done, seed in enumerate(seeds):
        trials.append(judge(factory, Environment.draw(seed, noise, equal=equal), budget, seed))
        progress(done + 1, len(seeds))
    return score(trials, name, noise, budget, equal=equal)


def set_aside(seeds: Iterable[int]) -> list[int]:
    """Those of the seeds that no tuner may be tuned on."""
    ranges = (*HELD_OUT.values(), HARM, *OPENED)
    return [seed for seed in seeds if any(seed in span for span in ranges)]


def write_down(ledger: Path, name: str, noise: Noise, seeds: list[int], budget: int, *, equal: Equal) -> None:
    """Adds one line on which seeds were opened, by what, and when."""
    entry = {
        "at": utc_timestamp(time.time()),
        "tuner": name,
        "noise": noise.value,
        "restarts": budget,
        "equal": equal,
        "first": seeds[0],
        "last": seeds[-1],
        "count": len(seeds),
        "generator": GENERATOR,
    }
    ledger.parent.mkdir(parents=True, exist_ok=True)
    with ledger.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def score(trials: Sequence[Trial], name: str, noise: str, budget: int, *, equal: Equal = Equal.NOTHING) -> Score:
    """Sums up. Raises `UsageError` where there is no trial."""
    if not trials:
        raise UsageError("no seed was given: there is nothing to sum up")
    regrets = np.array([trial.regret for trial in trials])
    known = [trial.covered for trial in trials if trial.covered is not None]
    return Score(
        tuner=name,
        noise=str(noise),
        restarts=budget,
        equal=equal,
        grounds=len(trials),
        within_97=share(regrets <= 0.03),
        within_95=share(regrets <= 0.05),
        median_regret=figure(regrets, lambda some: np.median(some, axis=-1)),
        p95_regret=figure(regrets, lambda some: np.quantile(some, 0.95, axis=-1)),
        mean_regret=figure(regrets, lambda some: some.mean(axis=-1)),
        worst_regret=float(regrets.max()),
        harmed=share(np.array([trial.harmed for trial in trials])),
        promoted=share(np.array([trial.improved for trial in trials])),
        covered=sum(known) / len(known) if known else None,
        mean_restarts=float(np.mean([trial.restarts for trial in trials])),
        mean_thought_s=float(np.mean([trial.thought_s for trial in trials])),
        slowest_s=max(trial.slowest_s for trial in trials),
        trials=tuple(trials),
    )


def figure(values: NDArray[np.float64], statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Figure:
    """A statistic with the percentile interval of its bootstrap over grounds."""
    resampled = statistic(values[_picks(len(values))])
    low, high = np.quantile(resampled, (0.025, 0.975))
    return Figure(float(statistic(values)), float(low), float(high))


def share(values: NDArray[np.bool_]) -> Figure:
    """A share with its bootstrap interval; exact at 0 and 1, where the bootstrap knows of no uncertainty."""
    plain = figure(values.astype(np.float64), lambda some: some.mean(axis=-1))
    rest = 1 - 0.025 ** (1 / len(values))
    if plain.value == 0.0:
        return Figure(0.0, 0.0, rest)
    return Figure(1.0, 1 - rest, 1.0) if plain.value == 1.0 else plain


def paired(item: Score, other: Score) -> dict[str, Figure]:
    """How much better `one` is than `other` on the same seeds: shares within 97 and 95 %, mean and 95 % regret.

    Positive is better. Raises `UsageError` where the seeds differ.
    """
    if [trial.seed for trial in item.trials] != [trial.seed for trial in other.trials]:
        raise UsageError(f"{item.tuner} and {other.tuner} were run on different seeds: they cannot be paired")
    left = np.array([trial.regret for trial in item.trials])
    right = np.array([trial.regret for trial in other.trials])
    picks = _picks(len(left))
    statistics: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
        "within_97": lambda some: (some <= 0.03).mean(axis=-1),
        "within_95": lambda some: (some <= 0.05).mean(axis=-1),
        "mean_regret": lambda some: -some.mean(axis=-1),
        "p95_regret": lambda some: -np.quantile(some, 0.95, axis=-1),
    }
    found = {}
    for name, statistic in statistics.items():
        low, high = np.quantile(statistic(left[picks]) - statistic(right[picks]), (0.025, 0.975))
        found[name] = Figure(float(statistic(left) - statistic(right)), float(low), float(high))
    return found


def as_json(item: Score) -> dict[str, object]:
    """The score with every trial, as JSON takes it."""
    return asdict(item)


def _picks(count: int) -> NDArray[np.int64]:
    return np.random.default_rng(count).integers(count, size=(_RESAMPLES, count))
