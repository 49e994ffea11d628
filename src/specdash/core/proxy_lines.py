"""The lines of the proxy's human log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from specdash.core.proxy_events import Guardrail, GuardrailAction

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_WORD = 200
_HEADLINES = {
    Guardrail.MALFORMED_TOOL: "MALFORMED TOOL PAYLOAD",
    Guardrail.STRICT_STREAM: "STRICT STREAM GUARDRAIL",
    Guardrail.UNEXPECTED_END: "GUARDRAIL: unexpected end_turn",
    Guardrail.CONTAMINATION: "SESSION CONTAMINATION BREAKER",
    Guardrail.MAX_TOKENS: "MAX_TOKENS",
    Guardrail.CONTEXT_PRUNE: "PRUNED",
    Guardrail.SUPPLEMENT: "AGENTIC SUPPLEMENT",
}
"""How a guardrail's lines begin, in UAP's words, where that is not its name in capitals."""
_OWN_HEADLINES = {
    (Guardrail.MALFORMED_TOOL, GuardrailAction.RETRIED): "MALFORMED RETRY",
    (Guardrail.MALFORMED_TOOL, GuardrailAction.RECOVERED): "MALFORMED RETRY",
    (Guardrail.CONTEXT_PRUNE, GuardrailAction.DETECTED): "CONTEXT OVERFLOW",
}
_EVERY_TURN = (Guardrail.THINKING_OFF, Guardrail.SUPPLEMENT)
"""Settings at work on every tool turn: logged at DEBUG."""
_LEVELS = {
    GuardrailAction.RECOVERED: logging.INFO,
    GuardrailAction.EXHAUSTED: logging.ERROR,
    GuardrailAction.APPLIED: logging.INFO,
}
"""Of all other actions WARNING."""
CONTEXT_LEVELS: dict[str | None, int] = {
    None: logging.INFO, "ELEVATED": logging.WARNING, "HIGH": logging.WARNING, "CRITICAL": logging.ERROR
}  # fmt: skip


def note_text(
    guardrail: Guardrail, action: GuardrailAction, facts: Mapping[str, Any], *, session: str = "", request_id: str = ""
) -> tuple[int, str]:
    """Level (of `logging`) and text of what a guardrail did: `LOOP BREAKER: released reason=context session=a`."""
    usual = _HEADLINES.get(guardrail, guardrail.replace("_", " ").upper())
    headline = _OWN_HEADLINES.get((guardrail, action), usual)
    quiet = guardrail in _EVERY_TURN and action is GuardrailAction.APPLIED
    level = logging.DEBUG if quiet else _LEVELS.get(action, logging.WARNING)
    return level, f"{headline}: {action}{_words(facts, session, request_id)}"


def line_text(name: str, facts: Mapping[str, Any], *, session: str = "", request_id: str = "") -> tuple[int, str]:
    """Level and text of the line about a `request` or a `response`."""
    return logging.INFO, ("REQ:" if name == "request" else "RESP:") + _words(facts, session, request_id)


def context_text(
    tokens: int,
    window: int,
    level: str | None = None,
    turns_remaining: int | None = None,
    session: str = "",
    **cuts: int,
) -> tuple[int, str]:
    """Level and text of a CONTEXT line: what the last turn of a session used of the window, in tokens. `level` is None
    below ELEVATED, `turns_remaining` when unknown; `cuts` are those that were made, by their names."""
    used = f"{tokens}/{window} tokens ({100 * tokens / window if window else 0.0:.1f}%)"
    left = "unknown" if turns_remaining is None else f"~{turns_remaining} turns remaining"
    made = "".join(f", {name}={count}" for name, count in cuts.items() if count)
    return CONTEXT_LEVELS[
        level
    ], f"CONTEXT{f' {level}' if level else ''}: {used}, {left}{made}{_words({}, session, '')}"


def _words(facts: Mapping[str, Any], session: str, request_id: str) -> str:
    """` name=value` for each fact that is known."""
    known = {**facts, "request": request_id, "session": session}
    return "".join(f" {name}={_word(value)}" for name, value in known.items() if value is not None and value != "")


def _word(value: Any) -> str:
    """Without blanks and unprintable characters, bounded; a list's items are joined by commas."""
    if isinstance(value, float):
        return f"{value:.4f}".rstrip("0").rstrip(".")
    text = (",".join(map(str, value)) if isinstance(value, list | tuple) else str(value))[:_LONGEST_WORD]
    if text.isprintable() and " " not in text:
        return text or "-"
    return "".join(char if char.isprintable() and char != " " else "_" for char in text)
