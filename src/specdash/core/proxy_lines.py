"""The lines of the proxy's human log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from msgspec import Struct

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


class ContextLine(Struct, frozen=True):
    """A CONTEXT line: what the last turn of a session used of the window, in tokens. `at` is Unix time.

    `level` is None below ELEVATED, `turns_remaining` None when unknown; `session` is empty when the line has none.
    """

    tokens: int
    window: int
    level: str | None = None
    turns_remaining: int | None = None
    pruned: int = 0
    overflows: int = 0
    session: str = ""
    at: float = 0.0


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


def context_text(line: ContextLine) -> tuple[int, str]:
    """Level and text of a CONTEXT line."""
    level = f" {line.level}" if line.level else ""
    used = f"{line.tokens}/{line.window} tokens ({100 * line.tokens / line.window if line.window else 0.0:.1f}%)"
    left = "unknown" if line.turns_remaining is None else f"~{line.turns_remaining} turns remaining"
    cuts = "".join(f", {name}={count}" for name in ("pruned", "overflows") if (count := getattr(line, name)))
    return CONTEXT_LEVELS[line.level], f"CONTEXT{level}: {used}, {left}{cuts}{_words({}, line.session, '')}"


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
