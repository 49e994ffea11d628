"""Where the rules of the proxy begin; and they agree with what proxy and profiles say. Real proxies: tests/e2e."""

import re

import pytest
from msgspec.structs import replace

from specdash.cli.commands import COMMANDS
from specdash.control.profiles import find_profile
from specdash.core.changes import Role
from specdash.core.proxy_events import (
    WARNING_LEVELS,
    Guardrail,
    GuardrailAction,
    GuardrailEvent,
    ProxyEvents,
    ProxyStatus,
    RequestEvent,
    SessionView,
)
from specdash.core.proxy_parameters import BY_KEY
from specdash.core.readings import FailureKind, Health, HealthStatus, Reading, Source
from specdash.core.records import AlertSeverity
from specdash.core.target import Target
from specdash.insight.rules.answers import BREAK_LOOPS_SOONER
from specdash.insight.rules.catalogue import Rule, shipped
from specdash.insight.state import TargetState

OWN = {rule.spec.id: rule for rule in shipped() if rule.spec.family == "answers"}
WALL = 1_700_000_000.0
PROXY = "http://127.0.0.1:4000"


def state(**changes: str) -> TargetState:
    target = Target("http://127.0.0.1:1", **{"proxy_url": PROXY, "proxy_log": "/p", **changes})  # type: ignore[arg-type]
    return TargetState(target, rules=tuple(OWN.values()), wall_offset=lambda: WALL)


def raised(target_state: TargetState, *readings: Reading[object], at: float = 100.0) -> set[str]:
    """The rules with an alert after these readings and a look at the server."""
    for reading in (*readings, Reading.known(Source.HEALTH, at, Health(HealthStatus.OK))):
        target_state.apply(replace(reading, at=at))
    return {alert.rule for alert in target_state.picture(at, WALL + at, 60.0).alerts.active}


def status(**fields: object) -> Reading[object]:
    return Reading.known(Source.PROXY, 0.0, replace(ProxyStatus(started=WALL), **fields))


def told(*events: GuardrailEvent | RequestEvent) -> Reading[object]:
    return Reading.known(Source.PROXY_EVENTS, 0.0, ProxyEvents(events))


def test_loops_are_broken_sooner_by_what_the_profile_for_it_says() -> None:
    assert dict(find_profile("loop-incident", {}).values[Role.PROXY]).items() <= dict(BREAK_LOOPS_SOONER).items()
    for key, value in BREAK_LOOPS_SOONER:
        assert value is not None
        BY_KEY[key].parse(value, key)


def test_the_context_is_nearly_full_at_the_levels_of_the_proxy() -> None:
    levels = {name: least for least, name in WARNING_LEVELS}
    limits = OWN["context_nearly_full"].spec.limits
    assert (limits["warning"], limits["critical"]) == (levels["HIGH"], levels["CRITICAL"])


@pytest.mark.parametrize("rule", shipped(), ids=lambda rule: rule.spec.id)
def test_every_command_of_specdash_in_a_runbook_is_one(rule: Rule) -> None:
    names = {command.name for command in COMMANDS}
    for text in (*rule.spec.checks, rule.spec.remedy):
        assert set(re.findall(r"\bspecdash ([a-z][a-z-]+)", text)) <= names, text


JUST_ENOUGH = [
    # What the proxy counted, of how many requests at most, and what that is; None where the share does not matter.
    ("empty_response:exhausted", 2, 40, "empty_answers", AlertSeverity.WARNING),
    ("reasoning_fallback:applied", 2, 40, "empty_answers", AlertSeverity.WARNING),
    ("empty_response:detected", 5, 25, "empty_answers", AlertSeverity.NOTICE),
    ("malformed_tool:detected", 5, 25, "malformed_storm", AlertSeverity.WARNING),
    ("malformed_tool:exhausted", 2, None, "malformed_storm", AlertSeverity.WARNING),
    ("contamination:applied", 3, None, "malformed_storm", AlertSeverity.WARNING),
    ("loop_breaker:applied", 20, 40, "session_looping", AlertSeverity.WARNING),
    ("context_prune:applied", 8, 16, "context_overflow", AlertSeverity.WARNING),
    ("context_prune:detected", 1, None, "context_overflow", AlertSeverity.WARNING),
    ("errors", 5, 50, "proxy_errors", AlertSeverity.WARNING),
    ("clients_left", 5, 16, "clients_leaving", AlertSeverity.WARNING),
]


@pytest.mark.parametrize(("name", "count", "most", "rule", "severity"), JUST_ENOUGH)
def test_a_rule_begins_at_its_limit(
    name: str, count: int, most: int | None, rule: str, severity: AlertSeverity
) -> None:
    def judged(count: int, requests: int) -> dict[str, AlertSeverity]:
        counted: dict[str, object] = {"counters": {name: count}} if ":" in name else {name: count}
        target_state = state(proxy_log="")
        raised(target_state, status())
        raised(target_state, status(requests=requests, **counted), at=102.0)
        active = target_state.picture(102.0, WALL + 102, 60.0).alerts.active
        return {alert.rule: alert.severity for alert in active}

    assert judged(count, most or 1000) == {rule: severity}
    assert judged(count - 1, 1000 if most is None else count) == {}
    assert most is None or judged(count, most + 1) == {}


