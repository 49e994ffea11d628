"""A record played again: what it shows is what live showed then."""

import json
import math
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.core.errors import InputError
from specdash.core.log_facts import LogBatch, Series, WarningTally
from specdash.core.readings import Counters, FailureKind, Health, HealthStatus, Host, Reading, Source
from specdash.core.records import Alert, AlertSeverity, EventKind, TimelineEvent
from specdash.core.target import Target
from specdash.export.snapshot import to_json
from specdash.history.replay import QUICK_S, ReplaySession
from specdash.insight.charts import Metric
from specdash.insight.picture import BackendState, Picture
from specdash.insight.state import TargetState
from support.drawn_readings import values
from support.list_record import ListRecord

TARGET = Target("http://127.0.0.1:8080", log="server.log")
WALL = 1e9 - 3000
"""Unix time at monotonic 0: within what the drawn readings date."""
OK = Health(HealthStatus.OK)


def differences(live: Any, again: Any, path: str = "", tolerance: float = 1e-5, relative: float = 2e-6) -> list[str]:
    """Where two snapshots differ by more than what rounding does to times of 1e9 s, or than the tolerances."""
    if isinstance(live, dict) and isinstance(again, dict):
        pairs = [(f"{path}.{name}", live.get(name), again.get(name)) for name in sorted({*live, *again})]
    elif isinstance(live, list | tuple) and isinstance(again, list | tuple) and len(live) == len(again):
        pairs = [(f"{path}[{i}]", *pair) for i, pair in enumerate(zip(live, again, strict=True))]
    elif isinstance(live, float) and isinstance(again, float):
        near = math.isclose(live, again, rel_tol=relative, abs_tol=tolerance)
        return [] if near else [f"{path}: {live} then {again}"]
    else:
        return [] if live == again else [f"{path}: {live!r} then {again!r}"]
    return [difference for name, a, b in pairs for difference in differences(a, b, name, tolerance, relative)]


def shown(picture: Picture) -> dict[str, Any]:
    """All that a picture tells: the snapshot, the alerts and the timeline."""
    document: dict[str, Any] = json.loads(json.dumps(to_json(picture), allow_nan=False))
    told = picture.alerts
    document["of_alerts"] = [json.loads(alert.to_json()) for alert in (*told.active, *told.past)]
    document["cause"], document["unjudged"] = told.cause, [list(pair) for pair in told.unjudged]
    document["events"] = [
        [timeline_event.at, str(timeline_event.kind), timeline_event.title, timeline_event.detail]
        for timeline_event in picture.timeline
    ]
    return document


class Live:
    """A live state, and the record that is kept of it."""

    def __init__(self, target: Target = TARGET) -> None:
        self.record = ListRecord(lambda at: at + WALL)
        self.state = TargetState(target, observer=self.record, wall_offset=lambda: WALL)
        self.target = target

    def tell(self, at: float, source: Source, value: object) -> None:
        """Observe something at monotonic `at`, or fail to."""
        known = not isinstance(value, FailureKind)
        reading: Reading[Any] = (
            Reading.known(source, at, value) if known else Reading.unknown(source, at, FailureKind(str(value)), "why")
        )
        if not self.record.kept:
            event = TimelineEvent(at + WALL, EventKind.RECORDER, "recording began", ref="began")
            self.record.happened.append(event)
        self.state.apply(reading)
        self.record.kept.append((at + WALL, replace(reading, at=at + WALL)))

    def shown(self, at: float, window_s: float = 300.0) -> dict[str, Any]:
        """What was to be seen at monotonic `at`."""
        return shown(self.state.picture(at, at + WALL, window_s))

    def replay(self) -> ReplaySession:
        return ReplaySession(self.record, self.target)


def counters_at(at: float) -> Counters:
    """Totals of a server that has made 100 tokens a second for so long."""
    total = 100.0 * at
    return Counters(
        predicted_tokens=total,
        predicted_seconds=total / 50.0,
        decode_calls=total / 2,
        draft_tokens=total,
        accepted_tokens=total / 4,
        requests_processing=1.0,
    )


def serve(live: Live, seconds: Iterable[float]) -> None:
    """A server that is looked at once a second, and makes tokens."""
    for at in seconds:
        live.tell(at, Source.METRICS, counters_at(at))
        live.tell(at, Source.HOST, Host(cpu_utilisation=0.5, cpu_count=8))
        live.tell(at, Source.HEALTH, OK)


@cache
def served_400_s() -> Live:
    """A server that was looked at for 400 s, for tests that only read."""
    live = Live()
    serve(live, range(400))
    return live


def outage() -> Live:
    """A server that refused for ten seconds of five minutes."""
    live = Live()
    serve(live, range(60))
    fail(live, range(60, 70))
    serve(live, range(70, 300))
    return live


def fail(live: Live, seconds: Iterable[float]) -> None:
    """A server that refuses."""
    for at in seconds:
        for source in (Source.METRICS, Source.HEALTH):
            live.tell(at, source, FailureKind.REFUSED)


