"""Public sweeps of real rigs, and a lookup engine that replays them as boots: a test that shares no premise with us.

Every number is somebody's measurement; speeds of the points in between were never measured, so the points to choose
from are those of the sweep. Boots are disturbed as boots of real rigs are. Most sweeps tell no acceptance: their boots
have no counters, and a tuner has to go by speed alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from benchmarks.tuner_lab.grid import Noise, mtp
from specdash.tune.model.problem import BootResult, Budget, Point, PromptResult, Task, WorkloadShares

PROMPTS_EACH, TOKENS = 6, 256
_BOOT_SD = {Noise.QUIET: 0.008, Noise.NOISY: 0.028}
"""Published repeats: 0.2 to 2.8 % from boot to boot."""
_REQUEST_SD = 0.018
_PROMPT_SD = 0.08
"""How far prompts of one class are apart; the same in every boot."""
_POINT_SD = 0.025
"""How far a prompt's preference of one point is from its class's."""

POWER_STUDY = {
    400: (71.2, 108.4, 129.3, 133.8, 132.8, 127.5, 123.3),
    500: (74.5, 114.9, 139.8, 152.9, 153.6, 148.8, 142.7),
    600: (74.8, 115.7, 144.4, 156.0, 162.1, 159.7, 153.2),
}
"""Tokens per second of off and n_max 1 to 6 by the power cap of an RTX 5090, in watts."""
POWER_STUDY_ACCEPTANCE = (0.889, 0.790, 0.725, 0.647, 0.591, 0.537)
"""Accepted over drafted tokens of n_max 1 to 6, the same at every cap."""


@dataclass(frozen=True)
class Rig:
    """One sweep: tokens per second of each class (in the order of `kinds`) by point."""

    name: str
    kinds: tuple[str, ...]
    speeds: dict[Point, tuple[float, ...]]
    acceptance: dict[Point, float] = field(default_factory=dict)
    """Accepted over drafted tokens, where it was published."""

    @property
    def points(self) -> tuple[Point, ...]:
        """Those that were measured."""
        return tuple(self.speeds)

    def speed(self, point: Point) -> float:
        """Equal tokens of each class: the harmonic mean."""
        found = self.speeds[point]
        return len(found) / sum(1 / value for value in found)


def _lengths(text: str) -> dict[Point, tuple[float, ...]]:
    """`off 61.6/61.3/61.5; n1 98.1/86.2/98.3`, or with a gate `n2p.6 30.5`."""
    found = {}
    for part in text.split(";"):
        name, speeds = part.split()
        length, _, gate = name.removeprefix("n").partition("p")
        point = Point() if name == "off" else mtp(int(length), float(gate or 0))
        found[point] = tuple(float(part) for part in speeds.split("/"))
    return found


def _swept(name: str, text: str) -> Rig:
    return Rig(name, ("coding", "prose", "pattern"), _lengths(text))


def _powered(watts: int) -> Rig:
    speeds: dict[Point, tuple[float, ...]] = {
        mtp(length, 0.0) if length else Point(): (value,) for length, value in enumerate(POWER_STUDY[watts])
    }
    accepted = {mtp(length, 0.0): value for length, value in enumerate(POWER_STUDY_ACCEPTANCE, start=1)}
    return Rig(f"RTX 5090 at {watts} W", ("coding",), speeds, accepted)


RIGS: tuple[Rig, ...] = (
    _swept(
        "RTX 5090 a",
        "off 61.6/61.3/61.5;n1 98.1/86.2/98.3;n2 130.1/99.0/127.7;n3 150.8/97.3/135.6;n4 162.6/95.3/147.0;"
        "n5 158/86.3/142.6;n6 160.1/78.5/143.9",
    ),
    _swept(
        "RTX 5090 b",
        "n2 167/129.4/151.1;n3 192.2/126.4/163.2;n4 207.2/113.1/177.6;n5 215.8/100.9/156.6;n6 211.3/95.4/164.3",
    ),
    _swept(
        "3x RTX 3090, tensor parallel",
        "n2 96.2/68.8/81.1;n3 108.1/71.1/95.6;n4 114.7/67.2/94.9;n5 115.9/55.7/93.3;n6 112.9/54.1/88.7",
    ),
    _swept("2x RTX 5060 Ti, by layers", "n2 47.3/34.4/42.8;n3 54/35.4/47.5;n4 60.1/32.1/45.2"),
    _swept("M3 Ultra", "off 23/22.9/22.6;n2 26.4/20.2/24.2;n3 23.6/14.3/20.7;n4 21.8/11.5/18.1"),
    _swept("Strix Halo", "n2 25.2/19.1/23.7;n4 29.9/16.5/23.5"),
    _powered(400),
    _powered(500),
    _powered(600),
    Rig("RTX 5090, gate at n4", ("coding",), _lengths("n4 129.8;n4p.3 131.3;n4p.5 111.8;n4p.7 95.9;n4p.85 96.1")),
    Rig("GB10, Step-3", ("agentic",), _lengths("off 26.7;n2 29.6;n2p.6 30.5;n2p.85 29.5;n3 23.5")),
    Rig(
        "35B-A3B, PR 22673",
        ("coding",),
        _lengths("off 22.9;n1 27.6;n2 29.4;n3 27.8;n4 26.1"),
        {mtp(n, 0.0): share for n, share in enumerate((0.884, 0.815, 0.713, 0.642), start=1)},
    ),
)


@dataclass(frozen=True)
class Recorded:
    """A rig as an engine to tune. `start` is one of its points; equal seeds are equal in everything."""

    rig: Rig
    start: Point
    seed: int = 0
    noise: Noise = Noise.QUIET

    def task(self, budget: Budget | int = 12) -> Task:
        """What a tuner is given: equal shares of the classes."""
        budget = Budget(budget) if isinstance(budget, int) else budget
        shares = tuple((kind, 1 / len(self.rig.kinds)) for kind in self.rig.kinds)
        return Task(self.rig.points, self.start, WorkloadShares(shares), budget)

    def boot(self, point: Point, number: int) -> BootResult:
        """A boot whose speeds lie around those that were published."""
        place = self.rig.points.index(point)
        random = np.random.default_rng((self.seed, 1 + number, place, self.noise is Noise.NOISY))
        boot = random.normal(0.0, _BOOT_SD[self.noise])
        prompts = []
        for kind, speed in zip(self.rig.kinds, self.rig.speeds[point], strict=True):
            for index in range(PROMPTS_EACH):
                offset = self._offsets[self.rig.kinds.index(kind), index, place]
                seconds = TOKENS / speed * np.exp(offset + boot + random.normal(0.0, _REQUEST_SD))
                prompts.append(self._result(f"{kind}-{index}", kind, float(seconds), point))
        return BootResult(point, tuple(prompts))

    def true_speed(self, point: Point) -> float:
        """As published."""
        return self.rig.speed(point)

    @cached_property
    def optimum(self) -> Point:
        """The fastest point that was published."""
        return max(self.rig.points, key=self.rig.speed)

    def regret(self, point: Point) -> float:
        """Share of the fastest point's speed that this one lacks."""
        return 1 - self.true_speed(point) / self.true_speed(self.optimum)

    @cached_property
    def _offsets(self) -> np.ndarray:
        """By class, prompt and point; their mean over prompts is none, so that the classes are as published."""
        random = np.random.default_rng((self.seed, 0))
        shape = (len(self.rig.kinds), PROMPTS_EACH, len(self.rig.points))
        spread = random.normal(0.0, _PROMPT_SD, shape[:2])[..., None] + random.normal(0.0, _POINT_SD, shape)
        return np.asarray(spread - spread.mean(axis=1, keepdims=True))

    def _result(self, prompt: str, kind: str, seconds: float, point: Point) -> PromptResult:
        rate = self.rig.acceptance.get(point)
        if rate is None or point.n_max is None:
            return PromptResult(prompt, kind, TOKENS, seconds)
        steps = round(TOKENS / (1 + rate * point.n_max))
        return PromptResult(
            prompt, kind, TOKENS, seconds, drafted=steps * point.n_max, accepted=TOKENS - steps, steps=steps
        )


def grounds(seed: int, noise: Noise) -> list[Recorded]:
    """Every rig, started off where off was measured and from its shortest draft else."""
    return [Recorded(rig, rig.points[0], seed, noise) for rig in RIGS]
