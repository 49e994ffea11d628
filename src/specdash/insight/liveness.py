"""What state the server is in, judged from the latest readings: pure functions, one sentence of reason each.

/health decides whether the server is there, never /metrics: builds before b10420 answer /metrics only between decode
batches, so a server at work looks dead there (llama.cpp #24866).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdash.core.observations import Counters, Health, HealthStatus, Slots
from specdash.core.readings import Failure, FailureKind
from specdash.insight.picture import BackendState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.core.readings import Reading

RESTARTED_FOR_S = 20.0
"""How long RESTARTED is shown after the counters went back."""
STALE_AFTER_S = 10.0
"""Readings older than this are not fresh: three missed polls at the slowest cadence of a live server."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the verdict rests on: the latest reading per endpoint, and when something good was last seen."""

    now: float
    health: Reading[Health] | None = None
    metrics: Reading[Counters] | None = None
    slots: Reading[Slots] | None = None
    last_good: float | None = None
    """Monotonic time of the last known reading of any endpoint."""
    restarted_at: float | None = None
    holds_no_model: bool = False
    """A router without any model in memory."""
    recovered_at: float | None = None
    """When /health turned good after it was not: what the other endpoints said before that was of another time."""
    refused_since: float | None = None
    """Since when the endpoint that was last to do so has refused the key without a break."""
    starved: bool = False
    """Specdash itself gets no CPU in time."""


def judge(evidence: Evidence) -> tuple[BackendState, str]:
    """The state and, unless all is well, what it means and what to do next."""
    health = evidence.health
    if health is None:
        return BackendState.UNKNOWN, "no answer yet"
    if evidence.now - health.at > STALE_AFTER_S:
        why = TOO_BUSY if evidence.starved else "the collector does not keep up"
        return BackendState.STALE, f"nothing new for {evidence.now - health.at:.0f} s; {why}"
    if health.value is None:
        return _unhealthy(evidence, health.failure or Failure(FailureKind.ERROR))
    if health.value.status is HealthStatus.LOADING:
        return BackendState.LOADING, health.value.detail or "the model is loading"
    if health.value.status is HealthStatus.ERROR:
        return BackendState.UNKNOWN, f"/health answers an error: {health.value.detail or 'no detail'}"
    return _healthy(evidence)


def _unhealthy(evidence: Evidence, failure: Failure) -> tuple[BackendState, str]:
    if failure.kind is FailureKind.LOADING:
        return BackendState.LOADING, failure.detail or "the model is loading"
    if failure.kind is FailureKind.UNAUTHORIZED:
        return BackendState.UNAUTHORIZED, _UNAUTHORIZED
    if failure.kind is FailureKind.REFUSED:
        return BackendState.DOWN, "nothing listens on the port; look at the log's last lines, then start the service"
    if failure.kind is FailureKind.TIMEOUT:
        if evidence.last_good is None:
            return BackendState.DOWN, f"{failure.detail or 'no answer'}; the process hangs or is no llama-server"
        age = evidence.now - evidence.last_good
        slow = "it is slow, or hangs"
        return BackendState.STALE, f"last answer {age:.0f} s ago: {failure.detail or 'no answer'}; {slow}"
    if failure.kind in (FailureKind.GARBAGE, FailureKind.TOO_LARGE, FailureKind.NOT_FOUND):
        return BackendState.UNKNOWN, f"it answers, but not like llama-server ({failure}); is the address right?"
    return BackendState.DOWN, str(failure)


def _is_key_refused(evidence: Evidence, readings: Sequence[Reading[Any]]) -> bool:
    """Whether an endpoint refuses the key, and none has taken it since the refusals began."""
    refused = [one.at for one in readings if one.failure is not None and one.failure.kind is FailureKind.UNAUTHORIZED]
    if not refused:
        return False
    since = evidence.refused_since if evidence.refused_since is not None else max(refused)
    # Whoever says that an endpoint is switched off has looked at the key before.
    taken = (one for one in readings if one.failure is None or one.failure.kind is FailureKind.DISABLED)
    return not any(one.at > since for one in taken)


TOO_BUSY = "this machine is too busy for specdash to look in time"
_UNAUTHORIZED = "the server wants an API key; name it with --api-key-env or --api-key-file"


def _healthy(evidence: Evidence) -> tuple[BackendState, str]:
    current = [
        (name, reading)
        for name, reading in (("/metrics", evidence.metrics), ("/slots", evidence.slots))
        if reading is not None and (evidence.recovered_at is None or reading.at >= evidence.recovered_at)
    ]
    failures = [(name, reading.failure) for name, reading in current if reading.failure is not None]
    kinds = {failure.kind for _, failure in failures}
    if _is_key_refused(evidence, [reading for _, reading in current]):
        return BackendState.UNAUTHORIZED, _UNAUTHORIZED
    if FailureKind.LOADING in kinds:
        return BackendState.LOADING, "the model is loading"
    if FailureKind.TIMEOUT in kinds:
        slow = " and ".join(name for name, failure in failures if failure.kind is FailureKind.TIMEOUT)
        return BackendState.BUSY, f"/health answers, {slow} not in time: busy decoding, not down"
    if evidence.restarted_at is not None and evidence.now - evidence.restarted_at <= RESTARTED_FOR_S:
        return BackendState.RESTARTED, f"counters went back {evidence.now - evidence.restarted_at:.0f} s ago"
    if len(failures) == 2 and kinds <= {FailureKind.GARBAGE, FailureKind.TOO_LARGE, FailureKind.NOT_FOUND}:
        return BackendState.UNKNOWN, f"healthy, but {failures[0][0]} is {failures[0][1]}; is it a llama-server?"
    if failures and evidence.holds_no_model:
        return BackendState.LIVE, "a router without a model in memory; the first request for one loads it"
    if failures:
        return BackendState.LIVE, "; ".join(f"{name} {failure}" for name, failure in failures)
    return BackendState.LIVE, ""
