"""What a decoding step costs on a made-up machine: verification by batch, drafting, checkpoints on recurrent models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.tuner_lab.grid import NGRAM_LENGTHS

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCHES = max(NGRAM_LENGTHS) + 1


@dataclass(frozen=True, slots=True)
class Rig:
    """Costs in seconds. `step[b]` verifies a batch of b tokens; index 0 is unused."""

    step: NDArray[np.float64]
    draft: float
    """One draft token of the draft layers."""
    start: float
    """Once a step in which the draft layers run."""
    lookup: float
    """Once a step in which n-grams are looked up."""
    catch_up: float
    """The draft layers read what was accepted without them; once such a step."""
    save: float
    """A checkpoint, once a step that verifies a draft; 0 on models that can drop tokens."""
    restore: float
    """Going back to it, once a step with a rejected token."""
    replay: float
    """Share of a step over the accepted tokens that is decoded again after going back."""

    def cost(
        self,
        drafted: NDArray[np.int64],
        computed: NDArray[np.int64],
        accepted: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Seconds of steps that verify `drafted` tokens, of which the draft layers made `computed`, also in vain."""
        rejected = accepted < drafted
        made = self.draft * computed + self.start * (computed > 0)
        again = self.restore + self.replay * self.step[1 + accepted]
        return self.step[1 + drafted] + self.save * (drafted > 0) + made + rejected * again


@dataclass(frozen=True, slots=True)
class _Range:
    """From where a machine's costs are drawn; all but `alone_ms` are shares of the plain step."""

    alone_ms: tuple[float, float]
    slope: tuple[float, float]
    draft: tuple[float, float]
    spread: tuple[float, float] = (0.0, 0.0)
    """Experts: what a large batch costs more, because it wakes more of them."""


_RANGES = (
    _Range((12, 60), (0.02, 0.10), (0.03, 0.14)),
    _Range((7, 36), (0.03, 0.10), (0.05, 0.25), (0.2, 0.9)),
    _Range((20, 90), (0.08, 0.60), (0.05, 0.25)),
    _Range((10, 150), (0.08, 0.40), (0.04, 0.25)),
)
"""What bounds a step: memory, memory of more and more experts, a shared bus, or arithmetic."""
_CLIFFS = ((8, 0.55), (4, 0.1), (16, 0.15), (BATCHES, 0.2))
"""Batch up to which the small kernel serves, and how often that is so; the last is never."""
_RECURRENT = 0.35


def draw(random: np.random.Generator) -> Rig:
    """A machine and its costs."""
    ranges = _RANGES[random.choice(len(_RANGES), p=(0.4, 0.25, 0.2, 0.15))]
    alone = _log_uniform(random, ranges.alone_ms) / 1000
    step = _steps(random, ranges) * alone
    recurrent = random.random() < _RECURRENT
    return Rig(
        step=step,
        draft=alone * _log_uniform(random, ranges.draft),
        start=alone * random.uniform(0.0, 0.05),
        lookup=alone * random.uniform(0.0, 0.005),
        catch_up=alone * random.uniform(0.02, 0.15),
        save=alone * random.uniform(0.01, 0.06) * recurrent,
        restore=alone * random.uniform(0.01, 0.06) * recurrent,
        replay=random.choice((0.0, random.uniform(0.4, 1.0))) * recurrent,
    )


def _steps(random: np.random.Generator, ranges: _Range) -> NDArray[np.float64]:
    """A step by batch, in plain steps: a line, the experts, a cliff with another line after it, all of it jagged."""
    cliff = _CLIFFS[random.choice(len(_CLIFFS), p=[share for _, share in _CLIFFS])][0]
    slope, spread = _log_uniform(random, ranges.slope), random.uniform(*ranges.spread)
    decay, jump, beyond = random.uniform(2.0, 8.0), random.uniform(0.05, 0.6), random.uniform(0.3, 1.5)
    extra = np.arange(BATCHES + 1, dtype=np.float64) - 1
    past = np.maximum(extra + 1 - cliff, 0)
    line = slope * (extra - past) + slope * beyond * past
    smooth = 1.0 + line + spread * (1 - np.exp(-np.maximum(extra, 0) / decay)) + jump * (past > 0)
    jagged = np.exp(random.normal(0.0, random.uniform(0.0, 0.03), BATCHES + 1))
    jagged[:2] = 1.0
    return np.asarray(smooth * jagged)


def _log_uniform(random: np.random.Generator, bounds: tuple[float, float]) -> float:
    low, high = np.log(bounds)
    return float(np.exp(random.uniform(low, high)))
