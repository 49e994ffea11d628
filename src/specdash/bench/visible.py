"""Judges a tool turn by what the client sees: is the text free of broken tool syntax, and is every call usable?

Independent of the proxy's own detection, so that one can be held against the other. Structure decides, not words: text
in code spans and fences, and prose that names a tag inside a line, is what a model may well write.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FENCE = re.compile(r"^(`{3,}|~{3,}).*?(?:^\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_OPENING = re.compile(
    r"^[ \t]*(?:<tool_call>|<function_calls?>|<function=\w|<invoke name=|<parameter(?:=\w| name=)|<\|tool_call|"
    r"\[TOOL_CALLS?\])",
    re.MULTILINE,
)
_CLOSING = r"</(?:tool_call|function_calls?|function|invoke|parameter|think|agentic-protocol)>"
_ORPHAN = re.compile(rf"^[ \t]*{_CLOSING}|{_CLOSING}[ \t]*$", re.MULTILINE)
_KINDS: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


def visible_fault(text: str, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """What is wrong with visible text: the tool syntax that leaked into it, or None."""
    prose = _SPAN.sub("", _FENCE.sub("", text))
    for pattern in (_OPENING, _ORPHAN):
        if (found := pattern.search(prose)) is not None:
            return f"tool syntax in the text: {found.group().strip()}"
    if _is_bare_call(text.strip(), {str(one["name"]) for one in tools}):
        return "a tool call written as JSON text"
    return None


def call_fault(name: str, arguments: Any, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """What makes a call unusable: an unknown tool, a missing or mistyped argument; None for a good one."""
    schema = next((one["input_schema"] for one in tools if one["name"] == name), None)
    if schema is None:
        return f"unknown tool {name!r}"
    if not isinstance(arguments, dict):
        return f"{name}: its input is no object"
    for field in schema.get("required", ()):
        if field not in arguments:
            return f"{name}: {field} is missing"
    for field, value in arguments.items():
        kind = _KINDS.get(schema.get("properties", {}).get(field, {}).get("type", ""))
        mistyped = kind is not None and not isinstance(value, kind)
        if mistyped or (isinstance(value, bool) and kind not in (None, bool)):
            return f"{name}: {field} is of the wrong type"
    return None


def _is_bare_call(text: str, names: set[str]) -> bool:
    if not text.startswith("{"):
        return False
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return False
    return bool(value.get("name") in names and ("arguments" in value or "parameters" in value))
