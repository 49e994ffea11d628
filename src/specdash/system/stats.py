"""Quantiles, means, and how sure figures of small samples are: bootstrap and Student's distribution, in plain Python.

All that is drawn is seeded: the same samples give the same interval, and exchanging two sides negates it.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from functools import lru_cache
from itertools import accumulate
from math import ceil, cos, pi, prod, sqrt, tan
from random import Random
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

T = TypeVar("T")

RESAMPLES = 1000
_SEED = 20_260_921
Z_95 = 1.959964
"""Normal quantile of a two-sided 95 %."""
_ANGLES = 8192


class Interval(Struct, frozen=True):
    """A figure with the bounds of its 95 % interval, which holds `value` always."""

    value: float
    low: float
    high: float


class Spread(Struct, frozen=True):
    """A mean and the sample standard deviation, None of one value."""

    mean: float
    standard_deviation: float | None
    count: int


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the sorted values lie, interpolated (numpy's `linear`)."""
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def quantiles(values: Iterable[float], shares: Sequence[float]) -> list[float | None]:
    """The same of values in any order; None of nothing."""
    ordered = sorted(values)
    return [quantile(ordered, share) if ordered else None for share in shares]


def nearest_rank(ordered: Sequence[T], share: float) -> T:
    """The least of the sorted values that `share` of them do not exceed."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def median(values: Iterable[float | None]) -> float | None:
    """The median of what is known; None of nothing."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is known; None of nothing."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def variance(values: Sequence[float]) -> float | None:
    """The sample variance (divisor n - 1); None of fewer than two values."""
    return float(statistics.variance(values)) if len(values) > 1 else None


def spread(values: Sequence[float]) -> Spread | None:
    """None of nothing."""
    middle, squared = mean(values), variance(values)
    return None if middle is None else Spread(middle, None if squared is None else sqrt(squared), len(values))


def pooled_deviation(groups: Iterable[Sequence[float]]) -> tuple[float | None, int]:
    """The standard deviation within groups, None where none has two values, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for group in groups:
        squares += (variance(group) or 0.0) * (len(group) - 1)
        freedom += max(0, len(group) - 1)
    return (sqrt(squares / freedom) if freedom else None), freedom


def share(part: float | None, whole: float | None) -> float | None:
    """`part` of `whole`, None where either is unknown or there is no whole."""
    return part / whole if part is not None and whole else None


def ratio(parts: Iterable[tuple[float, float]]) -> float | None:
    """The sum of the first over the sum of the second parts; None where that is nothing."""
    known = list(parts)
    under = sum(second for _, second in known)
    return sum(first for first, _ in known) / under if under > 0 else None


def wilson(share: float, trials: float, z: float = Z_95) -> tuple[float, float]:
    """Wilson's bounds of a share seen in so many trials: also of none or all of them."""
    share = min(max(share, 0.0), 1.0)
    spread = z * sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    middle, scale = share + z * z / (2 * trials), 1 + z * z / trials
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def mean_reach(values: Sequence[float], alpha: float = 0.05) -> float | None:
    """Half the width of the mean's interval, by Student; None of fewer than two values."""
    squared = variance(values)
    return None if squared is None else student(len(values) - 1, alpha) * sqrt(squared / len(values))


def bootstrap(
    samples: Sequence[Sequence[T]],
    statistic: Callable[[Sequence[T]], float | None],
    together: Callable[..., float] = float,
    *,
    is_narrow: bool = True,
) -> Interval:
    """A statistic of one sample with its 95 % interval, or what `together` makes of those of two.

    An entry is drawn whole or not at all: a value, or what one request or one prompt did. Resamples of few entries lie
    too close together where the statistic is a sum or a mean (`is_narrow`; not a median): then the deviations are
    widened and the percentiles taken further out, as Hesterberg (2015) advises for a mean.
    """

    def drawn(sample: Sequence[T]) -> list[float]:
        random, value = Random(_SEED - len(sample)), statistic(sample) or 0.0  # noqa: S311 - statistics
        found = (statistic(random.choices(sample, k=len(sample))) for _ in range(RESAMPLES))
        return [value, *(value if one is None else one for one in found)]

    (value, *first), *others = (drawn(sample) for sample in samples)
    # From opposite ends, so that two samples of one size, whose draws are the same, are still independent.
    resampled = sorted(map(together, first, *(reversed(other[1:]) for other in others)))
    value = together(value, *(other[0] for other in others))
    tail, widened = 0.025, 1.0
    if is_narrow:
        freedom = max(1, sum(len(sample) - 1 for sample in samples))
        # The normal tail that lies beyond Student's 95 % quantile.
        tail = statistics.NormalDist().cdf(-(Z_95 + (Z_95**3 + Z_95) / (4 * freedom)))
        # A resample's variance has the divisor n, not n - 1.
        widened = prod(sqrt(len(sample) / max(1, len(sample) - 1)) for sample in samples) ** (1 / len(samples))
    low = value + (quantile(resampled, tail) - value) * widened
    high = value + (quantile(resampled, 1 - tail) - value) * widened
    return Interval(value, min(low, value), max(high, value))


@lru_cache(maxsize=1024)
def student(freedom: float, alpha: float) -> float:
    """Student's quantile that is exceeded, to either side, with probability `alpha`.

    With x = sqrt(freedom) tan(a), the density in a is cos(a) to the power of freedom - 1.
    """
    freedom = max(1.0, freedom)
    width = pi / 2 / _ANGLES
    mass = list(accumulate(cos((at + 0.5) * width) ** (freedom - 1) for at in range(_ANGLES)))
    wanted = (1 - alpha) * mass[-1]
    at = bisect_left(mass, wanted)
    below = mass[at - 1] if at else 0.0
    return sqrt(freedom) * tan((at + (wanted - below) / (mass[at] - below)) * width)
