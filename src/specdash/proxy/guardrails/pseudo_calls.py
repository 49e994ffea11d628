"""Tool calls that a model wrote as text in a common form, parsed into real ones.

All or nothing: an answer is recovered only when every pseudo call in it parses, names an offered tool and fits its
schema, and what is left is healthy text.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from specdash.proxy.blocks import ToolCall
from specdash.proxy.guardrails import malformed, markers, schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.proxy.messages import Tool

_JSON = json.JSONDecoder(strict=False)
_SPACE = re.compile(r"\s*")
_FUNCTION = re.compile(r"<function=([\w.:\-]+)>\s*")
_FUNCTION_PARAMETER = re.compile(r"<parameter=([\w.:\-]+)>")
_FUNCTION_VALUE_END = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>))")
_INVOKE = re.compile(r"""<(antml:)?invoke name=["']([\w.:\-]+)["']>\s*""")
_INVOKE_PARAMETER = re.compile(r"""<(?:antml:)?parameter name=["']([\w.:\-]+)["'][^<>]*>""")
_INVOKE_VALUE_END = re.compile(r"</(?:antml:)?parameter>(?=\s*(?:<(?:antml:)?parameter name=|</(?:antml:)?invoke>))")
_INVOKE_END = re.compile(r"</(?:antml:)?invoke>\s*")
_GROUP = re.compile(r"<(?:antml:)?function_calls>\s*")
_GROUP_END = re.compile(r"\s*</(?:antml:)?function_calls>")
_TOOL_CALLS = re.compile(r"\[TOOL_CALLS\]\s*(?=\[)")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "none": None}


class _Unreadable(Exception):  # noqa: N818 - control flow of this module, never seen outside
    """A pseudo call that cannot be made into a real one."""


Calls = list[tuple[str, dict[str, Any]]]


def recover(text: str, tools: Sequence[Tool], seed: str = "") -> tuple[str, list[ToolCall]] | None:
    """The text without its pseudo calls, and the calls; None when there are none or any is not provably right.

    A call's id depends on `seed` (such as the message id, so that ids differ between turns), the text and its position.
    """
    offered = {one.name: one for one in tools}
    try:
        rest, found = _split(text, offered)
    except (_Unreadable, ValueError, RecursionError):
        return None
    if not found or any(name not in offered or schema.problem(offered[name], value) for name, value in found):
        return None
    if malformed.text_fault(rest, offered) is not None:
        return None
    digest = hashlib.sha256(f"{seed}\0{text}".encode("utf-8", "surrogatepass"))
    calls = []
    for name, value in found:
        digest.update(b"\0")
        calls.append(ToolCall(f"toolu_{digest.hexdigest()[:24]}", name, json.dumps(value)))
    return (rest if rest.strip() else ""), calls


def _split(text: str, offered: Mapping[str, Tool]) -> tuple[str, Calls]:
    written = markers.whole_object(text)
    if written is not None:
        call = markers.call_of(_JSON.decode(written))
        return ("", [call]) if call else (text, [])
    kept: list[str] = []
    found: Calls = []
    start = 0
    while (at := _next_marker(text, start)) is not None:
        kept.append(text[start:at])
        end, calls = _parse(text, at, offered)
        found += calls
        start = _after(text, end)
    return "".join([*kept, text[start:]]), found


def _next_marker(text: str, start: int) -> int | None:
    """The next place from `start`, taken for a line start, where a call begins."""
    for at, _ in markers.line_starts(text, start):
        if text[at] in "<[" and markers.CALLS.whole.match(text, at) and not markers.in_code_span(text, at):
            return at
    return None


