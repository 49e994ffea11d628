"""The human log: the wordings are in `core.proxy_line_table`, here are the numbers. Logger: `specdash.proxy`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from specdash.core.proxy_lines import ContextLine, context_text, line_text, note_text
from specdash.core.proxy_status import warning_level

if TYPE_CHECKING:
    from specdash.core.proxy_events import GuardrailEvent, RequestEvent
    from specdash.proxy.sessions import Session
    from specdash.proxy.settings import ProxySettings
    from specdash.proxy.telemetry.active import ActiveRequest

logger = logging.getLogger("specdash.proxy")


def _tell(line: tuple[int, str]) -> None:
    logger.log(line[0], "%s", line[1])


def request(active: ActiveRequest) -> None:
    """REQ: a request arrived."""
    if logger.isEnabledFor(logging.INFO):
        facts = {"stream": active.stream, "messages": active.messages or 0, "tools": active.tools}
        _tell(line_text("request", facts, session=active.session.id, request_id=active.request_id))


def response(event: RequestEvent, text_chars: int | None) -> None:
    """RESP: a request ended."""
    if logger.isEnabledFor(logging.INFO):
        facts = {
            "finish": event.stop_reason or event.outcome,
            "output_tokens": event.completion_tokens,
            "text_len": text_chars,
            "tool_calls": len(event.tool_calls or ()),
            "status": event.status,
            "error": event.error_type,
            "retries": event.retries or None,
            "ttft_s": event.ttft_s,
            "tok_s": event.decode_rate,
        }
        _tell(line_text("response", facts, session=event.session, request_id=event.request_id))


def context(session: Session) -> None:
    """CONTEXT: what the session's last turn used of its window; silent while either is unknown."""
    tokens, window = session.context_tokens, session.window
    if tokens is None or not window:
        return
    line = ContextLine(
        tokens,
        window,
        warning_level(tokens / window),
        session.turns_remaining(window),
        session.prunes,
        session.overflows,
        session.id,
    )
    _tell(context_text(line))


def note(event: GuardrailEvent) -> None:
    """What a guardrail did."""
    _tell(note_text(event.guardrail, event.action, event.facts, session=event.session, request_id=event.request_id))


def started(listen: str, upstream: str, window: int | None, settings: ProxySettings) -> None:
    """The three lines at start-up; `upstream` is a URL without secrets."""
    _tell(line_text("started", {"listen": listen, "upstream": upstream}))
    shares = {"threshold": settings.context_prune_threshold, "target": settings.context_prune_target_fraction}
    _tell(line_text("window" if window else "window_unknown", {"window": window, **shares} if window else shares))
    switches = {
        "malformed": settings.malformed_tool_guardrail,
        "stream_strict": settings.malformed_tool_stream_strict,
        "force_non_stream": settings.force_non_stream,
        "tool_narrowing": settings.tool_narrowing,
        "thinking_off_on_tools": settings.disable_thinking_on_tool_turns,
        "contamination_breaker": settings.session_contamination_breaker,
        "threshold": settings.session_contamination_threshold,
    }
    _tell(line_text("guardrails", switches))
