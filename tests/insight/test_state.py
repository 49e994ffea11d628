"""The state of a target: from any readings the picture is true and complete, changes nothing and can be printed."""

import gc
import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from insight.scenes import NOW, OK, WALL, counters, read_log, server, tell
from specdash.core.proxy_events import ActiveView, ProxyStatus, SessionView
from specdash.core.readings import Counters, FailureKind, Gpu, Gpus, ProcessTree, ReadingStatus, Slot, Slots, Source
from specdash.core.records import Alert, AlertSeverity, EventKind, TimelineEvent
from specdash.core.target import Target
from specdash.export.snapshot import to_json, to_text
from specdash.insight import derive
from specdash.insight.charts import Memory, Metric
from specdash.insight.picture import BackendState
from specdash.insight.state import TargetState
from support.busy_proxy import BusyServer
from support.drawn_readings import values

REQUEST_WITH_DRAFTS = (
    b"slot print_timing: id  0 | task 7 | draft acceptance = 0.75000 (    9 accepted /    12 generated)\n"
    b"slot      release: id  0 | task 7 | stop processing: n_tokens = 24, truncated = 0\n"
)
REFUSED, LOST = FailureKind.REFUSED, (FailureKind.ERROR, "GPU is lost")


def drafted(drafts: float, accepted: float, **more: Any) -> Counters:
    return Counters(draft_tokens=drafts, accepted_tokens=accepted, **more)


def test_nothing_is_known_before_anything_was_seen() -> None:
    document: Any = to_json(server().picture(5.0, 0.0))
    backend = document["backend"]
    assert (backend["state"], backend["slots"], backend["speculation"]["active"]) == ("unknown", None, None)
    assert {backend[name]["tokens_per_second"] for name in ("prefill", "decode")} == {None}
    assert set(backend["speculation"]["acceptance"].values()) == {None}
    assert document["gpu"]["unavailable"]
    assert document["host"] is None


def test_acceptance_is_the_logs_where_there_are_no_counters_or_a_million_tokens_round_them() -> None:
    state = tell(server(), 0.0, metrics=drafted(5.00001e6, 3e6))
    read_log(tell(state, 1.0, metrics=drafted(5.00002e6, 3.00001e6)), REQUEST_WITH_DRAFTS, 1.0)
    window = state.picture(1.0, 0.0, 60.0).backend.speculation.acceptance.window
    assert (window.value, window.source) == (0.75, Source.LOG)
    state = read_log(server(), REQUEST_WITH_DRAFTS, 1.0)
    for now, status in ((2.0, ReadingStatus.KNOWN), (90.0, ReadingStatus.STALE)):
        window = state.picture(now, 0.0, 60.0).backend.speculation.acceptance.window
        assert (window.value, window.source, window.status) == (0.75, Source.LOG, status)
    assert window.age_s == 89.0


def test_what_is_held_is_the_window_that_ended_with_the_newest_drafts() -> None:
    state = server()
    for at, drafts, accepted in ((0.0, 0, 0), (100.0, 1000, 100), (190.0, 1100, 190), (200.0, 1200, 280)):
        tell(state, at, metrics=drafted(drafts, accepted))
    tell(state, 900.0, metrics=drafted(1200, 280))
    for window_s, value in ((60.0, 0.9), (300.0, 280 / 1200)):
        held = state.picture(900.0, 0.0, window_s).backend.speculation.acceptance.window
        assert (held.value, held.age_s, held.window_s) == (value, 700.0, window_s)


def test_a_log_read_from_its_beginning_does_not_pass_for_this_moment() -> None:
    state = tell(server(), 1000.0, health=OK, process=ProcessTree(1, started_wall=0.0))
    read_log(state, "mamba_draft75_lv3_trace1", 1000.0)
    fresh, later = (state.picture(at, at).backend.speculation.acceptance.live for at in (1000.0, 1060.0))
    assert fresh.value is not None, "without a known age the newest line counts as now"
    assert later.value is None


