"""Where in a text a written tool call may begin, found while the text still comes in pieces.

At the start of a line, up to three spaces in, or behind the end of a sentence; special tokens (`<|…`) anywhere. Never
in a fence or in indented code: what stands there is quoted. Source of what is prose: CommonMark.
"""

from __future__ import annotations

import re
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

FENCE_LINE_MAX = 200
"""Longest line that opens or closes a fence."""
NAMESPACES = ("functions.", "default_api.", "tools.")
"""What models write before the name of a tool; not part of it."""
_CLAUDE = "antml:"
_SPECIAL = (
    "<|tool", "<|python_tag|>", "<|function_call|>", "<|START_ACTION|>", "<|action_start|>", "<|start|>", "<|channel|>",
    "<|end|>", "<|call|>", "<｜tool", "<｜DSML｜", "</｜DSML｜",
)  # fmt: skip
_PLAIN = (
    "<tool_call", "<tool_use>", "<tools>", "<tool_code>", "<function_call", "<function=", "<invoke name=",
    "<parameter=", "<parameter name=", "<TOOLCALL>", "<minimax:tool_call",
    "<seed:tool_call", f"<{_CLAUDE}", "</parameter>",
    "</function", "</tool_", "</invoke>", f"</{_CLAUDE}", "</minimax:", "</seed:", "<agentic-protocol>",
    "</agentic-protocol>", "[TOOL_CALLS]", "functools[", "```tool_c", "``` tool_c", "```tool_use", "```function_call",
    "to=functions.", "assistantcommentary to=", "assistantanalysis to=", "commentary to=", "analysis to=",
    "assistant to=",
)  # fmt: skip
_LITERALS = (*_SPECIAL, *_PLAIN)
_LITERAL = re.compile("|".join(map(re.escape, _LITERALS)))
_PARTS = frozenset(literal[:size] for literal in _LITERALS for size in range(1, len(literal)))
_FENCED = re.compile(r"```(?:json|JSON)?[ \t\r]*\n\s*")
_FENCE_PART = re.compile(r"`{1,3}(?:j(?:s(?:o(?:n)?)?)?)?[ \t\r]*\Z")
_HEAD = re.compile(r'(?:\[\s*)?\{\s*"(?P<key>\w*)"\s*:\s*(?:"(?P<value>[^"\\\n]*)"|(?P<other>[^\s"]))')
_HEAD_PART = re.compile(r'(?:\[\s*)?(?:\{\s*(?:"\w{0,64}(?:"\s*(?::\s*(?:"[^"\\\n]{0,128})?)?)?)?)?\Z')
_PYTHON = re.compile(r"\[\s*([A-Za-z_][\w.\-]*)\(")
_PYTHON_PART = re.compile(r"\[\s*(?:[A-Za-z_][\w.\-]{0,64})?\Z")
_PLACE = re.compile(
    r"^ {0,3}(?=\S)|(?<=[^\s\d][.!?…:。！？：])[ \t]{0,3}(?=[\[{`]|<(?:[\w|/｜]|\Z))|(?=</?(?:[|｜]|\Z))", re.MULTILINE
)
_FENCE_MARK = re.compile(r" *(?:```|~~~)")
_CODE = re.compile(r" {4}| {0,3}\t")
_LONG_LINE = 2000
_MARK = re.compile(r"[<\[{`~]|to=")
"""What a line has in which a call may begin or a fence stand."""
_PROSE = re.compile(r"[^\n<\[{`~.!?…:。！？：]*")
_TAIL = 40_000
_LOOK = 600
"""Characters behind a place that decide whether a call may begin there."""


def plain_name(name: str, offered: Collection[str]) -> str:
    """A tool's name without what models write around it."""
    if name in offered:
        return name
    for namespace in NAMESPACES:
        name = name.removeprefix(namespace)
    return re.sub(r":\d+\Z", "", name)


def fence_opening(line: str) -> str:
    """The run of backticks or tildes of a line that opens a fence, "" when it opens none; `line` has no indent."""
    mark = line[:1]
    if mark not in {"`", "~"} or len(line) > FENCE_LINE_MAX:
        return ""
    rest = line.lstrip(mark)
    run = len(line) - len(rest)
    return line[:run] if run >= 3 and not (mark == "`" and "`" in rest) else ""


def fence_after(line: str, fence: str) -> str:
    """The fence that is open behind `line`, when `fence` ("" for none) was open before it."""
    line = line.lstrip(" \t\r")
    if not fence:
        return fence_opening(line)
    closes = len(line) <= FENCE_LINE_MAX and line.startswith(fence) and not line.rstrip().strip(fence[0])
    return "" if closes else fence


_FENCE_LINE = re.compile(r"^[ \t\r]*(?:```|~~~).*$", re.MULTILINE)


