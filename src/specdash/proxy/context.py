"""GET /v1/context: the fields of the UAP proxy, flat, and the whole live picture under `status`. Never prompt text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdash import __version__
from specdash.core.proxy_events import Outcome
from specdash.core.proxy_status import SESSIONS_SHOWN, ProxyStatus, status_to_json, warning_level
from specdash.proxy.upstream import without_secrets

if TYPE_CHECKING:
    from specdash.proxy.gate import Gate
    from specdash.proxy.sessions import Session, SessionStore
    from specdash.proxy.settings import ProxySettings
    from specdash.proxy.telemetry import Telemetry
    from specdash.proxy.window import Window

RECENT_SIZES = 10
RECENT_PATTERNS = 5


def context_json(
    session: Session | None,
    store: SessionStore,
    telemetry: Telemetry,
    settings: ProxySettings,
    window: Window,
    gate: Gate,
) -> dict[str, Any]:
    """The answer about `session`; None is a proxy that has seen none yet, whose values are blank."""
    return {
        **_of_session(session, window.tokens),
        "session_count": len(store),
        "prune_threshold": settings.context_prune_threshold,
        "loop_protection": _loop_protection(session, settings),
        "status": status_to_json(proxy_status(store, telemetry, settings, window, gate)),
    }


def proxy_status(
    store: SessionStore, telemetry: Telemetry, settings: ProxySettings, window: Window, gate: Gate
) -> ProxyStatus:
    """The live picture of the whole proxy."""
    tally, sessions = telemetry.tally, store.all()
    return ProxyStatus(
        version=__version__,
        started=telemetry.started,
        upstream_url=without_secrets(settings.upstream),
        upstream=window.status,
        context_window=window.tokens,
        held=gate.held,
        held_since=gate.since,
        hold_reason=gate.reason,
        waiting=gate.waiting,
        requests=tally.requests.total(),
        errors=tally.count(Outcome.ERROR),
        clients_left=tally.count(Outcome.CLIENT_LEFT),
        counters=dict(telemetry.counters),
        sessions=tuple(one.view(window.tokens or one.window) for one in sessions[:SESSIONS_SHOWN]),
        session_count=len(sessions),
        active=tuple(one.view() for one in telemetry.active),
        problems=settings.problems,
    )


def _of_session(session: Session | None, window: int | None) -> dict[str, Any]:
    use = session.utilisation(window) if session is not None else None
    return {
        "active_session_id": session.id if session is not None else None,
        "context_window": window,
        "last_input_tokens": session.last_prompt_tokens if session is not None else None,
        "last_output_tokens": session.last_output_tokens if session is not None else None,
        "peak_input_tokens": session.peak_prompt_tokens if session is not None else None,
        "utilization": round(use, 4) if use is not None else None,
        "utilization_pct": f"{use * 100:.1f}%" if use is not None else None,
        "warning_level": warning_level(use),
        "estimated_turns_remaining": session.turns_remaining(window) if session is not None else None,
        "total_requests": session.requests if session is not None else 0,
        "prune_count": session.prunes if session is not None else 0,
        "overflow_count": session.overflows if session is not None else 0,
        "recent_history": list(session.history)[-RECENT_SIZES:] if session is not None else [],
    }


def _loop_protection(session: Session | None, settings: ProxySettings) -> dict[str, Any]:
    loop = session.loop if session is not None else None
    return {
        "enabled": settings.loop_breaker,
        "consecutive_forced_count": session.forced_streak if session is not None else 0,
        "no_progress_streak": loop.no_progress if loop is not None else 0,
        "loop_warnings_emitted": session.loop_warnings if session is not None else 0,
        "unexpected_end_turn_count": session.unexpected_ends if session is not None else 0,
        "malformed_tool_streak": session.malformed_streak if session is not None else 0,
        "contamination_resets": session.contamination_resets if session is not None else 0,
        "tool_call_history_len": loop.turns if loop is not None else 0,
        "is_looping": loop.is_looping if loop is not None else False,
        "loop_repeat_count": loop.repeats if loop is not None else 0,
        "recent_tool_patterns": list(loop.patterns[-RECENT_PATTERNS:]) if loop is not None else [],
    }