def test_a_source_that_fails_keeps_its_last_value_and_says_why_once_it_is_old() -> None:
    state = tell(server(), 1.0, health=OK, metrics=drafted(10, 5), gpu=Gpus((Gpu(0, "H100"),)))
    tell(state, 2.0, metrics=(FailureKind.TIMEOUT, "no answer within 3.0 s"), gpu=LOST)
    backend = state.picture(2.0, 0.0).backend
    assert (backend.state, backend.speculation.draft_tokens_total) == (BackendState.BUSY, 10)
    (source,) = (one for one in backend.sources if one.source is Source.METRICS)
    assert (source.status, source.reason) == (ReadingStatus.STALE, "no answer in time: no answer within 3.0 s")
    young, old = state.picture(3.0, 0.0).gpu, state.picture(600.0, 0.0).gpu
    assert (young.gpus, young.status, young.unavailable) == ((Gpu(0, "H100"),), ReadingStatus.KNOWN, None)
    assert (old.gpus, old.status, old.unavailable) == (young.gpus, ReadingStatus.STALE, "error: GPU is lost")


def test_figures_of_metrics_that_are_not_understood_are_stale_at_once_and_dated() -> None:
    state = tell(server(), 1.0, health=OK, metrics=drafted(0, 0))
    tell(tell(state, 2.0, metrics=drafted(10, 5, requests_processing=2)), 5.0, metrics=FailureKind.GARBAGE)
    backend = state.picture(5.0, 0.0).backend
    for figure in (backend.speculation.acceptance.window, backend.speculation.acceptance.lifetime):
        assert (figure.value, figure.status, figure.age_s) == (0.5, ReadingStatus.STALE, 3.0)
    assert backend.requests_processing is None
    assert backend.speculation.acceptance_per_position_window is None
    document = to_json(state.picture(5.0, 0.0))["backend"]["speculation"]["acceptance"]
    assert (document["window"], document["held"]) == (None, 0.5)
    tell(state, 6.0, metrics=drafted(10, 5))
    assert state.picture(6.0, 0.0).backend.speculation.acceptance.window.status is ReadingStatus.KNOWN


def test_slots_at_work_make_the_live_speeds_of_dashboard_and_chart() -> None:
    state = tell(server(), 1.0, health=OK)
    for at, decoded, read in ((1.0, 10, 0), (2.0, 60, 100)):
        writing = Slot(0, is_processing=True, task=1, n_decoded=decoded)
        reading = Slot(1, is_processing=True, task=2, n_decoded=0, n_prompt_tokens_processed=read)
        tell(state, at, slots=Slots((writing, reading)))
    backend = state.picture(2.5, 0.0).backend
    for rate, metric, speed in ((backend.decode, Metric.DECODE, 50.0), (backend.prefill, Metric.PREFILL, 100.0)):
        assert (rate.value, rate.basis) == (speed, "live")
        assert state.columns(metric, 2.0, 4.0, 4)[-1] == speed


@pytest.mark.parametrize("kind", [REFUSED, FailureKind.LOADING])
def test_totals_after_an_absence_count_from_zero_though_they_are_larger(kind: FailureKind) -> None:
    state = tell(tell(server(), 1.0, metrics=counters(100.0)), 2.0, health=kind)
    tell(state, 3.0, metrics=counters(120.0))
    assert state.counters.restarted_at == 3.0
    window = state.counters.window(3.0, 60.0)
    assert window is not None
    assert window[0].at == 2.0, "since the absence: what was counted before was another server's"


def test_that_the_server_began_to_work_is_news_and_that_it_goes_on_or_rests_is_none() -> None:
    state, headlines = tell(server(), 1.0, health=OK, slots=Slots()), []
    for at, busy in enumerate((1, 2, 0, 0, 1), 2):
        tell(state, at, slots=Slots(tuple(Slot(number, is_processing=number < busy) for number in range(2))))
        headlines.append(state.headline)
    assert len(set(headlines[:4])) == 1
    assert headlines[4] != headlines[0]


# When rules are judged: at every look at health, and when that is long in coming


WELL, STOPPED = ProcessTree(pid=1), ProcessTree(pid=1, stopped=(1,))


