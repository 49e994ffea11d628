"""Figures of many requests with their uncertainty, in plain Python.

Rates are sums over sums (tokens over time), never means of rates: a class that decodes at half the speed takes twice
the time. What is drawn again for an interval is what varies on its own: prompts, and boots where there are several;
requests of one prompt, or of one boot, are not independent of each other. All draws are seeded.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from math import exp, log, sqrt
from random import Random
from typing import TYPE_CHECKING, TypeVar

from specdash.bench.plausible import UNUSABLE
from specdash.insight.bootstrap import Z_95, Difference, Estimate, interval, quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from specdash.bench.samples import Sample

    Boot = Mapping[str, tuple[float, float]]
    """What one boot measured: tokens and seconds of each prompt, by its id."""

T = TypeVar("T")

RESAMPLES = 2000
LEAST_PROMPT = 16
"""Processing fewer tokens takes as long as one."""
_SEED = 7
_LEAST_GROUPS = 2
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_FEW = 10.0


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with its 95 % interval; bounds are None where there is too little to tell."""

    value: float
    low: float | None = None
    high: float | None = None
    count: int = 0
    """Of what it was made: requests, prompts or boots, as the figure says."""


@dataclass(frozen=True, slots=True)
class Spread:
    """UAP's way to tell a result: the mean and the sample standard deviation, None of one value."""

    mean: float
    deviation: float | None
    count: int


def usable(samples: Iterable[Sample]) -> list[Sample]:
    """Those that speeds may be told from: answered, and with nothing that cannot be."""
    return [one for one in samples if not one.failed and not UNUSABLE.intersection(one.flags)]


def ratio(parts: Iterable[tuple[float, float]]) -> float | None:
    """The sum of the first over the sum of the second parts; None where that is nothing."""
    over = under = 0.0
    for first, second in parts:
        over += first
        under += second
    return over / under if under > 0 else None


def decode_parts(sample: Sample) -> tuple[float, float] | None:
    """Tokens after the first, and the seconds they took by the server's own clock."""
    if not sample.predicted_ms or sample.predicted_tokens is None or sample.predicted_tokens < 2:
        return None
    return sample.predicted_tokens - 1.0, sample.predicted_ms / 1000.0


def prefill_parts(sample: Sample) -> tuple[float, float] | None:
    """Prompt tokens that had to be processed, and the seconds they took; None where they are too few."""
    if not sample.prompt_ms or sample.prompt_tokens is None:
        return None
    processed = sample.prompt_tokens - (sample.cached_tokens or 0)
    return (float(processed), sample.prompt_ms / 1000.0) if processed >= LEAST_PROMPT else None


def acceptance_parts(sample: Sample) -> tuple[float, float] | None:
    """Accepted and drafted tokens."""
    if sample.drafted is None or sample.accepted is None:
        return None
    return float(sample.accepted), float(sample.drafted)


def rate(samples: Iterable[Sample], parts: Callable[[Sample], tuple[float, float] | None]) -> Figure | None:
    """A token-weighted rate, its interval by drawing prompts again; None where nothing tells."""
    sums: dict[str, tuple[float, float]] = {}
    found: list[tuple[str, tuple[float, float]]] = []
    for sample in samples:
        told = parts(sample)
        if told is not None:
            found.append((sample.prompt, told))
            before = sums.get(sample.prompt, (0.0, 0.0))
            sums[sample.prompt] = (before[0] + told[0], before[1] + told[1])
    groups = list(sums.values())
    if len(groups) < _LEAST_GROUPS:
        # Of one prompt, its runs are all that varies.
        groups = [told for _, told in found]
    value = ratio(groups)
    return None if value is None else _figure(value, groups, ratio, len(found))


def median(samples: Iterable[Sample], value_of: Callable[[Sample], float | None]) -> Figure | None:
    """The median over requests, its interval by drawing prompts again."""
    by_prompt: dict[str, list[float]] = {}
    for sample in samples:
        value = value_of(sample)
        if value is not None:
            by_prompt.setdefault(sample.prompt, []).append(value)
    groups = list(by_prompt.values())
    values = [value for group in groups for value in group]
    if not values:
        return None
    if len(groups) < _LEAST_GROUPS:
        groups = [[value] for value in values]

    def middle(drawn: Sequence[list[float]]) -> float:
        return statistics.median([value for group in drawn for value in group])

    return _figure(statistics.median(values), groups, middle, len(values))


def percentiles(values: Sequence[float], shares: Sequence[float]) -> list[float | None]:
    """Interpolated; None of nothing."""
    ordered = sorted(values)
    return [quantile(ordered, share) if ordered else None for share in shares]


def spread(values: Sequence[float]) -> Spread | None:
    """None of nothing."""
    if not values:
        return None
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def is_over_one_sigma(before: Spread, after: Spread) -> bool | None:
    """UAP's "REAL (>1sigma)": the means are further apart than one standard deviation, pooled over both sides.

    With three values a side it calls three in ten pairs of equals real, so it stands beside an interval, never alone.
    None where a side has one value.
    """
    if before.deviation is None or after.deviation is None:
        return None
    freedom = before.count + after.count - 2
    pooled = sqrt(((before.count - 1) * before.deviation**2 + (after.count - 1) * after.deviation**2) / freedom)
    return abs(after.mean - before.mean) > pooled


