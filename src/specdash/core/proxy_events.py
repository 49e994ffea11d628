"""What the proxy tells about itself: one event per finished request and per guardrail action, and the live picture.

The proxy writes events as JSON lines, the collector reads them back, from its file or from a journal; both use the
types here. Durations are seconds, rates tokens per second, `at` Unix time. Nothing here ever holds prompt text.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from specdash.core.field_types import is_sound
from specdash.core.token_speed import with_credible_speeds


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


class Action(StrEnum):
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


class Phase(StrEnum):
    """Where a request is."""

    HELD = "held"
    WAITING = "waiting"
    """Sent upstream, nothing back yet: queued for a slot, or the model is loading."""
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


class Outcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    ERROR = "error"
    CLIENT_LEFT = "client_left"


@dataclass(frozen=True, slots=True)
class GuardrailEvent:
    """One guardrail action. `facts` are numbers and names (tools, sizes, streaks), never text of a prompt."""

    at: float
    session: str
    guardrail: Guardrail
    action: Action
    request_id: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestEvent:
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
    outcome: Outcome = Outcome.OK
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


ProxyEvent = GuardrailEvent | RequestEvent
_KINDS: dict[str, type[ProxyEvent]] = {"request": RequestEvent, "guardrail": GuardrailEvent}
_NAMES = {cls: name for name, cls in _KINDS.items()}
_ENUMS: dict[str, type[StrEnum]] = {"guardrail": Guardrail, "action": Action, "outcome": Outcome}
_TUPLES = frozenset({"tool_calls", "guardrails"})
_LEFT_OUT = frozenset(one.name for cls in _NAMES for one in dataclasses.fields(cls) if one.default is None)


def to_json(event: ProxyEvent) -> str:
    """One line without its newline; fields that are None are left out where that says the same."""
    told = dataclasses.asdict(event).items()
    values = {name: value for name, value in told if value is not None or name not in _LEFT_OUT}
    return json.dumps({"event": _NAMES[type(event)], **values}, separators=(",", ":"))


def from_json(line: str | bytes) -> ProxyEvent | None:
    """The event of a line, or None when it is not one of ours or a field is not of its type.

    Unknown fields of newer versions are ignored. Never raises.
    """
    try:
        values = json.loads(line)
        cls = _KINDS[values.pop("event")]
        known = {one.name for one in dataclasses.fields(cls)}
        kept = {name: _typed(name, value) for name, value in values.items() if name in known}
        event = cls(**with_credible_speeds(kept))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return event if is_sound(event) else None


def _typed(name: str, value: Any) -> Any:
    if name in _TUPLES and isinstance(value, list):
        return tuple(str(one) for one in value)
    enum = _ENUMS.get(name)
    return enum(value) if enum is not None else value
