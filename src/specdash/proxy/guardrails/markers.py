"""Which lines of a text are prose: not those of a fence, nor of indented code. Source: CommonMark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

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
