"""Structured tool calls that are invalid, the retries of a turn, and what a turn of nothing but reasoning shows.

Strings inside a call's input are data and never searched.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from specdash.proxy.guardrails.schema import json_type, problem
from specdash.proxy.guardrails.written import ToolUseFault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.proxy.answer.blocks import ToolCall
    from specdash.proxy.settings import ProxySettings
    from specdash.proxy.translate.parse import Tool


_PLAIN_NAME = re.compile(r"[\w.:\-]{1,64}\Z")


UNREADABLE = frozenset({"bad_json", "not_an_object"})
"""Kinds of calls that no client can take: their input is no JSON object."""


def call_fault(call: ToolCall, offered: Mapping[str, Tool], *, is_cut: bool = False) -> ToolUseFault | None:
    """The fault of one structured call; `is_cut` excuses what its arguments lack at their end."""
    if not call.name.strip():
        return ToolUseFault("empty_name", None, "a call has no tool name")
    tool = offered.get(call.name)
    if tool is None:
        name = call.name if _PLAIN_NAME.match(call.name) else None
        return ToolUseFault("unknown_tool", name, f"{name or 'the tool called'} was not offered")
    if is_cut:
        return None
    try:
        value: Any = json.loads(call.arguments, parse_constant=_no_constant) if call.arguments.strip() else {}
    except (ValueError, RecursionError):
        return ToolUseFault("bad_json", tool.name, f"{tool.name}: arguments are not JSON")
    if not isinstance(value, dict):
        return ToolUseFault("not_an_object", tool.name, f"{tool.name}: arguments are {json_type(value)}, not object")
    if detail := problem(tool, value):
        return ToolUseFault("schema", tool.name, detail)
    return None


def _no_constant(name: str) -> Any:
    raise ValueError(name)


# The upstream body of a second try. The messages stay as they are, so that the upstream's prompt cache holds.

LATER_TEMPERATURE = 0.5
"""Least temperature where the same sampling has already failed: it would only fail again."""


def malformed_retry(chat: dict[str, Any], settings: ProxySettings, attempt: int) -> dict[str, Any]:
    """A retry of a malformed tool turn: a call is required, sampled soberly and short. `attempt` counts from 1."""
    body = required_retry(chat)
    temperature = settings.malformed_tool_retry_temperature
    body["temperature"] = temperature if attempt <= 1 else max(temperature, LATER_TEMPERATURE)
    cap = settings.malformed_tool_retry_max_tokens
    if cap:
        current = body.get("max_tokens")
        body["max_tokens"] = min(current, cap) if isinstance(current, int) else cap
    return body


def required_retry(chat: dict[str, Any]) -> dict[str, Any]:
    """A retry that must call a tool. A choice of none, or of one tool by name, stands."""
    body = dict(chat)
    if body.get("tools") and not isinstance(body.get("tool_choice"), dict) and body.get("tool_choice") != "none":
        body["tool_choice"] = "required"
    return body


def empty_retry(chat: dict[str, Any], reasoning_only: bool) -> dict[str, Any]:
    """A retry of a turn that showed nothing: without thinking when it did nothing else, and never greedy."""
    body = dict(chat)
    if reasoning_only:
        kwargs = body.get("chat_template_kwargs")
        body["chat_template_kwargs"] = {**(kwargs if isinstance(kwargs, dict) else {}), "enable_thinking": False}
    temperature = body.get("temperature")
    if isinstance(temperature, int | float) and temperature < LATER_TEMPERATURE:
        body["temperature"] = LATER_TEMPERATURE
    return body


# What a turn of nothing but reasoning shows instead of nothing.

_TAGS = re.compile(r"</?think(?:ing)?>", re.IGNORECASE)


def fallback_text(thinking: str, settings: ProxySettings) -> str:
    """The text for a turn whose only content is `thinking`; "" when it shall show nothing.

    `sanitized` is one line without think tags, cut at `stream_reasoning_max_chars`; `visible` is the reasoning itself.
    """
    if settings.stream_reasoning_fallback == "visible":
        return thinking
    if settings.stream_reasoning_fallback != "sanitized":
        return ""
    line = " ".join(_TAGS.sub(" ", thinking).split())
    longest = settings.stream_reasoning_max_chars
    return line if len(line) <= longest else line[:longest] + "..."
