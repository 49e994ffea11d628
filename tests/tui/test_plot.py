"""Charts as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.insight.charts import Metric
from specdash.tui import plot
from specdash.tui.view import View
from specdash.tui.widgets.chart import Chart
from tui.drawn import block
from tui.fake_state import FakeState

COLUMNS = st.lists(st.one_of(st.none(), st.floats(0, 1e6)), min_size=2, max_size=80)


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    """The library is there."""
    plot.load()


@given(COLUMNS, st.integers(8, 60), st.integers(2, 12), st.booleans())
def test_a_chart_fills_exactly_its_room(columns: list[float | None], width: int, height: int, ascii_only: bool) -> None:
    top = plot.top_of(columns, None)
    lines = plot.plot(plot.levels(columns, height, 0.0, top), width, height, "decode", ascii_only=ascii_only)
    assert len(lines) == height
    assert all(sum(len(part) for part, _ in line) == width for line in lines)


def test_gaps_stay_empty_and_a_late_sample_does_not_tear_the_line() -> None:
    with_gap = [0.5] * 20 + [None] * 20 + [0.5] * 20
    lines = plot.plot(plot.levels(with_gap, 4, 0.0, 1.0), 30, 4, "decode", ascii_only=False)
    assert all("".join(part for part, _ in line)[11:19].strip() == "" for line in lines)
    late = [0.5] * 20 + [None] + [0.5] * 20
    drawn = block(plot.plot(plot.levels(late, 4, 0.0, 1.0), 20, 4, "decode", ascii_only=False))
    assert all(line.strip() == "" or " " not in line for line in drawn.splitlines())


def test_the_line_lies_as_high_as_its_value() -> None:
    for value, row in ((1.0, 0), (0.0, 7)):
        lines = plot.plot(plot.levels([value] * 40, 8, 0.0, 1.0), 20, 8, "decode", ascii_only=False)
        assert [y for y, line in enumerate(lines) if any(role == "decode" for _, role in line)] == [row]


def test_no_column_is_shorter_than_a_sample() -> None:
    assert plot.column_count(100, 60.0) == 30
    assert plot.column_count(40, 3600.0) == 80


def test_a_chart_is_drawn_again_only_when_it_would_look_different() -> None:
    state = FakeState()
    chart = Chart(Metric.DECODE, "decode")
    first = chart.lines(View(state.picture(10_000.0, 0.0), state), 40, 8)
    assert chart.lines(View(state.picture(10_000.2, 0.0), state), 40, 8) is first
    assert chart.lines(View(state.picture(10_060.0, 0.0), state), 40, 8) is not first


def test_a_chart_without_values_has_no_scale_to_mislead() -> None:
    state = FakeState("loading")
    chart = Chart(Metric.DECODE, "decode")
    assert block(chart.lines(View(state.picture(10_000.0, 0.0), state), 40, 8)).strip() == ""
    assert chart.empty
