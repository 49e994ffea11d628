"""Finds call markup that reaches the end of a text which may still grow; the text before it is settled at once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from specdash.proxy.guardrails import markers
from specdash.proxy.guardrails.dialects import CLOSES, OPENS
from specdash.proxy.guardrails.markup import Markup, read_markup, read_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.proxy.messages import Tool

_BLANK = " \t\r"
_GAP_MAX = 3
"""Blanks between a sentence and a call in the same line."""
_ENDS = ".!?…:。！？："
_STOP = re.compile(rf"[\n{_ENDS}]|<(?=[|｜]|\Z)")
_FIRST = frozenset(one[0] for one in (*OPENS, *CLOSES)) | {"<"}
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
        if self.found is None or len(self._buffer) >= self._due:
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
        first = next((at for at, one in enumerate(buffer) if one not in _BLANK), len(buffer))
        self._indent += buffer[:first]
        self._settle(first)
        if len(self._indent) > markers.PREFIX_MAX:
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
        if not self._fence and markers.shallow(self._indent):
            if self._rules and buffer.startswith(_RULES):
                self.found = Markup(0, len(buffer), is_rules=True)
                return
            if mark in _FIRST and self._holds(self._read(line_start=True)):
                return
        if mark in "`~":
            self._fence_line = ""
        self._mode = "prose"

    def _read(self, *, line_start: bool) -> Markup | None:
        if self._rules and line_start and any(one.startswith(self._buffer) for one in _RULES):
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
        is_prose = not self._fence and self._fence_line is None and markers.shallow(self._indent)
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
            self._fence = markers.fence_opening(line)
        elif markers.fence_closes(line, self._fence):
            self._fence = ""


def unparsed(text: str, offered: Mapping[str, Tool], *, rules: bool = False) -> tuple[int, Markup] | None:
    """Where a run of call markup begins that reaches the end of `text`, and the run."""
    search = MarkupSearch(offered, rules=rules)
    for at in range(0, len(text), _PIECE):
        search.feed(text[at : at + _PIECE])
    found = search.tail()
    return (search.settled, found) if found is not None else None