def _parse(text: str, at: int, offered: Mapping[str, Tool]) -> tuple[int, Calls]:
    if text.startswith("<tool_call>", at):
        return _hermes(text, _after(text, at + len("<tool_call>")), offered)
    if text.startswith("<function=", at):
        end, call = _function(text, at, offered)
        return _optional(text, end, "</tool_call>"), [call]
    if group := _GROUP.match(text, at):
        return _group(text, group.end(), offered)
    if _INVOKE.match(text, at):
        end, call = _invoke(text, at, offered)
        closing = _GROUP_END.match(text, end)
        return (closing.end() if closing else end), [call]
    if listed := _TOOL_CALLS.match(text, at):
        values, end = _JSON.raw_decode(text, listed.end())
        calls = [markers.call_of(one) for one in values]
        if None not in calls:
            return end, [one for one in calls if one]
    raise _Unreadable


def _hermes(text: str, at: int, offered: Mapping[str, Tool]) -> tuple[int, Calls]:
    if text.startswith("<function=", at):
        end, call = _function(text, at, offered)
        return _optional(text, end, "</tool_call>"), [call]
    value, end = _JSON.raw_decode(text, at)
    found = markers.call_of(value)
    following = _after(text, end)
    closed = text.startswith("</tool_call>", following)
    if found is None or not (closed or following == len(text) or text.startswith("<tool_call>", following)):
        raise _Unreadable
    return (following + len("</tool_call>") if closed else end), [found]


def _function(text: str, at: int, offered: Mapping[str, Tool]) -> tuple[int, tuple[str, dict[str, Any]]]:
    opening = _FUNCTION.match(text, at)
    if opening is None:
        raise _Unreadable
    at = opening.end()
    if text.startswith("{", at):
        value, at = _JSON.raw_decode(text, at)
    else:
        tool = offered.get(opening[1])
        value, at = _parameters(text, at, tool, _FUNCTION_PARAMETER, _FUNCTION_VALUE_END)
    at = _after(text, at)
    if not text.startswith("</function>", at):
        raise _Unreadable
    return at + len("</function>"), (opening[1], value)


def _invoke(text: str, at: int, offered: Mapping[str, Tool]) -> tuple[int, tuple[str, dict[str, Any]]]:
    opening = _INVOKE.match(text, at)
    if opening is None:
        raise _Unreadable
    name = opening[2]
    value, at = _parameters(text, opening.end(), offered.get(name), _INVOKE_PARAMETER, _INVOKE_VALUE_END)
    closing = _INVOKE_END.match(text, _after(text, at))
    if closing is None:
        raise _Unreadable
    return text.index(">", closing.start()) + 1, (name, value)


def _group(text: str, at: int, offered: Mapping[str, Tool]) -> tuple[int, Calls]:
    calls: Calls = []
    while _INVOKE.match(text, at):
        at, call = _invoke(text, at, offered)
        calls.append(call)
        at = _after(text, at)
    closing = _GROUP_END.match(text, at)
    if closing is None:
        raise _Unreadable
    return closing.end(), calls


def _parameters(
    text: str, at: int, tool: Tool | None, opener: re.Pattern[str], value_end: re.Pattern[str]
) -> tuple[dict[str, Any], int]:
    if tool is None:
        raise _Unreadable
    properties = tool.schema.get("properties")
    values: dict[str, Any] = {}
    while opening := opener.match(text, _after(text, at)):
        ending = value_end.search(text, opening.end())
        if ending is None or opening[1] in values:
            raise _Unreadable
        raw = text[opening.end() : ending.start()]
        if opener is _FUNCTION_PARAMETER:
            raw = raw.removeprefix("\n").removesuffix("\n")
        declared = properties.get(opening[1]) if isinstance(properties, dict) else None
        values[opening[1]] = _typed(raw, schema.types_of(declared))
        at = ending.end()
    return values, at


def _typed(raw: str, types: frozenset[str] | None) -> Any:
    """A parameter's text as the JSON value its schema asks for; text when it may be text."""
    word = raw.strip()
    if types is None or "string" in types:
        return None if types and "null" in types and word in {"null", "None"} else raw
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    return _JSON.decode(word)


def _after(text: str, at: int) -> int:
    """The first place from `at` that is not blank."""
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _optional(text: str, at: int, tag: str) -> int:
    following = _after(text, at)
    return following + len(tag) if text.startswith(tag, following) else at
