"""POST /v1/messages/count_tokens: exact, by the upstream's own template and tokenizer."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import orjson

from specdash import __version__
from specdash.core.proxy_events import (
    SESSIONS_SHOWN,
    ProxyStatus,
    RequestOutcome,
    RequestPhase,
    UpstreamStatus,
    status_to_json,
    warning_level,
)
from specdash.proxy.guardrails.loops import LoopState
from specdash.proxy.http.client import ClientWatch
from specdash.proxy.http.responses import ApiError, read_body, send_json
from specdash.proxy.sessions import ProxySession
from specdash.proxy.telemetry import BOUNDS_S
from specdash.proxy.translate.parse import parse_count_tokens
from specdash.proxy.translate.translate import chat_body
from specdash.proxy.upstream.upstream import api_error, without_secrets
from specdash.proxy.upstream.window import RetryPolicy, admitted, learn_models, upstream_model
from specdash.system.data import json_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdash.proxy.http.app import Proxy
    from specdash.proxy.http.responses import Receive, Scope, Send
    from specdash.proxy.telemetry import Histogram
    from specdash.proxy.translate.parse import MessagesRequest
    from specdash.proxy.upstream.upstream import Upstream


# GET /metrics in Prometheus' text format 0.0.4. Labels are few: endpoints, outcomes, error types, guardrails.
#
# Source: prometheus.io/docs/instrumenting/exposition_formats. Written by hand: a client library would cost more
# memory than the whole telemetry.

# GET /v1/context: the fields of the UAP proxy, flat, and the whole live picture under `status`. Never prompt text.

RECENT_SIZES = 10
RECENT_PATTERNS = 5
_STREAKS = (
    "loop_warnings_emitted=loop_warnings unexpected_end_turn_count=unexpected_ends "
    "malformed_tool_streak=malformed_streak contamination_resets"
)
_NO_SESSION = ProxySession("", 0.0)
_NO_LOOP = LoopState()


def context_json(proxy: Proxy, session: ProxySession | None) -> dict[str, Any]:
    """The answer about `session`; None is a proxy that has seen none yet, whose values are blank."""
    window, settings = proxy.window.tokens, proxy.settings
    seen = session or _NO_SESSION
    loop = seen.loop or _NO_LOOP
    use = seen.utilisation(window)
    return {
        "active_session_id": seen.id or None,
        "context_window": window,
        "last_input_tokens": seen.last_prompt_tokens,
        "last_output_tokens": seen.last_output_tokens,
        "peak_input_tokens": seen.peak_prompt_tokens,
        "utilization": round(use, 4) if use is not None else None,
        "utilization_pct": f"{use * 100:.1f}%" if use is not None else None,
        "warning_level": warning_level(use),
        "estimated_turns_remaining": seen.turns_remaining(window),
        "total_requests": seen.requests,
        "prune_count": seen.prunes,
        "overflow_count": seen.overflows,
        "recent_history": list(seen.history)[-RECENT_SIZES:],
        "session_count": len(proxy.sessions),
        "prune_threshold": settings.context_prune_threshold,
        "loop_protection": {
            "enabled": settings.loop_breaker,
            "consecutive_forced_count": seen.forced_streak,
            "no_progress_streak": loop.no_progress,
            **json_of(seen, _STREAKS),
            **json_of(loop, "tool_call_history_len=turns is_looping loop_repeat_count=repeats"),
            "recent_tool_patterns": list(loop.patterns[-RECENT_PATTERNS:]),
        },
        "status": status_to_json(proxy_status(proxy)),
    }


def proxy_status(proxy: Proxy) -> ProxyStatus:
    """The live picture of the whole proxy."""
    telemetry, gate, window = proxy.telemetry, proxy.gate, proxy.window
    tally, sessions = telemetry.tally, proxy.sessions.all()
    return ProxyStatus(
        version=__version__,
        started=telemetry.started,
        upstream_url=without_secrets(proxy.settings.upstream),
        upstream=window.status,
        context_window=window.tokens,
        held=gate.held,
        held_since=gate.since,
        hold_reason=gate.reason,
        waiting=gate.waiting,
        requests=tally.requests.total(),
        errors=tally.count(RequestOutcome.ERROR),
        clients_left=tally.count(RequestOutcome.CLIENT_LEFT),
        counters=dict(telemetry.counters),
        sessions=tuple(session.view(window.tokens or session.window) for session in sessions[:SESSIONS_SHOWN]),
        session_count=len(sessions),
        active=tuple(request.view() for request in telemetry.active),
        problems=proxy.settings.problems,
    )


Sample = tuple["Mapping[str, str]", float]
_PREFIX = "specdash_proxy_"
_NO_LABELS: dict[str, str] = {}


class _Page:
    def __init__(self) -> None:
        self._lines: list[str] = []

    def gauge(self, name: str, help_: str, samples: float | Iterable[Sample]) -> None:
        self._family(name, "gauge", help_, samples)

    def counter(self, name: str, help_: str, samples: float | Iterable[Sample]) -> None:
        self._family(f"{name}_total", "counter", help_, samples)

    def histogram(self, name: str, help_: str, values: Histogram) -> None:
        self._head(name, "histogram", help_)
        counts = list(accumulate(values.counts))
        for bound, count in zip((*map(_number, BOUNDS_S), "+Inf"), counts, strict=True):
            self._sample(f"{name}_bucket", {"le": bound}, count)
        self._sample(f"{name}_sum", _NO_LABELS, values.sum)
        self._sample(f"{name}_count", _NO_LABELS, counts[-1])

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _family(self, name: str, kind: str, help_: str, samples: float | Iterable[Sample]) -> None:
        self._head(name, kind, help_)
        for labels, value in ((_NO_LABELS, samples),) if isinstance(samples, (int, float)) else samples:
            self._sample(name, labels, value)

    def _head(self, name: str, kind: str, help_: str) -> None:
        self._lines.append(f"# HELP {_PREFIX}{name} {help_}")
        self._lines.append(f"# TYPE {_PREFIX}{name} {kind}")

    def _sample(self, name: str, labels: Mapping[str, str], value: float) -> None:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        self._lines.append(f"{_PREFIX}{name}{f'{{{inside}}}' if inside else ''} {_number(value)}")


_SUMS = {
    "retries": "Upstream calls beyond the first of a request.",
    "held_seconds": "Time requests waited because the proxy was held.",
    "prompt_tokens": "Prompt tokens, cached ones included, over all retries.",
    "cached_tokens": "Prompt tokens that the upstream had in its cache.",
    "completion_tokens": "Tokens of answers, over all retries.",
    "prefilled_tokens": "Prompt tokens processed in prefill_seconds.",
    "prefill_seconds": "Time the upstream took to process prompts.",
    "decoded_tokens": "Tokens generated in decode_seconds: all but the first of each answer.",
    "decode_seconds": "Time the upstream took to generate tokens.",
    "draft_tokens": "Draft tokens proposed.",
    "accepted_tokens": "Draft tokens accepted.",
}
"""What `TokenTally.sums` holds."""


def render(proxy: Proxy) -> str:
    """The whole page."""
    page, telemetry, window, gate = _Page(), proxy.telemetry, proxy.window, proxy.gate
    page.gauge("info", "Version of the proxy; always 1.", [({"version": __version__}, 1)])
    page.gauge("start_time_seconds", "Unix time of the proxy's start.", telemetry.started)
    states = [({"state": str(status)}, float(status is window.status)) for status in UpstreamStatus]
    page.gauge("upstream_state", "1 for what the proxy last saw of its upstream, 0 for the rest.", states)
    if window.tokens:
        page.gauge("context_window_tokens", "Context window of one conversation.", window.tokens)
    page.gauge("held", "1 while new requests wait because the proxy is held.", float(gate.held))
    page.gauge("waiting_requests", "Requests that wait because the proxy is held.", gate.waiting)
    phases = Counter(active.phase for active in telemetry.active)
    under_way = [({"phase": str(phase)}, phases[phase]) for phase in RequestPhase if phase is not RequestPhase.DONE]
    page.gauge("active_requests", "Requests under way, by phase.", under_way)
    page.gauge("sessions", "Sessions remembered.", len(proxy.sessions))
    problems = len(proxy.settings.problems)
    page.gauge("settings_problems", "Settings that were not usable and left at their defaults.", problems)
    tally = telemetry.tally
    ended = [({"path": path, "outcome": str(how)}, count) for (path, how), count in sorted(tally.requests.items())]
    page.counter("requests", "Finished requests, by endpoint and outcome.", ended)
    errors = [({"type": kind}, count) for kind, count in sorted(tally.errors.items())]
    page.counter("errors", "Requests that failed, by error type.", errors)
    actions = [(_mark(mark), count) for mark, count in sorted(telemetry.counters.items())]
    page.counter("guardrail_actions", "What guardrails did, by guardrail and action.", actions)
    page.counter("events_lost", "Events that could not be written to the events file.", telemetry.file.lost)
    page.counter("log_lines_lost", "Lines of the log that could not be written.", telemetry.log_lines_lost())
    for name, help_ in _SUMS.items():
        page.counter(name, help_, tally.sums[name])
    page.histogram("ttft_seconds", "Time from a request's arrival to its first content.", tally.ttft)
    page.histogram("request_duration_seconds", "Time from a request's arrival to its end.", tally.duration)
    return page.text()


def _mark(mark: str) -> dict[str, str]:
    guardrail, _, action = mark.partition(":")
    return {"guardrail": guardrail, "action": action}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


COUNT_PATH = "/v1/chat/completions/input_tokens"
"""llama.cpp counts there what it would read of a chat completion; older builds have only the two below."""
_TEMPLATE_PATH, _TOKENIZE_PATH = "/apply-template", "/tokenize"


async def handle(proxy: Proxy, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one request."""
    request = parse_count_tokens(
        await read_body(scope, receive, proxy.settings.max_body_mib << 20), proxy.settings.max_blocks
    )
    async with ClientWatch(receive) as watch:
        tokens = await _count(proxy, request)
        watch.answered = True
    await send_json(send, {"input_tokens": tokens})


