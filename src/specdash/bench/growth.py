"""Does a quantity grow, such as the memory of a process over hours? A slope with its interval, and what that shows.

Looks at a process follow each other closely and are alike, so a plain regression would be far too sure. They are
averaged into `_BINS` equal spans, and the residuals' own correlation widens the interval (effective sample size of a
first-order autoregression, its known small-sample bias corrected). Memory that jumps once, or wanders, then has a wide
interval: it is said that nothing can be told, not that it leaks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING

from specdash.bench.statistics import student_95

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST_S = 60.0
LEAST_LOOKS = 20
WARM_UP_SHARE = 0.2
"""The beginning is left out: pools and caches fill."""
_BINS = 40
_MOST_CORRELATION = 0.97


class Verdict(StrEnum):
    """What the looks show."""

    GROWING = "growing"
    FLAT = "flat"
    """It stayed within what matters, or even the upper end of the interval is less than that."""
    UNCLEAR = "cannot tell"
    SHORT = "too short to tell"


@dataclass(frozen=True, slots=True)
class Growth:
    """A quantity over time. Slopes are per hour, with a 95 % interval; None where there is too little to tell."""

    looks: int
    span_s: float
    """Of the part that the slope is of."""
    first: float
    last: float
    most: float
    slope: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Verdict = Verdict.SHORT


def growth_of(looks: Sequence[tuple[float, float]], *, matters: float, share: float = 0.0) -> Growth | None:
    """The growth of values at times in seconds, in their order; None without any.

    Growth within the looked-at span matters from `matters` on, and from `share` of the mean on, whichever is more.
    """
    if not looks:
        return None
    begin, end = looks[0][0], looks[-1][0]
    since = begin + WARM_UP_SHARE * (end - begin)
    kept = [(at, value) for at, value in looks if at >= since]
    values = [value for _, value in looks]
    plain = Growth(len(looks), end - since, values[0], values[-1], max(values))
    if len(kept) < LEAST_LOOKS or end - begin < LEAST_S:
        return plain
    bins = _binned(kept, since, end)
    fit = _fitted(bins)
    if fit is None:
        return plain
    slope, reach = fit
    span = end - since
    bar = max(matters, share * sum(value for _, value in bins) / len(bins))
    inside = max(value for _, value in bins) - min(value for _, value in bins) < bar
    whole = replace(plain, span_s=span, slope=slope * 3600.0, verdict=Verdict.FLAT if inside else Verdict.UNCLEAR)
    if reach is None:
        return whole
    low, high = slope - reach, slope + reach
    verdict = whole.verdict
    if low > 0 and slope * span >= bar:
        verdict = Verdict.GROWING
    elif high * span < bar:
        verdict = Verdict.FLAT
    return replace(whole, low=low * 3600.0, high=high * 3600.0, verdict=verdict)


def _binned(looks: Sequence[tuple[float, float]], begin: float, end: float) -> list[tuple[float, float]]:
    count = min(_BINS, len(looks))
    sums: dict[int, list[float]] = {}
    for at, value in looks:
        number = min(count - 1, int((at - begin) / max(end - begin, 1e-9) * count))
        one = sums.setdefault(number, [0.0, 0.0, 0.0])
        one[0] += at
        one[1] += value
        one[2] += 1
    return [(one[0] / one[2], one[1] / one[2]) for _, one in sorted(sums.items())]


def _fitted(points: Sequence[tuple[float, float]]) -> tuple[float, float | None] | None:
    """Slope and half the width of its interval; that is None where the points are too alike to tell."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if count < 4 or spread <= 0:
        return None
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = [y - mean_y - slope * (x - mean_x) for x, y in points]
    total = sum(one * one for one in rest)
    if total <= 1e-18 * max(1.0, mean_y * mean_y) * count:
        return slope, 0.0
    told = sum(one * two for one, two in pairwise(rest)) / total
    correlation = min(_MOST_CORRELATION, max(0.0, told + (2 + 4 * told) / count))
    effective = count * (1 - correlation) / (1 + correlation)
    if effective <= 3:
        return slope, None
    error = sqrt(total / (effective - 2) / spread)
    return slope, student_95(effective - 2) * error