def speed_ratio(before: Boot, after: Boot) -> float | None:
    """How many times faster `after` was on the prompts that both measured, all tokens weighing the same."""
    common = before.keys() & after.keys()
    old, new = ratio(before[name] for name in common), ratio(after[name] for name in common)
    return new / old if old and new else None


@dataclass(frozen=True, slots=True)
class PairedLog:
    """The logarithm of a ratio of speeds, `mean`, and the parts of its variance.

    `of_boots` is from pair to pair, which holds the luck of a boot and shrinks with more pairs; `of_prompts` is what
    prompts add by gaining differently, and shrinks with more prompts only.
    """

    mean: float
    of_boots: float
    of_prompts: float
    pairs: int
    prompts: int

    @property
    def variance(self) -> float | None:
        """None where there is too little to tell: one pair and one prompt."""
        found = self.of_boots + self.of_prompts
        return found if found > 0 and (self.pairs > 1 or self.prompts >= _LEAST_GROUPS) else None

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the variance, by Satterthwaite's rule."""
        found = (self.of_boots**2 / (self.pairs - 1) if self.pairs > 1 else 0.0) + (
            self.of_prompts**2 / (self.prompts - 1) if self.prompts > 1 else 0.0
        )
        return (self.of_boots + self.of_prompts) ** 2 / found if found > 0 else 1.0


def paired_log(blocks: Sequence[tuple[Boot, Boot]]) -> PairedLog | None:
    """How the second of each pair of boots compares with the first, prompt by prompt.

    Prompts and pairs of boots both vary, and cross: the variance is that between pairs, plus that between prompts, less
    what is in both (Cameron, Gelbach and Miller 2011); checked on simulated boots without a difference, where
    resampling both was far too wide. Of one pair it knows prompts only, not how much boots differ.
    """
    pairs = [(before, after, found) for before, after in blocks if (found := speed_ratio(before, after)) is not None]
    if not pairs:
        return None
    logs = [log(found) for _, _, found in pairs]
    count = len(pairs)
    of_boots = statistics.variance(logs) / count if count > 1 else 0.0
    cells = [_shares_of_gain(before, after) for before, after, _ in pairs]
    names = {name for cell in cells for name in cell}
    sums = [sum(cell.get(name, 0.0) for cell in cells) / count for name in names]
    widened = len(names) / max(1, len(names) - 1)
    of_prompts = widened * sum(one**2 for one in sums)
    of_both = widened * sum(one**2 for cell in cells for one in cell.values()) / count**2 if count > 1 else 0.0
    return PairedLog(statistics.fmean(logs), of_boots, max(0.0, of_prompts - of_both), count, len(names))


def paired_speed(blocks: Sequence[tuple[Boot, Boot]]) -> Figure | None:
    """How many times faster the second of each pair of boots was (`paired_log`): the geometric mean over the pairs.
    `count` is of pairs."""
    found = paired_log(blocks)
    if found is None:
        return None
    variance = found.variance
    if variance is None:
        return Figure(exp(found.mean), None, None, found.pairs)
    reach = student_95(found.freedom) * sqrt(variance)
    return Figure(exp(found.mean), exp(found.mean - reach), exp(found.mean + reach), found.pairs)


def _shares_of_gain(before: Boot, after: Boot) -> dict[str, float]:
    """How much each prompt pulls the logarithm of the ratio of speeds up; all together nothing."""
    common = before.keys() & after.keys()
    sums = [sum(side[name][part] for name in common) for side in (before, after) for part in (0, 1)]
    return {
        name: (after[name][0] / sums[2] - after[name][1] / sums[3])
        - (before[name][0] / sums[0] - before[name][1] / sums[1])
        for name in common
    }


def student_95(freedom: float) -> float:
    """Student's two-sided 95 % quantile, within 0.3 % of the tables from one degree of freedom on."""
    if freedom < _FEW:
        below = max(1, int(freedom))
        share = min(1.0, max(0.0, freedom - below))
        return _STUDENT[below - 1] + share * (_STUDENT[below] - _STUDENT[below - 1])
    z, n = Z_95, freedom
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)


def _figure(value: float, groups: Sequence[T], statistic: Callable[[Sequence[T]], float | None], count: int) -> Figure:
    if len(groups) < _LEAST_GROUPS:
        return Figure(value, None, None, count)
    random = Random(_SEED)  # noqa: S311 - statistics
    drawn = [statistic(random.choices(groups, k=len(groups))) for _ in range(RESAMPLES)]
    known = tuple(one for one in drawn if one is not None)
    if not known:
        return Figure(value, None, None, count)
    told: Difference = interval(Estimate(len(groups), value, known, is_narrow=True))
    return Figure(value, told.low, told.high, count)
