"""The arithmetic of the speed-up: what requests did, what they would have taken, and where it breaks even. Pure.

The estimate is Leviathan et al. 2023 (arXiv 2211.17192): tokens per step over the cost of a step, with the parts of
that cost measured where the log tells them, and bounded where it does not. Method and limits: docs/speedup.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, sqrt
from typing import TYPE_CHECKING

from specdash.core.token_speed import DECODE, speed
from specdash.insight.bootstrap import Z_95, interval, ratio_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.core.speculation import SpecType
    from specdash.insight.samples import RequestSample

VERIFY_COSTS = (0.0, 0.2, 0.8)
"""What each draft token adds to a step's verification, as a share of a token's decode: least, usual, most. Published: 0
while memory bandwidth is the limit (Leviathan's assumption), 0.2 on an RTX 3090, 0.8 on an Apple M4."""
VERIFY_COSTS_ANYWHERE = (0.0, 0.5, 1.5)
"""The same where no NVIDIA GPU is seen. Measured with llama.cpp: 0.15 for a 99 MB model on several cores, 1.24 for the
demo's of 2 MB on one, whose batches of a few tokens cost more than as many single ones."""
DRAFT_COSTS = (0.0, 0.1, 0.4)
"""What a draft model adds a token, likewise, where the log does not tell."""
BLOCK_DRAFT_COSTS = (0.1, 0.75, 1.5)
"""What a draft of one block costs, however long it is. Usual: what the published break-even of about 25 % at block size
16 leaves (marksverdhei/llama.cpp#53), when verifying a token costs 0.2."""
BLOCKS = 24
"""More requests than this are resampled in as many blocks of neighbours: what lasts minutes shows in the interval."""
RESAMPLES = 800
"""Enough for bounds that are drawn with two decimals, and computed anew with every request."""
_MOST_SHARE = 0.95
_MICRO = 1e6
_LEAST_SPREAD = 0.25
_STEADY = 12


def draft_costs_of(types: Sequence[SpecType], drafted_per_step: float) -> tuple[float, ...]:
    """What a draft token may cost where the log does not tell, for drafts of that many tokens by such types."""
    if types and not any(one.reads_draft_model for one in types):
        return (0.0, 0.0, 0.0)
    if any(one.block_margin is not None for one in types):
        return tuple(cost / max(drafted_per_step, 1.0) for cost in BLOCK_DRAFT_COSTS)
    return DRAFT_COSTS


@dataclass(frozen=True, slots=True)
class Range:
    """A figure with its bounds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Effort:
    """What requests did in all. `steps` counts decode calls of the target, replays included."""

    requests: int = 0
    tokens: float = 0.0
    """Generated, the first of each request apart: it is the prompt's."""
    seconds: float = 0.0
    steps: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0

    @property
    def length(self) -> float | None:
        """Tokens per step."""
        return self.tokens / self.steps if self.steps > 0 else None

    @property
    def drafted_per_step(self) -> float:
        """Draft tokens that a step verifies."""
        return self.drafted / self.steps if self.steps > 0 else 0.0

    @property
    def acceptance(self) -> float | None:
        """Accepted over drafted tokens."""
        return min(1.0, self.accepted / self.drafted) if self.drafted > 0 else None

    @property
    def rate(self) -> float | None:
        """Tokens over decode time."""
        return speed(self.tokens, self.seconds * 1000.0, DECODE)


def effort_of(samples: Sequence[RequestSample]) -> Effort:
    """The sum over requests that `is_usable`."""
    tokens = steps = drafted = accepted = seconds = 0.0
    for one in samples:
        own = (one.decode_tokens or 1) - 1
        hit = min(one.accepted or 0, own)
        tokens += own
        # Every decode call brings one token beside those accepted: a step, a step without a draft, and also a replay,
        # which decodes accepted tokens again and then goes one on.
        steps += max(1, own - hit)
        drafted += one.drafted or 0
        accepted += hit
        seconds += one.decode_s or 0.0
    return Effort(len(samples), tokens, seconds, steps, drafted, accepted)


def compared(pairs: Sequence[tuple[float, float, float]]) -> Range:
    """The speed-up over requests, each (seconds without, seconds with, deviation of the baseline's logarithm), in the
    order in which they ran: the time that all would have taken over the time that they took."""
    blocks = _blocks([(without, took) for without, took, _ in pairs])
    found = interval(ratio_of([(round(a * _MICRO), max(1, round(b * _MICRO))) for a, b in blocks], RESAMPLES))
    total = sum(without for without, _, _ in pairs)
    # One baseline is behind many requests, so its error does not average out.
    deviation = sum(without * sd for without, _, sd in pairs) / total if total else 0.0
    value = max(found.value, 1e-9)
    low = sqrt(log(value / max(found.low, 1e-9)) ** 2 + (Z_95 * deviation) ** 2)
    high = sqrt(log(max(found.high, value) / value) ** 2 + (Z_95 * deviation) ** 2)
    return Range(value, value * exp(-low), value * exp(high))


def _blocks(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(pairs) <= BLOCKS:
        return list(pairs)
    bounds = [round(index * len(pairs) / BLOCKS) for index in range(BLOCKS + 1)]
    parts = [pairs[first:last] for first, last in pairwise(bounds)]
    return [(sum(a for a, _ in part), sum(b for _, b in part)) for part in parts]


def leviathan(
    length: float,
    drafted_per_step: float,
    draft_share: float | None,
    verify_costs: tuple[float, ...] = VERIFY_COSTS,
    draft_costs: tuple[float, ...] = DRAFT_COSTS,
) -> Range:
    """The speed-up of steps that bring `length` tokens and verify `drafted_per_step` draft tokens.

    `draft_share` is the share of decode time that goes into drafting; where it is None, `draft_costs` bound what each
    draft token costs, as shares of a token's decode. `verify_costs` bound what verifying one adds.
    """
    drafted = max(drafted_per_step, 0.0)
    if draft_share is not None:
        kept = 1 - min(max(draft_share, 0.0), _MOST_SHARE)
        best, usual, worst = (length * kept / (1 + cost * drafted) for cost in verify_costs)
    else:
        costs = zip(verify_costs, draft_costs, strict=True)
        best, usual, worst = (length / (1 + (verify + draft) * drafted) for verify, draft in costs)
    return Range(usual, worst, best)


def from_own_steps(samples: Sequence[RequestSample]) -> Range | None:
    """The speed-up as the requests' own steps tell it: a line through seconds a step against draft tokens a step, whose
    value at no draft token is a step without speculation. None where the requests drafted too evenly to tell."""
    rows = [(one, effort_of((one,))) for one in samples]
    points = [
        (own.drafted_per_step, own.seconds / own.steps, own.steps) for _, own in rows if own.steps and own.seconds
    ]
    if len(points) < _STEADY:
        return None
    total = sum(weight for *_, weight in points)
    middle_x = sum(x * weight for x, _, weight in points) / total
    middle_y = sum(y * weight for _, y, weight in points) / total
    spread = sum(weight * (x - middle_x) ** 2 for x, _, weight in points)
    # A line far beyond its points would tell of nothing but its slope.
    if min(x for x, *_ in points) > _LEAST_SPREAD * max(x for x, *_ in points) or spread <= 0:
        return None
    slope = sum(weight * (x - middle_x) * (y - middle_y) for x, y, weight in points) / spread
    alone = middle_y - slope * middle_x
    if slope < 0 or alone <= 0:
        return None
    left = sum(weight * (y - alone - slope * x) ** 2 for x, y, weight in points) / (len(points) - 2)
    error = sqrt(left / total + left * middle_x**2 / spread)
    if error > 0.1 * alone:
        return None
    every = effort_of(samples)
    value = alone * every.tokens / every.seconds
    share = exp(sqrt((Z_95 * error / alone) ** 2 + 0.05**2))
    return Range(value, value / share, value * share)


def break_even(length: float, speedup: float, drafted_per_step: float) -> tuple[float, float | None]:
    """Tokens per step at which the speed-up is 1, and the acceptance that brings them, None where none would do."""
    needed = length / speedup
    if drafted_per_step <= 0:
        return needed, None
    acceptance = (needed - 1) / drafted_per_step
    return needed, max(0.0, acceptance) if acceptance <= 1 else None
