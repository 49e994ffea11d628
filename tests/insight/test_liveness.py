"""The state of the server: the right word for what the endpoints did, and a reason that names the next step."""

from typing import Any

import pytest

from specdash.core.readings import Counters, FailureKind, Health, HealthStatus, Props, Reading, Slots, Source
from specdash.core.target import Target
from specdash.insight.derive import judge
from specdash.insight.picture import BackendState
from specdash.insight.progress import ServerSigns
from specdash.insight.state import TargetState

NOW = 100.0
OK: Reading[Health] = Reading.known(Source.HEALTH, NOW, Health(HealthStatus.OK))
METRICS: Reading[Counters] = Reading.known(Source.METRICS, NOW, Counters())
SLOTS: Reading[Slots] = Reading.known(Source.SLOTS, NOW, Slots())


def failed(source: Source, kind: FailureKind, detail: str = "") -> Reading[object]:
    return Reading.unknown(source, NOW, kind, detail)


def at(source: Source, ago: float, kind: FailureKind = FailureKind.UNAUTHORIZED) -> Reading[object]:
    return Reading.unknown(source, NOW - ago, kind)


def health(status: HealthStatus, ago: float = 0.0) -> Reading[Health]:
    return Reading.known(Source.HEALTH, NOW - ago, Health(status))


def judged(
    starved: bool = False,
    restarted_at: float | None = None,
    recovered_at: float | None = None,
    last_good: float | None = None,
    **looks: Any,
) -> tuple[BackendState, str]:
    """The judgement on a state whose latest looks, by source, are these."""
    state = TargetState(Target("http://x"))
    state.latest.update({Source(name): reading for name, reading in looks.items()})
    state.counters.restarted_at, state.recovered_at = restarted_at, recovered_at
    if last_good is not None:
        state.last_known[Source.PROPS] = Reading.known(Source.PROPS, last_good, Props())
    return judge(state, NOW, ServerSigns(starved=starved))


ALL: dict[str, object] = {"health": OK, "metrics": METRICS, "slots": SLOTS}
S = BackendState


@pytest.mark.parametrize(
    ("evidence", "expected", "said"),
    [
        ({}, S.UNKNOWN, ""),
        ({**ALL, "last_good": NOW}, S.LIVE, None),
        # /health answers and /metrics does not: an older build at work, and not down.
        ({**ALL, "metrics": failed(Source.METRICS, FailureKind.TIMEOUT)}, S.BUSY, "/metrics"),
        ({"health": failed(Source.HEALTH, FailureKind.REFUSED), "last_good": 99.0}, S.DOWN, ""),
        ({"health": failed(Source.HEALTH, FailureKind.TIMEOUT), "last_good": 88.0}, S.STALE, "12 s ago"),
        ({"health": failed(Source.HEALTH, FailureKind.TIMEOUT)}, S.DOWN, ""),
        # A collector that stopped, whatever it saw last; and why, where it gets no CPU.
        ({"health": health(HealthStatus.OK, 60)}, S.STALE, ""),
        ({"health": health(HealthStatus.OK, 60), "starved": True}, S.STALE, "too busy"),
        ({"health": health(HealthStatus.LOADING)}, S.LOADING, ""),
        ({**ALL, "restarted_at": 95.0}, S.RESTARTED, ""),
        ({**ALL, "restarted_at": 20.0}, S.LIVE, ""),
        ({**ALL, "metrics": failed(Source.METRICS, FailureKind.DISABLED, "--metrics")}, S.LIVE, "--metrics"),
        # Something that is no llama-server.
        ({"health": failed(Source.HEALTH, FailureKind.GARBAGE)}, S.UNKNOWN, ""),
        (
            {
                "health": OK,
                "metrics": failed(Source.METRICS, FailureKind.TOO_LARGE),
                "slots": failed(Source.SLOTS, FailureKind.GARBAGE),
            },
            S.UNKNOWN,
            "",
        ),
        # A refused key, unless another endpoint takes it.
        ({**ALL, "health": failed(Source.HEALTH, FailureKind.UNAUTHORIZED)}, S.UNAUTHORIZED, ""),
        (
            {
                "health": OK,
                "metrics": failed(Source.METRICS, FailureKind.UNAUTHORIZED),
                "slots": failed(Source.SLOTS, FailureKind.UNAUTHORIZED),
            },
            S.UNAUTHORIZED,
            "",
        ),
        ({**ALL, "slots": at(Source.SLOTS, 4)}, S.LIVE, ""),
    ],
)
def test_the_state_is_the_right_word_for_the_evidence_and_says_why(
    evidence: dict[str, object], expected: BackendState, said: str | None
) -> None:
    verdict, reason = judged(**evidence)  # type: ignore[arg-type]
    assert verdict is expected
    assert said in reason if said is not None else reason == ""


@pytest.mark.parametrize(
    "kind", [FailureKind.NOT_FOUND, FailureKind.GARBAGE, FailureKind.LOADING, FailureKind.UNAUTHORIZED]
)
def test_what_endpoints_said_before_the_server_was_healthy_is_of_another_time(kind: FailureKind) -> None:
    before: Any = {name: at(Source(name), 4, kind) for name in ("metrics", "slots")}
    assert judged(health=OK, **before, recovered_at=NOW - 1)[0] is S.LIVE
    assert judged(health=OK, **before, recovered_at=NOW - 9)[0] is not S.LIVE
