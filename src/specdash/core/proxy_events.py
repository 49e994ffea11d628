"""What the proxy reports of itself: one event per finished request and per guardrail action, and the live picture.

The proxy writes events as JSON lines, the collector reads them back, from its file or from a journal; both use the
types here. Durations are seconds, rates tokens per second, `at` Unix time. Nothing here ever holds prompt text.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from specdash.core.records import can_be_meant, read
from specdash.core.structs import Fact, TaggedFact

# When tokens over seconds are a speed. llama-server gives a rate for anything: a million a second for the first token
# of an answer, and less than one for the prefill of the one token that is processed again after a cache hit.
LEAST_MS = 1.0


class SpeedLimits(Struct, frozen=True):
    """What makes tokens over seconds a speed."""

    least_tokens: int
    most: float
    """Tokens per second that nothing reaches: more is a fault of the clock or of the counting."""


DECODE = SpeedLimits(least_tokens=8, most=1e5)
"""Of one request. A model of 260,000 parameters, drafted to its end, stays below 40,000."""
PREFILL = SpeedLimits(least_tokens=32, most=1e7)
"""Of processed tokens, cached ones left out. A shorter prompt takes as long as one batch does."""


def speed(tokens: float | None, ms: float | None, limits: SpeedLimits) -> float | None:
    """Tokens per second of `tokens` in `ms`; None when unknown, on too little evidence, or beyond what is possible."""
    if tokens is None or ms is None or not ms >= LEAST_MS:
        return None
    return plausible_rate(tokens * 1000.0 / ms, tokens, limits)


def plausible_rate(value: float | None, tokens: float | None, limits: SpeedLimits) -> float | None:
    """A speed in tokens per second that was computed from `tokens`, None where they are too few or nothing can be
    that fast."""
    if value is None or not 0 < value <= limits.most or (tokens is not None and not tokens >= limits.least_tokens):
        return None
    return value


def with_credible_speeds(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that a proxy reports of a request, without speeds that its own counts of tokens do not bear out.

    Raises TypeError where a field is no number.
    """
    done = fields.get("prompt_done", fields.get("prompt_tokens"))
    processed = done - (fields.get("cached_tokens") or 0) if done is not None else None
    return fields | {
        name: plausible_rate(fields[name], tokens, limits)
        for name, tokens, limits in (
            ("prefill_rate", processed, PREFILL),
            ("decode_rate", fields.get("completion_tokens"), DECODE),
        )
        if fields.get(name) is not None
    }


class Guardrail(StrEnum):
    """Every guardrail, by the name that events, metrics and screens use."""

    MALFORMED_TOOL = "malformed_tool"
    STRICT_STREAM = "strict_stream"
    UNEXPECTED_END = "unexpected_end"
    LOOP_BREAKER = "loop_breaker"
    CONTAMINATION = "contamination"
    TOOL_NARROWING = "tool_narrowing"
    THINKING_OFF = "thinking_off"
    REASONING_FALLBACK = "reasoning_fallback"
    MAX_TOKENS = "max_tokens"
    CONTEXT_PRUNE = "context_prune"
    REPETITION_CUT = "repetition_cut"
    EMPTY_RESPONSE = "empty_response"
    SUPPLEMENT = "supplement"


class GuardrailAction(StrEnum):
    """What a guardrail did."""

    DETECTED = "detected"
    RETRIED = "retried"
    RECOVERED = "recovered"
    """A retry gave a good answer."""
    EXHAUSTED = "exhausted"
    """No retry gave a good answer."""
    APPLIED = "applied"
    """The request or the answer was changed."""
    RELEASED = "released"
    """A forced tool_choice was released."""


class RequestPhase(StrEnum):
    """Where a request is."""

    HELD = "held"
    WAITING = "waiting"
    """Sent upstream, nothing back yet: queued for a slot, or the model is loading."""
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


class RequestOutcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    ERROR = "error"
    CLIENT_LEFT = "client_left"


class GuardrailEvent(TaggedFact, frozen=True):
    """One guardrail action. `facts` are numbers and names (tools, sizes, streaks), never text of a prompt."""

    at: float
    session: str
    guardrail: Guardrail
    action: GuardrailAction
    request_id: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


class PromptChange(Struct, frozen=True):
    """What a prompt changed of the one that it goes on from."""

    what: str
    """`system`, `tools`, `message 3`, `messages left out`; empty where it only goes on."""
    at: float
    """Share of the prompt before the change."""
    known: float
    """Share of it that the former prompt had too, wherever it stands."""