steps = st.lists(st.tuples(st.integers(0, 20 * 64).map(lambda ticks: ticks / 64), values), min_size=1, max_size=40)


@given(steps, st.sampled_from([60.0, 3600.0]))
def test_played_from_its_beginning_a_record_shows_at_every_moment_what_live_showed(
    drawn: list[tuple[float, tuple[Source, object]]], window_s: float
) -> None:
    live, now = Live(), 100.0
    moments = {}
    for place, (step, (source, value)) in enumerate(drawn):
        now += step
        live.tell(now, source, value)
        # Of readings of one moment, only the last is a moment of its own.
        if place + 1 == len(drawn) or drawn[place + 1][0] > 0:
            moments[now] = live.shown(now, window_s)
    session = live.replay()
    session.seek(session.first)
    for at, expected in moments.items():
        session.advance(at + WALL)
        assert session.position == at + WALL
        assert differences(expected, shown(session.picture(window_s=window_s))) == []
        for metric in Metric:
            moment = at + WALL
            assert session.columns(metric, moment, window_s, 7) == live_columns(live, metric, moment, window_s, 7)


def live_columns(live: Live, metric: Metric, wall: float, window_s: float, count: int) -> list[float | None]:
    """What a chart on the wall clock shows of the points that live had by then."""
    series = Series()
    for at, value in live.record.charted.get(metric, []):
        if at <= wall:
            series.append(at, value)
    return series.columns(wall, window_s, count)


def test_a_record_that_is_shorter_than_the_warm_up_is_exact_wherever_one_looks() -> None:
    live = Live()
    expected: dict[int, dict[str, Any]] = {}
    for at in range(60):
        serve(live, [at])
        expected[at] = live.shown(at)
    session = live.replay()
    for at in (59, 10, 30):
        session.seek(at + WALL)
        assert differences(expected[at], shown(session.picture())) == []
        assert session.is_deep


def test_after_a_seek_into_the_middle_figures_and_charts_are_those_of_live_and_all_is_once_it_went_deeper() -> None:
    live = served_400_s()
    expected = live.shown(399)
    session = live.replay()
    assert session.is_deep is False
    quick = shown(session.picture(window_s=60.0))
    assert quick["log"]["counted_since"] is not None
    unlike = [difference.split(":")[0] for difference in differences(live.shown(399, 60.0), quick)]
    assert unlike == UNKNOWN_WHILE_LOADING
    columns = session.columns(Metric.DECODE, 399 + WALL, 900.0, 30)
    assert columns == pytest.approx(live_columns(live, Metric.DECODE, 399 + WALL, 900.0, 30))
    assert session.deepen()
    assert differences(expected, shown(session.picture())) == []


UNKNOWN_WHILE_LOADING = [
    ".backend.requests.cancelled_in_log",
    ".backend.requests.finished_in_log",
    ".checkpoints.because",
    ".log.checkpoints",
    ".log.counted_since",
    ".log.lines",
    ".log.unrecognised",
    ".prefix_cache.unknown",
    ".prefix_cache.verdict",
]


def test_going_deeper_can_be_done_bit_by_bit_while_the_record_plays_on() -> None:
    session = served_400_s().replay()
    session.seek(WALL + 300)
    rounds = 0
    while not session.deepen(0.002):
        session.step(0.5)
        rounds += 1
    assert rounds > 1
    at = session.position - WALL
    assert differences(_after(int(at) + 1).shown(at), shown(session.picture())) == []


def test_moments_outside_of_the_record_are_its_first_and_last() -> None:
    live = Live()
    serve(live, range(100, 200))
    session = live.replay()
    session.seek(0.0)
    assert session.position == session.first == WALL + 100
    session.seek(1e12)
    assert session.position == session.last == WALL + 199
    session.step(50.0)
    assert session.position == WALL + 199


def test_a_record_that_grows_is_followed() -> None:
    live = Live()
    serve(live, range(60))
    session = live.replay()
    serve(live, range(60, 90))
    session.step(20.0)
    assert session.position == WALL + 79
    assert differences(_after(80).shown(79), shown(session.picture())) == []


def _after(seconds: int) -> Live:
    live = Live()
    serve(live, range(seconds))
    return live


def test_an_alert_is_raised_again_when_it_was_and_one_of_before_the_warm_up_is_still_there() -> None:
    live = Live()
    serve(live, range(60))
    fail(live, range(60, 260))
    serve(live, range(260, 400, 5))
    (alert,) = [alert for alert in live.record.raised.values() if alert.rule == "backend_down"]
    session = live.replay()
    session.seek(alert.raised - 0.5)
    assert [alert.rule for alert in session.picture().alerts.active] == []
    session.step(0.5)
    assert [alert.rule for alert in session.picture().alerts.active] == ["backend_down"]
    session.seek(WALL + 200)
    assert WALL + 200 - alert.raised > QUICK_S
    (active,) = [alert for alert in session.picture().alerts.active if alert.rule == "backend_down"]
    assert (active.since, active.raised, active.ended) == (alert.since, alert.raised, None)
    session.seek(WALL + 395)
    (past,) = [alert for alert in session.picture().alerts.past if alert.rule == "backend_down"]
    assert past.ended == alert.ended
    assert session.picture().alerts.active == ()


