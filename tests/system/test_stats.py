"""Quantiles, means and intervals: the arithmetic that reports, cards and the tuner stand on."""

import math
import random
import statistics
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.system import stats
from specdash.system.stats import Interval, quantile

values = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=200)


def log_ratio(before: float, after: float) -> float:
    return math.log(after / before)


def median_of(*samples: list[float]) -> Interval:
    together = log_ratio if samples[1:] else float
    return stats.bootstrap(samples, stats.median, together, is_narrow=False)


@given(values)
def test_an_interval_holds_the_statistic_and_is_of_the_same_values(sample: list[float]) -> None:
    found = median_of(sample)
    assert found.value == median(sample)
    least, most = min(sample) * (1 - 1e-9), max(sample) * (1 + 1e-9)
    assert least <= found.low <= found.value <= found.high <= most


@given(values, values)
def test_the_interval_holds_the_difference_and_exchanging_the_sides_negates_it(
    row: list[float], other: list[float]
) -> None:
    there, back = median_of(row, other), median_of(other, row)
    assert there.low <= there.value <= there.high
    assert (back.value, back.low, back.high) == pytest.approx((-there.value, -there.high, -there.low), abs=1e-9)


def test_resamples_of_a_ratio_scatter_as_far_as_theory_says() -> None:
    rng = random.Random(3)
    sample = [(rng.randint(0, 100), 100) for _ in range(150)]
    shares = [part / whole for part, whole in sample]
    mean = sum(shares) / len(shares)
    theory = math.sqrt(sum((share - mean) ** 2 for share in shares)) / len(shares)
    found = stats.bootstrap([sample], stats.ratio)
    assert found.value == pytest.approx(mean)
    assert (found.high - found.low) / (2 * stats.Z_95) == pytest.approx(theory, rel=0.1)


@given(values, st.floats(0, 1))
def test_a_quantile_is_numpys(sample: list[float], share: float) -> None:
    assert quantile(sorted(sample), share) == pytest.approx(float(np.quantile(sample, share)), rel=1e-9)
    assert stats.quantiles(sample, (share,)) == [quantile(sorted(sample), share)]
    assert stats.nearest_rank(sorted(sample), share) == np.quantile(sample, share, method="inverted_cdf")


@given(values)
def test_medians_means_and_deviations_are_those_of_the_standard_library(sample: list[float]) -> None:
    assert stats.median([*sample, None]) == statistics.median(sample)
    assert stats.mean([None, *sample]) == pytest.approx(statistics.fmean(sample))
    found = stats.spread(sample)
    assert found is not None
    assert found.count == len(sample)
    assert found.standard_deviation == (pytest.approx(statistics.stdev(sample), abs=1e-9) if len(sample) > 1 else None)


def test_of_nothing_nothing_is_known() -> None:
    assert (stats.median([None]), stats.mean([]), stats.variance([1.0]), stats.spread([])) == (None, None, None, None)
    assert stats.quantiles([], (0.5,)) == [None]
    assert stats.ratio([]) is None
    assert stats.mean_reach([1.0]) is None
    assert stats.pooled_deviation([[1.0], []]) == (None, 0)
    assert stats.share(1, 0) is stats.share(None, 1) is stats.share(1, None) is None
    assert (stats.share(1, 4), stats.share(0, 4)) == (0.25, 0.0)


@given(st.lists(st.lists(st.floats(-100, 100), min_size=2, max_size=6), min_size=1, max_size=5))
def test_a_pooled_deviation_lies_between_those_of_its_groups(groups: list[list[float]]) -> None:
    found, freedom = stats.pooled_deviation(groups)
    alone = [statistics.stdev(group) for group in groups]
    assert freedom == sum(map(len, groups)) - len(groups)
    assert found is not None
    assert min(alone) - 1e-6 <= found <= max(alone) + 1e-6


@pytest.mark.parametrize("count", [4, 30])
def test_intervals_hold_the_truth_about_as_often_as_they_say(count: int) -> None:
    source, by_groups, by_mean, trials = random.Random(count), 0, 0, 100
    for _ in range(trials):
        sample = [source.gauss(10, 2) for _ in range(count)]
        found, reach = stats.bootstrap([sample], stats.mean), stats.mean_reach(sample)
        assert reach is not None
        by_groups += found.low <= 10 <= found.high
        by_mean += abs(found.value - 10) <= reach
    assert by_groups >= 0.86 * trials
    assert by_mean >= 0.91 * trials


@pytest.mark.parametrize(
    ("freedom", "alpha", "quantile"),
    [
        *[(1, 0.05, 12.706), (2, 0.05, 4.303), (3, 0.05, 3.182), (10, 0.05, 2.228), (1, 0.025, 25.452)],
        *[(5, 0.01, 4.032), (1.25, 0.05, 8.028), (1.5, 0.01, 17.82), (5000, 0.05, 1.9604)],
    ],
)
def test_students_quantiles_are_those_of_the_tables(freedom: float, alpha: float, quantile: float) -> None:
    assert stats.student(freedom, alpha) == pytest.approx(quantile, rel=1e-3)
