"""What stands between a speed and its measurement: boots, requests, heat, and now and then something else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.tuner_lab.grid import Noise

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Standard deviations and shares of time. Sizes are those of published repeats."""

    boot: float
    draft_boot: float
    """Of the draft layers' time alone, beside it."""
    request: float
    heat: float
    """What a warm machine is slower than a cold one."""
    warming: float
    """Boots in which most of that happens."""
    room: float
    """Swing of a slow wave, as of a fan or the room."""
    room_boots: float
    room_phase: float
    odd_request: float
    odd_boot: float

    def factors(self, number: int, prompts: int, random: np.random.Generator) -> NDArray[np.float64]:
        """How many times its time each prompt takes in the boot of this number, the first being 0."""
        at = number + np.arange(prompts) / prompts
        heat = self.heat * (1 - np.exp(-at / self.warming))
        wave = self.room * np.sin(2 * np.pi * at / self.room_boots + self.room_phase)
        whole = random.normal(0.0, self.boot)
        if random.random() < self.odd_boot:
            whole += random.uniform(0.03, 0.2)
        odd = (random.random(prompts) < self.odd_request) * random.uniform(0.1, 0.6, prompts)
        total = np.exp(whole + random.normal(0.0, self.request, prompts) + wave) * (1 + heat) * (1 + odd)
        return np.asarray(total, dtype=np.float64)


def draw(noise: Noise, random: np.random.Generator) -> Disturbance:
    """How much this machine is disturbed."""
    quiet = noise is Noise.QUIET
    boot = random.uniform(0.003, 0.012) if quiet else random.uniform(0.02, 0.05)
    return Disturbance(
        boot=boot,
        draft_boot=boot * random.uniform(0.0, 0.7),
        request=random.uniform(0.002, 0.012) if quiet else random.uniform(0.004, 0.02),
        heat=random.uniform(0.0, 0.015) if quiet else random.uniform(0.0, 0.05),
        warming=random.uniform(0.3, 3.0),
        room=random.uniform(0.0, 0.003) if quiet else random.uniform(0.0, 0.008),
        room_boots=random.uniform(6.0, 30.0),
        room_phase=random.uniform(0.0, 2 * np.pi),
        odd_request=random.uniform(0.0, 0.01) if quiet else random.uniform(0.0, 0.02),
        odd_boot=0.005 if quiet else 0.02,
    )
