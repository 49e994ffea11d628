"""Finds call markup that reaches the end of a text which may still grow; the text before it is settled at once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from specdash.proxy.answer.blocks import Filter
from specdash.proxy.guardrails.dialects import CLOSES, OPENS
from specdash.proxy.guardrails.markup import Markup, read_markup, read_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from specdash.proxy.answer.blocks import BlockSink
    from specdash.proxy.translate.parse import Tool


# Which lines of a text are prose: not those of a fence, nor of indented code. Source: CommonMark.

INDENT_MAX = 3
"""Spaces before a line of prose; more make an indented code block."""
PREFIX_MAX = 64
"""Blank characters at a line start after which the line is taken for prose."""
FENCE_LINE_MAX = 200
"""Longest line that opens or closes a fence."""


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


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Every line outside fences and indented code that is not blank: (where it starts, its text)."""
    fence = ""
    at = 0
    for line in text.split("\n"):
        visible = line.lstrip(" \t\r")
        indent = line[: len(line) - len(visible)]
        if not visible or len(indent) > PREFIX_MAX:
            pass
        elif fence:
            if fence_closes(visible, fence):
                fence = ""
        elif opening := fence_opening(visible):
            fence = opening
        elif shallow(indent):
            yield at, line
        at += len(line) + 1


def shallow(indent: str) -> bool:
    """True for an indent that leaves a line ordinary text."""
    return len(indent) <= INDENT_MAX and "\t" not in indent


_BLANK = " \t\r"
_GAP_MAX = 3
"""Blanks between a sentence and a call in the same line."""
_ENDS = ".!?…:。！？："
_STOP = re.compile(rf"[\n{_ENDS}]|<(?=[|｜]|\Z)")
_FIRST = frozenset(name[0] for name in (*OPENS, *CLOSES)) | {"<"}
_RULES = ("<agentic-protocol>", "</agentic-protocol>")
_PIECE = 1 << 12
"""Characters of a whole text that are looked at together: what is settled is cut off the front again and again."""
_RECHECK = 1 << 9
"""A run shorter than this is read again with every piece, a longer one when it has grown by a quarter."""


class MarkupSearch:
    """Takes a text in pieces. `settled` counts its characters that are no part of a run of call markup at its end.

    A run begins at the start of a line, at most three spaces in, behind the end of a sentence, or anywhere with a
    special token (`<|…`), outside fences and indented code. What follows a run refutes it: an example in prose is
    prose. How the text is cut makes no difference to `tail`. With `rules`, the tags of the supplement's rules count
    too, whatever follows.
    """

    __slots__ = (
        "_buffer", "_due", "_fence", "_fence_line", "_fresh", "_gap", "_indent", "_last", "_mode", "_offered", "_rules",
        "found", "settled",
    )  # fmt: skip

    def __init__(self, offered: Mapping[str, Tool], *, rules: bool = False) -> None:
        self.settled = 0
        self.found: Markup | None = None
        """The run that reaches the end, its places counted from `settled`."""
        self._offered = offered
        self._rules = rules
        self._buffer = ""
        self._due = 0
        self._mode = "line"
        self._indent = ""
        self._gap = 0
        self._last = ""
        self._fresh = True
        self._fence = ""
        self._fence_line: str | None = None

    @property
    def is_idle(self) -> bool:
        """True inside a line of prose: a piece without a sentence's or a line's end is settled as it is."""
        return self._mode == "prose" and not self._buffer and self._fence_line is None

    def feed(self, text: str) -> None:
        """The next piece."""
        if self.is_idle and _STOP.search(text) is None:
            self.settled += len(text)
            self._last = text[-1:] or self._last
            return
        self._buffer += text
        if len(self._buffer) >= self._due:
            self._go_on()

    def tail(self) -> Markup | None:
        """The run that reaches the end of the text as it is now."""
        if self.found is not None:
            self._go_on()
        return self.found

    def _go_on(self) -> None:
        self.found = None
        steps = {"line": self._line, "gap": self._sentence, "prose": self._prose}
        while self._buffer and self.found is None:
            steps[self._mode]()
        size = len(self._buffer)
        self._due = size + 1 if size < _RECHECK else size + size // 4

    def _settle(self, count: int) -> None:
        if not count:
            return
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        self.settled += count
        self._last = taken[-1]
        if self._fence_line is not None:
            self._fence_line += taken

    def _holds(self, run: Markup | None) -> bool:
        """Take over what was read here: true when it reaches the end; prose goes on behind one that does not."""
        if run is None:
            return False
        if run.end == len(self._buffer):
            self.found = run
        else:
            self._settle(run.end)
            self._mode = "prose"
        return True

    def _line(self) -> None:
        buffer = self._buffer
        first = next((at for at, name in enumerate(buffer) if name not in _BLANK), len(buffer))
        self._indent += buffer[:first]
        self._settle(first)
        if len(self._indent) > PREFIX_MAX:
            self._mode, self._fresh = "prose", False
        elif self._buffer:
            self._visible()

    def _visible(self) -> None:
        buffer = self._buffer
        mark = buffer[0]
        if mark == "\n":
            self._indent = ""
            self._settle(1)
            return
        if self._fresh and mark in "{[`" and self._holds(read_object(buffer, 0, self._offered)):
            return
        self._fresh = False
        if not self._fence and shallow(self._indent):
            if self._rules and buffer.startswith(_RULES):
                self.found = Markup(0, len(buffer), is_rules=True)
                return
            if mark in _FIRST and self._holds(self._read(line_start=True)):
                return
        if mark in "`~":
            self._fence_line = ""
        self._mode = "prose"

    def _read(self, *, line_start: bool) -> Markup | None:
        if self._rules and line_start and any(rule.startswith(self._buffer) for rule in _RULES):
            return Markup(0, len(self._buffer), unfinished=True, is_rules=True)
        return read_markup(self._buffer, 0, self._offered, line_start=line_start)

    def _sentence(self) -> None:
        while self._buffer and self._buffer[0] in _BLANK and self._gap < _GAP_MAX:
            self._gap += 1
            self._settle(1)
        if not self._buffer:
            return
        mark = self._buffer[0]
        if mark in _FIRST and self._holds(self._read(line_start=False)):
            return
        self._mode = "prose"
        if mark == "<":
            self._settle(1)

    def _prose(self) -> None:
        stop = _STOP.search(self._buffer)
        if stop is None:
            self._settle(len(self._buffer))
            return
        end = stop.end()
        before = self._buffer[end - 2] if end > 1 else self._last
        mark = stop[0]
        is_prose = not self._fence and self._fence_line is None and shallow(self._indent)
        if mark == "<" and is_prose:
            self._settle(end - 1)
            if len(self._buffer) == 1:
                self.found = Markup(0, 1, unfinished=True)
            else:
                self._mode, self._gap = "gap", _GAP_MAX
            return
        self._settle(end)
        if mark == "\n":
            self._line_ends()
        elif mark != "<" and is_prose and not (before.isspace() or before.isdigit()):
            self._mode, self._gap = "gap", 0

    def _line_ends(self) -> None:
        self._mode, self._indent = "line", ""
        line, self._fence_line = self._fence_line, None
        if line is None:
            return
        line = line.removesuffix("\n")
        if not self._fence:
            self._fence = fence_opening(line)
        elif fence_closes(line, self._fence):
            self._fence = ""


