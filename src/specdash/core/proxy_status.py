"""The proxy's live picture: what GET /v1/context says under `status`, and what the collector publishes.

Times are Unix seconds, durations seconds, rates tokens per second, utilisation 0 to 1 of the context window. A value
that is not known is None. Nothing here holds prompt text.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from specdash.core.field_types import is_sound
from specdash.core.proxy_events import Phase
from specdash.core.token_speed import with_credible_speeds

if TYPE_CHECKING:
    from specdash.core.proxy_events import ProxyEvent

WARNING_LEVELS: tuple[tuple[float, str], ...] = ((0.95, "CRITICAL"), (0.85, "HIGH"), (0.75, "ELEVATED"))
"""Context use from which each level holds, worst first."""


def warning_level(utilisation: float | None) -> str | None:
    """The level of a context use, None below the lowest."""
    if utilisation is None:
        return None
    return next((name for least, name in WARNING_LEVELS if utilisation >= least), None)


class Upstream(StrEnum):
    """What the proxy last saw of its upstream."""

    OK = "ok"
    LOADING = "loading"
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SessionView:
    """One session. `context_tokens` is what its last turn used of the window, prompt and answer."""

    id: str
    last_seen: float
    requests: int = 0
    active: int = 0
    model: str = ""
    context_tokens: int | None = None
    context_window: int | None = None
    peak_tokens: int | None = None
    output_tokens: int | None = None
    turns_remaining: int | None = None
    prunes: int = 0
    overflows: int = 0
    is_looping: bool = False
    loop_repeats: int = 0
    loop_period: int = 0
    no_progress: int = 0
    loop_warnings: int = 0
    malformed_streak: int = 0
    malformed_total: int = 0
    contamination_resets: int = 0
    unexpected_ends: int = 0

    @property
    def utilisation(self) -> float | None:
        """Share of the context window in use."""
        if not self.context_window or self.context_tokens is None:
            return None
        return self.context_tokens / self.context_window


@dataclass(frozen=True, slots=True)
class ActiveView:
    """One request that is running now. `prompt_done` counts prompt tokens processed or taken from the cache."""

    request_id: str
    session: str
    started: float
    phase: Phase = Phase.WAITING
    path: str = "/v1/messages"
    model: str = ""
    stream: bool = False
    strict: bool = False
    tools: int = 0
    attempt: int = 1
    prompt_tokens: int | None = None
    prompt_done: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    ttft_s: float | None = None
    prefill_rate: float | None = None
    decode_rate: float | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    guardrails: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProxyStatus:
    """The whole proxy. `counters` counts guardrail actions since its start, by `guardrail:action`."""

    version: str = ""
    started: float | None = None
    upstream_url: str = ""
    upstream: Upstream = Upstream.UNKNOWN
    context_window: int | None = None
    held: bool = False
    held_since: float | None = None
    hold_reason: str = ""
    waiting: int = 0
    """Requests that wait because the proxy is held."""
    requests: int = 0
    errors: int = 0
    clients_left: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    sessions: tuple[SessionView, ...] = ()
    """Latest first, at most `SESSIONS_SHOWN`."""
    session_count: int = 0
    active: tuple[ActiveView, ...] = ()
    problems: tuple[str, ...] = ()
    """Settings that were not usable, one line each."""


SESSIONS_SHOWN = 100


@dataclass(frozen=True, slots=True)
class ProxyEvents:
    """Events in the order they were written. `dropped` lines were lost between two reads, `unread` not understood."""

    events: tuple[ProxyEvent, ...] = ()
    dropped: int = 0
    unread: int = 0


def status_to_json(status: ProxyStatus) -> dict[str, Any]:
    """A JSON object; None stays null."""
    return dataclasses.asdict(status)


def status_from_json(values: Any) -> ProxyStatus | None:
    """The picture of a JSON object, or None when it is not one or a field is not of its type.

    Unknown fields are ignored. Never raises.
    """
    try:
        kept = _known(ProxyStatus, values)
        kept["upstream"] = Upstream(kept.get("upstream", "unknown"))
        kept["counters"] = {str(name): int(count) for name, count in kept.get("counters", {}).items()}
        kept["sessions"] = tuple(SessionView(**_known(SessionView, one)) for one in kept.get("sessions", ()))
        kept["active"] = tuple(_active(one) for one in kept.get("active", ()))
        kept["problems"] = tuple(str(one) for one in kept.get("problems", ()))
        status = ProxyStatus(**kept)
    except (TypeError, ValueError, AttributeError, OverflowError):
        return None
    return status if all(is_sound(one) for one in (status, *status.sessions, *status.active)) else None


def _active(values: Any) -> ActiveView:
    kept = _known(ActiveView, values)
    kept["phase"] = Phase(kept.get("phase", Phase.WAITING))
    kept["guardrails"] = tuple(str(one) for one in kept.get("guardrails", ()))
    return ActiveView(**with_credible_speeds(kept))


def _known(cls: type, values: Any) -> dict[str, Any]:
    names = {one.name for one in dataclasses.fields(cls)}
    return {name: value for name, value in values.items() if name in names}