async def _count(proxy: Proxy, request: MessagesRequest) -> int:
    patience = RetryPolicy(proxy.gate)
    while True:
        await admitted(proxy, lambda: proxy.gate.wait(proxy.settings.hold_limit))
        await learn_models(request.model, proxy.window)
        body = chat_body(request, upstream_model(request.model, proxy.window))
        try:
            return await count(proxy.upstream, body, proxy.settings.read_timeout)
        except ApiError as error:
            if not await patience.again(error):
                raise


async def count(upstream: Upstream, body: dict[str, Any], limit_s: float) -> int:
    """Prompt tokens of a chat completion. Raises `ApiError` when the upstream cannot tell."""
    data = orjson.dumps(body)
    status, answer = await upstream.exchange(COUNT_PATH, data, limit_s)
    if status in {404, 405, 501}:
        return await count_by_template(upstream, data, limit_s)
    return _whole(_object(status, answer).get("input_tokens"))


async def count_by_template(upstream: Upstream, data: bytes, limit_s: float) -> int:
    """The same from an upstream that has no endpoint for it: the rendered prompt, tokenized."""
    prompt = _object(*await upstream.exchange(_TEMPLATE_PATH, data, limit_s)).get("prompt")
    # As the server itself reads a rendered prompt: special tokens are added, and understood.
    wanted = {"content": prompt, "add_special": True, "parse_special": True}
    answer = await upstream.exchange(_TOKENIZE_PATH, orjson.dumps(wanted), limit_s)
    tokens = _object(*answer).get("tokens")
    return _whole(len(tokens) if isinstance(tokens, list) else None)


def _object(status: int, answer: bytes) -> dict[str, Any]:
    if status != 200:
        raise api_error(status, answer)
    try:
        value = orjson.loads(answer)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ApiError(502, "the upstream does not say how many tokens the request has", retry=False)
