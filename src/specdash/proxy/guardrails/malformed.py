"""Malformed tool calls, told from structure: a structured call that is invalid, or a call left unparsed in the text.

Strings inside a call's input are data and never searched, and quoted or fenced text is talk about calls, not a call.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdash.proxy.guardrails import markers, schema
from specdash.proxy.guardrails.supplement import RULES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.proxy.blocks import ToolCall
    from specdash.proxy.messages import Tool

_RULE_LINES = frozenset(rule for rules in RULES.values() for rule in rules)
_NUMBER = re.compile(r"\s*\d+\.\s+")
_DEBRIS = re.compile(r"(?:\s*</(?:parameter|function|tool_call)>){2,}\s*\Z")
_NAME_KEY = re.compile(r"""["'](?:name|function)["']\s*:\s*["']([^"'\n]*)["']""")
_CALL_KEY = re.compile(r"""["'](?:name|function)["']\s*:\s*["']|["'](?:arguments|parameters)["']\s*:\s*\{""")
_TAG_NAME = re.compile(r"""<function=([\w.:\-]+)>|name=["']([\w.:\-]+)["']""")
_PARAMETER_END = re.compile(r"</(?:parameter|function)>[ \t\r]*(?:\n|\Z|<)")
_BROKEN_CALL = re.compile(r'"(?:arguments|parameters|input)"\s*:')
_REACH = 1000
_PLAIN_NAME = re.compile(r"[\w.:\-]{1,64}\Z")


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an answer's tool use is malformed; safe to log: names and types, never text of the answer.

    `kind` is empty_name, unknown_tool, bad_json, not_an_object, schema, template_debris, unparsed_call, orphan_tags,
    json_as_text or supplement_echo. `tool` is the tool meant, when that is known.
    """

    kind: str
    tool: str | None
    detail: str


def inspect(text: str, calls: Sequence[ToolCall], tools: Sequence[Tool], *, truncated: bool = False) -> Fault | None:
    """The first fault of a complete answer, or None when it is healthy or no tools were offered.

    `truncated` says that the token limit ended it: what its last call lacks is then no fault.
    """
    if not tools:
        return None
    offered = {one.name: one for one in tools}
    for index, call in enumerate(calls):
        fault = _call_fault(call, offered, cut=truncated and index == len(calls) - 1)
        if fault is not None:
            return fault
    return None if calls else text_fault(text, offered, truncated=truncated)


def text_fault(text: str, offered: Mapping[str, Tool], *, truncated: bool = False) -> Fault | None:
    """The fault of an answer without structured calls."""
    return _object_fault(text, offered, truncated) or _marker_fault(text, offered, truncated) or _echo_fault(text)


def _call_fault(call: ToolCall, offered: Mapping[str, Tool], *, cut: bool) -> Fault | None:
    if not call.name.strip():
        return Fault("empty_name", None, "a call has no tool name")
    tool = offered.get(call.name)
    if tool is None:
        name = call.name if _PLAIN_NAME.match(call.name) else None
        return Fault("unknown_tool", name, f"{name or 'the tool called'} was not offered")
    if cut:
        return None
    try:
        value: Any = json.loads(call.arguments, parse_constant=_no_constant) if call.arguments.strip() else {}
    except (ValueError, RecursionError):
        return Fault("bad_json", tool.name, f"{tool.name}: arguments are not JSON")
    if not isinstance(value, dict):
        return Fault("not_an_object", tool.name, f"{tool.name}: arguments are {schema.json_type(value)}, not object")
    if detail := schema.problem(tool, value):
        return Fault("schema", tool.name, detail)
    last = next(reversed(value.items()), None)
    if last is not None and isinstance(last[1], str) and _is_debris(last[1]):
        return Fault("template_debris", tool.name, f"{tool.name}: the last argument ends with closing template tags")
    return None


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _is_debris(value: str) -> bool:
    """True when a value ends with the closing tags of a call that it never opened."""
    found = _DEBRIS.search(value) if value.rstrip().endswith(("</function>", "</tool_call>")) else None
    return found is not None and "</function>" in found[0] and not markers.OPENER.search(value, 0, found.start())


def _object_fault(text: str, offered: Mapping[str, Tool], truncated: bool) -> Fault | None:
    written = markers.whole_object(text)
    if written is None or markers.judge_object(written, 0, offered) is not markers.Verdict.YES:
        return None
    try:
        call = markers.call_of(json.loads(written, strict=False))
    except (ValueError, RecursionError):
        return None if truncated else _broken_object_fault(written, offered)
    if call is None or call[0] not in offered:
        return None
    return Fault("json_as_text", call[0], f"{call[0]}: the call was written as JSON text")


def _broken_object_fault(written: str, offered: Mapping[str, Tool]) -> Fault | None:
    try:
        json.JSONDecoder(strict=False).raw_decode(written)
    except (ValueError, RecursionError):
        name = _NAME_KEY.search(written)
        if name and name[1] in offered and _BROKEN_CALL.search(written):
            return Fault("json_as_text", name[1], f"{name[1]}: the call was written as broken JSON text")
    return None


def _marker_fault(text: str, offered: Mapping[str, Tool], truncated: bool) -> Fault | None:
    openers: Counter[str] = Counter()
    counted = 0
    for at, start in markers.line_starts(text):
        openers.update(markers.OPENER.findall(text, counted, start) if counted < start else ())
        counted = max(counted, start)
        if text[at] not in "<[":
            continue
        fault = _fault_at(text, at, openers, offered, truncated)
        if fault is not None and not markers.in_code_span(text, at):
            return fault
    return None


def _fault_at(text: str, at: int, openers: Counter[str], offered: Mapping[str, Tool], truncated: bool) -> Fault | None:
    if closed := markers.closed_tags(text, at):
        return _orphan_fault(closed, openers)
    if markers.CALLS.whole.match(text, at) is None:
        unfinished = not truncated and markers.UNFINISHED.match(text, at)
        return _unparsed(text, at, offered) if unfinished else None
    if text.startswith(("<agentic-protocol>", "</agentic-protocol>"), at):
        return Fault("supplement_echo", None, "the answer echoes the tool rules of the system prompt")
    if text.startswith("<parameter=", at):
        line_end = text.find("\n", at)
        bare = not text[text.index(">", at) + 1 : line_end if line_end >= 0 else len(text)].strip()
        return _unparsed(text, at, offered) if bare or _PARAMETER_END.search(text, at) else None
    if text.startswith("<tool_call>", at) and text[at + len("<tool_call>") : at + _REACH].lstrip().startswith("{"):
        return _unparsed(text, at, offered) if _CALL_KEY.search(text, at, _call_end(text, at)) else None
    return _unparsed(text, at, offered)


def _call_end(text: str, at: int) -> int:
    """Where the call that opens at `at` ends, or far enough behind its first keys."""
    end = text.find("</tool_call>", at, at + _REACH)
    return at + _REACH if end < 0 else end


def _orphan_fault(closed: list[str], openers: Counter[str]) -> Fault | None:
    orphan = next((name for name in closed if openers[name] < closed.count(name)), None)
    if orphan is not None:
        return Fault("orphan_tags", None, f"closing tag {orphan} was never opened")
    openers.subtract(closed)
    return None


def _unparsed(text: str, at: int, offered: Mapping[str, Tool]) -> Fault:
    found = _TAG_NAME.search(text, at, at + _REACH) or _NAME_KEY.search(text, at, at + _REACH)
    name = next((one for one in found.groups() if one), None) if found else None
    tool = name if name in offered else None
    return Fault("unparsed_call", tool, f"{tool or 'a tool'}: the call was left unparsed in the text")


def _echo_fault(text: str) -> Fault | None:
    """The fault of an answer that holds at least two whole rules of the supplement as lines outside code."""
    if not any(rule in text for rule in _RULE_LINES):
        return None
    lines = (text[at : end if (end := text.find("\n", at)) >= 0 else len(text)] for at, _ in markers.line_starts(text))
    echoed = {_NUMBER.sub("", line, count=1).strip() for line in lines} & _RULE_LINES
    if len(echoed) < 2:
        return None
    return Fault("supplement_echo", None, "the answer echoes the tool rules of the system prompt")
