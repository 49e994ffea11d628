"""The banner, the timeline and the speed-up: they fit, are told apart without colour, and take no room for nothing."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from specdash.core.alerts import AlertSeverity
from specdash.core.timeline import EventKind, TimelineEvent
from specdash.insight.charts import Metric
from specdash.insight.rules.catalogue import Rule, shipped
from specdash.insight.rules.runbook import runbook
from specdash.insight.speedup_picture import Basis, Paying, SpeedUpPicture
from specdash.tui import plot
from specdash.tui.marks import CRITICAL, RESTARTED, WARNED, marks_of
from specdash.tui.spans import ASCII, UNICODE, to_strip
from specdash.tui.themes import PALETTES
from specdash.tui.view import View
from specdash.tui.widgets import speedup
from specdash.tui.widgets.alerts import AlertsTable, chart_span, detail_lines, judged_lines
from specdash.tui.widgets.banner import banner_line, glyph
from specdash.tui.widgets.chart import Chart
from specdash.tui.widgets.header import Situation, header_lines
from specdash.tui.widgets.small import small_lines
from specdash.tui.widgets.timeline import SPANS_S, TimelineStrip, _scale, span_of, strip_lines
from tui.drawn import block, text
from tui.fake_alerts import ESTIMATE, HURTING, PAYING, SPECS, hung_slot, with_alerts, zero_acceptance
from tui.fake_state import HOSTILE, FakeState

NOW, WALL = 10_000.0, 1_790_000_000.0


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    """The library is there."""
    plot.load()


def view(scene: str = "alerts", *, ascii_only: bool = False) -> View:
    """One scene."""
    state = FakeState(scene)
    return View(state.picture(NOW, WALL, 300.0), state, ASCII if ascii_only else UNICODE)


def header(scene: str, width: int = 80, **situation: object) -> str:
    """The header of one scene."""
    return block(header_lines(view(scene), Situation(WALL, **situation), width))  # type: ignore[arg-type]


def test_while_nothing_is_wrong_the_banner_takes_no_line() -> None:
    assert banner_line(view("busy"), 80) is None
    assert len(header("alerts_past").splitlines()) == len(header("busy").splitlines()) == 2


def test_the_banner_is_one_line_with_the_cause_how_many_more_and_the_key() -> None:
    line = header("alerts").splitlines()[2]
    assert "Not one draft token is accepted" in line
    assert "+2 more" in line
    assert line.rstrip().endswith("press i")
    assert len(header("alerts").splitlines()) == 3
    assert "press i" not in header("alerts", on_incidents=True)


@given(st.integers(20, 250), st.booleans(), st.text(max_size=200))
def test_the_banner_is_as_wide_as_the_screen_whatever_the_cause(width: int, ascii_only: bool, cause: str) -> None:
    at = view(ascii_only=ascii_only)
    at = replace(at, picture=replace(at.picture, alerts=replace(at.picture.alerts, cause=cause + HOSTILE)))
    line = banner_line(at, width)
    assert line is not None
    assert cell_len(text(line)) == max(width, cell_len(text(banner_line(at, 20) or ()))) or width >= 40
    if width >= 40:
        assert cell_len(text(line)) == width
    assert to_strip(line, width, next(iter(PALETTES.values())), ascii_only=ascii_only).cell_length == width


def test_severities_are_told_apart_without_colour() -> None:
    for glyphs in (UNICODE, ASCII):
        assert len({glyph(severity, glyphs) for severity in AlertSeverity}) == 3
    line = banner_line(view("notice"), 80)
    assert line is not None
    assert not line[0][1].startswith("banner.")


def test_beside_the_banner_the_state_is_told_in_a_quiet_voice() -> None:
    down = view("down")
    both = replace(down, picture=with_alerts(down.picture, (hung_slot(WALL),), ()))
    lines = header_lines(both, Situation(WALL), 80)
    loud = [line for line in lines if any(role.startswith("banner.") for _, role in line)]
    assert "Slot hangs" in block(loud)
    assert "connection refused" not in block(loud)
    assert "connection refused" in block(lines)
    assert len(lines) <= 5


@given(
    st.integers(8, 200),
    st.lists(
        st.tuples(st.floats(0, 2_000_000), st.sampled_from(EventKind), st.sampled_from([None, *AlertSeverity]),
                  st.one_of(st.none(), st.floats(0, 100_000))),
        max_size=12,
    ),
    st.booleans(),
)  # fmt: skip
def test_the_strip_never_leaves_its_room(
    width: int, events: list[tuple[float, EventKind, AlertSeverity | None, float | None]], ascii_only: bool
) -> None:
    at = view("busy", ascii_only=ascii_only)
    timeline = tuple(
        TimelineEvent(WALL - age, kind, "x", severity, None if lasts is None else WALL - age + lasts)
        for age, kind, severity, lasts in sorted(events, key=lambda one: -one[0])
    )
    lines = strip_lines(replace(at.picture, timeline=timeline), width, at.glyphs)
    assert len(lines) == 3
    assert [cell_len(text(line)) for line in lines[1:]] == [width, width]
    if ascii_only:
        assert all(text(line).isascii() for line in lines[1:])


def test_the_strip_is_long_enough_for_all_events_and_says_how_long() -> None:
    picture = view().picture
    name, span = span_of(picture)
    assert (name, span) == ("3h", SPANS_S["3h"])
    lines = strip_lines(picture, 118, UNICODE)
    assert "last 3h" in text(lines[0])
    for look in (CRITICAL, WARNED, RESTARTED):
        assert look.head in text(lines[1])
    assert span_of(replace(picture, timeline=(), applies=())) == ("5m", 300.0)
    ancient = TimelineEvent(WALL - 9e6, EventKind.RESTART, "restarted")
    assert span_of(replace(picture, timeline=(ancient,))) == ("7d", SPANS_S["7d"])


def test_alerts_and_restarts_are_marked_in_charts_and_notices_are_not() -> None:
    picture = replace(view().picture, window_s=3_600.0)
    looks = [mark.look for mark in marks_of(picture, 200)]
    assert looks.count(CRITICAL) == 2
    assert looks.count(WARNED) == 1
    assert looks.count(RESTARTED) == 1
    named = [mark for mark in marks_of(picture, 200) if mark.look is CRITICAL and mark.texts]
    assert [mark.texts for mark in named] == [("Not one draft token is accepted",)]


def test_the_acceptance_chart_has_its_break_even_and_hides_no_value_behind_it() -> None:
    at = view("busy")
    plain = Chart(Metric.ACCEPTANCE, "acceptance").lines(at, 70, 9)
    lined = Chart(Metric.ACCEPTANCE, "acceptance").lines(at, 70, 9, 0.31, " break-even")
    assert "break-even" in block(lined)
    for before, after in zip(plain, lined, strict=True):
        old = [(char, role) for part, role in before for char in part]
        new = [(char, role) for part, role in after for char in part]
        assert all(one == other for one, other in zip(old, new, strict=True) if one[1] == "acceptance")


def with_speedup(picture: SpeedUpPicture) -> View:
    """A busy server with this speed-up."""
    at = view("busy")
    return replace(at, picture=replace(at.picture, speedup=picture))


def test_the_speed_up_is_one_line_with_interval_basis_and_verdict() -> None:
    assert text(speedup.compact_line(with_speedup(PAYING), 43)) == "x1.84 [1.70–2.00] measured  PAYING"
    assert text(speedup.compact_line(with_speedup(ESTIMATE), 60)) == "x1.05 [0.93–1.18] estimate  NO CLEAR GAIN"
    assert text(speedup.compact_line(with_speedup(PAYING), 30)) == "x1.84 measured  PAYING"
    assert "no request has ended yet" in text(speedup.compact_line(with_speedup(SpeedUpPicture()), 43))


def test_hurting_is_a_bar_in_the_panel_and_a_badge_in_the_header() -> None:
    line = speedup.compact_line(with_speedup(HURTING), 43)
    assert [role for _, role in line] == ["banner.bad"]
    assert text(line).startswith(" HURTING  x0.82")
    assert cell_len(text(line)) == 43
    badge = [role for part, role in header_lines(with_speedup(HURTING), Situation(WALL), 80)[0] if "HURTING" in part]
    assert badge == ["banner.bad"]
    assert "HURTING" not in header("busy")


def test_an_estimate_is_called_one_wherever_it_stands() -> None:
    for width in (46, 78, 118):
        assert "estimate" in block(speedup.detail_lines(with_speedup(ESTIMATE), width, 30))
        assert "measured" in block(speedup.detail_lines(with_speedup(PAYING), width, 30))


def test_the_detail_has_break_even_context_work_and_types() -> None:
    page = block(speedup.detail_lines(with_speedup(PAYING), 118, 30))
    for words in (
        "2.40 tok/step",
        "now 4.41",
        "31 % accepted",
        "4k to 16k",
        "x0.96",
        "tool call",
        "ngram-mod",
        "first 64",
    ):
        assert words in page


@given(
    st.integers(30, 220),
    st.integers(1, 40),
    st.sampled_from([PAYING, HURTING, ESTIMATE, SpeedUpPicture()]),
    st.sampled_from(Paying),
    st.sampled_from(Basis),
)
def test_the_speed_up_never_leaves_its_room(
    width: int, height: int, picture: SpeedUpPicture, verdict: Paying, basis: Basis
) -> None:
    at = with_speedup(replace(picture, verdict=verdict, basis=basis, why=picture.why + HOSTILE))
    assert cell_len(text(speedup.compact_line(at, width))) <= max(width, 46)
    lines = speedup.detail_lines(at, width, height)
    assert len(lines) <= height
    if width >= 46:
        assert all(cell_len(text(line)) <= width for line in lines)


@given(st.integers(30, 200), st.text(max_size=120))
def test_an_alert_in_detail_keeps_to_its_width_whatever_its_texts(width: int, words: str) -> None:
    bad = replace(
        zero_acceptance(WALL), summary=words + HOSTILE, evidence=((words, words),), fix=((words or "K", words),)
    )
    for line in detail_lines(bad, SPECS["zero_acceptance"], view(), width):
        assert cell_len(text(line)) <= width + 16
        assert "\x1b" not in text(line)
    assert all(cell_len(text(line)) <= width for line in judged_lines(view(), SPECS, max(width, 80)) if width >= 80)


@given(st.floats(0, 200_000), st.one_of(st.none(), st.floats(1, 200_000)))
def test_the_chart_of_an_alert_shows_its_beginning(before: float, lasted: float | None) -> None:
    since = WALL - before
    ended = None if lasted is None else min(since + lasted, WALL)
    alert = replace(zero_acceptance(WALL), since=since, ended=ended)
    end, span = chart_span(alert, WALL)
    assert end <= WALL
    if (ended or WALL) - since < 50_000:
        assert end - span <= since <= end


def test_the_strip_is_drawn_again_only_when_it_would_look_different(monkeypatch: pytest.MonkeyPatch) -> None:
    from textual.geometry import Size

    drawn: list[object] = []
    monkeypatch.setattr(TimelineStrip, "size", Size(100, 3))
    monkeypatch.setattr(TimelineStrip, "set_lines", lambda _, lines: drawn.append(lines))
    strip, at = TimelineStrip(), view()
    strip.show(at)
    strip.show(replace(at, picture=replace(at.picture, at=NOW + 0.1, wall=WALL + 0.1)))
    assert len(drawn) == 1
    strip.show(view("alerts_past"))
    assert len(drawn) == 2


def test_the_cause_comes_first_in_the_colour_of_the_gravest() -> None:
    at = view("busy")
    picture = with_alerts(at.picture, (zero_acceptance(WALL), hung_slot(WALL)), ())
    cause = hung_slot(WALL)
    alerts = replace(picture.alerts, cause_key=cause.key, cause="Slot hangs: slot 3 is busy")
    at = replace(at, picture=replace(picture, alerts=alerts))
    line = banner_line(at, 120)
    assert line is not None
    assert "CRITICAL  Slot hangs" in text(line)
    assert line[0][1] == "banner.bad"
    rows = AlertsTable().rows(at)
    assert [one.rule for one in rows] == ["slot_hung", "zero_acceptance"]


@pytest.mark.parametrize("rule", shipped(), ids=lambda rule: rule.spec.id)
def test_every_runbook_can_be_read_on_the_smallest_screen(rule: Rule) -> None:
    spec = rule.spec
    alert = replace(zero_acceptance(WALL), rule=spec.id, title=spec.title, chart=spec.chart)
    page = " ".join(block(detail_lines(alert, spec, view(), 80)).split())
    assert all(cell_len(text(line)) <= 80 for line in detail_lines(alert, spec, view(), 80))
    todo = runbook(spec)
    for words in (todo.remedy, todo.meaning, *todo.checks):
        assert " ".join(words.split()) in page
    assert spec.chart is None or spec.chart in tuple(Metric)


def test_a_terminal_that_is_too_small_still_names_the_cause() -> None:
    assert "Not one draft token is accepted" in block(small_lines(view(), Situation(0.0), 60, 15))


@pytest.mark.parametrize("width", [58, 78, 118, 198])
@pytest.mark.parametrize("span", SPANS_S.values())
def test_no_label_of_the_scale_is_there_twice_and_each_stands_at_its_time(width: int, span: float) -> None:
    begin = 1_772_000_000.0 + 17.0
    ((scale, _),) = _scale(begin, span, width)
    assert len(scale) == width
    labels = [(one.start(), one[0]) for one in re.finditer(r"(?:\d\d-\d\d )?\d\d:\d\d", scale)]
    assert labels
    assert len({text for _, text in labels}) == len(labels)
    form = "%H:%M" if span <= 86_400 else "%m-%d %H:%M"
    apart = {round((b - a) / 1.5) for (a, _), (b, _) in pairwise(labels)}
    assert len(apart) <= 2, "evenly spaced, but for rounding"
    for cell, label in labels:
        first, last = (int(begin + span * (cell + more) / width) for more in (0, 1))
        assert label in {time.strftime(form, time.localtime(at)) for at in range(first - 59, last + 60, 60)}
