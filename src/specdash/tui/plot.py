"""Chart columns as rows of text: plotext draws the line, the area below it is tinted here.

plotext costs about 0.1 s to import, so that happens in `load`, after the first paint; until then charts are empty
frames.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from specdash.tui.formatting import nice_ceiling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.tui.spans import Line

DOTS_PER_ROW = 4
_BLANKS = " ⠀"
_figures: list[Any] = []


def loaded() -> bool:
    """Whether `load` has run, that is whether charts show anything."""
    return bool(_figures)


def load() -> None:
    """Import plotext and keep one figure of our own."""
    if _figures:
        return
    # Where Pillow is installed, plotext imports it to draw pictures: 3 MB for what no chart here is.
    is_unused = sys.modules.setdefault("PIL", None) is None  # type: ignore[arg-type]  # None: cannot be imported
    try:
        import plotext
    finally:
        if is_unused:
            del sys.modules["PIL"]

    # The library draws on a figure that is global to the process and capped to the terminal's size; ours is neither.
    plotext.terminal.limit(False, False)
    _figures.append(type(plotext.figure)(plotext.terminal))


def column_count(width: int, window_s: float, sampling_s: float = 2.0) -> int:
    """How many columns a plot `width` cells wide should ask for: two per cell, yet none shorter than a sample."""
    return max(2, min(width * 2, int(window_s / sampling_s)))


def top_of(columns: Sequence[float | None], high: float | None) -> float:
    """The chart's upper limit: the fixed one, or a round number that holds all values."""
    if high is not None:
        return high
    return nice_ceiling(max((value for value in columns if value is not None), default=0.0))


def levels(columns: Sequence[float | None], height: int, low: float, high: float) -> tuple[int | None, ...]:
    """The columns in dots above the chart's bottom: charts with equal levels look the same."""
    top = height * DOTS_PER_ROW - 1
    scale = top / (high - low)
    return tuple(None if value is None else min(max(round((value - low) * scale), 0), top) for value in columns)


def plot(columns: Sequence[int | None], width: int, height: int, role: str, *, ascii_only: bool) -> list[Line]:
    """The levels as a line over a tinted area, `height` lines of `width` cells. Gaps stay empty."""
    if width < 2 or height < 1:
        return []
    runs = _runs(columns)
    if not runs or not loaded():
        return [((" " * width, "text"),)] * height
    rows = _draw(runs, len(columns), width, height, ascii_only=ascii_only)
    return _tint(rows, width, role, "." if ascii_only else "⣿")


def _runs(columns: Sequence[int | None]) -> list[list[tuple[int, int]]]:
    """Stretches of known columns; a single missing column between known ones is a late sample, not a gap."""
    runs: list[list[tuple[int, int]]] = []
    last = -10
    for index, value in enumerate(columns):
        if value is None:
            continue
        if index - last > 2:
            runs.append([])
        runs[-1].append((index, value))
        last = index
    return runs


def _draw(runs: list[list[tuple[int, int]]], count: int, width: int, height: int, *, ascii_only: bool) -> list[str]:
    figure = _figures[0]
    figure.clear()
    figure.plot_size(width, height)
    figure.canvas("default")
    marker = "*" if ascii_only else "braille"
    for run in runs:
        at, values = zip(*run, strict=True)
        figure.draw(figure.signal(list(at), list(values), marker=marker).lines(True))
    figure.ruler("x").lim(0, count - 1).alignment(lim="edge").frequency(0)
    figure.ruler("y").lim(0, height * DOTS_PER_ROW - 1).alignment(lim="edge").frequency(0)
    figure.axes(False)
    text: str = figure.build().string(colorless=True)
    return text.rstrip("\n").split("\n")


def _tint(rows: list[str], width: int, role: str, fill: str) -> list[Line]:
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
                char, wanted = (fill, fill_role) if below[x] else (" ", "text")
            if wanted != current and text:
                spans.append((text, current))
                text = ""
            text, current = text + char, wanted
        spans.append((text, current))
        lines.append(tuple(spans))
    return lines


def import_is_done() -> bool:
    """Whether plotext is in memory already, so that loading it costs nothing."""
    return "plotext" in sys.modules