class RequestEvent(TaggedFact, frozen=True):
    """One finished request. Token counts are summed over retries; a value that is not known is None, a text empty.

    What the proxy writes is complete; what a reader makes of a line of a human log knows no more than the line says.
    `path` is the endpoint without its alias; `ttft_s` runs from the arrival of the request to the first content
    sent to the client; `guardrails` are the marks it got, as `malformed_tool:recovered`.
    """

    at: float
    """When the request arrived; when it ended where `duration_s` is None; 0 where neither is known."""
    session: str
    request_id: str
    path: str = "/v1/messages"
    stream: bool | None = False
    strict: bool | None = False
    model: str = ""
    outcome: RequestOutcome = RequestOutcome.OK
    status: int | None = 200
    error_type: str | None = None
    stop_reason: str | None = None
    duration_s: float | None = None
    held_s: float | None = None
    ttft_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    prompt_tokens: int | None = None
    """Tokens of the prompt, cached ones included."""
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    prefill_rate: float | None = None
    decode_rate: float | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    retries: int | None = 0
    context_window: int | None = None
    messages: int | None = None
    tools: int | None = None
    tool_calls: tuple[str, ...] | None = ()
    """Names of the tools called."""
    guardrails: tuple[str, ...] | None = ()
    prompt_estimated: bool | None = None
    """True where the upstream did not tell the size of the prompt, and `prompt_tokens` is the proxy's estimate."""
    changed: str | None = None
    """`PromptChange.what`; None for a new conversation. The next two are of the same."""
    changed_at: float | None = None
    known_share: float | None = None


ProxyEvent = GuardrailEvent | RequestEvent
_KINDS: dict[str, type[ProxyEvent]] = {"request": RequestEvent, "guardrail": GuardrailEvent}


_LEFT_OUT = frozenset(
    name
    for cls in _KINDS.values()
    for name, default in zip(reversed(cls.__struct_fields__), reversed(cls.__struct_defaults__), strict=False)
    if default is None
)


def to_json(event: ProxyEvent) -> str:
    """One line without its newline; fields that are None are left out where that says the same."""
    values: dict[str, Any] = {"event": "request" if isinstance(event, RequestEvent) else "guardrail"}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if value is not None or name not in _LEFT_OUT:
            values[name] = value
    return json.dumps(values, separators=(",", ":"))


def from_json(line: str | bytes) -> ProxyEvent | None:
    """The event of a line; None for another line, a field of another type, or a number that cannot be meant.

    Unknown fields of newer versions are ignored. Never raises.
    """
    try:
        values = json.loads(line)
        cls = _KINDS[values.pop("event")]
        if not can_be_meant(values) or not 0 <= values["at"] < _LATEST:
            return None
        return read(cls, with_credible_speeds(values))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


_LATEST = 1e11
"""No Unix time of an event is later."""


# The proxy's live picture: what GET /v1/context says under `status`. Utilisation is 0 to 1 of the context window.


WARNING_LEVELS: tuple[tuple[float, str], ...] = ((0.95, "CRITICAL"), (0.85, "HIGH"), (0.75, "ELEVATED"))
"""Context use from which each level holds, worst first."""


def warning_level(utilisation: float | None) -> str | None:
    """The level of a context use, None below the lowest."""
    if utilisation is None:
        return None
    return next((name for least, name in WARNING_LEVELS if utilisation >= least), None)


class UpstreamStatus(StrEnum):
    """What the proxy last saw of its upstream."""

    OK = "ok"
    LOADING = "loading"
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"


class SessionView(Fact, frozen=True):
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


class ActiveView(Fact, frozen=True):
    """One request that is running now. `prompt_done` counts prompt tokens processed or taken from the cache."""

    request_id: str
    session: str
    started: float
    phase: RequestPhase = RequestPhase.WAITING
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


class ProxyStatus(Fact, frozen=True):
    """The whole proxy. `counters` counts guardrail actions since its start, by `guardrail:action`."""

    version: str = ""
    started: float | None = None
    upstream_url: str = ""
    upstream: UpstreamStatus = UpstreamStatus.UNKNOWN
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


class ProxyEvents(Fact, frozen=True):
    """Events in the order they were written. `dropped` lines were lost between two reads, `unread` not understood."""

    events: tuple[ProxyEvent, ...] = ()
    dropped: int = 0
    unread: int = 0


def status_from_json(values: Any) -> ProxyStatus | None:
    """The picture of a JSON object; None for another one, a field of another type, or a number that cannot be meant.

    Unknown fields are ignored. Never raises.
    """
    try:
        if not can_be_meant(values):
            return None
        active = [with_credible_speeds(entry) for entry in values.get("active", ())]
        return read(ProxyStatus, {**values, "active": active})
    except (TypeError, ValueError, AttributeError, RecursionError):
        return None