def test_events_are_gone_to_in_order_and_alerts_by_when_they_were_raised() -> None:
    live = Live()
    serve(live, range(60))
    fail(live, range(60, 90))
    serve(live, range(90, 200))
    (alert,) = [alert for alert in live.record.raised.values() if alert.rule == "backend_down"]
    session = live.replay()
    moments = []
    while (event := session.next_event(-1)) is not None:
        session.seek(event.at)
        moments.append(event.at)
    raised = {alert.raised for alert in live.record.raised.values()}
    assert moments == sorted({*raised, *(timeline_event.at for timeline_event in live.record.happened)}, reverse=True)
    assert alert.raised in moments
    assert session.next_event(1) is not None
    session.seek(session.last)
    assert session.next_event(1) is None


def test_what_a_recorder_that_begins_reads_again_does_not_count_twice() -> None:
    live = Live()
    backfill = LogBatch(lines=500)
    live.record.happened.append(TimelineEvent(WALL + 200, EventKind.RECORDER, "recording began", ref="began"))
    for began in (0, 200):
        live.tell(began + 0.5, Source.LOG, backfill)
        serve(live, range(began + 1, began + 100))
    session = live.replay()
    session.seek(session.first)
    session.advance(session.last)
    assert session.picture().log.lines == 500
    assert session.picture().log.since_wall is None


def test_totals_of_a_log_are_unknown_until_all_of_it_was_read() -> None:
    live = Live()
    live.tell(0.0, Source.LOG, LogBatch(lines=500))
    for at in range(1, 300):
        live.tell(at, Source.LOG, LogBatch(lines=1))
    session = live.replay()
    log = session.picture().log
    assert log.lines is None
    assert log.since_wall == pytest.approx(session.position - QUICK_S)
    session.deepen()
    assert (session.picture().log.lines, session.picture().log.since_wall) == (799, None)


def totals(picture: Picture) -> dict[str, object]:
    """All that a picture counts since the log's beginning."""
    return {
        "lines": picture.log.lines,
        "unrecognised": picture.log.unrecognised,
        "finished": picture.backend.requests_finished,
        "cancelled": picture.backend.requests_cancelled,
        "saves": picture.views.prefix_cache.saves,
        **{warning.warning: warning.total for warning in picture.log.warnings},
    }


@settings(max_examples=15)
@given(st.integers(100, 9000), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3), st.floats(0.1, 0.9))
def test_while_a_moment_is_loaded_and_after_its_totals_are_those_of_then_or_unknown(
    seconds: int, shares: list[float], second: float
) -> None:
    live = Live()
    live.record.happened.append(
        TimelineEvent(WALL + second * seconds, EventKind.RECORDER, "recording began", ref="began")
    )
    moments = range(0, seconds, 60)
    for at in moments:
        tally = WarningTally("find_slot_non_consecutive", at % 3 + 1, float(at), at + 1.0, "a line")
        live.tell(at, Source.LOG, LogBatch(lines=7, unrecognised=1, warnings=(tally,)))
        live.tell(at + 0.5, Source.HEALTH, OK)
    sought = [moments[int(share * (len(moments) - 1))] for share in shares]
    played = live.replay()
    played.seek(played.first)
    then = {}
    for at in sorted(sought):
        played.advance(at + 1.0 + WALL)
        then[at] = totals(played.picture())
        assert None not in then[at].values()
    session = live.replay()
    for at in sought:
        session.seek(at + 1.0 + WALL)
        is_whole = False
        while not is_whole:
            is_whole = session.is_deep
            for name, shown_total in totals(session.picture()).items():
                assert shown_total in (None, then[at][name])
            session.deepen(1e-4)
        if at < 3500:
            assert totals(session.picture()) == then[at]


def test_nothing_recorded_is_one_clear_line() -> None:
    with pytest.raises(InputError, match=r"nothing is recorded of http://127\.0\.0\.1:8080"):
        ReplaySession(ListRecord(), TARGET)


def test_it_can_be_looked_at_while_it_moves() -> None:
    session = served_400_s().replay()
    session.seek(session.first)
    session.advance(session.last, budget_s=0.0)
    assert session.first <= session.position < session.last
    picture = session.picture()
    assert picture.at == picture.wall == session.position
    assert picture.backend.state is BackendState.LIVE


def test_an_alert_whose_end_nobody_recorded_is_over_after_a_while() -> None:
    live = Live()
    serve(live, range(0, 1000, 10))
    lost = Alert("gpu_lost", "GPU lost", AlertSeverity.CRITICAL, "gone", WALL + 10, WALL + 12, WALL + 20)
    live.record.raised[*lost.key, lost.raised] = lost
    session = live.replay()
    assert lost.rule not in [alert.rule for alert in session.picture().alerts.active]
    assert lost.rule in [alert.rule for alert in session.picture().alerts.past]