def unparsed(text: str, offered: Mapping[str, Tool], *, rules: bool = False) -> tuple[int, Markup] | None:
    """Where a run of call markup begins that reaches the end of `text`, and the run."""
    search = MarkupSearch(offered, rules=rules)
    for at in range(0, len(text), _PIECE):
        search.feed(text[at : at + _PIECE])
    found = search.tail()
    return (search.settled, found) if found is not None else None


# Holds a live stream's text back while it ends in what could be an unparsed tool call, and nothing else.


class PseudoCallGate(Filter):
    """Hands on every fragment as it came, except those of call markup that reaches the text's end.

    What is held goes on, fragment by fragment, as soon as other text follows it. At the end `held` is what is
    suspicious: `flush` lets it through, `drop` takes it away. The gate holds whatever `malformed.text_fault` finds by
    its markup, since both ask `MarkupSearch`; only judging the whole answer settles it.
    """

    __slots__ = ("_is_open", "_passed", "_pending", "_search")

    def __init__(self, tools: Sequence[Tool], sink: BlockSink, *, rules: bool = False) -> None:
        super().__init__(sink)
        self._search = MarkupSearch({tool.name: tool for tool in tools}, rules=rules)
        self._is_open = not tools
        self._passed = 0
        self._pending: list[tuple[bool, str]] = []

    @property
    def held(self) -> str:
        """The text held back, from where the possible call begins."""
        self._settle()
        return "".join(piece for is_text, piece in self._pending if is_text)[self._search.settled - self._passed :]

    def text(self, text: str) -> None:
        if self._is_open:
            self._sink.text(text)
            return
        self._search.feed(text)
        if not self._pending and self._search.found is None:
            self._passed += len(text)
            self._sink.text(text)
        else:
            self._pending.append((True, text))
            self._release()

    def thinking(self, text: str) -> None:
        """Reasoning; it keeps its place among text that is held."""
        if self._pending:
            self._pending.append((False, text))
        else:
            self._sink.thinking(text)

    def tool(self, index: int, call_id: str, name: str) -> None:
        """A real call: the upstream's parser works, so whatever was held is text."""
        if not self._is_open:
            self.flush()
        self._sink.tool(index, call_id, name)

    def flush(self) -> None:
        """Let everything held through, as it came, and hold nothing from now on."""
        self._is_open = True
        for is_text, piece in self._pending:
            (self._sink.text if is_text else self._sink.thinking)(piece)
        self._pending.clear()
        self._passed = self._search.settled

    def drop(self) -> str:
        """Take away and return what is held; text before the possible call goes on."""
        held = self.held
        head = self._search.settled - self._passed
        for is_text, piece in self._pending:
            if not is_text:
                self._sink.thinking(piece)
            elif head > 0:
                self._sink.text(piece[:head])
                head = 0
        self._pending.clear()
        self._passed = self._search.settled
        self._is_open = True
        return held

    def _settle(self) -> None:
        if self._pending:
            self._search.tail()
            self._release()

    def _release(self) -> None:
        """Let the fragments go that lie wholly before the possible call."""
        settled = self._search.settled
        count = 0
        for is_text, piece in self._pending:
            if is_text:
                if self._passed + len(piece) > settled:
                    break
                self._passed += len(piece)
                self._sink.text(piece)
            else:
                self._sink.thinking(piece)
            count += 1
        del self._pending[:count]
