"""Charts, bars and text in exactly the cells they are given."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from specdash.insight.charts import Metric
from specdash.system.text import clean
from specdash.tui import plot, spans
from specdash.tui.view import View
from specdash.tui.widgets.chart import Chart
from tui.drawn import block
from tui.fake_state import FakeState

COLUMNS = st.lists(st.one_of(st.none(), st.floats(0, 1e6)), min_size=2, max_size=80)


@given(COLUMNS, st.integers(8, 60), st.integers(2, 12))
def test_a_chart_fills_exactly_its_room(columns: list[float | None], width: int, height: int) -> None:
    top = plot.top_of(columns, None)
    lines = plot.plot(plot.levels(columns, height, 0.0, top), width, height, "decode")
    assert len(lines) == height
    assert all(sum(len(part) for part, _ in line) == width for line in lines)


def test_gaps_stay_empty_and_a_late_sample_does_not_tear_the_line() -> None:
    with_gap = [0.5] * 20 + [None] * 20 + [0.5] * 20
    lines = plot.plot(plot.levels(with_gap, 4, 0.0, 1.0), 30, 4, "decode")
    assert all("".join(part for part, _ in line)[11:19].strip() == "" for line in lines)
    late = [0.5] * 20 + [None] + [0.5] * 20
    drawn = block(plot.plot(plot.levels(late, 4, 0.0, 1.0), 20, 4, "decode"))
    assert all(line.strip() == "" or " " not in line for line in drawn.splitlines())


def test_the_line_lies_as_high_as_its_value() -> None:
    for value, row in ((1.0, 0), (0.0, 7)):
        lines = plot.plot(plot.levels([value] * 40, 8, 0.0, 1.0), 20, 8, "decode")
        assert [y for y, line in enumerate(lines) if any(role == "decode" for _, role in line)] == [row]


def test_no_column_is_shorter_than_a_sample() -> None:
    assert plot.column_count(100, 60.0) == 30
    assert plot.column_count(40, 3600.0) == 80


def test_a_chart_without_values_has_no_scale_to_mislead() -> None:
    state = FakeState("loading")
    chart = Chart(Metric.DECODE, "decode")
    assert block(chart.lines(View(state.picture(10_000.0, 0.0), state), 40, 8)).strip() == ""
    assert chart.empty


@given(st.text(max_size=60), st.integers(min_value=0, max_value=40), st.booleans())
def test_fitted_text_takes_exactly_its_cells(text: str, width: int, right: bool) -> None:
    assert cell_len(spans.fit(clean(text), width, right=right)) == width


@given(st.floats(min_value=0, max_value=1), st.integers(min_value=0, max_value=60))
def test_a_bar_and_its_rest_fill_the_width(share: float, width: int) -> None:
    filled, rest = spans.bar(share, width)
    assert len(filled) + len(rest) == width


@given(st.floats(min_value=0, max_value=1), st.integers(min_value=0, max_value=20))
def test_an_upright_bar_has_one_character_a_row(share: float, height: int) -> None:
    assert len(spans.column_bar(share, height)) == height


def test_an_unknown_share_draws_no_bar() -> None:
    assert spans.bar(None, 10) == ("", " " * 10)


@given(st.floats(min_value=1e-6, max_value=1e12))
def test_the_top_of_a_chart_is_round_and_close_above_the_data(value: float) -> None:
    top = plot.nice_ceiling(value)
    assert value <= top * (1 + 1e-6)
    assert top <= value * 2.0 * (1 + 1e-6)


def test_of_what_is_never_late_one_missing_column_is_a_gap() -> None:
    columns = (5, 5, 5, 5, None, 5, 5, 5, 5)
    joined, parted = (plot.plot(columns, 9, 2, "decode", late=late) for late in (1, 0))
    rows = [["".join(text for text, _ in line) for line in lines] for lines in (joined, parted)]
    assert " " not in rows[0][0][4]
    assert {row[4] for row in rows[1]} == {" "}
