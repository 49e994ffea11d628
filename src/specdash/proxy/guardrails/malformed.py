"""Malformed tool calls, told from structure: a structured call that is invalid, or a call left unparsed in the text.

Strings inside a call's input are data and never searched. Markup in the text is a call only when the answer ends with
it: what is quoted, fenced, or followed by more prose is talk about calls. A complete call of an offered tool, with
arguments that fit, is one, unless the text before it says in so many words that an example follows. Of any
other ending, the tool it names and the sentence before it tell whether it is an example. What stays in doubt is text.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from specdash.proxy.answer.blocks import ToolCall
from specdash.proxy.guardrails.dialects import CLOSES, OPENS, json_type, problem
from specdash.proxy.guardrails.markup_search import prose_lines, unparsed
from specdash.proxy.guardrails.tools import RULES
from specdash.proxy.guardrails.unexpected_end import announces_action
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.proxy.guardrails.markup import Markup
    from specdash.proxy.settings import ProxySettings
    from specdash.proxy.translate.parse import Tool


_RULE_LINES = frozenset(rule for rules in RULES.values() for rule in rules)
_NUMBER = re.compile(r"\s*\d+\.\s+")
_OPENING_TAG = re.compile(r"<(?:antml:)?(parameter|function|tool_call|invoke|function_calls|tool_calls)(?=[\s=>/])")
_CLOSE = re.compile("|".join(map(re.escape, CLOSES)))
_MALFORMED_LEAD = 400
_EXAMPLE = (
    r"\b(?:examples?|for\s+instance|e\.g|like\s+(?:this|so)|in\s+this\s+form"
    r"|beispiel\w*|exemple|ejemplo|esempio|exemplo|пример\w*|например)\b|例|예"
)
_TALK = (
    r"\b(?:such\s+as|looks?\s+like|written\s+as|formats?|formatted|syntax|templates?|markup|notation|tags?|tokens?|dialects?"
    r"|emits?|emitted|wire|prompts?|syntaxe|formato|sintaxis|sintassi|формат\w*|синтаксис\w*)\b|形式|格式|構文|语法|語法"
)
_MODEL = r"\b(?:hermes|qwen|mistral|llama|claude|gemma|deepseek|kimi|minimax|glm|gpt-oss|harmony)"
_SENTENCE = re.compile(r"[.!?…。！？]\s+|\n")
_PLAIN_NAME = re.compile(r"[\w.:\-]{1,64}\Z")


@dataclass(frozen=True, slots=True)
class ToolUseFault:
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
) -> ToolUseFault | None:
    """The first fault of a complete answer, or None when it is healthy or no tools were offered.

    `truncated` says that the token limit ended it: what its last call lacks is then no fault. `rules` says that the
    supplement's rules are in the prompt, so that an answer can echo them.
    """
    if not tools:
        return None
    offered = {tool.name: tool for tool in tools}
    for index, call in enumerate(calls):
        fault = call_fault(call, offered, cut=truncated and index == len(calls) - 1)
        if fault is not None:
            return fault
    return None if calls else text_fault(text, offered, truncated=truncated, rules=rules)


def text_fault(
    text: str, offered: Mapping[str, Tool], *, truncated: bool = False, rules: bool = False
) -> ToolUseFault | None:
    """The fault of an answer without structured calls."""
    place = unparsed(text, offered, rules=rules)
    fault = _run_fault(text[: place[0]], text[place[0] :], place[1], offered, truncated) if place is not None else None
    return fault or (_echo_fault(text) if rules else None)


def call_fault(call: ToolCall, offered: Mapping[str, Tool], *, cut: bool = False) -> ToolUseFault | None:
    """The fault of one structured call; `cut` excuses what its arguments lack at their end."""
    if not call.name.strip():
        return ToolUseFault("empty_name", None, "a call has no tool name")
    tool = offered.get(call.name)
    if tool is None:
        name = call.name if _PLAIN_NAME.match(call.name) else None
        return ToolUseFault("unknown_tool", name, f"{name or 'the tool called'} was not offered")
    if cut:
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


def _run_fault(
    lead: str, written: str, run: Markup, offered: Mapping[str, Tool], truncated: bool
) -> ToolUseFault | None:
    """The fault of markup that ends an answer, `lead` being the text before it."""
    if run.is_rules:
        return None if run.unfinished else _ECHO
    if _is_talk(lead, fits=_fits(run, offered)) or (run.unfinished and _goes_on(written)):
        return None
    named = [call for call in run.calls if call.name in offered]
    if run.calls:
        is_cut = run.unfinished and run.calls[-1].name is None
        if all(call.placeholder for call in run.calls) or (lead.strip() and not named and not is_cut):
            return None
        tool = named[0].name if named else None
        if run.is_object:
            return ToolUseFault("json_as_text", tool, f"{tool}: the call was written as JSON text") if tool else None
        return ToolUseFault("unparsed_call", tool, f"{tool or 'a tool'}: the call was left unparsed in the text")
    if run.opened:
        cut = truncated or run.is_object
        return None if cut else ToolUseFault("unparsed_call", None, "a tool: only its call's opening came")
    if lead.rstrip().endswith((":", "：")) and not announces_action(lead):
        return None
    orphan = next((tag for tag in run.orphans if _opened(lead, tag) < written.count(f"{tag}>")), None)
    return ToolUseFault("orphan_tags", None, f"closing tag {orphan} was never opened") if orphan else None


def _goes_on(written: str) -> bool:
    """True when prose stands behind the last closing tag of a call that cannot be read."""
    *closed, rest = (piece.strip() for piece in _CLOSE.split(written))
    return bool(closed and rest) and not any(name.startswith(rest) for name in (*OPENS, *CLOSES))


def _opened(lead: str, tag: str) -> int:
    """How many of `tag` the text opens and does not close."""
    opened = sum(found[1] == tag for found in _OPENING_TAG.finditer(lead))
    return opened - lead.count(f"</{tag}>") if opened else 0


def _fits(run: Markup, offered: Mapping[str, Tool]) -> bool:
    """True when every call of a run is complete, of an offered tool, and has arguments of its schema."""
    if not run.calls or run.unfinished:
        return False
    for call in run.calls:
        tool = offered.get(call.name or "")
        if tool is None or call.placeholder or call.arguments is None or problem(tool, call.arguments):
            return False
    return True


def _is_talk(lead: str, *, fits: bool) -> bool:
    """True when what follows `lead` is shown as an example; everyday words make none of a call that `fits`."""
    lead = lead.rstrip()[-_MALFORMED_LEAD:].casefold()
    if not lead.endswith((":", "：")) or announces_action(lead):
        return False
    said = _SENTENCE.split(lead)[-1] if fits else lead[lead.rfind("\n\n") + 1 :]
    if re.search(_EXAMPLE, said):
        return True
    return re.search(_TALK, said) is not None and (not fits or re.search(_MODEL, said) is not None)


_ECHO = ToolUseFault("supplement_echo", None, "the answer echoes the tool rules of the system prompt")


def _echo_fault(text: str) -> ToolUseFault | None:
    """The fault of an answer that holds at least two whole rules of the supplement as lines outside code."""
    echoed = {_NUMBER.sub("", line, count=1).strip() for _, line in prose_lines(text)} & _RULE_LINES
    return _ECHO if len(echoed) >= 2 else None


# Tool calls that a model wrote as text in a common form, parsed into real ones.
#
# All or nothing: an answer is recovered only when every pseudo call at its end parses, names an offered tool and fits
# its schema, and what is left is healthy text.


def recover(text: str, tools: Sequence[Tool], seed: str = "") -> tuple[str, list[ToolCall]] | None:
    """The text without its pseudo calls, and the calls; None when there are none or any is not provably right.

    A call's id depends on `seed` (such as the message id, so that ids differ between turns), the text and its position.
    """
    offered = {tool.name: tool for tool in tools}
    place = unparsed(text, offered)
    if place is None or not place[1].calls or place[1].unfinished:
        return None
    start, run = place
    rest = text[:start]
    digest = hashlib.sha256(f"{seed}\0{text}".encode("utf-8", "surrogatepass"))
    calls = []
    for written in run.calls:
        tool = offered.get(written.name or "")
        if tool is None or written.arguments is None or problem(tool, written.arguments):
            return None
        try:
            arguments = json.dumps(written.arguments, allow_nan=False)
        except (TypeError, ValueError):  # a value of Python's that JSON has not, or an infinite number
            return None
        digest.update(b"\0")
        calls.append(ToolCall(f"toolu_{digest.hexdigest()[:24]}", tool.name, arguments))
    if text_fault(rest, offered) is not None:
        return None
    return (rest if rest.strip() else ""), calls


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
