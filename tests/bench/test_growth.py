"""Whether memory grows: leaks are found, and what wanders, fills or jumps is not called one."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.bench.soak import LEAST_LOOKS, GrowthTrend, GrowthVerdict, growth_of

MIB = 2.0**20
EVERY_S = 5.0
HOUR = 720
"""Looks in an hour."""


def looks(kind: str, seed: int, *, leak: float = 0.0, count: int = HOUR) -> list[tuple[float, float]]:
    """A process of 200 MiB; `leak` is bytes an hour."""
    random, state, jump = Random(seed), 0.0, Random(seed).randrange(count)
    found = []
    for number in range(count):
        at = number * EVERY_S
        if kind == "noise":
            state = random.gauss(0, MIB)
        elif kind == "wander":
            state = 0.99 * state + random.gauss(0, 0.5 * MIB)
        elif kind == "walk":
            state += random.gauss(0, 0.3 * MIB)
        elif kind == "jump":
            state = 8 * MIB * (number > jump)
        elif kind == "fill":
            state = 20 * MIB * (1 - math.exp(-number / (0.08 * count)))
        found.append((at, 200 * MIB + state + leak * at / 3600))
    return found


def told(points: list[tuple[float, float]]) -> GrowthTrend:
    found = growth_of(points, matters=MIB, share=0.005)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["still", "noise"])
def test_a_leak_is_found_with_its_slope(kind: str) -> None:
    for seed in range(20):
        found = told(looks(kind, seed, leak=10 * MIB))
        assert found.verdict is GrowthVerdict.GROWING
        assert found.slope is not None
        assert found.slope / MIB == pytest.approx(10, abs=1)
        assert told(looks(kind, seed)).verdict is GrowthVerdict.FLAT


@pytest.mark.parametrize("kind", ["wander", "walk", "jump", "fill"])
def test_what_is_no_leak_is_hardly_ever_called_growing(kind: str) -> None:
    verdicts = [told(looks(kind, seed)).verdict for seed in range(100)]
    assert verdicts.count(GrowthVerdict.GROWING) <= 5
    assert verdicts.count(GrowthVerdict.FLAT) <= 30


def test_a_leak_that_does_not_matter_is_flat() -> None:
    assert told(looks("still", 1, leak=0.3 * MIB)).verdict is GrowthVerdict.FLAT


def test_steps_that_are_too_small_to_matter_are_flat() -> None:
    """The memory of a proxy that grows by a page now and then: too alike for an interval, and all within 1 MiB."""
    found = told(
        [(at, value + 0.4 * MIB * (number > HOUR / 2)) for number, (at, value) in enumerate(looks("still", 1))]
    )
    assert found.verdict is GrowthVerdict.FLAT


@pytest.mark.parametrize(("count", "every"), [(LEAST_LOOKS - 1, 60.0), (100, 0.5), (1, 1.0)])
def test_too_little_is_said_to_be(count: int, every: float) -> None:
    found = told([(number * every, MIB * number) for number in range(count)])
    assert (found.verdict, found.slope) == (GrowthVerdict.SHORT, None)


def test_nothing_is_nothing() -> None:
    assert growth_of([], matters=1.0) is None


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e12)), min_size=1, max_size=80))
def test_whatever_was_seen_there_is_a_verdict(points: list[tuple[float, float]]) -> None:
    found = growth_of(sorted(points), matters=1.0, share=0.01)
    assert found is not None
    assert found.low is None or found.high is None or found.slope is None or found.low <= found.slope <= found.high
