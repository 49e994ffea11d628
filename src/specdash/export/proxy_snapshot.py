"""The proxy in the snapshot. The schema is documented in docs/snapshot.md."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specdash.core.proxy_status import warning_level
from specdash.insight.proxy_picture import acceptance, cache_share, prefill_progress

if TYPE_CHECKING:
    from specdash.core.proxy_events import RequestEvent
    from specdash.core.proxy_status import ActiveView, SessionView
    from specdash.insight.picture import Picture
    from specdash.insight.proxy_picture import ProxyPicture

FINISHED_SHOWN = 50


def proxy_json(proxy: ProxyPicture) -> dict[str, Any] | None:
    """The proxy, None when none is configured."""
    if not proxy.configured:
        return None
    live = proxy.live
    window = proxy.window
    return {
        "url": proxy.url,
        "status": str(proxy.status),
        "reason": proxy.reason or None,
        "age_seconds": proxy.age_s,
        "version": (live.version or None) if live is not None else None,
        "started": live.started if live is not None else None,
        "upstream": str(live.upstream) if live is not None else None,
        "context_window": live.context_window if live is not None else None,
        "held": live.held if live is not None else None,
        "hold_reason": (live.hold_reason or None) if live is not None else None,
        "waiting": live.waiting if live is not None else None,
        "requests_total": live.requests if live is not None else None,
        "session_count": live.session_count if live is not None else None,
        "problems": list(live.problems) if live is not None else None,
        "sessions": [_session(one) for one in live.sessions] if live is not None else None,
        "running": [_running(one) for one in proxy.running] if proxy.tells_running else None,
        "events": {
            "status": str(proxy.events_status),
            "reason": proxy.events_reason or None,
            "lost": proxy.events_lost,
            "not_understood": proxy.events_unread,
        },
        "window": {
            "requests": window.requests,
            "errors": window.errors,
            "clients_left": window.clients_left,
            "error_rate": window.error_rate,
            "ttft_p50_seconds": window.ttft_p50_s,
            "decode_p50_tokens_per_second": window.decode_p50,
            "acceptance": window.acceptance,
            "cache_share": window.cache_share,
        },
        "finished": [_finished(one) for one in proxy.finished[:FINISHED_SHOWN]],
        "guardrails": _guardrails(proxy),
    }


def proxy_rows(picture: Picture) -> list[tuple[str, str]]:
    """Two lines for people: the state, and what the guardrails did; none when no proxy is configured."""
    proxy = picture.proxy
    if not proxy.configured:
        return []
    return [("proxy", _state(proxy)), ("guardrails", _acts(proxy))]


def _state(proxy: ProxyPicture) -> str:
    live = proxy.live
    if live is None:
        return f"-- {proxy.reason}"
    held = "  HELD" if live.held else ""
    state = f"{proxy.url or '--'}  upstream {live.upstream}{held}  {live.session_count} sessions"
    state += (
        f"  {len(proxy.running) if proxy.tells_running else '--'} running  errors {_percent(proxy.window.error_rate)}"
    )
    return f"{state}  ({proxy.status}: {proxy.reason})" if proxy.reason else state


def _acts(proxy: ProxyPicture) -> str:
    fullest = proxy.fullest
    use = "--" if fullest is None else f"{_percent(fullest.utilisation)} {warning_level(fullest.utilisation) or ''}"
    acted = ", ".join(f"{one.guardrail} {one.window}" for one in proxy.guardrails if one.window)
    nothing = "none acted" if proxy.counts_guardrails else "--"
    return f"{acted or nothing}  fullest context {use}".rstrip()


def _percent(fraction: float | None) -> str:
    return "--" if fraction is None else f"{fraction * 100:.1f}%"


def _session(session: SessionView) -> dict[str, Any]:
    used = session.utilisation
    return {**asdict(session), "utilisation": used, "level": warning_level(used)}


def _running(request: ActiveView) -> dict[str, Any]:
    return {**asdict(request), **_shares(request), "prefill_progress": prefill_progress(request)}


def _finished(request: RequestEvent) -> dict[str, Any]:
    return {**asdict(request), "at": request.at or None, **_shares(request)}


def _shares(request: ActiveView | RequestEvent) -> dict[str, Any]:
    return {"acceptance": acceptance(request), "cache_share": cache_share(request)}


def _guardrails(proxy: ProxyPicture) -> dict[str, Any] | None:
    if not proxy.counts_guardrails:
        return None
    return {
        one.guardrail: {"window": one.window, "total": one.total, "actions": dict(one.actions)}
        for one in proxy.guardrails
    }
