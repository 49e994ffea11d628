"""A series keeps its samples, bounded, and draws columns that never change once their time has passed."""

import math

from hypothesis import given
from hypothesis import strategies as st

from specdash.core.log_facts import Series

samples = st.lists(
    st.tuples(st.floats(0.01, 5.0), st.one_of(st.none(), st.floats(-1e6, 1e6))), min_size=1, max_size=200
)


def filled(steps: list[tuple[float, float | None]], capacity: int) -> tuple[Series, list[tuple[float, float | None]]]:
    series, kept, at = Series(capacity), [], 1000.0
    for step, value in steps:
        at += step
        series.append(at, value)
        kept.append((at, value))
    return series, kept[-capacity:]


@given(steps=samples, capacity=st.integers(1, 50))
def test_keeps_exactly_the_newest_samples(steps: list[tuple[float, float | None]], capacity: int) -> None:
    series, kept = filled(steps, capacity)
    for (at, value), (kept_at, kept_value) in zip(series.since(-math.inf), kept, strict=True):
        assert at == kept_at
        assert math.isnan(value) if kept_value is None else value == kept_value


@given(steps=samples, start=st.floats(990.0, 2000.0))
def test_since_returns_what_is_not_older(steps: list[tuple[float, float | None]], start: float) -> None:
    series, kept = filled(steps, 64)
    assert [at for at, _ in series.since(start)] == [at for at, _ in kept if at >= start]


@given(steps=samples, later=st.floats(0.0, 30.0))
def test_a_column_whose_time_has_passed_keeps_its_value(steps: list[tuple[float, float | None]], later: float) -> None:
    series, kept = filled(steps, 512)
    now, width, count = kept[-1][0], 2.0, 10
    before = series.columns(now, width * count, count)
    moved = math.floor((now + later) / width) - math.floor(now / width)
    after = series.columns(now + later, width * count, count)
    if moved < count:
        assert after[: count - moved] == before[moved:]
        assert all(value is None for value in after[count - moved :])


def test_a_gap_is_unknown_and_not_zero() -> None:
    series = Series()
    series.append(1.0, None)
    assert series.columns(1.5, 4.0, 4) == [None] * 4


def test_a_column_is_the_mean_of_its_samples() -> None:
    series = Series()
    for at, value in ((10.0, 1.0), (10.5, 3.0), (11.2, 8.0)):
        series.append(at, value)
    assert series.columns(11.9, 2.0, 2) == [2.0, 8.0]
