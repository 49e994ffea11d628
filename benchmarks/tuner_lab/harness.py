"""Judges the tuner on machines whose true speeds are known, against random search on the same ones.

    python -m benchmarks.tuner_lab.harness [--seeds N] [--first SEED] [--noise quiet|noisy] [--restarts N]

*Regret* is what the chosen point's true speed lacks to the best point's; *harm* is a choice whose true speed is below
99 % of the start's. Nothing was tuned on seeds from 1000 on, with which it begins.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.tuner_lab.grid import Noise
from benchmarks.tuner_lab.simulator import Environment
from specdash.core.errors import UsageError
from specdash.tune.model.problem import NextBoot, Stage, TuneOutcome, mixture_speed
from specdash.tune.model.tuner import SpecTuner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.tune.model.problem import BootResult, Point, Task, Tuner

HARMED = 0.99
HELD_OUT = 1000


class RandomSearch:
    """Boots points by chance, the start first, and takes the fastest."""

    def __init__(self, task: Task, seed: int) -> None:
        others = [point for point in task.points if point != task.start]
        order = np.random.default_rng(seed).permutation(len(others))
        self._task, self._wanted = task, [task.start, *(others[at] for at in order)][: task.budget.restarts]
        self._speeds: dict[Point, float] = {}

    def ask(self) -> NextBoot | None:
        """The next one."""
        at = len(self._speeds)
        return NextBoot(self._wanted[at], Stage.EXPLORE, "by chance") if at < len(self._wanted) else None

    def tell(self, result: BootResult) -> None:
        """Keep its speed."""
        self._speeds[result.point] = mixture_speed(result.prompts, self._task.workload) or 0.0

    def outcome(self) -> TuneOutcome:
        """The fastest."""
        chosen = max(self._speeds, key=self._speeds.__getitem__)
        return TuneOutcome(chosen, improved=chosen != self._task.start)


@dataclass(frozen=True, slots=True)
class Trial:
    """One tuner on one ground. `ratio` is the true speed of the choice over that of the start."""

    seed: int
    start: str
    chosen: str
    regret: float
    ratio: float
    restarts: int
    improved: bool
    covered: bool | None
    """Whether the true gain lies in the stated interval; None without one."""

    @property
    def harmed(self) -> bool:
        """Whether the service would have been better left alone."""
        return self.ratio < HARMED


def judge(factory: Callable[[Task, int], Tuner], ground: Environment, budget: int, seed: int) -> Trial:
    """Drives one tuner to its end. Raises `UsageError` for one that asks for more boots than its budget."""
    task = ground.task(budget)
    tuner = factory(task, seed)
    boots = 0
    while (wanted := tuner.ask()) is not None:
        if boots >= budget:
            raise UsageError(f"the tuner asks for boot {boots + 1}: its budget is {budget}")
        tuner.tell(ground.boot(wanted.point, boots))
        boots += 1
    outcome = tuner.outcome()
    ratio = ground.true_speed(outcome.chosen) / ground.true_speed(task.start)
    covered = None
    if outcome.improved and outcome.low is not None and outcome.high is not None:
        covered = outcome.low <= ratio - 1 <= outcome.high
    regret, improved = ground.regret(outcome.chosen), outcome.chosen != task.start
    return Trial(seed, task.start.name, outcome.chosen.name, regret, ratio, boots, improved, covered)


def summary(trials: Sequence[Trial]) -> dict[str, Any]:
    """The figures over all grounds; shares are of 1."""
    regrets = np.array([trial.regret for trial in trials])
    known = [trial.covered for trial in trials if trial.covered is not None]
    return {
        "grounds": len(trials),
        "within_97": float(np.mean(regrets <= 0.03)),
        "median_regret": float(np.median(regrets)),
        "p95_regret": float(np.quantile(regrets, 0.95)),
        "harmed": float(np.mean([trial.harmed for trial in trials])),
        "promoted": float(np.mean([trial.improved for trial in trials])),
        "covered": float(np.mean(known)) if known else None,
        "restarts": float(np.mean([trial.restarts for trial in trials])),
    }


def main() -> None:
    """Judge the tuner and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=HELD_OUT)
    parser.add_argument("--noise", choices=[*Noise], default=Noise.QUIET)
    parser.add_argument("--restarts", type=int, default=12)
    args = parser.parse_args()
    grounds = [Environment.draw(seed, args.noise) for seed in range(args.first, args.first + args.seeds)]
    tuners: dict[str, Callable[[Task, int], Tuner]] = {"tuner": SpecTuner, "random search": RandomSearch}
    figures = {
        name: summary([judge(tuner, ground, args.restarts, ground.seed) for ground in grounds])
        for name, tuner in tuners.items()
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
