"""What a tuner believes of every point, and what it would say of another mix: for judging it, not for tuning."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from specdash.system.data import dataclass
from specdash.tune.model.problem import WorkloadShares
from specdash.tune.model.tuner import SpecTuner, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.tune.model.problem import BootResult, Point, Task, TuneOutcome


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed of a point, from all boots together."""

    point: Point
    speed: float
    """Tokens per second on the task's workload."""
    sd: float
    """Standard deviation of the speed's logarithm."""


def from_results(task: Task, results: Iterable[BootResult]) -> SpecTuner:
    """The tuner that was told these results in this order."""
    tuner = SpecTuner(task)
    for result in results:
        tuner.ask()
        tuner.tell(result)
    return tuner


def beliefs(tuner: SpecTuner, workload: WorkloadShares | None = None) -> tuple[Belief, ...]:
    """Every point's predicted speed, the best first; empty before anything was measured."""
    surface = tuner.surface()
    if surface is None:
        return ()
    posterior = surface.posterior(weights_of(tuner.field.kinds, workload or tuner.task.workload))
    return tuple(
        Belief(tuner.field.points[place], float(np.exp(-posterior.mean[place])), float(posterior.sd[place]))
        for place in np.argsort(posterior.mean, kind="stable").tolist()
    )


def on_another_mix(tuner: SpecTuner, workload: WorkloadShares) -> TuneOutcome:
    """The verdict for another mix of the same classes, from the same boots: nothing is restarted."""
    shares, kinds = dict(workload.shares), tuner.field.kinds
    mix = WorkloadShares(tuple((kind, shares.get(kind, 0.0)) for kind in kinds))
    other = SpecTuner(replace(tuner.task, workload=mix), settings=tuner.settings)
    for result in tuner.results:
        other.tell(result)
    return other.outcome()
