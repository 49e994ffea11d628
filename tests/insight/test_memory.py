"""A state that begins with a record: what happened before counts as past, and nothing false follows from it."""

from msgspec.structs import replace

from specdash.core.readings import Counters, Health, HealthStatus, Reading, Source
from specdash.core.records import Alert, AlertSeverity, EventKind, TimelineEvent
from specdash.core.target import Target
from specdash.insight.charts import Memory, Metric
from specdash.insight.state import TargetState

NOW = 10_000.0
WALL = 1_790_000_000.0
OLD = Alert("backend_down", "Backend down", AlertSeverity.CRITICAL, "refused", 10.0, 12.0, 30.0, ended=30.0)


def counters(tokens: float) -> Counters:
    return Counters(predicted_tokens=tokens, decode_calls=tokens, draft_tokens=tokens, accepted_tokens=tokens / 2)


def begun(memory: Memory) -> TargetState:
    state = TargetState(Target("http://127.0.0.1:8080"), wall_offset=lambda: WALL - NOW)
    state.remember(memory)
    return state


def look(state: TargetState, at: float, tokens: float) -> None:
    state.apply(Reading.known(Source.METRICS, at, counters(tokens)))
    state.apply(Reading.known(Source.HEALTH, at, Health(HealthStatus.OK)))


def test_charts_show_what_was_before_the_user_looked() -> None:
    state = begun(Memory(NOW, points={Metric.DECODE: [(NOW - 30.0, 40.0), (NOW - 20.0, None), (NOW - 10.0, 60.0)]}))
    assert state.columns(Metric.DECODE, NOW, 40.0, 4) == [40.0, None, 60.0, None]


def test_alerts_that_were_over_are_past_and_events_are_on_the_timeline() -> None:
    event = TimelineEvent(WALL - 500.0, EventKind.RESTART, "restarted")
    older = replace(OLD, ended=20.0)
    state = begun(Memory(NOW, events=[event], past=[older, OLD]))
    look(state, NOW, 10.0)
    picture = state.picture(NOW, WALL)
    assert picture.alerts.active == ()
    assert picture.alerts.past == (OLD, older)
    assert [timeline_event.at for timeline_event in picture.timeline] == [10.0, 10.0, WALL - 500.0]


def test_an_alert_that_was_not_over_goes_on_while_it_cannot_be_judged_and_ends_when_it_does_not_hold() -> None:
    active = replace(OLD, since=WALL - 60.0, raised=WALL - 57.0, last=WALL - 1.0, ended=None)
    state = begun(Memory(NOW, active=[active]))
    assert state.picture(NOW, WALL).alerts.active == (active,)
    for second in range(30):
        look(state, NOW + second, 10.0)
    picture = state.picture(NOW + 30.0, WALL + 30.0)
    assert picture.alerts.active == ()
    assert [(alert.rule, alert.since) for alert in picture.alerts.past] == [("backend_down", WALL - 60.0)]


def test_an_alert_of_a_rule_that_is_no_more_does_not_stay_for_ever() -> None:
    state = begun(Memory(NOW, active=[replace(OLD, rule="no_such_rule", ended=None)]))
    assert state.picture(NOW, WALL).alerts.active == ()
