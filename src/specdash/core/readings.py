"""A reading: one observation of the outside world, or the reason why there is none.

Everything the collectors publish is a `Reading`. What is not known is UNKNOWN with a reason, never zero; what was known
and is no longer fresh is STALE and keeps its value. Times are seconds of the monotonic clock (`time.monotonic`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Status(StrEnum):
    """How far a value can be trusted."""

    KNOWN = "known"
    STALE = "stale"
    UNKNOWN = "unknown"


class Source(StrEnum):
    """Where an observation comes from; one value type each (see `specdash.core.observations`)."""

    HEALTH = "health"
    PROPS = "props"
    METRICS = "metrics"
    SLOTS = "slots"
    LOG = "log"
    GPU = "gpu"
    HOST = "host"
    PROCESS = "process"
    PROXY = "proxy"
    """What the proxy says of itself: `core.proxy_status.ProxyStatus`."""
    PROXY_EVENTS = "proxy events"
    """A batch of what it has written: `core.proxy_status.ProxyEvents`."""
    APPLIES = "applies"
    """The changes that specdash made to the services: a tuple of `core.applies.ApplyRecord`, oldest first."""
    BASELINES = "baselines"
    """Decode speeds without speculation: a tuple of `core.baselines.Baseline`, oldest first."""
    TRIAL = "trial"
    """Settings that are tried on the server: a tuple of `core.trials.TrialNote`, empty where none are."""
    ROUTER = "router"
    """The models of a server in router mode: `core.router.RouterModels`."""
    SCHEDULING = "scheduling"
    """Whether specdash itself gets the CPU in time: `core.observations.SchedulingDelay`."""


class FailureKind(StrEnum):
    """Why an observation could not be made."""

    NOT_CONFIGURED = "not configured"
    REFUSED = "connection refused"
    """Nothing listens on the port."""
    UNREACHABLE = "cannot be reached"
    """No connection in time, no route to the host, or its name does not resolve."""
    TIMEOUT = "no answer in time"
    """The server accepted the connection and did not answer, or not completely, within the deadline."""
    RESET = "connection broken"
    """The server closed or reset the connection before the answer was complete."""
    LOADING = "loading"
    UNAUTHORIZED = "unauthorized"
    DISABLED = "disabled"
    """The server answers that the endpoint is switched off (HTTP 501)."""
    NOT_FOUND = "not found"
    GARBAGE = "not understood"
    TOO_LARGE = "too large"
    SLEEPING = "server asleep"
    """Not asked, because asking would wake the server."""
    ERROR = "error"
    UNAVAILABLE = "unavailable"
    """The means of observing are missing: no NVML, no such file, no such process."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no value. `detail` is for people and never holds a secret or prompt text."""

    kind: FailureKind
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else str(self.kind)


@dataclass(frozen=True, slots=True)
class Reading(Generic[T_co]):
    """One observation of `source` at monotonic time `at`: a value, or a failure."""

    source: Source
    at: float
    status: Status
    value: T_co | None = None
    failure: Failure | None = None

    @classmethod
    def known(cls, source: Source, at: float, value: T_co) -> Reading[T_co]:  # type: ignore[misc]
        """An observation that succeeded."""
        return cls(source, at, Status.KNOWN, value)

    @classmethod
    def unknown(cls, source: Source, at: float, kind: FailureKind, detail: str = "") -> Reading[T_co]:
        """An observation that failed."""
        return cls(source, at, Status.UNKNOWN, None, Failure(kind, detail))

    def aged(self, now: float, lifetime: float) -> Reading[T_co]:
        """This reading as seen at `now`: STALE once a known value is older than `lifetime` seconds."""
        if self.status is Status.KNOWN and now - self.at > lifetime:
            return replace(self, status=Status.STALE)
        return self
