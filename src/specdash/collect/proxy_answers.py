"""What a proxy says of itself: our own proxy's status, or the flat fields of a UAP proxy."""

from __future__ import annotations

from typing import Any

from specdash.core.proxy_status import ProxyStatus, SessionView, status_from_json
from specdash.llama.bodies import ParseError, flag, load_object, mapping, natural, text

UAP = "UAP"
"""What stands for the version of a proxy that tells none and answers as the UAP proxy does."""

_UAP_FIELDS = frozenset({"active_session_id", "last_input_tokens", "utilization", "loop_protection"})


def parse_context(body: bytes, changed_at: float = 0.0) -> ProxyStatus:
    """The proxy's picture from the body of GET /v1/context. Raises ParseError when it is no proxy's.

    A UAP proxy does not date its last request: `changed_at`, the Unix time of a change that was seen, stands for it,
    and 0 for not known.
    """
    answer = load_object(body)
    if "status" in answer:
        status = status_from_json(answer["status"])
        if status is None:
            raise ParseError("a status of another form")
        return status
    if not _UAP_FIELDS & answer.keys():
        raise ParseError("a JSON object without a proxy's status")
    return _uap_status(answer, changed_at)


def _uap_status(answer: dict[str, Any], changed_at: float) -> ProxyStatus:
    window = natural(answer.get("context_window"))
    session = text(answer.get("active_session_id"))
    requests = natural(answer.get("total_requests")) or 0
    sessions = (_uap_session(session, answer, window, changed_at),) if session is not None and requests else ()
    return ProxyStatus(
        version=UAP,
        context_window=window,
        requests=requests,
        sessions=sessions,
        session_count=natural(answer.get("session_count")) or len(sessions),
    )


def _uap_session(session: str, answer: dict[str, Any], window: int | None, changed_at: float) -> SessionView:
    loops = mapping(answer.get("loop_protection"))

    def counted(name: str) -> int:
        return natural(loops.get(name)) or 0

    return SessionView(
        id=session,
        last_seen=changed_at,
        requests=natural(answer.get("total_requests")) or 0,
        context_tokens=natural(answer.get("last_input_tokens")),
        context_window=window,
        peak_tokens=natural(answer.get("peak_input_tokens")),
        output_tokens=natural(answer.get("last_output_tokens")),
        turns_remaining=natural(answer.get("estimated_turns_remaining")),
        prunes=natural(answer.get("prune_count")) or 0,
        overflows=natural(answer.get("overflow_count")) or 0,
        is_looping=bool(flag(loops.get("is_looping"))),
        loop_repeats=counted("loop_repeat_count"),
        no_progress=counted("no_progress_streak"),
        loop_warnings=counted("loop_warnings_emitted"),
        malformed_streak=counted("malformed_tool_streak"),
        contamination_resets=counted("contamination_resets"),
        unexpected_ends=counted("unexpected_end_turn_count"),
    )