def fence_at(text: str, start: int) -> str:
    """The fence that is open at the start of a line."""
    fence = ""
    for line in _FENCE_LINE.finditer(text, 0, start):
        fence = fence_after(line[0], fence)
    return fence


def ends_in_prose(text: str) -> bool:
    """Whether the last line is neither blank nor code."""
    start = text.rfind("\n") + 1
    fence, last = fence_at(text, start), text[start:]
    return bool(last.strip()) and not (fence or fence_after(last, fence) or _CODE.match(last))


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Every line outside fences and indented code that is not blank: (where it starts, its text)."""
    fence, at = "", 0
    for line in text.split("\n"):
        after = fence_after(line, fence)
        if not fence and not after and line.strip() and not _CODE.match(line):
            yield at, line
        fence, at = after, at + len(line) + 1


def begins_call(text: str, offered: Collection[str]) -> bool | None:
    """Whether a written call may begin where `text` does; None when more of the text decides that."""
    first = text[0]
    if first != "{":
        if _LITERAL.match(text):
            return True
        if text in _PARTS:
            return None
        if first not in "[`":
            return False
        if (python := _PYTHON.match(text)) is not None:
            return plain_name(python[1], offered) in offered
        if _FENCE_PART.match(text) or _PYTHON_PART.match(text):
            return None
    fenced = _FENCED.match(text)
    at = fenced.end() if fenced else 0
    if _HEAD_PART.match(text, at):
        return None
    head = _HEAD.match(text, at)
    if head is None:
        return False
    key, value = head["key"], head["value"]
    if key in {"name", "tool_name", "tool"} or (key == "function" and value is not None):
        return value is not None and plain_name(value, offered) in offered
    return (
        value in {"function", "tool"}
        if key == "type"
        else key in {"function", "arguments", "parameters", "input", "args"}
    )


class Openings:
    """The first place in a text, given in pieces, from which on it may be a written call.

    `held` counts the characters at the end of what came that are to wait; once `found`, they are all from there on.
    """

    def __init__(self, offered: Collection[str]) -> None:
        self.held = 0
        self.found = False
        self._offered = offered
        self._is_prose = False
        """The current line has begun, and no call begins with it."""
        self._fence = ""
        self._text = ""
        """What may still matter; the current line begins at `_start`, and is looked at up to `_checked`."""
        self._start = 0
        self._checked = 0

    def feed(self, text: str) -> None:
        """The next piece."""
        if self.found:
            self.held += len(text)
            return
        self._text += text
        if self._is_prose and not self.held and len(self._text) < _LONG_LINE and _PROSE.fullmatch(text):
            return
        self.held = 0
        for at, begins in self._places():
            if begins is not False:
                self.found = begins is True
                self.held = len(self._text) - at
                return
        self._is_prose = bool(self._text[self._start :].strip())
        # Of a line that is done nothing is needed, of a long one the start (is it a fence?) and the end.
        self._text = self._text[self._start :]
        self._checked -= self._start
        self._start = 0
        if (cut := self._checked - 2 * FENCE_LINE_MAX) > _LONG_LINE // 2:
            self._text = self._text[: FENCE_LINE_MAX + 1] + self._text[FENCE_LINE_MAX + 1 + cut :]
            self._checked -= cut

    def places(self, text: str, most: int) -> Iterator[int]:
        """Such places of a whole text: the first `most` of them, and as many of the last."""
        self._text = text
        first = list(islice(self._candidates(), most))
        yield from first
        if len(first) == most:
            at = first[-1]
            self._start = self._checked = text.rfind("\n", 0, max(at + 1, len(text) - _TAIL)) + 1
            self._fence = fence_at(text, self._start)
            yield from deque((place for place in self._candidates() if place > at), most)

    def _candidates(self) -> Iterator[int]:
        return (at for at, begins in self._places() if begins is not False)

    def _places(self) -> Iterator[tuple[int, bool | None]]:
        """The places from `_checked` on, and whether a call begins there."""
        text = self._text
        while True:
            mark = _MARK.search(text, self._start)
            line = text.rfind("\n", self._start, mark.start() if mark else len(text)) + 1
            if line > self._checked:
                self._start = self._checked = line
            end = text.find("\n", self._checked)
            stop = end if end >= 0 else len(text)
            if not self._fence and not _CODE.match(text, self._start):
                is_fence = _FENCE_MARK.match(text, self._start) is not None
                for place in _PLACE.finditer(text, self._checked, stop):
                    at = place.end()
                    if is_fence and place.start() > self._start:
                        break
                    begins = begins_call(text[at : at + _LOOK], self._offered)
                    # What more of the text decides is looked at again.
                    self._checked = place.start() if begins is None else at + 1
                    yield at, begins
            if end < 0:
                # Behind the last characters a place may begin.
                self._checked = max(self._checked, self._start, len(text) - 5)
                return
            self._fence = fence_after(text[self._start : end], self._fence)
            self._start = self._checked = end + 1