@pytest.mark.parametrize(
    ("readings", "every_s", "moments"),
    [
        # What comes soon after a look at health is not judged, and what comes long after it is.
        ([(1.0, "health", OK), (2.0, "metrics", Counters()), (2.1, "health", OK)], 0.0, [1.0, 2.1]),
        ([(1.0, "health", OK), (3.6, "metrics", Counters())], 0.0, [1.0, 3.6]),
        # Among many servers a good one is judged less often, and one that fails at once.
        ([*((1.0 + second, "health", OK) for second in range(4)), (4.5, "health", REFUSED), (5.0, "health", OK)],
         2.0, [1.0, 3.0, 4.5, 5.0]),
        # A process that was stopped, and a source that fails: at once, and once.
        ([(0.9, "process", WELL), (1.0, "health", OK), (1.2, "process", STOPPED), (1.4, "process", STOPPED)],
         0.0, [1.0, 1.2]),
        ([(1.0, "health", OK), (1.1, "gpu", Gpus(())), (1.3, "gpu", LOST), (1.5, "gpu", LOST), (1.7, "gpu", Gpus(()))],
         0.0, [1.0, 1.3]),
    ],
)  # fmt: skip
def test_when_rules_are_judged(readings: list[tuple[float, str, Any]], every_s: float, moments: list[float]) -> None:
    state = TargetState(Target("http://127.0.0.1:8080"), judged_every_s=every_s, wall_offset=lambda: 0.0)
    judged: list[float] = []
    for at, source, value in readings:
        tell(state, at, **{source: value})
        last = state.alerts.past.last
        judged += [last.at] if last is not None and last.at not in judged else []
    assert judged == moments


# A state that begins with a record: what happened before counts as past


OVER = Alert("backend_down", "Backend down", AlertSeverity.CRITICAL, "refused", 10.0, 12.0, 30.0, ended=30.0)
GOES_ON = replace(OVER, since=WALL - 60.0, raised=WALL - 57.0, last=WALL - 1.0, ended=None)


def begun(**memory: Any) -> TargetState:
    state = server()
    state.remember(Memory(NOW, **memory))
    return state


def test_charts_timeline_and_past_alerts_show_what_was_before_the_user_looked() -> None:
    points = {Metric.DECODE: [(NOW - 30.0, 40.0), (NOW - 20.0, None), (NOW - 10.0, 60.0)]}
    event, older = TimelineEvent(WALL - 500.0, EventKind.RESTART, "restarted"), replace(OVER, ended=20.0)
    state = begun(points=points, events=[event], past=[older, OVER])
    assert state.columns(Metric.DECODE, NOW, 40.0, 4) == [40.0, None, 60.0, None]
    tell(tell(state, NOW, metrics=counters(10.0)), NOW, health=OK)
    picture = state.picture(NOW, WALL)
    assert (picture.alerts.active, picture.alerts.past) == ((), (OVER, older))
    assert [one.at for one in picture.timeline] == [10.0, 10.0, WALL - 500.0]


def test_an_alert_that_was_not_over_goes_on_until_it_is_judged_and_one_of_a_removed_rule_does_not() -> None:
    state = begun(active=[GOES_ON, replace(GOES_ON, rule="no_such_rule")])
    assert state.picture(NOW, WALL).alerts.active == (GOES_ON,)
    for second in range(30):
        tell(tell(state, NOW + second, metrics=counters(10.0)), NOW + second, health=OK)
    alerts = state.picture(NOW + 30.0, WALL + 30.0).alerts
    assert alerts.active == ()
    assert [(alert.rule, alert.since) for alert in alerts.past] == [("backend_down", WALL - 60.0)]


# From any readings


TARGET = Target("http://127.0.0.1:8080", proxy_url="http://127.0.0.1:4000")
MOST = 5000
"""Of anything that is kept one by one: the tail of the log is the longest."""
PROXIES = st.builds(
    lambda count: ProxyStatus(
        requests=count,
        sessions=(SessionView("s", 1e9, context_tokens=count, context_window=2 * count + 1),),
        active=(ActiveView("r", "s", 1e9),),
        counters={"narrowing:narrowed": count},
    ),
    st.integers(0, 1000),
)
PROCESSES = st.builds(
    ProcessTree,
    pid=st.integers(1, 3),
    started_wall=st.one_of(st.none(), st.floats(0, 1000)),
    stopped=st.sampled_from(((), (1,))),
    processes=st.integers(1, 3),
)
DRAWN = values | st.tuples(st.just(Source.PROXY), PROXIES) | st.tuples(st.just(Source.PROCESS), PROCESSES)
STEPS = st.lists(st.tuples(st.floats(0.0, 20.0), DRAWN), max_size=30)


