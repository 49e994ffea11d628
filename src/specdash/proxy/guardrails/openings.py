"""Where in a text a written tool call may begin, found while the text still comes in pieces.

At the start of a line, up to three spaces in, or behind the end of a sentence; special tokens (`<|…`) anywhere. Never
in a fence or in indented code: what stands there is quoted. Source of what is prose: CommonMark.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_SPECIAL = (
    "<|tool", "<|python_tag|>", "<|function_call|>", "<|start|>", "<|channel|>", "<|end|>", "<|call|>", "<｜tool",
    "<｜DSML｜", "</｜DSML｜",
)  # fmt: skip
_CLAUDE = "antml:"
_PLAIN = (
    "<tool_call", "<tool_use>", "<tools>", "<tool_code>", "<function_call", "<function=", "<invoke name=",
    "<parameter=", "<parameter name=", "<TOOLCALL>", "<minimax:tool_call",
    "<seed:tool_call", f"<{_CLAUDE}", "</parameter>",
    "</function", "</tool_", "</invoke>", f"</{_CLAUDE}", "</minimax:", "</seed:", "<agentic-protocol>",
    "</agentic-protocol>", "[TOOL_CALLS]", "```tool_c", "``` tool_c", "```tool_use", "```function_call",
    "to=functions.", "assistantcommentary to=", "assistantanalysis to=", "commentary to=", "analysis to=",
    "assistant to=",
)  # fmt: skip
_LITERALS = (*_SPECIAL, *_PLAIN)
_LITERAL = re.compile("|".join(map(re.escape, _LITERALS)))
_PARTS = frozenset(literal[:size] for literal in _LITERALS for size in range(1, len(literal)))
_FENCED = re.compile(r"```(?:json|JSON)?[ \t\r]*\n\s*")
_HEAD = re.compile(r'(?:\[\s*)?\{\s*"(?P<key>\w*)"\s*:\s*(?:"(?P<value>[^"\\\n]*)"|(?P<other>[^\s"]))')
_HEAD_PART = re.compile(r'(?:\[\s*)?(?:\{\s*(?:"\w{0,64}(?:"\s*(?::\s*(?:"[^"\\\n]{0,128})?)?)?)?)?\Z')
_PYTHON = re.compile(r"\[\s*([A-Za-z_][\w.\-]*)\(")
_PART = re.compile(r"`{1,3}(?:j(?:s(?:o(?:n)?)?)?)?[ \t\r]*\Z|\[\s*(?:[A-Za-z_][\w.\-]{0,64})?\Z")
"""The beginning of a fence or of a list in Python."""
_PLACE = re.compile(
    r"^ {0,3}(?=\S)|(?<=[^\s\d][.!?…:。！？：])[ \t]{0,3}(?=[\[{`]|<(?:[\w|/｜]|\Z))|(?=</?(?:[|｜]|\Z))", re.MULTILINE
)
_FENCE = re.compile(r"[ \t\r]*(`{3,}(?=[^`]*\Z)|~{3,})")
_FENCE_MARK = re.compile(r" *(?:```|~~~)")
_CODE = re.compile(r" {4}| {0,3}\t")
_PROSE = re.compile(r"[^\n<\[{`~.!?…:。！？：]*")
"""Characters that neither begin a call nor let one begin behind them, but at the start of a line."""
_LONGEST_WORD = 40
_LOOK = 600
"""Characters behind a place that decide whether a call may begin there."""


def plain_name(name: str, offered: Collection[str]) -> str:
    """A tool's name without what models write around it."""
    if name in offered:
        return name
    return re.sub(r"^(?:functions\.|default_api\.|tools\.)|:\d+\Z|\.call\Z", "", name)


def fence_after(line: str, fence: str) -> str:
    """The fence that is open behind `line`, when `fence` ("" for none) was open before it."""
    if not fence:
        return found[1] if (found := _FENCE.match(line)) else ""
    line = line.strip()
    return "" if line.startswith(fence) and not line.strip(fence[0]) else fence


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Every line outside fences and indented code that is not blank: (where it starts, its text)."""
    fence, at = "", 0
    for line in text.split("\n"):
        after = fence_after(line, fence)
        if not fence and not after and line.strip() and not _CODE.match(line):
            yield at, line
        fence, at = after, at + len(line) + 1


def ends_in_prose(text: str) -> bool:
    """Whether the last line is neither blank nor code."""
    return max((at for at, _ in prose_lines(text)), default=-1) == text.rfind("\n") + 1


def begins_call(text: str, offered: Collection[str]) -> bool | None:
    """Whether a written call may begin where `text` does; None when more of the text decides that."""
    if _LITERAL.match(text):
        return True
    if text in _PARTS:
        return None
    if text[0] not in "{[`":
        return False
    if (python := _PYTHON.match(text)) is not None:
        return plain_name(python[1], offered) in offered
    fenced = _FENCED.match(text)
    at = fenced.end() if fenced else 0
    if _PART.match(text) or _HEAD_PART.match(text, at):
        return None
    if (head := _HEAD.match(text, at)) is None:
        return False
    key, value = head["key"], head["value"]
    if key in {"name", "tool"} or (key == "function" and value is not None):
        return value is not None and plain_name(value, offered) in offered
    if key == "type":
        return value in {"function", "tool"}
    return key in {"function", "arguments", "parameters", "input", "args"}


def call_places(text: str, offered: Collection[str]) -> list[int]:
    """Where in a whole text a written call may begin."""
    openings = Openings(offered)
    openings.text = text
    return [at for at, begins in openings.places() if begins is not False]


class Openings:
    """The first place in a text, given in pieces, from which on it may be a written call.

    `held` counts the characters at the end of what came that are to wait; once `found`, they are all from there on.
    """

    def __init__(self, offered: Collection[str]) -> None:
        self.held = 0
        self.found = False
        self.text = ""
        """The current line from `_start` on, looked at up to `_checked`."""
        self._start = 0
        self._checked = 0
        self._fence = ""
        self._offered = offered

    def feed(self, text: str) -> None:
        """The next piece."""
        if self.found:
            self.held += len(text)
            return
        self.text += text
        if not self.held and len(self.text) - len(text) > _LONGEST_WORD and _PROSE.fullmatch(text):
            return
        self.held = 0
        for at, begins in self.places():
            if begins is not False:
                self.found = begins is True
                self.held = len(self.text) - at
                return
        self.text = self.text[self._start :]
        self._checked -= self._start
        self._start = 0

    def places(self) -> Iterator[tuple[int, bool | None]]:
        """The places not looked at yet, and whether a call begins there; None is looked at again."""
        text = self.text
        while True:
            end = text.find("\n", self._checked)
            if not self._fence and not _CODE.match(text, self._start):
                is_fence = _FENCE_MARK.match(text, self._start) is not None
                for place in _PLACE.finditer(text, self._checked, end if end >= 0 else len(text)):
                    at = place.end()
                    if is_fence and place.start() > self._start:
                        break
                    begins = begins_call(text[at : at + _LOOK], self._offered)
                    self._checked = place.start() if begins is None else at + 1
                    yield at, begins
            if end < 0:
                # Behind the last characters a place may begin.
                self._checked = max(self._checked, self._start, len(text) - 5)
                return
            self._fence = fence_after(text[self._start : end], self._fence)
            self._start = self._checked = end + 1
