"""What happened, on a time chart: a thin vertical line where each apply, restart and critical alert was, a head alone
for a warning. None of them ever hides a value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len

from specdash.core.alerts import AlertSeverity
from specdash.core.applies import Outcome
from specdash.core.timeline import EventKind
from specdash.tui.formatting import clean
from specdash.tui.plot import DOTS_PER_ROW

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from specdash.core.timeline import TimelineEvent
    from specdash.insight.experiment_picture import ApplyMark
    from specdash.insight.picture import Picture
    from specdash.tui.spans import Line

    Row = list[tuple[str, str]]
    _Happened = tuple[float, "Look", tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Look:
    """How one kind of event is drawn: the line, its top cell, and both for a terminal without Unicode. Without a line
    it is a head alone. Of those in one cell the last of `LOOKS` is seen."""

    line: str
    head: str
    ascii_line: str
    ascii_head: str
    role: str
    about: str


WARNED = Look("", "▲", "", "^", "warn", "warning")
RESTARTED = Look("┆", "↻", "'", "@", "accent", "restart")
APPLIED = Look("│", "▼", "|", "v", "text", "applied")
UNDONE = Look("╎", "↺", "!", "<", "warn", "rollback")
FAILED = Look("┊", "✖", ":", "x", "bad", "failed and rolled back")
CRITICAL = Look("┇", "◆", ";", "#", "bad", "critical alert")
LOOKS = (WARNED, RESTARTED, APPLIED, UNDONE, FAILED, CRITICAL)
GUIDE = Look("╌", "╌", "-", "-", "warn", "break-even")
_RANKS = {look.about: rank for rank, look in enumerate(LOOKS)}
_ALERTS = {AlertSeverity.WARNING: WARNED, AlertSeverity.CRITICAL: CRITICAL}


@dataclass(frozen=True, slots=True)
class Mark:
    """One event at one column of a chart; `texts` may stand beside its head, the first that fits."""

    column: int
    look: Look
    texts: tuple[str, ...] = ()


def marks_of(picture: Picture, count: int) -> tuple[Mark, ...]:
    """The applies, restarts and alerts within a chart of `count` columns over the picture's window, those that win a
    cell last; the newest apply and the alert that names the cause have their text.

    Columns are those of `Series.columns`. A refused apply touched nothing and has no mark, nor has a notice.
    """
    if not picture.applies and not picture.timeline:
        return ()
    width = picture.window_s / count
    first = math.floor(picture.at / width) - count + 1
    found: list[Mark] = []
    for age_s, look, texts in (*_applies(picture), *_happened(picture)):
        column = math.floor((picture.at - age_s) / width) - first
        if 0 <= column < count:
            found.append(Mark(column, look, texts))
    return tuple(sorted(found, key=lambda one: _RANKS[one.look.about]))


def _applies(picture: Picture) -> Iterator[_Happened]:
    touched = [one for one in picture.applies if one.outcome is not Outcome.REFUSED]
    newest = max((one.wall for one in touched), default=None)
    for one in touched:
        yield one.age_s, look_of(one), (clean(one.text, 60), f"#{one.number}") if one.wall == newest else ()


def _happened(picture: Picture) -> Iterator[_Happened]:
    """Restarts and alerts that began in the window."""
    begin = picture.wall - picture.window_s * 1.1
    cause = picture.alerts.cause_key[0] if picture.alerts.cause_key is not None else None
    for event in reversed(picture.timeline):
        if event.at < begin:
            return
        look = look_of_event(event)
        if look is not None:
            is_cause = event.kind is EventKind.ALERT and event.ref == cause and event.ended is None
            yield picture.wall - event.at, look, (clean(event.title, 60),) if is_cause else ()


def look_of(mark: ApplyMark) -> Look:
    """How an apply is drawn."""
    if mark.outcome is not Outcome.APPLIED:
        return FAILED
    return UNDONE if mark.is_undo else APPLIED


def look_of_event(event: TimelineEvent) -> Look | None:
    """How a restart or an alert is drawn; None for what has no mark in a chart, and for applies."""
    if event.kind is EventKind.RESTART:
        return RESTARTED
    if event.kind is EventKind.ALERT and event.severity is not None:
        return _ALERTS.get(event.severity)
    return None


def cell_of(column: int, count: int, width: int) -> int:
    """The cell in which `plot.plot` draws one of `count` columns."""
    return int(column / max(count - 1, 1) * (2 * width - 1) + 0.5) // 2


def overlay(lines: Sequence[Line], marks: Sequence[Mark], count: int, role: str, *, ascii_only: bool) -> Sequence[Line]:
    """The lines of a plot with the marks on them. What draws a value (in `role`) stays; blanks and areas give way."""
    if not marks or not lines:
        return lines
    width = sum(len(text) for text, _ in lines[0])
    looks = {cell_of(mark.column, count, width): mark.look for mark in marks}
    head: Row = [(char, part) for text, part in lines[0] for char in text]
    for x, look in looks.items():
        if head[x][1] != role:
            head[x] = (look.ascii_head if ascii_only else look.head, look.role)
    taken = set(looks)
    for mark in reversed(marks):
        if mark.texts:
            _write(head, mark, cell_of(mark.column, count, width), role, taken)
    lined = {x: (look.ascii_line if ascii_only else look.line, look.role) for x, look in looks.items() if look.line}
    return [_joined(head), *(_lined(line, lined, role) for line in lines[1:])]


def _lined(line: Line, strokes: Mapping[int, tuple[str, str]], role: str) -> Line:
    if not strokes:
        return line
    row: Row = [(char, part) for text, part in line for char in text]
    for x, stroke in strokes.items():
        if row[x][1] != role:
            row[x] = stroke
    return _joined(row)


def guide(lines: Sequence[Line], level: int, text: str, role: str, *, ascii_only: bool) -> Sequence[Line]:
    """The lines of a plot with a horizontal line `level` dots above its bottom, and `text` at its right end. What draws
    a value (in `role`) stays."""
    y = len(lines) - 1 - level // DOTS_PER_ROW
    if not 0 <= y < len(lines):
        return lines
    row: Row = [(char, part) for piece, part in lines[y] for char in piece]
    stroke = "-" if ascii_only else "╌"
    row = [(stroke, "warn") if part != role else (char, part) for char, part in row]
    _write(row, Mark(0, GUIDE, (text,)), len(row) - 1, role, set())
    return [*lines[:y], _joined(row), *lines[y + 1 :]]


def _write(row: Row, mark: Mark, x: int, role: str, taken: set[int]) -> None:
    """Put the mark's text at the right of its head, or else at the left, where no value and nothing `taken` is."""
    for text in mark.texts:
        length = cell_len(text)
        for start in (x + 1, x - length):
            cells = range(start, start + length)
            if length != len(text) or start < 0 or cells.stop > len(row):
                continue
            if all(row[at][1] != role and at not in taken for at in cells):
                row[start : cells.stop] = [(char, mark.look.role) for char in text]
                taken.update(cells)
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
