"""Chart columns as rows of text: the line, and the area below it tinted. The small charts of a live screen are drawn
here, dot by dot, at a seventh of the time; those that have the screen to themselves plotext draws.

plotext costs about 0.1 s to import, so that happens at the first chart that it draws: not at the first paint, which has
no values yet, and in most dashboards never.
"""

from __future__ import annotations

import math
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from rich.cells import cell_len

from specdash.core.changes import ApplyKind, ApplyOutcome
from specdash.core.records import AlertSeverity, EventKind
from specdash.system.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from specdash.core.records import TimelineEvent
    from specdash.insight.experiments import ApplyMark
    from specdash.insight.picture import Picture
    from specdash.tui.spans import Line

    Row = list[tuple[str, str]]
    _Happened = tuple[float, "MarkStyle", tuple[str, ...]]


DOTS_PER_ROW = 4
LIVE_ROWS = 20
"""A chart that is higher has the screen to itself."""
_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""Bits of a braille cell: left and right column, upwards."""
_LEAST_TOP = 1e-6
_BLANKS = " ⠀"


@cache
def _figure() -> Any:
    """A figure of our own."""
    # Where Pillow is installed, plotext imports it to draw pictures: 3 MB for what no chart here is.
    is_unused = sys.modules.setdefault("PIL", None) is None  # type: ignore[arg-type]  # None: cannot be imported
    try:
        import plotext
    finally:
        if is_unused:
            del sys.modules["PIL"]

    # The library draws on a figure that is global to the process and capped to the terminal's size; ours is neither.
    plotext.terminal.limit(False, False)
    return type(plotext.figure)(plotext.terminal)


_SAMPLING_S = 2.0


def column_count(width: int, window_s: float) -> int:
    """How many columns a plot `width` cells wide should ask for: two per cell, yet none shorter than a sample."""
    return max(2, min(width * 2, int(window_s / _SAMPLING_S)))


def top_of(columns: Sequence[float | None], high: float | None) -> float:
    """The chart's upper limit: the fixed one, or a round number that holds all values."""
    if high is not None:
        return high
    return nice_ceiling(max((value for value in columns if value is not None), default=0.0))


def nice_ceiling(value: float) -> float:
    """The smallest of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten that is not below `value`; the top of a chart."""
    if value < _LEAST_TOP:
        return 1.0 if value <= 0 else _LEAST_TOP
    power = 10.0 ** (len(f"{value:.0f}") - 1) if value >= 1 else 1.0
    if value < 1:
        while value < power:
            power /= 10.0
    for step in (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0):
        if value <= step * power * (1 + 1e-9):
            return step * power
    return 15.0 * power


def levels(columns: Sequence[float | None], height: int, low: float, high: float) -> tuple[int | None, ...]:
    """The columns in dots above the chart's bottom: charts with equal levels look the same."""
    top = height * DOTS_PER_ROW - 1
    scale = top / (high - low)
    return tuple(None if value is None else min(max(round((value - low) * scale), 0), top) for value in columns)


def plot(columns: Sequence[int | None], width: int, height: int, role: str, *, late: int = 1) -> list[Line]:
    """The levels as a line over a tinted area, `height` lines of `width` cells. Gaps of more than `late` columns stay
    empty."""
    if width < 2 or height < 1:
        return []
    runs = _runs(columns, late)
    if not runs:
        return [((" " * width, "text"),)] * height
    if height <= LIVE_ROWS:
        return _tint(_dots(runs, len(columns), width, height), width, role)
    return _tint(_draw(runs, len(columns), width, height), width, role)


def _runs(columns: Sequence[int | None], late: int) -> list[list[tuple[int, int]]]:
    """Stretches of known columns; so few missing ones between two known are a late sample, not a gap."""
    runs: list[list[tuple[int, int]]] = []
    last = -10
    for index, value in enumerate(columns):
        if value is None:
            continue
        if index - last > late + 1:
            runs.append([])
        runs[-1].append((index, value))
        last = index
    return runs