def test_events_of_long_ago_that_are_read_now_are_no_storm() -> None:
    old = [
        GuardrailEvent(WALL - 4000 + at, "s", Guardrail.MALFORMED_TOOL, action)
        for at in range(50)
        for action in (GuardrailAction.DETECTED, GuardrailAction.EXHAUSTED)
    ]
    assert raised(state(), told(*old)) == set()
    recent = [replace(event, at=event.at + 4000) for event in old]
    assert raised(state(), told(*recent)) >= {"malformed_storm"}


def test_a_storm_of_malformed_calls_says_which_faults() -> None:
    kinds = ["truncated json"] * 4 + ["unknown tool"] * 3 + [None]
    events = [
        GuardrailEvent(
            WALL + 90, "s", Guardrail.MALFORMED_TOOL, GuardrailAction.DETECTED, facts={"kind": kind} if kind else {}
        )
        for kind in kinds
    ]
    turns = [RequestEvent(WALL + 91, "s", str(number)) for number in range(len(events))]
    target_state = state()
    assert "malformed_storm" in raised(target_state, told(*events, *turns))
    active = target_state.picture(100.0, WALL + 100, 60.0).alerts.active
    evidence = dict(next(alert for alert in active if alert.rule == "malformed_storm").evidence)
    assert evidence["faults"] == "truncated json 4, unknown tool 3"


def test_a_proxy_that_was_held_and_forgotten_is_told_until_nobody_sees_it() -> None:
    held = status(held=True, held_since=WALL - 3600, hold_reason="upgrade", waiting=2)
    target_state = state()
    assert "requests_waiting" in raised(target_state, held)
    (alert,) = target_state.picture(100.0, WALL + 100, 60.0).alerts.active
    assert alert.severity is AlertSeverity.CRITICAL
    assert "(upgrade), and 2 requests wait" in alert.summary
    assert raised(state(), status(held=True, held_since=WALL + 99, waiting=2)) == set()
    assert raised(state(), status(held=True, held_since=WALL - 3600)) == set()


def test_the_count_of_a_proxy_that_restarted_begins_anew() -> None:
    target_state = state(proxy_log="")
    counts = {"malformed_tool:exhausted": 900}
    assert raised(target_state, status(counters=counts, requests=1000), at=100.0) == set()
    assert raised(target_state, status(counters={}, requests=0, started=WALL + 100), at=102.0) == set()
    few = {"malformed_tool:exhausted": 1}
    assert raised(target_state, status(counters=few, requests=3, started=WALL + 100), at=104.0) == set()
    more = {"malformed_tool:exhausted": 4}
    assert raised(target_state, status(counters=more, requests=30, started=WALL + 100), at=106.0) == {"malformed_storm"}


@pytest.mark.parametrize(
    "kind", [FailureKind.UNAUTHORIZED, FailureKind.NOT_FOUND, FailureKind.GARBAGE, FailureKind.TIMEOUT]
)
def test_a_proxy_that_answers_in_some_way_or_was_silent_once_is_not_down(kind: FailureKind) -> None:
    assert raised(state(), Reading.unknown(Source.PROXY, 0.0, kind, "no")) == set()


def test_nothing_is_said_of_a_proxy_that_nobody_knows() -> None:
    target_state = TargetState(Target("http://127.0.0.1:1"), rules=tuple(OWN.values()), wall_offset=lambda: WALL)
    assert raised(target_state, Reading.unknown(Source.PROXY, 0.0, FailureKind.NOT_CONFIGURED, "none")) == set()


def test_a_session_that_nobody_works_on_any_more_is_no_trouble() -> None:
    session = SessionView("s", WALL + 90, is_looping=True, loop_repeats=30, context_tokens=99, context_window=100)
    assert raised(state(), status(sessions=(session,))) == {"session_looping", "context_nearly_full"}
    left = replace(session, last_seen=WALL - 600)
    assert raised(state(), status(sessions=(left,))) == set()
    at_work = replace(left, active=1)
    assert raised(state(), status(sessions=(at_work,))) == {"session_looping", "context_nearly_full"}


def test_only_the_fullest_sessions_are_named() -> None:
    views = tuple(SessionView(f"s{at}", WALL + 90, context_tokens=860 + at, context_window=1000) for at in range(40))
    target_state = state()
    assert raised(target_state, status(sessions=views)) == {"context_nearly_full"}
    named = {alert.subject for alert in target_state.picture(100.0, WALL + 100, 60.0).alerts.active}
    assert named == {"s39", "s38", "s37", "s36", "s35"}
