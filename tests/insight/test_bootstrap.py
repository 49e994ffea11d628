"""Medians, ratios and their differences: the arithmetic that the before/after card stands on."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdash.insight.bootstrap import MOST, RESAMPLES, difference, median_of, quantile, ratio_of

values = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=MOST)
pairs = st.lists(
    st.integers(1, 10**6).flatmap(lambda whole: st.tuples(st.integers(0, whole), st.just(whole))),
    min_size=1,
    max_size=60,
)


def log_ratio(before: float, after: float) -> float:
    return math.log(after / before)


def points(before: float, after: float) -> float:
    return after - before


@settings(max_examples=60, deadline=None)
@given(values)
def test_a_median_is_the_median_and_its_resamples_are_medians_of_the_same_values(sample: list[float]) -> None:
    found = median_of(sample)
    assert found.value == pytest.approx(median(sample))
    assert len(found.resamples) == RESAMPLES
    assert min(sample) <= min(found.resamples)
    assert max(found.resamples) <= max(sample)
    if len(sample) % 2:
        assert set(found.resamples) <= set(sample)


@settings(max_examples=60, deadline=None)
@given(pairs)
def test_a_ratio_is_that_of_the_sums(sample: list[tuple[int, int]]) -> None:
    found = ratio_of(sample)
    assert found.value == sum(part for part, _ in sample) / sum(whole for _, whole in sample)
    shares = [part / whole for part, whole in sample]
    assert min(shares) - 1e-12 <= min(found.resamples)
    assert max(found.resamples) <= max(shares) + 1e-12


@settings(max_examples=60, deadline=None)
@given(values, values)
def test_the_interval_holds_the_difference_and_exchanging_the_sides_negates_it(
    one: list[float], other: list[float]
) -> None:
    there = difference(median_of(one), median_of(other), log_ratio)
    back = difference(median_of(other), median_of(one), log_ratio)
    assert there.low <= there.value <= there.high
    assert (back.value, back.low, back.high) == pytest.approx((-there.value, -there.high, -there.low), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(pairs, pairs)
def test_so_it_is_with_ratios(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    there = difference(ratio_of(one), ratio_of(other), points)
    back = difference(ratio_of(other), ratio_of(one), points)
    assert there.low <= there.value <= there.high
    assert (back.value, back.low, back.high) == pytest.approx((-there.value, -there.high, -there.low), abs=1e-9)


def test_the_same_samples_give_the_same_interval() -> None:
    sample = [random.Random(1).lognormvariate(3, 0.2) for _ in range(30)]
    assert median_of(sample) == median_of(list(reversed(sample)))


@pytest.mark.parametrize("count", [12, 13, 30, 101])
def test_the_shortcut_to_a_resamples_median_is_what_resampling_gives(count: int) -> None:
    rng = random.Random(count)
    sample = [rng.lognormvariate(3, 0.5) for _ in range(count)]
    plain = sorted(median(rng.choices(sample, k=count)) for _ in range(4000))
    short = sorted(median_of(sample).resamples)
    spread = quantile(plain, 0.9) - quantile(plain, 0.1)
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        assert abs(quantile(short, share) - quantile(plain, share)) < 0.25 * spread


def test_resamples_of_a_ratio_scatter_as_far_as_theory_says() -> None:
    rng = random.Random(3)
    sample = [(rng.randint(0, 100), 100) for _ in range(150)]
    shares = [part / whole for part, whole in sample]
    mean = sum(shares) / len(shares)
    theory = math.sqrt(sum((share - mean) ** 2 for share in shares)) / len(shares)
    found = ratio_of(sample).resamples
    spread = math.sqrt(sum((one - mean) ** 2 for one in found) / len(found))
    assert spread == pytest.approx(theory, rel=0.06)


def test_two_samples_alike_are_no_further_apart_than_chance() -> None:
    sample = [float(value) for value in range(1, 41)]
    found = difference(median_of(sample), median_of(sample), log_ratio)
    assert found.value == 0.0
    assert found.low < -0.1
    assert found.high > 0.1
