"""The banner, the timeline and the speed-up: they fit, are told apart without colour, and take no room for nothing."""

import re
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from specdash.core.records import AlertSeverity, EventKind, TimelineEvent
from specdash.insight.charts import Metric
from specdash.insight.picture import Basis, Paying, SpeedUpPicture
from specdash.insight.rules.catalogue import Rule, runbook, shipped
from specdash.insight.speedup.verdict import VerdictKind
from specdash.tui.layout import MINIMUM_WIDTH
from specdash.tui.plot import CRITICAL, RESTARTED, WARNED, marks_of
from specdash.tui.spans import PALETTES, Line, to_strip
from specdash.tui.view import View
from specdash.tui.widgets.alerts import (
    SPANS_S,
    AlertsTable,
    TimelineStrip,
    _scale,
    chart_span,
    detail_lines,
    judged_lines,
    span_of,
    strip_lines,
)
from specdash.tui.widgets.chart import Chart
from specdash.tui.widgets.header import HeaderSituation, banner_lines, glyph, header_lines, small_lines
from specdash.tui.widgets.speculation import acceptance
from specdash.tui.widgets.speculation.verdict import large, verdict_lines
from tui.drawn import block, text
from tui.driven import NOW, WALL, view
from tui.fake_alerts import ESTIMATE, HURTING, PAYING, SPECS, hung_slot, with_alerts, zero_acceptance
from tui.fake_state import HOSTILE


def header(scene: str, width: int = 80, **situation: object) -> str:
    """The header of one scene."""
    return block(header_lines(view(scene), HeaderSituation(WALL, **situation), width))  # type: ignore[arg-type]


def test_while_nothing_is_wrong_the_banner_takes_no_line() -> None:
    assert banner_lines(view("busy"), 80) == []
    assert len(header("alerts_past").splitlines()) == len(header("busy").splitlines()) == 2


@pytest.mark.parametrize("scene", ["alerts", "notice"])
def test_the_banner_has_the_whole_cause_how_many_more_and_the_key(scene: str) -> None:
    alerts = view(scene).picture.alerts
    first, *second = [text(line) for line in banner_lines(view(scene), 80)]
    assert first.rstrip().endswith("press i")
    assert ("+2 more" in first) == (scene == "alerts")
    words = f"{first.partition('  +2 more')[0].partition('  press i')[0][3:].strip()} {' '.join(second).strip()}"
    assert words == " ".join(alerts.cause.split())
    assert "press i" not in header("alerts", on_incidents=True)


@given(st.integers(40, 250), st.text(max_size=200))
def test_the_banner_is_as_wide_as_the_screen_whatever_the_cause(width: int, cause: str) -> None:
    at = view("alerts")
    at = replace(at, picture=replace(at.picture, alerts=replace(at.picture.alerts, cause=cause + HOSTILE)))
    lines = banner_lines(at, width)
    assert 1 <= len(lines) <= 2
    for line in lines:
        assert cell_len(text(line)) == width
        assert to_strip(line, width, next(iter(PALETTES.values())).style).cell_length == width


def test_severities_are_told_apart_without_colour() -> None:
    assert len({glyph(severity) for severity in AlertSeverity}) == 3
    line, *_ = banner_lines(view("notice"), 80)
    assert not line[0][1].startswith("banner.")


def test_beside_the_banner_the_state_is_told_in_a_quiet_voice() -> None:
    down = view("down")
    both = replace(down, picture=with_alerts(down.picture, (hung_slot(WALL),), ()))
    lines = header_lines(both, HeaderSituation(WALL), 80)
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
)  # fmt: skip
def test_the_strip_never_leaves_its_room(
    width: int, events: list[tuple[float, EventKind, AlertSeverity | None, float | None]]
) -> None:
    at = view("busy")
    timeline = tuple(
        TimelineEvent(WALL - age, kind, "x", severity, None if lasts is None else WALL - age + lasts)
        for age, kind, severity, lasts in sorted(events, key=lambda pair: -pair[0])
    )
    lines = strip_lines(replace(at.picture, timeline=timeline), width)
    assert len(lines) == 3
    assert [cell_len(text(line)) for line in lines[1:]] == [width, width]


