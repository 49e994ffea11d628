"""What a tool call that the upstream's parser missed looks like: one table for detection, recovery and the gate.

A form counts only at the start of a line, at most three spaces in, outside code. Each form demands the structure that
follows its tag in a real call, so that prose which merely begins with a tag is no call. Sources: the chat templates of
Hermes, Qwen3-Coder, GLM, Llama 3, Mistral, Kimi and DeepSeek models, and the function-call markup of Claude prompts.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

INDENT_MAX = 3
"""Spaces before a marker; more make an indented code block."""
PREFIX_MAX = 64
"""Blank characters at a line start after which the line is taken for prose."""
FENCE_LINE_MAX = 200
"""Longest line that opens or closes a fence."""
SPAN_REACH = 1000
_BACKTICKS = re.compile("`+")


@dataclass(frozen=True, slots=True)
class Run:
    """Between `least` and `most` characters of one regular-expression class."""

    chars: str
    least: int
    most: int


Form = tuple["str | Run", ...]
_SPACE = Run(r"\s", 0, 64)
_BLANK = Run(r"[ \t\r]", 0, 64)
_NAME = Run(r"[\w.:\-]", 1, 128)
_QUOTE = Run(r"[\"']", 1, 1)
_NAMESPACE = "antml:"
_TOKEN_END = Run(r"[a-z_▁]", 0, 24)
CLOSERS = ("parameter", "function", "tool_call", "invoke", "function_calls")
"""Tags whose closing half, alone on a line and never opened, is debris of a chat template."""


def _namespaced(tag: str) -> tuple[str, ...]:
    return tuple(f"<{space}{tag}" for space in ("", _NAMESPACE))


def _tag_forms() -> Iterator[Form]:
    for follower in ("{", "<function=", "<invoke ", "<tool_call>"):
        yield ("<tool_call>", _SPACE, follower)
    yield ("<tool_call>", _SPACE, _NAME, _SPACE, "<arg_key>")
    for follower in ("{", "<parameter=", "</function>"):
        yield ("<function=", _NAME, ">", _SPACE, follower)
    yield ("<parameter=", _NAME, ">")
    for opener in _namespaced("invoke name="):
        for follower in (*_namespaced("parameter"), "</invoke>", f"</{_NAMESPACE}invoke>"):
            yield (opener, _QUOTE, _NAME, _QUOTE, ">", _SPACE, follower)
    for opener in _namespaced("function_calls>"):
        for follower in _namespaced("invoke "):
            yield (opener, _SPACE, follower)
    for bar, start in (("|", "<|tool_call"), ("｜", "<｜tool▁call"), ("｜", "<｜tool_call")):
        token: Form = (start, _TOKEN_END, Run(re.escape(bar), 0, 1), ">")
        for follower in ("{", "[", "<" + bar):
            yield (*token, _SPACE, follower)
            yield (*token, _NAME, _SPACE, follower)
    for follower in ("{", "[ARGS]", "[CALL_ID]"):
        yield ("[TOOL_CALLS]", _SPACE, _NAME, follower)
    for follower in ("{", "["):
        yield ("[TOOL_CALLS]", _SPACE, follower)
    yield ("<agentic-protocol>",)
    yield ("</agentic-protocol>",)


def _closer_forms() -> Iterator[Form]:
    tags = [f"</{name}>" for name in CLOSERS]
    for tag in tags:
        yield (tag, _BLANK, "\n")
        for other in tags:
            yield (tag, _BLANK, other)


def _object_forms() -> Iterator[Form]:
    starts: tuple[Form, ...] = ((), ("```json", _BLANK, "\n", _SPACE), ("```", _BLANK, "\n", _SPACE))
    value = Run(r'[^"\\\n]', 0, 128)
    for start in starts:
        for key in ("name", "function"):
            yield (*start, "{", _SPACE, f'"{key}"', _SPACE, ":", _SPACE, '"', value, '"')
        yield (*start, "{", _SPACE, '"function"', _SPACE, ":", _SPACE, "{")
        yield (*start, "{", _SPACE, '"type"', _SPACE, ":", _SPACE, '"function"')
        for key in ("arguments", "parameters", "input"):
            yield (*start, "{", _SPACE, f'"{key}"', _SPACE, ":")


def _whole(form: Form) -> str:
    return "".join(
        re.escape(atom) if isinstance(atom, str) else f"{atom.chars}{{{atom.least},{atom.most}}}" for atom in form
    )


def _beginning(form: Form) -> str:
    pattern = ""
    for atom in reversed(form):
        if isinstance(atom, Run):
            pattern = f"{atom.chars}{{0,{atom.most}}}{pattern}"
            continue
        for character in reversed(atom):
            pattern = f"(?:{re.escape(character)}{pattern})?"
    return pattern


class _Forms:
    """Forms as two patterns: a text that has one at a place, and a text that ends while it could still become one."""

    def __init__(self, forms: tuple[Form, ...]) -> None:
        self.whole = re.compile("|".join(map(_whole, forms)))
        self.beginning = re.compile("|".join(map(_beginning, forms)))


CALLS = _Forms(tuple(_tag_forms()))
CLOSING = _Forms(tuple(_closer_forms()))
OBJECTS = _Forms(tuple(_object_forms()))

UNFINISHED = re.compile(
    rf"(?:<tool_call>|<function=[\w.:\-]+>|<(?:{_NAMESPACE})?invoke name=[\"'][\w.:\-]+[\"']>"
    rf"|<(?:{_NAMESPACE})?function_calls>|\[TOOL_CALLS\]|<[|｜]tool[_▁]call[a-z_▁]*[|｜]?>)\s{{0,64}}\Z"
)
"""An opening tag that is the last thing of a text."""
CLOSERS_ONLY = re.compile(rf"(?:</(?:{'|'.join(CLOSERS)})>[ \t\r]{{0,64}})+(?:\n|\Z)")
_CLOSER = re.compile(rf"</({'|'.join(CLOSERS)})>")
OPENER = re.compile(rf"<({'|'.join(CLOSERS)})(?=[\s=>/])")
_OBJECT_NAME = re.compile(r'\{\s*"(?:name|function)"\s*:\s*"([^"\\\n]*)"')
_ARGUMENTS = ("arguments", "parameters", "input")
_CALL_KEYS = frozenset({"name", "function", "type", "id", *_ARGUMENTS})


class Verdict(Enum):
    """Whether a place in a growing text holds a form."""

    NO = 0
    MAYBE = 1
    YES = 2


def judge(text: str, at: int) -> Verdict:
    """Whether an unparsed call or a run of closing tags begins at `at`, for a text that may still grow."""
    if CALLS.whole.match(text, at) or CLOSING.whole.match(text, at):
        return Verdict.YES
    if CALLS.beginning.fullmatch(text, at) or CLOSING.beginning.fullmatch(text, at):
        return Verdict.MAYBE
    return Verdict.NO


def judge_object(text: str, at: int, offered: Collection[str]) -> Verdict:
    """Whether a whole answer that begins at `at` can be a call written as JSON, as far as its first key tells."""
    found = OBJECTS.whole.match(text, at)
    if found is None:
        return Verdict.MAYBE if OBJECTS.beginning.fullmatch(text, at) else Verdict.NO
    named = _OBJECT_NAME.search(found[0])
    if named is None or named[1] in offered or (named[1] == "function" and '"type"' in found[0]):
        return Verdict.YES
    return Verdict.NO


def closed_tags(text: str, at: int) -> list[str]:
    """Names of the closing tags at `at`: one that is alone on its line, or the first two in a row; none for others."""
    found = CLOSING.whole.match(text, at) or CLOSERS_ONLY.match(text, at)
    return _CLOSER.findall(found[0]) if found else []


def fence_opening(line: str) -> str:
    """The run of backticks or tildes of a line that opens a fence, "" when it opens none; `line` has no indent."""
    mark = line[:1]
    if mark not in {"`", "~"} or len(line) > FENCE_LINE_MAX:
        return ""
    rest = line.lstrip(mark)
    run = len(line) - len(rest)
    return line[:run] if run >= 3 and not (mark == "`" and "`" in rest) else ""


def fence_closes(line: str, fence: str) -> bool:
    """True when a line without its indent closes the fence that `fence` opened."""
    return len(line) <= FENCE_LINE_MAX and line.startswith(fence) and not line.rstrip().strip(fence[0])


def line_starts(text: str, start: int = 0) -> Iterator[tuple[int, int]]:
    """Of every line outside fences and indented code, its first visible character: (its place, the line's start)."""
    fence = ""
    at = start
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        first = at
        while first < end and first - at <= PREFIX_MAX and text[first] in " \t\r":
            first += 1
        if first == end or first - at > PREFIX_MAX:
            pass
        elif fence:
            if fence_closes(text[first:end], fence):
                fence = ""
        elif opening := fence_opening(text[first:end]):
            fence = opening
        elif shallow(text[at:first]):
            yield first, at
        at = end + 1


def shallow(indent: str) -> bool:
    """True for an indent that leaves a line ordinary text."""
    return len(indent) <= INDENT_MAX and "\t" not in indent


def in_code_span(text: str, at: int) -> bool:
    """True when `at` lies in an inline code span that began on an earlier line of its paragraph and is closed in it.

    Of a long paragraph, the whole lines within `SPAN_REACH` characters are looked at.
    """
    low = text.find("\n", at - SPAN_REACH, at) + 1 if at > SPAN_REACH else 0
    start = text.rfind("\n\n", low, at)
    start = start + 2 if start >= 0 else low
    end = text.find("\n\n", at, at + SPAN_REACH)
    opened: str | None = None
    before = 0
    runs = list(_BACKTICKS.finditer(text, start, end if end >= 0 else min(len(text), at + SPAN_REACH)))
    for index, run in enumerate(runs):
        if run.start() >= at and opened is None:
            return False
        if opened is None:
            closed = any(other[0] == run[0] for other in runs[index + 1 :])
            opened, before = (run[0], run.start()) if closed else (None, 0)
        elif run[0] == opened:
            if run.start() > at:
                return before < at
            opened = None
    return False


def whole_object(text: str) -> str | None:
    """The text of an answer that is nothing but one JSON object, its ```json fence taken off; None for another."""
    text = text.strip(" \t\r\n")
    if text.startswith("```"):
        head, _, rest = text.partition("\n")
        if head.strip() not in {"```", "```json"}:
            return None
        text = rest.removesuffix("```").strip() if rest.endswith("```") else rest.strip()
    return text if text.startswith("{") else None


def call_of(value: Any) -> tuple[str, dict[str, Any]] | None:
    """Name and arguments of a JSON value that has the shape of a call and nothing else in it."""
    if not isinstance(value, dict) or not _CALL_KEYS.issuperset(value):
        return None
    function = value.get("function")
    if isinstance(function, dict):
        return call_of(function) if "function" not in function else None
    name = value.get("name", function)
    arguments = next((value[key] for key in _ARGUMENTS if key in value), None)
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, strict=False)
        except (ValueError, RecursionError):
            return None
    return (name, arguments) if isinstance(name, str) and name and isinstance(arguments, dict) else None
