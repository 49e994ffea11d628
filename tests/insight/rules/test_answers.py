"""Where the rules of the proxy begin; and they agree with what proxy and profiles say. Real proxies: tests/e2e."""

from typing import Any

import pytest
from msgspec.structs import replace

from insight.scenes import OK, WALL, Watch, only
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
    UpstreamStatus,
)
from specdash.core.proxy_parameters import BY_KEY
from specdash.core.readings import FailureKind
from specdash.core.records import AlertSeverity
from specdash.insight.rules.answers import BREAK_LOOPS_SOONER

OWN = only("answers")


def proxied(**changes: str | None) -> Watch:
    """A server behind a proxy."""
    watch = Watch(OWN)
    watch.at = 99.0
    known = {"url": "http://127.0.0.1:1", "proxy_url": "http://127.0.0.1:4000", "proxy_log": "/p"}
    watch.retarget(**{**known, **changes})
    return watch


def raised(watch: Watch, **readings: Any) -> set[str]:
    """The rules with an alert after these readings and a look at the server."""
    watch.look(**readings, health=OK)
    return watch.raised()


def status(**fields: object) -> ProxyStatus:
    return replace(ProxyStatus(started=WALL), **fields)


def test_they_agree_with_what_proxy_and_profiles_have() -> None:
    assert dict(find_profile("loop-incident", {}).values[Role.PROXY]).items() <= dict(BREAK_LOOPS_SOONER).items()
    for key, value in BREAK_LOOPS_SOONER:
        assert value is not None
        BY_KEY[key].parse(value, key)
    levels = {name: least for least, name in WARNING_LEVELS}
    limits = next(rule.limits for rule in OWN if rule.id == "context_overflow")
    assert (limits["warning"], limits["critical"]) == (levels["HIGH"], levels["CRITICAL"])


JUST_ENOUGH = [
    # What the proxy counted, of how many requests at most, and what that is; None where the share does not matter.
    ("empty_response:exhausted", 2, 40, "empty_answers", AlertSeverity.WARNING),
    ("reasoning_fallback:applied", 2, 40, "empty_answers", AlertSeverity.WARNING),
    ("malformed_tool:detected", 5, 25, "malformed_storm", AlertSeverity.WARNING),
    ("malformed_tool:exhausted", 2, None, "malformed_storm", AlertSeverity.WARNING),
    ("contamination:applied", 3, None, "malformed_storm", AlertSeverity.WARNING),
    ("context_prune:detected", 1, None, "context_overflow", AlertSeverity.WARNING),
    ("errors", 5, 50, "proxy_errors", AlertSeverity.WARNING),
    ("clients_left", 5, 16, "proxy_errors", AlertSeverity.WARNING),
]


@pytest.mark.parametrize(("name", "count", "most", "rule", "severity"), JUST_ENOUGH)
def test_a_rule_begins_at_its_limit(
    name: str, count: int, most: int | None, rule: str, severity: AlertSeverity
) -> None:
    def judged(count: int, requests: int) -> dict[str, AlertSeverity]:
        counted: dict[str, object] = {"counters": {name: count}} if ":" in name else {name: count}
        watch = proxied(proxy_log="")
        raised(watch, proxy=status())
        raised(watch, proxy=status(requests=requests, **counted))
        return {alert.rule: alert.severity for alert in watch.state.alerts.picture().active}

    assert judged(count, most or 1000) == {rule: severity}
    assert judged(count - 1, 1000 if most is None else count) == {}
    assert most is None or judged(count, most + 1) == {}


def test_events_of_long_ago_that_are_read_now_are_no_storm_and_those_of_now_name_the_faults() -> None:
    kinds = ["truncated json"] * 4 + ["unknown tool"] * 3 + [""]
    events = [
        GuardrailEvent(WALL + 90, "s", Guardrail.MALFORMED_TOOL, GuardrailAction.DETECTED, facts={"kind": kind})
        for kind in filter(None, kinds)
    ]
    turns = [RequestEvent(WALL + 91, "s", str(number)) for number in range(len(kinds))]
    old = [replace(event, at=event.at - 4000) for event in events]
    assert raised(proxied(), proxy_events=ProxyEvents((*old, *turns))) == set()
    watch = proxied()
    assert raised(watch, proxy_events=ProxyEvents((*events, *turns))) == {"malformed_storm"}
    assert dict(watch.found("malformed_storm").evidence)["faults"] == "truncated json 4, unknown tool 3"


def test_a_proxy_that_was_held_and_forgotten_is_an_alert_once_requests_wait() -> None:
    watch = proxied()
    held = status(held=True, held_since=WALL - 3600, hold_reason="upgrade", waiting=2)
    assert raised(watch, proxy=held) == {"requests_waiting"}
    alert = watch.found("requests_waiting")
    assert alert.severity is AlertSeverity.CRITICAL
    assert "(upgrade), and 2 requests wait" in alert.summary
    assert raised(proxied(), proxy=status(held=True, held_since=WALL + 99, waiting=2)) == set()
    assert raised(proxied(), proxy=status(held=True, held_since=WALL - 3600)) == set()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        *((kind, {"proxy_down"}) for kind in (FailureKind.REFUSED, FailureKind.RESET, FailureKind.UNREACHABLE)),
        # One that answers in some way, was silent once, or that is not configured is not down.
        *((kind, set()) for kind in (FailureKind.UNAUTHORIZED, FailureKind.GARBAGE, FailureKind.TIMEOUT)),
    ],
)
def test_a_proxy_is_down_where_nothing_answers(kind: FailureKind, expected: set[str]) -> None:
    assert raised(proxied(), proxy=kind) == expected
    assert raised(proxied(proxy_url=None, proxy_log=""), proxy=FailureKind.NOT_CONFIGURED) == set()


def test_an_upstream_that_is_another_server_or_fails_requests_is_out_of_reach() -> None:
    lost = status(upstream=UpstreamStatus.UNREACHABLE, upstream_url="http://127.0.0.1:2")
    assert raised(proxied(), proxy=lost) == {"upstream_unreachable"}
    same = status(upstream=UpstreamStatus.UNREACHABLE, upstream_url="http://127.0.0.1:1/v1")
    assert raised(proxied(), proxy=same) == set(), "it answers: the proxy looks seldom"


def test_sessions_are_named_while_they_are_at_work_and_the_fullest_only() -> None:
    session = SessionView("s", WALL + 90, is_looping=True, loop_repeats=30, context_tokens=99, context_window=100)
    left = replace(session, last_seen=WALL - 600)
    both = {"session_looping", "context_overflow"}
    for view, expected in ((session, both), (left, set()), (replace(left, active=1), both)):
        assert raised(proxied(), proxy=status(sessions=(view,))) == expected
    views = tuple(SessionView(f"s{at}", WALL + 90, context_tokens=860 + at, context_window=1000) for at in range(40))
    watch = proxied()
    assert raised(watch, proxy=status(sessions=views)) == {"context_overflow"}
    named = {alert.subject for alert in watch.state.alerts.picture().active}
    assert named == {"s39", "s38", "s37", "s36", "s35"}
