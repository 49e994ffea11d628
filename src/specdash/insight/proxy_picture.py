"""The proxy's part of the picture, and what can be computed of one request or session. Frozen data, pure functions.

Rates are tokens per second, fractions 0 to 1, durations and ages seconds, moments Unix time. None is unknown, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.core.proxy_events import Outcome, Phase
from specdash.core.readings import Status

if TYPE_CHECKING:
    from specdash.core.proxy_events import GuardrailEvent, RequestEvent
    from specdash.core.proxy_status import ActiveView, ProxyStatus, SessionView
    from specdash.core.readings import FailureKind

HOW_TO = "not configured: name it with --proxy-url http://127.0.0.1:4000, and its events with --proxy-log FILE"
"""What to do where no proxy is known."""

SERIES_COLUMNS = 60
"""Columns of a guardrail's series, whatever the window."""


@dataclass(frozen=True, slots=True)
class GuardrailCount:
    """Actions of one guardrail. `guardrail` is a value of `core.proxy_events.Guardrail`, or a newer proxy's name.

    `total` and `actions` count since the proxy's start where it tells, else what was read of its events.
    """

    guardrail: str
    window: int | None
    total: int
    actions: tuple[tuple[str, int], ...] = ()
    """By action, the most frequent first."""
    series: tuple[int, ...] | None = None
    """Actions per column, `SERIES_COLUMNS` of them over the window, the last one still open; None where unknown."""


@dataclass(frozen=True, slots=True)
class ProxyWindow:
    """Figures over the requests that ended in the window; all None where nobody told of a request yet.

    `errors` and `clients_left` are None where requests ended of which nobody told the HTTP status: the log of a UAP
    proxy tells of complete streams only.
    """

    requests: int | None = None
    errors: int | None = None
    clients_left: int | None = None
    error_rate: float | None = None
    """Errors over requests; requests whose client left are no errors. None when none ended."""
    ttft_p50_s: float | None = None
    decode_p50: float | None = None
    """Median decode speed of a request."""
    acceptance: float | None = None
    """Accepted over drafted tokens of all these requests together."""
    cache_share: float | None = None
    """Cached over all prompt tokens."""


@dataclass(frozen=True, slots=True)
class ProxyPicture:
    """Everything known of the proxy."""

    configured: bool = False
    """Whether its address or its events are known at all."""
    url: str | None = None
    origin: str = ""
    status: Status = Status.UNKNOWN
    """Of `live`."""
    reason: str = HOW_TO
    """Why `live` is not KNOWN, and what to do."""
    failure: FailureKind | None = None
    """What became of the last look at `url`, None when it succeeded."""
    age_s: float | None = None
    live: ProxyStatus | None = None
    """The last picture that the proxy gave of itself."""
    events_status: Status = Status.UNKNOWN
    events_reason: str = ""
    events_lost: int = 0
    events_unread: int = 0
    window: ProxyWindow = ProxyWindow()
    finished: tuple[RequestEvent, ...] = ()
    """Newest first; bounded."""
    actions: tuple[GuardrailEvent, ...] = ()
    """The latest guardrail actions, newest first; bounded."""
    guardrails: tuple[GuardrailCount, ...] = ()
    """Guardrails that ever acted, in the order of `Guardrail`."""
    is_loading: bool = False
    """A replay has not read all of the window yet: nothing is counted."""

    @property
    def counts_guardrails(self) -> bool:
        """Whether no count means that no guardrail acted: somebody counts."""
        if self.is_loading:
            return False
        return self._is_ours or self.events_status is Status.KNOWN or bool(self.guardrails)

    @property
    def tells_running(self) -> bool:
        """Whether no running request means that none runs."""
        return self._is_ours and self.status is Status.KNOWN

    @property
    def _is_ours(self) -> bool:
        """A UAP proxy and a log tell neither counts nor running requests, nor when the proxy started."""
        return self.live is not None and self.live.started is not None

    @property
    def running(self) -> tuple[ActiveView, ...]:
        """Running requests, the oldest first; none where what they do is not known to be fresh."""
        if self.live is None or self.status is not Status.KNOWN:
            return ()
        return tuple(sorted(self.live.active, key=lambda one: (one.started, one.request_id)))

    @property
    def fullest(self) -> SessionView | None:
        """The session that uses most of its context window."""
        known = [one for one in (self.live.sessions if self.live is not None else ()) if one.utilisation is not None]
        return max(known, key=lambda one: one.utilisation or 0.0, default=None)


def share(part: float | None, whole: float | None) -> float | None:
    """`part` of `whole`, None where either is unknown or there is no whole."""
    return part / whole if part is not None and whole else None


def acceptance(request: RequestEvent | ActiveView) -> float | None:
    """Accepted over drafted tokens."""
    return share(request.accepted_tokens, request.draft_tokens)


def cache_share(request: RequestEvent | ActiveView) -> float | None:
    """The part of the prompt that came from the cache."""
    return share(request.cached_tokens, request.prompt_tokens)


def prefill_progress(request: ActiveView) -> float | None:
    """The part of the prompt that is processed."""
    if request.phase is Phase.PREFILL:
        return share(request.prompt_done, request.prompt_tokens)
    return 1.0 if request.phase in (Phase.DECODE, Phase.DONE) else None


def ended_at(request: RequestEvent) -> float:
    """When a finished request ended."""
    return request.at + (request.duration_s or 0.0)


def is_error(request: RequestEvent) -> bool:
    """Whether the client got an error."""
    return request.outcome is Outcome.ERROR


def ended_how(request: RequestEvent) -> str:
    """Stop reason, error type, or that the client left."""
    if request.outcome is Outcome.CLIENT_LEFT:
        return "client left"
    if is_error(request):
        return request.error_type or (f"HTTP {request.status}" if request.status is not None else "error")
    return request.stop_reason or "ok"
