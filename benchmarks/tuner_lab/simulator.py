"""An engine that a tuner can be tried on thousands of times: made-up machines, texts and noise, with their true speeds.

`Environment.draw` makes one from a seed; its boots answer as a real one's would, and what each point is truly worth
is known exactly. It is built unlike any tuner's model on purpose: hidden states of the text instead of hazards by
position, jagged costs with cliffs instead of a line, checkpoints, drift.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.tuner_lab import noise as disturbances
from benchmarks.tuner_lab import rig as rigs
from benchmarks.tuner_lab import text as texts
from benchmarks.tuner_lab.decode import Decoded, Prompts
from benchmarks.tuner_lab.exact import Exact
from benchmarks.tuner_lab.grid import GENERATOR, KINDS, OFF_POINT, PRESETS, Equal, Noise, index, points
from specdash.tune.model.problem import BootResult, Budget, Point, PromptResult, Task, WorkloadShares

if TYPE_CHECKING:
    from numpy.typing import NDArray

PROMPTS_EACH = 6
TOKENS = 256
_SMALL_MEMORY = 0.08
_DRAFT_TIME_TOLD = 0.75
_DRAW, _PROMPTS, _BOOT = range(3)


@dataclass(frozen=True)
class Environment:
    """One machine with one model and one mix of work. Equal seeds are equal in everything."""

    seed: int
    noise: Noise
    equal: Equal
    """Whether all points are made equally fast; counters stay as they would be."""
    rig: rigs.Rig
    text: texts.Text
    disturbance: disturbances.Disturbance
    workload: WorkloadShares
    start: Point
    most_drafted: int | None
    """Draft layers of more tokens than this do not fit in memory."""
    tells_draft_time: bool
    first_token: float

    @classmethod
    def draw(cls, seed: int, noise: Noise | str = Noise.QUIET, *, equal: Equal | bool = False) -> Environment:
        """The environment of this seed; `noise` changes nothing but the noise. `equal=True` is `Equal.PROMPTS`."""
        evened = equal if isinstance(equal, Equal) else Equal.PROMPTS if equal else Equal.NOTHING
        random = np.random.default_rng((GENERATOR, seed, _DRAW))
        rig, text = rigs.draw(random), texts.draw(random)
        shares = random.dirichlet(np.full(len(KINDS), 0.8))
        small = random.random() < _SMALL_MEMORY and evened is Equal.NOTHING
        most = int(random.choice((8, 10))) if small else None
        starts = [preset for preset in PRESETS if _fits(preset, most)]
        start = starts[random.integers(len(starts))]
        told = bool(random.random() < _DRAFT_TIME_TOLD)
        first = float(rig.step[1] * random.uniform(8, 60))
        return cls(
            seed=seed,
            noise=Noise(noise),
            equal=evened,
            rig=rig,
            text=text,
            disturbance=disturbances.draw(Noise(noise), random),
            workload=WorkloadShares(tuple(zip(KINDS, (float(share) for share in shares), strict=True))),
            start=start,
            most_drafted=most,
            tells_draft_time=told,
            first_token=first,
        )

    def task(self, budget: Budget | int = 12) -> Task:
        """What a tuner is given."""
        budget = Budget(budget) if isinstance(budget, int) else budget
        return Task(points(), self.start, self.workload, budget)

    def boot(self, point: Point, number: int) -> BootResult:
        """What boot `number`, the first being 0, measures of a point. The same three numbers give the same answer."""
        place = index()[point]
        if not _fits(point, self.most_drafted):
            return BootResult(point, failure="the draft's compute buffer does not fit", out_of_memory=True)
        random = np.random.default_rng((GENERATOR, self.seed, _BOOT, number, place, self.noise is Noise.NOISY))
        decoded = self._decoded(point)
        factors = self.disturbance.factors(number, len(self._prompts.kinds), random)
        extra = random.normal(0.0, self.disturbance.draft_boot)
        seconds = (decoded.seconds + decoded.draft_seconds * np.expm1(extra)) * factors
        drafting = float((decoded.draft_seconds * factors).sum() * np.exp(extra))
        if self.equal is not Equal.NOTHING:
            seconds = seconds * self._evening(point)
        first = self.first_token * float(np.median(factors)) * (1.0 if point.n_max is None else 1.03)
        return BootResult(
            point,
            tuple(self._results(decoded, seconds)),
            draft_s=drafting if self.tells_draft_time and point.types else None,
            ttft_s=first,
        )

    def true_speed(self, point: Point) -> float:
        """Tokens per second on this workload in the long run, undisturbed; 0 for a point that does not fit."""
        return float(self._speeds[index()[point]])

    @cached_property
    def optimum(self) -> Point:
        """The truly fastest point."""
        return points()[int(np.argmax(self._speeds))]

    def regret(self, point: Point) -> float:
        """What a point's true speed lacks to the optimum's, as a share of it."""
        return 1.0 - self.true_speed(point) / self.true_speed(self.optimum)

    def _results(self, decoded: Decoded, seconds: NDArray[np.float64]) -> list[PromptResult]:
        return [
            PromptResult(
                prompt=f"{kind}-{place % PROMPTS_EACH}",
                kind=kind,
                tokens=TOKENS,
                seconds=float(seconds[place]),
                drafted=int(decoded.drafted[place]),
                accepted=int(decoded.accepted[place]),
                steps=int(decoded.steps[place]),
                accepted_per_position=decoded.accepted_at[place],
            )
            for place, kind in enumerate(self._prompts.kinds)
        ]

    def _decoded(self, point: Point) -> Decoded:
        if point not in self._decodings:
            self._decodings[point] = self._prompts.decode(point, self.rig)
        return self._decodings[point]

    @cached_property
    def _decodings(self) -> dict[Point, Decoded]:
        return {}

    @cached_property
    def _prompts(self) -> Prompts:
        return Prompts(self.text, np.random.default_rng((GENERATOR, self.seed, _PROMPTS)), PROMPTS_EACH, TOKENS)

    @cached_property
    def _unequal(self) -> NDArray[np.float64]:
        """Seconds per token by point and class, before the points are made equal."""
        by_chain = Exact(self.text, self.rig).seconds_per_token(points())
        levels = by_chain.reshape(len(points()), len(KINDS), len(texts.LEVELS))
        return np.asarray(levels @ np.array(texts.LEVELS), dtype=np.float64)

    def _evening(self, point: Point) -> NDArray[np.float64]:
        """By prompt: what makes a point as fast as no speculation."""
        if self.equal is Equal.TEXT:
            now = self._unequal[index()[point]]
        else:
            now = self._decoded(point).seconds.reshape(len(KINDS), PROMPTS_EACH).mean(axis=1) / TOKENS
        return np.repeat(self._unequal[index()[OFF_POINT]] / now, PROMPTS_EACH)

    @cached_property
    def _seconds(self) -> NDArray[np.float64]:
        if self.equal is not Equal.NOTHING:
            return np.broadcast_to(self._unequal[index()[OFF_POINT]], self._unequal.shape)
        return self._unequal

    @cached_property
    def _speeds(self) -> NDArray[np.float64]:
        shares = np.array([share for _, share in self.workload.shares])
        fits = np.array([_fits(point, self.most_drafted) for point in points()])
        return np.asarray(fits / (self._seconds @ shares), dtype=np.float64)


def _fits(point: Point, most: int | None) -> bool:
    return most is None or point.n_max is None or point.n_max <= most
