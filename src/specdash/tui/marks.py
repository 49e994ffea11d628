"""Applies on a time chart: a thin vertical line where each was, which never hides a value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len

from specdash.core.applies import Outcome
from specdash.tui.formatting import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.insight.experiment_picture import ApplyMark
    from specdash.insight.picture import Picture
    from specdash.tui.spans import Line

    Row = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Look:
    """How one kind of apply is drawn: the line, its top cell, and both for a terminal without Unicode."""

    line: str
    head: str
    ascii_line: str
    ascii_head: str
    role: str
    about: str


APPLIED = Look("│", "▼", "|", "v", "text", "applied")
UNDONE = Look("╎", "↺", "!", "<", "warn", "rollback")
FAILED = Look("┊", "✖", ":", "x", "bad", "failed and rolled back")
LOOKS = (APPLIED, UNDONE, FAILED)


@dataclass(frozen=True, slots=True)
class Mark:
    """One apply at one column of a chart; `texts` may stand beside its head, the first that fits."""

    column: int
    look: Look
    texts: tuple[str, ...] = ()


def marks_of(picture: Picture, count: int) -> tuple[Mark, ...]:
    """The applies within a chart of `count` columns over the picture's window, oldest first; the newest has its text.

    Columns are those of `Series.columns`. A refused apply touched nothing and has no mark.
    """
    width = picture.window_s / count
    first = math.floor(picture.at / width) - count + 1
    found: list[Mark] = []
    newest = max((one.wall for one in picture.applies if one.outcome is not Outcome.REFUSED), default=None)
    for one in picture.applies:
        column = math.floor((picture.at - one.age_s) / width) - first
        if one.outcome is Outcome.REFUSED or not 0 <= column < count:
            continue
        texts = (clean(one.text, 60), f"#{one.number}") if one.wall == newest else ()
        found.append(Mark(column, look_of(one), texts))
    return tuple(found)


def look_of(mark: ApplyMark) -> Look:
    """How it is drawn."""
    if mark.outcome is not Outcome.APPLIED:
        return FAILED
    return UNDONE if mark.is_undo else APPLIED


def cell_of(column: int, count: int, width: int) -> int:
    """The cell in which `plot.plot` draws one of `count` columns."""
    return int(column / max(count - 1, 1) * (2 * width - 1) + 0.5) // 2


def overlay(lines: Sequence[Line], marks: Sequence[Mark], count: int, role: str, *, ascii_only: bool) -> Sequence[Line]:
    """The lines of a plot with the marks on them. What draws a value (in `role`) stays; blanks and areas give way."""
    if not marks or not lines:
        return lines
    rows: list[Row] = [[(char, part) for text, part in line for char in text] for line in lines]
    width = len(rows[0])
    heads: set[int] = set()
    for mark in marks:
        x, look = cell_of(mark.column, count, width), mark.look
        heads.add(x)
        for y, row in enumerate(rows):
            if row[x][1] == role:
                continue
            if ascii_only:
                row[x] = (look.ascii_line if y else look.ascii_head, look.role)
            else:
                row[x] = (look.line if y else look.head, look.role)
    for mark in marks:
        _write(rows[0], mark, cell_of(mark.column, count, width), role, heads)
    return [_joined(row) for row in rows]


def _write(row: Row, mark: Mark, x: int, role: str, heads: set[int]) -> None:
    """Put the mark's text at the right of its head, or else at the left, where no value and no other mark is."""
    for text in mark.texts:
        length = cell_len(text)
        for start in (x + 1, x - length):
            cells = range(start, start + length)
            if length != len(text) or start < 0 or cells.stop > len(row):
                continue
            if all(row[at][1] != role and at not in heads for at in cells):
                row[start : cells.stop] = [(char, mark.look.role) for char in text]
                return


def _joined(row: Row) -> Line:
    spans: list[tuple[str, str]] = []
    text, current = "", row[0][1]
    for char, role in row:
        if role != current:
            spans.append((text, current))
            text, current = "", role
        text += char
    return (*spans, (text, current))
