"""Malformed tool calls, told from structure: a structured call that is invalid, or a call left unparsed in the text.

Strings inside a call's input are data and never searched. Markup in the text is a call only when the answer ends with
it: what is quoted, fenced, or followed by more prose is talk about calls. Of such an ending, the tool it names and the
sentence before it tell whether it is an example. Whatever stays in doubt is text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdash.proxy.guardrails import markers, schema
from specdash.proxy.guardrails.dialects import CLOSES, OPENS
from specdash.proxy.guardrails.markup_search import unparsed
from specdash.proxy.guardrails.supplement import RULES
from specdash.proxy.guardrails.unexpected_end import announces_action

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.proxy.blocks import ToolCall
    from specdash.proxy.guardrails.markup import Markup
    from specdash.proxy.messages import Tool

_RULE_LINES = frozenset(rule for rules in RULES.values() for rule in rules)
_NUMBER = re.compile(r"\s*\d+\.\s+")
_OPENING_TAG = re.compile(r"<(?:antml:)?(parameter|function|tool_call|invoke|function_calls|tool_calls)(?=[\s=>/])")
_LEAD = 400
_TALK = re.compile(
    r"""\b(?:examples?|e\.g\.|for\s+instance|such\s+as|looks?\s+like|like\s+(?:this|so)|in\s+this\s+form|written\s+as
    |formats?|formatted|syntax|templates?|markup|notation|tags?|tokens?|dialects?|emits?|emitted|wire|prompts?
    |beispiel\w*|syntaxe|exemple|ejemplo|formato|sintaxis|esempio|sintassi|exemplo|пример\w*|формат\w*|синтаксис\w*)\b
    |例|形式|格式|構文|语法|語法|예""",
    re.IGNORECASE | re.VERBOSE,
)
"""Words about how calls are written, in the sentence that leads to one: what follows is an example."""
_PLAIN_NAME = re.compile(r"[\w.:\-]{1,64}\Z")


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an answer's tool use is malformed; safe to log: names and types, never text of the answer.

    `kind` is empty_name, unknown_tool, bad_json, not_an_object, schema, unparsed_call, orphan_tags, json_as_text or
    supplement_echo. `tool` is the tool meant, when that is known.
    """

    kind: str
    tool: str | None
    detail: str


UNREADABLE = frozenset({"bad_json", "not_an_object"})
"""Kinds of calls that no client can take: their input is no JSON object."""


def inspect(
    text: str, calls: Sequence[ToolCall], tools: Sequence[Tool], *, truncated: bool = False, rules: bool = False
) -> Fault | None:
    """The first fault of a complete answer, or None when it is healthy or no tools were offered.

    `truncated` says that the token limit ended it: what its last call lacks is then no fault. `rules` says that the
    supplement's rules are in the prompt, so that an answer can echo them.
    """
    if not tools:
        return None
    offered = {one.name: one for one in tools}
    for index, call in enumerate(calls):
        fault = call_fault(call, offered, cut=truncated and index == len(calls) - 1)
        if fault is not None:
            return fault
    return None if calls else text_fault(text, offered, truncated=truncated, rules=rules)


def text_fault(text: str, offered: Mapping[str, Tool], *, truncated: bool = False, rules: bool = False) -> Fault | None:
    """The fault of an answer without structured calls."""
    place = unparsed(text, offered, rules=rules)
    fault = _run_fault(text[: place[0]], text[place[0] :], place[1], offered, truncated) if place is not None else None
    return fault or (_echo_fault(text) if rules else None)


def call_fault(call: ToolCall, offered: Mapping[str, Tool], *, cut: bool = False) -> Fault | None:
    """The fault of one structured call; `cut` excuses what its arguments lack at their end."""
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
    return None


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _run_fault(lead: str, written: str, run: Markup, offered: Mapping[str, Tool], truncated: bool) -> Fault | None:
    """The fault of markup that ends an answer, `lead` being the text before it."""
    if run.is_rules:
        return None if run.unfinished else _ECHO
    if _is_talk(lead) or (run.unfinished and _goes_on(written)):
        return None
    named = [call for call in run.calls if call.name in offered]
    if run.calls:
        is_cut = run.unfinished and run.calls[-1].name is None
        if all(call.placeholder for call in run.calls) or (lead.strip() and not named and not is_cut):
            return None
        tool = named[0].name if named else None
        if run.is_object:
            return Fault("json_as_text", tool, f"{tool}: the call was written as JSON text") if tool else None
        return Fault("unparsed_call", tool, f"{tool or 'a tool'}: the call was left unparsed in the text")
    if run.opened:
        cut = truncated or run.is_object
        return None if cut else Fault("unparsed_call", None, "a tool: only its call's opening came")
    if lead.rstrip().endswith((":", "：")) and not announces_action(lead):
        return None
    orphan = next((tag for tag in run.orphans if _opened(lead, tag) < written.count(f"{tag}>")), None)
    return Fault("orphan_tags", None, f"closing tag {orphan} was never opened") if orphan else None


def _goes_on(written: str) -> bool:
    """True when prose stands behind the last closing tag of a call that cannot be read."""
    end = max((at + len(one) for one in CLOSES if (at := written.rfind(one)) >= 0), default=-1)
    rest = written[end:].strip()
    return end >= 0 and bool(rest) and not any(one.startswith(rest) for one in (*OPENS, *CLOSES))


def _opened(lead: str, tag: str) -> int:
    """How many of `tag` the text opens and does not close."""
    opened = sum(found[1] == tag for found in _OPENING_TAG.finditer(lead))
    return opened - lead.count(f"</{tag}>") if opened else 0


def _is_talk(lead: str) -> bool:
    """True when what follows `lead` is shown as an example."""
    lead = lead.rstrip()[-_LEAD:]
    if not lead or announces_action(lead):
        return False
    return _TALK.search(lead[lead.rfind("\n\n") + 1 :]) is not None


_ECHO = Fault("supplement_echo", None, "the answer echoes the tool rules of the system prompt")


def _echo_fault(text: str) -> Fault | None:
    """The fault of an answer that holds at least two whole rules of the supplement as lines outside code."""
    if not any(rule in text for rule in _RULE_LINES):
        return None
    lines = (text[at : end if (end := text.find("\n", at)) >= 0 else len(text)] for at, _ in markers.line_starts(text))
    echoed = {_NUMBER.sub("", line, count=1).strip() for line in lines} & _RULE_LINES
    return _ECHO if len(echoed) >= 2 else None