def test_the_strip_is_long_enough_for_all_events_and_says_how_long() -> None:
    picture = view("alerts").picture
    name, span = span_of(picture)
    assert (name, span) == ("3h", SPANS_S["3h"])
    lines = strip_lines(picture, 118)
    assert "last 3h" in text(lines[0])
    for look in (CRITICAL, WARNED, RESTARTED):
        assert look.head in text(lines[1])
    assert span_of(replace(picture, timeline=(), applies=())) == ("5m", 300.0)
    ancient = TimelineEvent(WALL - 9e6, EventKind.RESTART, "restarted")
    assert span_of(replace(picture, timeline=(ancient,))) == ("7d", SPANS_S["7d"])


def test_alerts_and_restarts_are_marked_in_charts_and_notices_are_not() -> None:
    picture = replace(view("alerts").picture, window_s=3_600.0)
    looks = [mark.look for mark in marks_of(picture, 200, picture.window_s)]
    assert looks.count(CRITICAL) == 2
    assert looks.count(WARNED) == 1
    assert looks.count(RESTARTED) == 1
    named = [mark for mark in marks_of(picture, 200, picture.window_s) if mark.look is CRITICAL and mark.texts]
    assert [mark.texts for mark in named] == [("Not one draft token is accepted",)]


def test_the_acceptance_chart_has_its_break_even_and_hides_no_value_behind_it() -> None:
    at = view("busy")
    plain = Chart(Metric.ACCEPTANCE, "acceptance").lines(at, 70, 9)
    lined = Chart(Metric.ACCEPTANCE, "acceptance").lines(at, 70, 9, 0.31, " break-even")
    assert "break-even" in block(lined)
    for before, after in zip(plain, lined, strict=True):
        old = [(char, role) for part, role in before for char in part]
        new = [(char, role) for part, role in after for char in part]
        assert all(pair == other for pair, other in zip(old, new, strict=True) if pair[1] == "acceptance")


def with_speedup(picture: SpeedUpPicture) -> View:
    """A busy server with this speed-up."""
    return view(speedup=picture)


def band(picture: SpeedUpPicture, width: int, height: int, **changes: Any) -> list[Line]:
    """The verdict on a terminal of that size."""
    return verdict_lines(view(speedup=picture, **changes), width, height)


def test_the_verdict_on_a_small_terminal_is_a_band_with_rates_and_below_it_what_to_do() -> None:
    first, second = band(HURTING, 80, 24)
    assert [role for _, role in first] == ["banner.bad"]
    assert text(first).startswith(" COSTS 18 %   47.2 tok/s, 57.6 without speculation")
    assert text(first).endswith("measured 0.74 to 0.91× ")
    assert text(second).strip() == "Without speculation it would be 22 % faster  V: try it"
    assert text(band(PAYING, 80, 24)[1]).startswith(" 76 % of draft tokens are accepted; 31 % would break even.")


def test_the_verdict_is_coloured_by_nothing_but_itself() -> None:
    for picture, role in ((PAYING, "banner.good"), (HURTING, "banner.bad"), (ESTIMATE, "banner.dim")):
        assert {role for line in band(picture, 120, 36) for _, role in line} == {role}
    even = replace(PAYING, value=1.0, low=0.97, high=1.04, verdict=Paying.EVEN)
    assert band(even, 80, 24)[0][0][1] == "banner.accent"


def test_where_there_is_room_its_words_are_three_rows_high() -> None:
    lines = band(ESTIMATE, 120, 36)
    assert len(lines) == 3
    assert all(cell_len(text(line)) == 120 for line in lines)
    assert "█" in text(lines[1])
    for words in ("needs a baseline", "So far 0.93 to 1.18×, an estimate.", "B: measure it"):
        assert words in block(lines)


def test_a_server_that_is_away_takes_the_room_of_its_verdict() -> None:
    lines = band(PAYING, 120, 36, backend=view("down").picture.backend)
    assert [text(line).strip() for line in lines] == ["CAN'T TELL YET (needs the server)"]


def test_every_letter_of_every_verdict_can_be_large() -> None:
    for kind in VerdictKind:
        assert len({len(row) for row in large(kind.upper().removesuffix(" YET"))}) == 1
    assert len({len(row) for row in large("PAYS COSTS 0123456789.×%")}) == 1