def _dots(runs: list[list[tuple[int, int]]], count: int, width: int, height: int) -> list[str]:
    """Straight lines from each level to the next, two dots a cell wide."""
    rows = [[0] * width for _ in range(height)]
    scale = (2 * width - 1) / max(count - 1, 1)
    for run in runs:
        index, y0 = run[0]
        x0 = int(index * scale + 0.5)
        rows[height - 1 - y0 // DOTS_PER_ROW][x0 // 2] |= _DOTS[x0 % 2][y0 % DOTS_PER_ROW]
        for index, y1 in run[1:]:
            x1 = int(index * scale + 0.5)
            steps = max(x1 - x0, abs(y1 - y0))
            for step in range(1, steps + 1):
                x = int(x0 + (x1 - x0) * step / steps + 0.5)
                y = int(y0 + (y1 - y0) * step / steps + 0.5)
                rows[height - 1 - y // DOTS_PER_ROW][x // 2] |= _DOTS[x % 2][y % DOTS_PER_ROW]
            x0, y0 = x1, y1
    return ["".join(chr(0x2800 + cell) if cell else " " for cell in row) for row in rows]


def _draw(runs: list[list[tuple[int, int]]], count: int, width: int, height: int) -> list[str]:
    figure = _figure()
    figure.clear()
    figure.plot_size(width, height)
    figure.canvas("default")
    for run in runs:
        at, values = zip(*run, strict=True)
        figure.draw(figure.signal(list(at), list(values), marker="braille").lines(True))
    figure.ruler("x").lim(0, count - 1).alignment(lim="edge").frequency(0)
    figure.ruler("y").lim(0, height * DOTS_PER_ROW - 1).alignment(lim="edge").frequency(0)
    figure.axes(False)
    text: str = figure.build().string(colorless=True)
    return text.rstrip("\n").split("\n")


def _tint(rows: list[str], width: int, role: str) -> list[Line]:
    """Colour the line, and fill every blank cell that has the line above it."""
    below = [False] * width
    fill_role = f"{role}.fill"
    lines: list[Line] = []
    for row in rows:
        spans: list[tuple[str, str]] = []
        text, current = "", ""
        for x, char in enumerate(row[:width].ljust(width)):
            if char not in _BLANKS:
                below[x] = True
                wanted = role
            else:
                char, wanted = ("⣿", fill_role) if below[x] else (" ", "text")
            if wanted != current and text:
                spans.append((text, current))
                text = ""
            text, current = text + char, wanted
        spans.append((text, current))
        lines.append(tuple(spans))
    return lines


# What happened, on a time chart: a thin vertical line where each apply, restart and critical alert was, a head alone
# for a warning. None of them ever hides a value.


class MarkStyle(Struct, frozen=True):
    """How one kind of event is drawn: the line and its top cell. Without a line it is a head alone.
    Of those in one cell the last of `LOOKS` is seen."""

    line: str
    head: str
    role: str
    about: str


WARNED = MarkStyle("", "▲", "warn", "warning")
RESTARTED = MarkStyle("┆", "↻", "accent", "restart")
APPLIED = MarkStyle("│", "▼", "text", "applied")
UNDONE = MarkStyle("╎", "↺", "warn", "rollback")
FAILED = MarkStyle("┊", "✖", "bad", "failed and rolled back")
CRITICAL = MarkStyle("┇", "◆", "bad", "critical alert")
LOOKS = (WARNED, RESTARTED, APPLIED, UNDONE, FAILED, CRITICAL)
GUIDE = MarkStyle("╌", "╌", "warn", "break-even")
_RANKS = {look.about: rank for rank, look in enumerate(LOOKS)}
_ALERTS = {AlertSeverity.WARNING: WARNED, AlertSeverity.CRITICAL: CRITICAL}


class Mark(Struct, frozen=True):
    """One event at one column of a chart; `texts` may stand beside its head, the first that fits."""

    column: int
    look: MarkStyle
    texts: tuple[str, ...] = ()


def marks_of(picture: Picture, count: int, span_s: float) -> tuple[Mark, ...]:
    """The applies, restarts and alerts within a chart of `count` columns over the last `span_s` seconds, those that win
    a cell last; the newest apply and the alert that names the cause have their text.

    Columns are those of `Series.columns`. A refused apply touched nothing and has no mark, nor has a notice.
    """
    if not picture.applies and not picture.timeline:
        return ()
    width = span_s / count
    first = math.floor(picture.at / width) - count + 1
    found: list[Mark] = []
    for age_s, look, texts in (*_applies(picture), *_happened(picture)):
        column = math.floor((picture.at - age_s) / width) - first
        if 0 <= column < count:
            found.append(Mark(column, look, texts))
    return tuple(sorted(found, key=lambda mark: _RANKS[mark.look.about]))


def _applies(picture: Picture) -> Iterator[_Happened]:
    touched = [apply for apply in picture.applies if apply.record.outcome is not ApplyOutcome.REFUSED]
    newest = max((apply_mark.wall for apply_mark in touched), default=None)
    for apply_mark in touched:
        yield (
            apply_mark.age_s,
            look_of(apply_mark),
            (clean(apply_mark.text, 60), f"#{apply_mark.record.number}") if apply_mark.wall == newest else (),
        )


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


def look_of(mark: ApplyMark) -> MarkStyle:
    """How an apply is drawn."""
    if mark.record.outcome is not ApplyOutcome.APPLIED:
        return FAILED
    return UNDONE if mark.record.kind is ApplyKind.ROLLBACK else APPLIED


def look_of_event(event: TimelineEvent) -> MarkStyle | None:
    """How a restart or an alert is drawn; None for what has no mark in a chart, and for applies."""
    if event.kind is EventKind.RESTART:
        return RESTARTED
    if event.kind is EventKind.ALERT and event.severity is not None:
        return _ALERTS.get(event.severity)
    return None


def cell_of(column: int, count: int, width: int) -> int:
    """The cell in which `plot.plot` draws one of `count` columns."""
    return int(column / max(count - 1, 1) * (2 * width - 1) + 0.5) // 2


def overlay(lines: Sequence[Line], marks: Sequence[Mark], count: int, role: str) -> Sequence[Line]:
    """The lines of a plot with the marks on them. What draws a value (in `role`) stays; blanks and areas give way."""
    if not marks or not lines:
        return lines
    width = sum(len(text) for text, _ in lines[0])
    looks = {cell_of(mark.column, count, width): mark.look for mark in marks}
    head: Row = [(char, part) for text, part in lines[0] for char in text]
    for x, look in looks.items():
        if head[x][1] != role:
            head[x] = (look.head, look.role)
    taken = set(looks)
    for mark in reversed(marks):
        if mark.texts:
            _write(head, mark, cell_of(mark.column, count, width), role, taken)
    lined = {x: (look.line, look.role) for x, look in looks.items() if look.line}
    return [_joined(head), *(_lined(line, lined, role) for line in lines[1:])]


def _lined(line: Line, strokes: Mapping[int, tuple[str, str]], role: str) -> Line:
    if not strokes:
        return line
    row: Row = [(char, part) for text, part in line for char in text]
    for x, stroke in strokes.items():
        if row[x][1] != role:
            row[x] = stroke
    return _joined(row)


def guide(lines: Sequence[Line], level: int, text: str, role: str) -> Sequence[Line]:
    """The lines of a plot with a horizontal line `level` dots above its bottom, and `text` at its right end. What draws
    a value (in `role`) stays."""
    y = len(lines) - 1 - level // DOTS_PER_ROW
    if not 0 <= y < len(lines):
        return lines
    row: Row = [(char, part) for piece, part in lines[y] for char in piece]
    row = [("╌", "warn") if part != role else (char, part) for char, part in row]
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
