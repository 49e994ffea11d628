"""What the proxy says of itself: /health, /v1/context and /metrics. Never prompt text."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from starlette.responses import Response

from specdash import __version__
from specdash.core.proxy_events import (
    SESSIONS_SHOWN,
    ProxyStatus,
    RequestOutcome,
    RequestPhase,
    UpstreamStatus,
    warning_level,
)
from specdash.core.structs import json_of
from specdash.proxy.http.responses import ApiError, json_response
from specdash.proxy.sessions import KINDS, ProxySession
from specdash.proxy.telemetry import SUMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric
    from starlette.requests import Request

    from specdash.proxy.http.app import Proxy

    Rows = Iterable[tuple[str, str, tuple[str, ...], Mapping[Any, float]]]

_HEALTH = {UpstreamStatus.OK: "ok", UpstreamStatus.LOADING: "loading"}


async def handle_root(_request: Request) -> Response:
    """GET /."""
    return json_response({"service": "specdash proxy", "version": __version__})


async def handle_health(request: Request) -> Response:
    """GET /health: always 200, the proxy answers; the state of its upstream is in the body."""
    proxy: Proxy = request.state.proxy
    await proxy.window.refresh(1.0)
    seen = proxy.window.status
    return json_response(
        {
            "status": "held" if proxy.gate.held else _HEALTH.get(seen, "degraded"),
            "proxy": "ok",
            "upstream": str(seen if seen is not UpstreamStatus.UNKNOWN else UpstreamStatus.UNREACHABLE),
            "held": proxy.gate.held,
            "context_window": proxy.window.tokens,
            "problems": list(proxy.settings.problems),
        }
    )


async def handle_context(request: Request) -> Response:
    """GET /v1/context: the fields of the UAP proxy, and the whole live picture under `status`.

    It is about the session of our id or its client's name for it, or about the latest.
    """
    proxy: Proxy = request.state.proxy
    name = request.query_params.get("session_id")
    if not name:
        return json_response(context_json(proxy, next(iter(proxy.sessions.all()), None)))
    found = filter(None, (proxy.sessions.find(prefix + name) for prefix in ("", *KINDS)))
    if (session := next(found, None)) is None:
        raise ApiError(404, f"no such session: {name[:200]}; it may have been idle for too long")
    return json_response(context_json(proxy, session))


async def handle_metrics(request: Request) -> Response:
    """GET /metrics in Prometheus' text format 0.0.4."""
    figures = generate_latest(ProxyMetrics(request.state.proxy))
    return Response(figures, media_type="text/plain; version=0.0.4; charset=utf-8")


RECENT_SIZES = 10
RECENT_PATTERNS = 5


def context_json(proxy: Proxy, session: ProxySession | None) -> dict[str, Any]:
    """The answer about `session`; None is a proxy that has seen none yet, whose values are blank."""
    window, seen = proxy.window.tokens, session or ProxySession("", 0.0)
    use = seen.utilisation(window)
    return {
        "active_session_id": seen.id or None,
        "context_window": window,
        "last_input_tokens": seen.last_prompt_tokens,
        "last_output_tokens": seen.last_output_tokens,
        "peak_input_tokens": seen.peak_prompt_tokens,
        "total_requests": seen.requests,
        "prune_count": seen.prunes,
        "overflow_count": seen.overflows,
        "utilization": round(use, 4) if use is not None else None,
        "utilization_pct": f"{use * 100:.1f}%" if use is not None else None,
        "warning_level": warning_level(use),
        "estimated_turns_remaining": seen.turns_remaining(window),
        "recent_history": list(seen.history)[-RECENT_SIZES:],
        "session_count": len(proxy.sessions),
        "prune_threshold": proxy.settings.context_prune_threshold,
        "loop_protection": {
            "enabled": proxy.settings.loop_breaker,
            "consecutive_forced_count": seen.forced_streak,
            "no_progress_streak": seen.loop.no_progress,
            "loop_warnings_emitted": seen.loop_warnings,
            "unexpected_end_turn_count": seen.unexpected_ends,
            "malformed_tool_streak": seen.malformed_streak,
            "contamination_resets": seen.contamination_resets,
            "tool_call_history_len": seen.loop.turns,
            "is_looping": seen.loop.is_looping,
            "loop_repeat_count": seen.loop.repeats,
            "recent_tool_patterns": list(seen.loop.patterns[-RECENT_PATTERNS:]),
        },
        "status": json_of(proxy_status(proxy)),
    }


