"""A series keeps its samples, bounded, and draws columns that never change once their time has passed."""

import math

from hypothesis import given
from hypothesis import strategies as st

from specdash.core.log_facts import Series

Steps = list[tuple[float, float | None]]
STEPS = st.lists(st.tuples(st.floats(0.01, 5.0), st.none() | st.floats(-1e6, 1e6)), min_size=1, max_size=200)


def filled(steps: Steps, capacity: int = 512) -> tuple[Series, Steps]:
    series, kept, at = Series(capacity), [], 1000.0
    for step, value in steps:
        at += step
        series.append(at, value)
        kept.append((at, value))
    return series, kept[-capacity:]


@given(steps=STEPS, capacity=st.integers(1, 50), start=st.just(-math.inf) | st.floats(990.0, 2000.0))
def test_keeps_exactly_the_newest_samples(steps: Steps, capacity: int, start: float) -> None:
    series, kept = filled(steps, capacity)
    found = [(at, None if math.isnan(value) else value) for at, value in series.since(start)]
    assert found == [(at, value) for at, value in kept if at >= start]


@given(steps=STEPS, later=st.floats(0.0, 30.0))
def test_a_column_whose_time_has_passed_keeps_its_value(steps: Steps, later: float) -> None:
    series, kept = filled(steps)
    now, width, count = kept[-1][0], 2.0, 10
    before = series.columns(now, width * count, count)
    moved = math.floor((now + later) / width) - math.floor(now / width)
    after = series.columns(now + later, width * count, count)
    if moved < count:
        assert after == before[moved:] + [None] * moved


def test_a_column_is_the_mean_of_its_samples_and_a_gap_is_unknown() -> None:
    series = Series()
    for at, value in ((10.0, 1.0), (10.5, 3.0), (11.2, 8.0), (13.0, None)):
        series.append(at, value)
    assert series.columns(13.9, 4.0, 4) == [2.0, 8.0, None, None]