def test_other_screens_have_a_badge_that_speculation_costs() -> None:
    line = header_lines(with_speedup(HURTING), HeaderSituation(WALL), 80)[0]
    assert [role for part, role in line if "COSTS 18 %" in part] == ["banner.bad"]
    assert "COSTS" not in header("busy")


def test_an_estimate_is_called_one_wherever_it_stands() -> None:
    for width in (46, 78, 118):
        assert "estimate" in block(acceptance.detail_lines(with_speedup(ESTIMATE), width, 30))
        assert "measured" in block(acceptance.detail_lines(with_speedup(PAYING), width, 30))


def test_the_detail_has_break_even_and_types() -> None:
    page = block(acceptance.detail_lines(with_speedup(PAYING), 118, 30))
    for words in ("2.40 tok/step", "now 4.41", "31 % accepted", "ngram-mod"):
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
    assert all(cell_len(text(line)) <= max(width, MINIMUM_WIDTH) for line in verdict_lines(at, width, height))
    lines = acceptance.detail_lines(at, width, height)
    assert len(lines) <= height
    if width >= 46:
        assert all(cell_len(text(line)) <= width for line in lines)


@given(st.integers(30, 200), st.text(max_size=120))
def test_an_alert_in_detail_keeps_to_its_width_whatever_its_texts(width: int, words: str) -> None:
    bad = replace(
        zero_acceptance(WALL), summary=words + HOSTILE, evidence=((words, words),), fix=((words or "K", words),)
    )
    for line in detail_lines(bad, SPECS["zero_acceptance"], view("alerts"), width):
        assert cell_len(text(line)) <= width + 16
        assert "\x1b" not in text(line)
    assert all(
        cell_len(text(line)) <= width for line in judged_lines(view("alerts"), SPECS, max(width, 80)) if width >= 80
    )


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
    strip, at = TimelineStrip(), view("alerts")
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
    (line,) = banner_lines(at, 120)
    assert "CRITICAL  Slot hangs" in text(line)
    assert line[0][1] == "banner.bad"
    rows = AlertsTable().rows(at)
    assert [row.rule for row in rows] == ["slot_hung", "zero_acceptance"]


@pytest.mark.parametrize("rule", shipped(), ids=lambda rule: rule.id)
def test_every_runbook_can_be_read_on_the_smallest_screen(rule: Rule) -> None:
    spec = rule
    alert = replace(zero_acceptance(WALL), rule=spec.id, title=spec.title, chart=spec.chart)
    page = " ".join(block(detail_lines(alert, spec, view("alerts"), 80)).split())
    assert all(cell_len(text(line)) <= 80 for line in detail_lines(alert, spec, view("alerts"), 80))
    todo = runbook(spec)
    for words in (todo.remedy, todo.meaning, *todo.checks):
        assert " ".join(words.split()) in page
    assert spec.chart is None or spec.chart in tuple(Metric)


def test_a_terminal_that_is_too_small_still_names_the_cause() -> None:
    assert "Not one draft token is accepted" in block(small_lines(view("alerts"), HeaderSituation(0.0), 60, 15))


@pytest.mark.parametrize("width", [58, 78, 118, 198])
@pytest.mark.parametrize("span", SPANS_S.values())
def test_no_label_of_the_scale_is_there_twice_and_each_stands_at_its_time(width: int, span: float) -> None:
    begin = 1_772_000_000.0 + 17.0
    ((scale, _),) = _scale(begin, span, width)
    assert len(scale) == width
    labels = [(match.start(), match[0]) for match in re.finditer(r"(?:\d\d-\d\d )?\d\d:\d\d", scale)]
    assert labels
    assert len({text for _, text in labels}) == len(labels)
    form = "%H:%M" if span <= 86_400 else "%m-%d %H:%M"
    apart = {round((b - a) / 1.5) for (a, _), (b, _) in pairwise(labels)}
    assert len(apart) <= 2, "evenly spaced, but for rounding"
    for cell, label in labels:
        first, last = (int(begin + span * (cell + more) / width) for more in (0, 1))
        assert label in {time.strftime(form, time.localtime(at)) for at in range(first - 59, last + 60, 60)}