def proxy_status(proxy: Proxy) -> ProxyStatus:
    """The live picture of the whole proxy."""
    telemetry, gate, window = proxy.telemetry, proxy.gate, proxy.window
    sessions = proxy.sessions.all()
    running = Counter(request.session.id for request in telemetry.active)
    ended: Counter[RequestOutcome] = Counter()
    for (_, how), count in telemetry.requests.items():
        ended[how] += count
    return ProxyStatus(
        version=__version__,
        started=telemetry.started,
        upstream_url=proxy.upstream.shown_url,
        upstream=window.status,
        context_window=window.tokens,
        **json_of(gate, "held waiting"),
        held_since=gate.since,
        hold_reason=gate.reason,
        requests=ended.total(),
        errors=ended[RequestOutcome.ERROR],
        clients_left=ended[RequestOutcome.CLIENT_LEFT],
        counters=dict(telemetry.counters),
        sessions=tuple(
            session.view(window.tokens or session.window, running[session.id]) for session in sessions[:SESSIONS_SHOWN]
        ),
        session_count=len(sessions),
        active=tuple(request.view() for request in telemetry.active),
        problems=proxy.settings.problems,
    )


class ProxyMetrics(Collector):
    """Every metric of one proxy. Labels are few: endpoints, outcomes, error types, guardrails."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def collect(self) -> Iterator[Metric]:
        """Each row is a name, what it is, the names of its labels, and the values by theirs."""
        proxy = self._proxy
        telemetry, window, gate = proxy.telemetry, proxy.window, proxy.gate
        phases = Counter(active.phase for active in telemetry.active)
        states = {(status,): float(status is window.status) for status in UpstreamStatus}
        size = {(): window.tokens} if window.tokens else {}
        under_way = {(phase,): phases[phase] for phase in RequestPhase if phase is not RequestPhase.DONE}
        errors = {(kind,): count for kind, count in telemetry.errors.items()}
        actions = {tuple(mark.split(":", 1)): count for mark, count in telemetry.counters.items()}
        problems = {(): len(proxy.settings.problems)}
        gauges: Rows = (
            ("info", "Version of the proxy; always 1.", ("version",), {(__version__,): 1}),
            ("start_time_seconds", "Unix time of the proxy's start.", (), {(): telemetry.started}),
            ("upstream_state", "1 for what the proxy last saw of its upstream, 0 for the rest.", ("state",), states),
            ("context_window_tokens", "Context window of one conversation.", (), size),
            ("held", "1 while new requests wait because the proxy is held.", (), {(): float(gate.held)}),
            ("waiting_requests", "Requests that wait because the proxy is held.", (), {(): gate.waiting}),
            ("active_requests", "Requests under way, by phase.", ("phase",), under_way),
            ("sessions", "Sessions remembered.", (), {(): len(proxy.sessions)}),
            ("settings_problems", "Unusable settings, left at their defaults.", (), problems),
        )
        counters: Rows = (
            ("requests", "Finished requests, by endpoint and outcome.", ("path", "outcome"), telemetry.requests),
            ("errors", "Requests that failed, by error type.", ("type",), errors),
            ("guardrail_actions", "What guardrails did, by guardrail and action.", ("guardrail", "action"), actions),
            ("events_lost", "Events that could not be written to the events file.", (), {(): telemetry.file.lost}),
            *((name, text, (), {(): telemetry.sums[name]}) for name, _, text in SUMS),
        )
        for kind, rows in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, what, labels, values in rows:
                metric = kind(f"specdash_proxy_{name}", what, labels=labels)
                for label, value in sorted(values.items()):
                    metric.add_metric(label, value)
                yield metric
        for histogram in telemetry.histograms:
            yield from histogram.collect()
