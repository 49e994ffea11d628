"""What is wrong with an answer, if anything. A healthy one is OK, whatever guardrails are on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from specdash.proxy.guardrails import malformed
from specdash.proxy.guardrails.unexpected_end import is_unexpected_end

if TYPE_CHECKING:
    from specdash.proxy.answer import Answer
    from specdash.proxy.blocks import ToolCall
    from specdash.proxy.chain import Chain
    from specdash.proxy.messages import MessagesRequest, Tool
    from specdash.proxy.settings import ProxySettings


class Kind(StrEnum):
    """The kinds of answers."""

    OK = "ok"
    EMPTY = "empty"
    """The model stopped without a word or a call."""
    MALFORMED = "malformed"
    """A tool call that no client can take, or that arrived as text."""
    UNEXPECTED_END = "unexpected_end"
    """The model announced a tool call and stopped without it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A kind, and for a malformed answer what is malformed."""

    kind: Kind
    fault: malformed.Fault | None = None


OK = Verdict(Kind.OK)
MISSING_CALL = "missing_call"
"""Fault of an answer without a call where `tool_choice` demands one."""


def judge(
    request: MessagesRequest, tools: tuple[Tool, ...], answer: Answer, chain: Chain, settings: ProxySettings
) -> Verdict:
    """Judge a complete answer, whose suspicious text `chain` holds."""
    if chain.stop_text is not None or chain.repeated:
        return OK
    calls = chain.calls_of(answer)
    text = answer.text()
    truncated = answer.finish_reason == "length"
    if settings.malformed_tool_guardrail and tools:
        rules = settings.agentic_supplement_mode != "off"
        # What the gate has let through holds no call: only what it holds need be judged in its context.
        doubtful = text if rules or chain.held else ""
        fault = malformed.inspect(doubtful, calls, tools, truncated=truncated, rules=rules)
        fault = fault or _missing_call(request, calls, truncated)
        if fault is not None:
            return Verdict(Kind.MALFORMED, fault)
    if not truncated and not calls and not text.strip():
        return Verdict(Kind.EMPTY)
    if settings.guardrail_retry and is_unexpected_end(request, text, calls, answer.finish_reason):
        return Verdict(Kind.UNEXPECTED_END)
    return OK


def _missing_call(request: MessagesRequest, calls: list[ToolCall], truncated: bool) -> malformed.Fault | None:
    demanded = request.tool_choice.kind in {"any", "tool"}
    if demanded and not calls and not truncated:
        return malformed.Fault(MISSING_CALL, request.tool_choice.name, "tool_choice demands a call, and none came")
    return None
