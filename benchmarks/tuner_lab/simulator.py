"""An engine that a tuner can be tried on thousands of times: made-up machines, texts and noise, with their true speeds.

`Environment.draw` makes one from a seed; its boots answer as a real one's would, and the true speed of a point is that
of long streams without noise, the same streams for all points. It is built unlike any tuner's model on purpose: hidden
states of the text instead of hazards by position, jagged costs with cliffs instead of a line, checkpoints, drift.
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
from benchmarks.tuner_lab.grid import GENERATOR, KINDS, PRESETS, Noise, index, points
from specdash.tune.model.problem import BootResult, Budget, Point, PromptResult, Task, WorkloadShares

if TYPE_CHECKING:
    from numpy.typing import NDArray

PROMPTS_EACH = 6
TOKENS = 256
LONG = 4096
"""Tokens of each of the streams that a true speed is taken from."""
_SMALL_MEMORY = 0.08
_WITH_DRAFT_TIME = 0.75
_DRAW, _PROMPTS, _BOOT, _TRUTH = range(4)


@dataclass(frozen=True)
class Environment:
    """One machine with one model and one mix of work. Equal seeds are equal in everything."""

    seed: int
    noise: Noise
    rig: rigs.Rig
    text: texts.Text
    disturbance: disturbances.Disturbance
    workload: WorkloadShares
    start: Point
    most_drafted: int | None
    """Draft layers of more tokens than this do not fit in memory."""
    has_draft_time: bool
    first_token: float

    @classmethod
    def draw(cls, seed: int, noise: Noise | str = Noise.QUIET) -> Environment:
        """The environment of this seed; `noise` changes nothing but the noise."""
        random = np.random.default_rng((GENERATOR, seed, _DRAW))
        rig, text = rigs.draw(random), texts.draw(random)
        shares = random.dirichlet(np.full(len(KINDS), 0.8))
        small = random.random() < _SMALL_MEMORY
        most = int(random.choice((8, 10))) if small else None
        starts = [preset for preset in PRESETS if _fits(preset, most)]
        start = starts[random.integers(len(starts))]
        with_draft_time = bool(random.random() < _WITH_DRAFT_TIME)
        first = float(rig.step[1] * random.uniform(8, 60))
        return cls(
            seed=seed,
            noise=Noise(noise),
            rig=rig,
            text=text,
            disturbance=disturbances.draw(Noise(noise), random),
            workload=WorkloadShares(tuple(zip(KINDS, (float(share) for share in shares), strict=True))),
            start=start,
            most_drafted=most,
            has_draft_time=with_draft_time,
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
        first = self.first_token * float(np.median(factors)) * (1.0 if point.n_max is None else 1.03)
        return BootResult(
            point,
            tuple(self._results(decoded, seconds)),
            draft_s=drafting if self.has_draft_time and point.types else None,
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
        random = np.random.default_rng((GENERATOR, self.seed, _PROMPTS))
        levels = random.choice(len(texts.LEVELS), size=len(KINDS) * PROMPTS_EACH, p=texts.LEVELS)
        return Prompts(self.text, random, levels, TOKENS)

    @cached_property
    def _speeds(self) -> NDArray[np.float64]:
        levels = np.tile(texts.SHARED_LEVELS, len(KINDS))
        streams = Prompts(self.text, np.random.default_rng((GENERATOR, self.seed, _TRUTH)), levels, LONG)
        seconds = np.stack([streams.decode(point, self.rig).seconds for point in points()]) / LONG
        by_kind = seconds.reshape(len(points()), len(KINDS), -1).mean(-1)
        fits = np.array([_fits(point, self.most_drafted) for point in points()])
        return np.asarray(fits / (by_kind @ np.array([share for _, share in self.workload.shares])))


def _fits(point: Point, most: int | None) -> bool:
    return most is None or point.n_max is None or point.n_max <= most
