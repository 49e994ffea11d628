"""Which points a boot without enough memory rules out."""

from __future__ import annotations

import pytest
from benchmarks.tuner_lab.grid import both, mtp, ngram, points
from hypothesis import given
from hypothesis import strategies as st

from specdash.tune.model.problem import Point
from specdash.tune.model.tuner import chance_to_fit, outgrown


def test_a_draft_that_does_not_fit_does_not_fit_beside_ngrams_either() -> None:
    grid = points()
    out = {grid[at] for at in outgrown(grid, grid.index(both(10, 0.5, 16)))}
    assert {mtp(10, 0.0), mtp(12, 0.75), both(12, 0.0, 64)} <= out
    assert not {mtp(8, 0.0), both(8, 0.5, 16), ngram(64), Point()} & out


@given(st.sampled_from(points()))
def test_a_point_always_outgrows_itself_and_no_speculation_is_never_outgrown(point: Point) -> None:
    grid = points()
    out = outgrown(grid, grid.index(point))
    assert grid.index(point) in out
    assert Point() not in {grid[at] for at in out} or point == Point()


def test_the_limit_may_lie_anywhere_between_what_fits_and_what_does_not() -> None:
    grid = points()
    at = {point: place for place, point in enumerate(grid)}
    chances = chance_to_fit(grid, [at[mtp(4, 0.0)]], [at[mtp(12, 0.0)]])
    assert chances[at[mtp(4, 0.75)]] == chances[at[mtp(2, 0.0)]] == chances[at[ngram(64)]] == chances[at[Point()]] == 1
    assert chances[at[both(8, 0.0, 16)]] == pytest.approx(0.5)
    assert chances[at[mtp(12, 0.5)]] == 0
