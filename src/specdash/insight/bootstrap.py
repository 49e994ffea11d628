"""Medians and ratios of two small samples, and how sure their difference is: the bootstrap, in plain Python.

A *statistic* here is a median of single values, or a ratio of two sums over requests. Each comes as an `Estimate`: its
value and what it would have been in `RESAMPLES` resamples of the same requests, drawn with replacement. Everything is
seeded: the same samples give the same interval, and exchanging the two sides negates it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import erf, sqrt
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RESAMPLES = 2000
MOST = 200
"""Values that a sample may have; an index must fit in a byte."""
_SEED = 20_260_921
_TAIL = 0.025
Z_95 = 1.959964
"""Normal quantile of a two-sided 95 %."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic of one sample of `count` values, and the same of its resamples."""

    count: int
    value: float
    resamples: tuple[float, ...]
    is_narrow: bool
    """Whether resamples of few values lie too close together, as those of sums do; those of medians do not."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two statistics are apart, with the bounds of the 95 % interval, which holds `value` always."""

    value: float
    low: float
    high: float


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the sorted values lie, interpolated."""
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def median_of(values: Sequence[float]) -> Estimate:
    """The median of at least one and at most `MOST` values."""
    ordered = sorted(values)
    lower, upper = _middles(len(ordered))
    resampled = tuple((ordered[a] + ordered[b]) / 2 for a, b in zip(lower, upper, strict=True))
    return Estimate(len(ordered), quantile(ordered, 0.5), resampled, is_narrow=False)


def ratio_of(parts: Sequence[tuple[int, int]], resamples: int = RESAMPLES) -> Estimate:
    """The sum of the first over the sum of the second parts, at most `MOST` pairs; every second part is above 0.

    A pair is one request: its tokens are drawn together or not at all. `resamples` are at most `RESAMPLES`.
    """
    count = len(parts)
    picks = _picks(count)
    # Both sums in one: a float would lose tokens, two passes would take twice as long.
    shift = (count * max(whole for _, whole in parts)).bit_length() + 1
    packed = [(part << shift) | whole for part, whole in parts]
    mask = (1 << shift) - 1
    pick = packed.__getitem__
    resampled = []
    for start in range(0, count * resamples, count):
        both = sum(map(pick, picks[start : start + count]))
        resampled.append((both >> shift) / (both & mask))
    total = sum(packed)
    return Estimate(count, (total >> shift) / (total & mask), tuple(resampled), is_narrow=True)


def difference(before: Estimate, after: Estimate, apart: Callable[[float, float], float]) -> Difference:
    """`apart(before, after)` with its 95 % interval.

    `apart` must be antisymmetric. Resamples are paired from opposite ends, so that two samples of one size, whose
    draws are the same, are still independent. Where they lie too close together, the deviations are widened and the
    percentiles taken further out, as Hesterberg (2015) advises for a mean.
    """
    value = apart(before.value, after.value)
    pairs = zip(before.resamples, reversed(after.resamples), strict=True)
    ordered = sorted(apart(old, new) for old, new in pairs)
    tail, spread = _TAIL, 1.0
    if before.is_narrow and after.is_narrow:
        tail = _student_tail(before.count + after.count - 2)
        spread = sqrt(_widened(before.count) * _widened(after.count))
    low = value + (quantile(ordered, tail) - value) * spread
    high = value + (quantile(ordered, 1 - tail) - value) * spread
    return Difference(value, min(low, value), max(high, value))


def interval(estimate: Estimate) -> Difference:
    """The statistic itself with its 95 % interval; widened like a difference where resamples lie too close together."""
    tail, spread = _TAIL, 1.0
    if estimate.is_narrow:
        tail, spread = _student_tail(estimate.count - 1), _widened(estimate.count)
    ordered, value = sorted(estimate.resamples), estimate.value
    low = value + (quantile(ordered, tail) - value) * spread
    high = value + (quantile(ordered, 1 - tail) - value) * spread
    return Difference(value, min(low, value), max(high, value))


def _widened(count: int) -> float:
    """A resample's variance has the divisor n, not n - 1."""
    return sqrt(count / (count - 1)) if count > 1 else 1.0


def _student_tail(freedom: int) -> float:
    """The normal tail that lies beyond Student's 95 % quantile."""
    quantile_t = Z_95 + (Z_95**3 + Z_95) / (4 * max(freedom, 1))
    return 0.5 * (1 - erf(quantile_t / sqrt(2)))


@lru_cache(maxsize=256)
def _middles(count: int) -> tuple[bytes, bytes]:
    """Which two of `count` sorted values are the middle ones of each resample.

    The middle of `count` draws is a draw itself, of a beta distribution; so a resample costs two numbers, whatever its
    size.
    """
    random = Random(_SEED + count)  # noqa: S311 - statistics
    lower, upper = bytearray(), bytearray()
    rank = (count + 1) // 2
    above = count - rank
    for _ in range(RESAMPLES):
        first = random.betavariate(rank, above + 1)
        lower.append(min(int(first * count), count - 1))
        if count % 2:
            upper.append(lower[-1])
        else:
            second = 1 - (1 - first) * random.random() ** (1 / above)
            upper.append(min(int(second * count), count - 1))
    return bytes(lower), bytes(upper)


@lru_cache(maxsize=4)
def _picks(count: int) -> bytes:
    """`count` indices below `count` for each resample."""
    random = Random(_SEED - count)  # noqa: S311 - statistics
    wanted = count * RESAMPLES
    usable = 256 // count * count
    table = bytes(value % count for value in range(256))
    unusable = bytes(range(usable, 256))
    picks = b""
    while len(picks) < wanted:
        picks += random.randbytes(wanted + wanted // 2).translate(table, unusable)
    return picks[:wanted]
