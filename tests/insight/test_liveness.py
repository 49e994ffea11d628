"""The state of the server: the right word for what the endpoints did, and a reason that names the next step."""

from __future__ import annotations

import pytest

from specdash.core.observations import Counters, Health, HealthStatus, Slots
from specdash.core.readings import FailureKind, Reading, Source
from specdash.insight.liveness import Evidence, judge
from specdash.insight.picture import BackendState

NOW = 100.0
OK: Reading[Health] = Reading.known(Source.HEALTH, NOW, Health(HealthStatus.OK))
METRICS: Reading[Counters] = Reading.known(Source.METRICS, NOW, Counters())
SLOTS: Reading[Slots] = Reading.known(Source.SLOTS, NOW, Slots())


def failed(source: Source, kind: FailureKind, detail: str = "") -> Reading[object]:
    return Reading.unknown(source, NOW, kind, detail)


def state(**evidence: object) -> BackendState:
    return judge(Evidence(now=NOW, **evidence))[0]  # type: ignore[arg-type]


def test_nothing_asked_yet_is_unknown() -> None:
    assert state() is BackendState.UNKNOWN


def test_all_endpoints_answering_is_live() -> None:
    assert judge(Evidence(NOW, OK, METRICS, SLOTS, NOW)) == (BackendState.LIVE, "")


def test_health_without_metrics_in_time_is_busy_and_not_down() -> None:
    verdict, reason = judge(Evidence(NOW, OK, failed(Source.METRICS, FailureKind.TIMEOUT), SLOTS))  # type: ignore[arg-type]
    assert verdict is BackendState.BUSY
    assert "/metrics" in reason


def test_a_closed_port_is_down() -> None:
    assert state(health=failed(Source.HEALTH, FailureKind.REFUSED), last_good=99.0) is BackendState.DOWN


def test_silence_after_good_answers_is_stale_and_says_since_when() -> None:
    verdict, reason = judge(Evidence(NOW, failed(Source.HEALTH, FailureKind.TIMEOUT), last_good=88.0))  # type: ignore[arg-type]
    assert verdict is BackendState.STALE
    assert "12 s ago" in reason


def test_silence_from_the_beginning_is_down() -> None:
    assert state(health=failed(Source.HEALTH, FailureKind.TIMEOUT)) is BackendState.DOWN


def test_a_collector_that_stopped_is_stale_whatever_it_saw_last() -> None:
    assert state(health=Reading.known(Source.HEALTH, NOW - 60, Health(HealthStatus.OK))) is BackendState.STALE


@pytest.mark.parametrize("source", ["health", "metrics", "slots"])
def test_a_refused_key_anywhere_is_unauthorized(source: str) -> None:
    evidence: dict[str, object] = {"health": OK, "metrics": METRICS, "slots": SLOTS}
    evidence[source] = failed(Source(source), FailureKind.UNAUTHORIZED)
    assert state(**evidence) is BackendState.UNAUTHORIZED


def test_a_key_that_one_endpoint_has_taken_since_is_not_refused() -> None:
    refused: Reading[object] = Reading.unknown(Source.SLOTS, NOW - 4, FailureKind.UNAUTHORIZED)
    assert state(health=OK, metrics=METRICS, slots=refused) is BackendState.LIVE
    again: Reading[object] = Reading.unknown(Source.SLOTS, NOW, FailureKind.UNAUTHORIZED)
    assert state(health=OK, metrics=METRICS, slots=again, refused_since=NOW - 60) is BackendState.LIVE
    assert state(health=OK, metrics=METRICS, slots=again) is BackendState.UNAUTHORIZED


@pytest.mark.parametrize(
    "kind", [FailureKind.NOT_FOUND, FailureKind.GARBAGE, FailureKind.LOADING, FailureKind.UNAUTHORIZED]
)
def test_what_endpoints_said_before_the_server_was_healthy_is_of_another_time(kind: FailureKind) -> None:
    before: dict[str, Reading[object]] = {
        name: Reading.unknown(Source(name), NOW - 4, kind) for name in ("metrics", "slots")
    }
    assert state(health=OK, **before, recovered_at=NOW - 1) is BackendState.LIVE
    assert state(health=OK, **before, recovered_at=NOW - 9) is not BackendState.LIVE


def test_a_collector_that_gets_no_cpu_says_so() -> None:
    old = Reading.known(Source.HEALTH, NOW - 60, Health(HealthStatus.OK))
    verdict, reason = judge(Evidence(NOW, old, starved=True))
    assert (verdict, "too busy" in reason) == (BackendState.STALE, True)


def test_a_loading_model_is_loading() -> None:
    assert state(health=Reading.known(Source.HEALTH, NOW, Health(HealthStatus.LOADING))) is BackendState.LOADING


def test_counters_that_went_back_are_restarted_for_a_while() -> None:
    evidence = {"health": OK, "metrics": METRICS, "slots": SLOTS}
    assert state(**evidence, restarted_at=95.0) is BackendState.RESTARTED
    assert state(**evidence, restarted_at=20.0) is BackendState.LIVE


def test_metrics_switched_off_is_live_with_a_reason() -> None:
    verdict, reason = judge(Evidence(NOW, OK, failed(Source.METRICS, FailureKind.DISABLED, "--metrics"), SLOTS))  # type: ignore[arg-type]
    assert verdict is BackendState.LIVE
    assert "--metrics" in reason


def test_something_that_is_not_llama_server_is_unknown() -> None:
    assert state(health=failed(Source.HEALTH, FailureKind.GARBAGE)) is BackendState.UNKNOWN
    garbage = failed(Source.METRICS, FailureKind.TOO_LARGE), failed(Source.SLOTS, FailureKind.GARBAGE)
    assert state(health=OK, metrics=garbage[0], slots=garbage[1]) is BackendState.UNKNOWN
