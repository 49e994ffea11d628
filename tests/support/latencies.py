"""Made-up points that are equally fast in the long run, each with its own luck of the text, for the slowest prompts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specdash.tune.model.problem import BootResult, Budget, Objective, Point, PromptResult, Task, WorkloadShares
from specdash.tune.model.race import marked

KINDS = ("coding", "pattern", "prose", "agentic")
POINTS = (Point(), *(Point(("draft-simple",), n_max=length, p_min=0.0) for length in (1, 2, 3, 4, 6, 8, 12)))
TOKENS = 256
_ACCEPTED = 0.6
_TOKEN_S = 0.02


@dataclass(frozen=True, slots=True)
class Latencies:
    """Spreads are standard deviations of logarithms. A prompt's time is shared luck of the text, luck of the text that
    a point has for itself (it is the same in every boot, and another for other prompts), and luck of the boot."""

    seed: int
    each: int = 6
    text: float = 0.15
    own: float = 0.08
    prompt: float = 0.02
    boot: float = 0.015
    gain: float = 0.0
    """By how much the last point is truly faster, as a logarithm."""

    @property
    def start(self) -> Point:
        """The point in force."""
        return POINTS[1 + self.seed % (len(POINTS) - 2)]

    @property
    def task(self) -> Task:
        """What a tuner is given."""
        workload = WorkloadShares(tuple((kind, 1 / len(KINDS)) for kind in KINDS))
        return Task(POINTS, self.start, Objective.LATENCY.workload(workload), Budget(12))

    def booted(self, point: Point, number: int) -> BootResult:
        """A boot, its slowest prompts marked."""
        place, count = POINTS.index(point), self.each * len(KINDS)
        shared = np.random.default_rng((1, self.seed)).normal(0, self.text, count)
        lucky = np.random.default_rng((2, self.seed, place)).normal(0, self.own, count)
        random = np.random.default_rng((3, self.seed, place, number))
        noise = random.normal(0, self.prompt, count) + random.normal(0, self.boot)
        faster = self.gain if point == POINTS[-1] else 0.0
        seconds = np.exp(shared + lucky + noise - faster) * TOKENS * _TOKEN_S
        rows = [self._row(point, index, float(second)) for index, second in enumerate(seconds)]
        return BootResult(point, marked(rows))

    def _row(self, point: Point, index: int, seconds: float) -> PromptResult:
        kind = KINDS[index // self.each]
        name = f"{kind}-{index % self.each}"
        length = point.n_max or 0
        if not length:
            return PromptResult(name, kind, TOKENS, seconds)
        steps = round(TOKENS / sum(_ACCEPTED**place for place in range(length + 1)))
        positions = tuple(round(steps * _ACCEPTED ** (place + 1)) for place in range(length))
        return PromptResult(name, kind, TOKENS, seconds, steps * length, TOKENS - steps, steps, positions)
