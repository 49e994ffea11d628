"""Applies on charts: at the right column, told apart, and never over a value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord
from specdash.core.log_facts import Series
from specdash.core.readings import Host, Reading, Source
from specdash.core.target import Target
from specdash.insight.charts import Metric
from specdash.insight.experiments import ApplyMark
from specdash.insight.state import TargetState
from specdash.tui import plot
from specdash.tui.plot import APPLIED, FAILED, LOOKS, UNDONE, Mark, cell_of, look_of, marks_of, overlay
from specdash.tui.spans import PALETTES
from specdash.tui.view import View, chart_span
from specdash.tui.widgets.chart import Chart
from tui.drawn import text
from tui.fake_state import FakeState

NOW, WINDOW = 10_000.0, 300.0


def mark(
    age_s: float, outcome: ApplyOutcome = ApplyOutcome.APPLIED, kind: ApplyKind = ApplyKind.APPLY, number: int = 7
) -> ApplyMark:
    return ApplyMark(ApplyRecord(number, 0.0, 0.0, kind, outcome), age_s, 1.79e9 - age_s, "DRAFT_MAX 4→12")


def view(*marks: ApplyMark, scene: str = "busy", now: float = NOW) -> View:
    state = FakeState(scene)
    picture = replace(state.picture(now, 0.0, 300.0), applies=marks)
    return View(picture, state)


def test_the_cell_of_a_column_is_where_the_chart_draws_it() -> None:
    for width, count in ((30, 60), (30, 45), (30, 30), (75, 150)):
        for column in range(count):
            levels = [1 if index == column else None for index in range(count)]
            (drawn,) = plot.plot(levels, width, 1, "decode")
            assert text(drawn).rstrip() != ""
            assert len(text(drawn).rstrip()) - 1 == cell_of(column, count, width)


@given(st.floats(0, 299), st.integers(2, 300), st.floats(5000, 6000))
def test_a_mark_stands_in_the_column_that_a_sample_of_that_moment_falls_into(
    age: float, count: int, now: float
) -> None:
    series = Series()
    series.append(now - age, 1.0)
    columns = series.columns(now, 300.0, count)
    found = marks_of(view(mark(age), now=now).picture, count, WINDOW)
    assert [item.column for item in found] == [index for index, value in enumerate(columns) if value is not None]


def test_what_is_outside_of_the_window_or_was_refused_has_no_mark() -> None:
    applies = mark(301), mark(10, ApplyOutcome.REFUSED), mark(-20)
    assert marks_of(view(*applies).picture, 60, WINDOW) == ()


@given(
    st.lists(st.one_of(st.none(), st.integers(0, 31)), min_size=2, max_size=80),
    st.integers(8, 60),
    st.integers(1, 8),
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from(LOOKS)), max_size=6),
)
def test_marks_never_hide_a_value_and_the_chart_keeps_its_size(
    columns: list[int | None],
    width: int,
    height: int,
    where: list[tuple[float, object]],
) -> None:
    levels = [None if value is None else min(value, height * 4 - 1) for value in columns]
    plain = plot.plot(levels, width, height, "decode")
    marks = [Mark(int(share * (len(columns) - 1)), look, ("DRAFT_MAX 4→12", "#7")) for share, look in where]  # type: ignore[arg-type]
    drawn = overlay(plain, marks, len(columns), "decode")
    assert len(drawn) == len(plain)
    for before, after in zip(plain, drawn, strict=True):
        cells_before = [(char, role) for part, role in before for char in part]
        cells_after = [(char, role) for part, role in after for char in part]
        assert len(cells_after) == width
        for old, new in zip(cells_before, cells_after, strict=True):
            if old[1] == "decode":
                assert new == old


def test_applied_rolled_back_and_rollback_are_told_apart_without_colour() -> None:
    kinds = {
        look_of(mark(1)): APPLIED,
        look_of(mark(1, ApplyOutcome.ROLLED_BACK)): FAILED,
        look_of(mark(1, ApplyOutcome.ROLLBACK_FAILED)): FAILED,
        look_of(mark(1, kind=ApplyKind.ROLLBACK)): UNDONE,
    }
    assert all(found is wanted for found, wanted in kinds.items())
    heads = {look.head for look in LOOKS}
    lines = {look.line for look in LOOKS}
    assert len(heads) == len(lines) == len(LOOKS)
    assert len({mark_style.role for mark_style in (APPLIED, UNDONE, FAILED)}) == 3
    palette = next(iter(PALETTES.values()))
    assert all(look.role in palette.colors for look in LOOKS)


def test_the_newest_says_in_short_what_it_changed_where_there_is_room() -> None:
    chart = Chart(Metric.ACCEPTANCE, "acceptance")
    lines = chart.lines(view(mark(200, number=6), mark(150), scene="loading"), 80, 8)
    assert text(lines[0]).count("▼") == 2
    assert text(lines[0]).count("DRAFT_MAX 4→12") == 1
    assert "▼DRAFT_MAX 4→12" in text(lines[0])
    narrow = Chart(Metric.ACCEPTANCE, "acceptance").lines(view(mark(40), scene="loading"), 30, 8)
    assert "DRAFT_MAX 4→12▼" in text(narrow[0]), "at the left where there is none at the right"
    least = Chart(Metric.ACCEPTANCE, "acceptance").lines(view(mark(150), scene="loading"), 17, 8)
    assert "#7" in text(least[0])
    assert "DRAFT" not in text(least[0])


def test_a_chart_is_drawn_again_when_a_mark_comes_and_not_while_it_stands() -> None:
    chart = Chart(Metric.DECODE, "decode")
    state = FakeState()
    plain = chart.lines(View(state.picture(NOW, 0.0), state), 60, 8)
    marked = chart.lines(View(replace(state.picture(NOW, 0.0), applies=(mark(100),)), state), 60, 8)
    again = chart.lines(View(replace(state.picture(NOW + 0.1, 0.0), applies=(mark(100.1),)), state), 60, 8)
    assert marked is not plain
    assert again is marked


def test_hostile_text_of_a_change_cannot_break_a_chart() -> None:
    bad = replace(mark(150), text="\x1b[31mタブ\u202e" + "x" * 500)
    lines = Chart(Metric.DECODE, "decode").lines(view(bad), 60, 8)
    assert all(len(text(line)) == 60 for line in lines)


@pytest.mark.parametrize(
    ("age_s", "window_s", "span"),
    [(1.0, 300.0, 30.0), (40.0, 300.0, 60.0), (40.0, 60.0, 60.0), (250.0, 300.0, 300.0), (400.0, 3600.0, 600.0)],
)
def test_charts_go_back_no_further_than_what_is_known(age_s: float, window_s: float, span: float) -> None:
    state = TargetState(Target("http://127.0.0.1:8080"), rules=())
    for at in range(int(NOW - age_s), int(NOW) + 1):
        state.apply(Reading.known(Source.HOST, float(at), Host(cpu_utilisation=0.5)))
    assert chart_span(state, NOW, window_s) == span


def test_charts_of_a_server_of_which_nothing_is_known_span_the_window() -> None:
    assert chart_span(FakeState("unauthorized"), NOW, 300.0) == 300.0