def after(steps: list[tuple[float, tuple[Source, Any]]]) -> tuple[TargetState, float]:
    state, now = TargetState(TARGET, wall_offset=lambda: 0.0), 100.0
    for step, (source, value) in steps:
        now += step
        tell(state, now, **{source: value})
    return state, now


@given(STEPS, st.sampled_from([60.0, 3600.0]))
def test_no_rule_fails_and_the_picture_can_be_made_and_printed(
    steps: list[tuple[float, tuple[Source, Any]]], window_s: float
) -> None:
    state, now = after(steps)
    assert not [why for _, why in state.alerts.picture().unjudged if "failed" in why]
    picture = state.picture(now, 1e9, window_s)
    backend = json.loads(json.dumps(to_json(picture), allow_nan=False))["backend"]
    assert to_text(picture)
    acceptance = backend["speculation"]["acceptance"]
    assert all(acceptance[name] is None or 0 <= acceptance[name] <= 1 for name in ("window", "lifetime", "live"))
    assert all((backend[name]["tokens_per_second"] or 0) >= 0 for name in ("prefill", "decode"))
    assert all(len(state.columns(metric, now, window_s, 40)) == 40 for metric in Metric)


def walk(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """All that hangs on an object of specdash, by where it is: a leaf as its text, a collection as its size; without
    what only saves time."""
    is_own = type(value).__module__.startswith("specdash") and not isinstance(value, str)
    is_collection = isinstance(value, Mapping | list | tuple | deque)
    if callable(value) or ((is_own or is_collection) and id(value) in seen):
        return
    entries: Iterable[tuple[str, Any]] = ()
    if is_own:
        slots = {name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())}
        names = sorted({*slots, *getattr(value, "__dict__", ())} - {"speedups"})
        entries = [(f".{name}", getattr(value, name, None)) for name in names]
    elif isinstance(value, Mapping):
        yield f"{path} keys", repr([*value])
        entries = [(f"[{type(key).__name__}]", entry) for key, entry in value.items()]
    elif is_collection:
        entries = (("[]", entry) for entry in value)
    else:
        yield path, repr(value)
    if is_own or is_collection:
        seen.add(id(value))
    if hasattr(value, "__len__") and not isinstance(value, str | bytes):
        yield path, len(value)
    for name, entry in entries:
        yield from walk(entry, path + name, seen)


@given(STEPS, st.permutations([10.0, 60.0, 300.0, 3600.0]), st.sampled_from([7.5, 900.0]), st.booleans())
def test_looking_changes_nothing_and_no_window_changes_another(
    steps: list[tuple[float, tuple[Source, Any]]], windows: list[float], later_s: float, for_rules: bool
) -> None:
    state, now = after(steps)
    state.picture(now, now, 60.0)
    before = [*walk(state, "", set())]
    alone = {window_s: state.picture(now, now, window_s) for window_s in sorted(windows)}
    assert {window_s: state.picture(now, now, window_s) for window_s in windows} == alone
    derive.picture(state, now + later_s, now + later_s, 60.0, for_rules=for_rules)
    assert [*walk(state, "", set())] == before


@pytest.mark.slow
def test_what_is_kept_of_hours_with_many_sessions_is_bounded() -> None:
    busy = BusyServer(sessions=400, requests=4)
    state = TargetState(TARGET, wall_offset=lambda: busy.wall - busy.at)

    def fed(seconds: int) -> Counter[str]:
        for readings in busy.seconds(seconds):
            # Rules are judged once a minute: what they keep is by the clock, and judging is most of the time.
            is_judged = int(busy.at) % 60 == 0
            for reading in readings:
                state.apply(reading) if is_judged else state.take_unjudged(reading)
            if is_judged:
                state.picture(busy.at + 1, busy.wall + 1, 300.0)
        gc.collect()
        sizes = Counter[str]()
        for path, size in walk(state, "state", set()):
            if isinstance(size, int):
                sizes[path] = max(sizes[path], size)
        return sizes

    first = fed(4200)
    assert len(first) > 50, "the walk has lost its way"
    assert {path: size for path, size in first.items() if size > MOST} == {}
    busy.sessions = 5000
    grown = fed(2400)
    assert {path: size for path, size in grown.items() if path in first and size > first[path] * 1.1 + 64} == {}
