"""Figures with their intervals as SVG files: a row each, with ticks for the single values that it was made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.export.plots_svg import STYLE, WIDTH, escaped, grid_number, grid_range

if TYPE_CHECKING:
    from collections.abc import Iterable

_LEFT, _RIGHT, _TOP, _BOTTOM = 240, 190, 62, 40
_ROW = 30
_LONGEST_LABEL = 36
_MOST_TICKS = 400
_REACH = 2.0
"""An interval is drawn so many times as far beyond the values as those lie apart; what is longer ends in an arrow."""
_LEAST_REACH = 0.1
"""Of the largest value, where the values lie together."""
_DIAMOND = 6.0
_OWN_STYLE = (
    ".tick{stroke:#2563eb;stroke-opacity:.4}.span{stroke:#2563eb;stroke-width:3;stroke-linecap:round}"
    ".hollow{fill:none;stroke:#2563eb;stroke-width:1.6;stroke-dasharray:2 1.5}"
    ".arrow{fill:#2563eb}.best{fill:#15803d}.best.span{stroke:#15803d}.note{font-weight:600}"
    "@media (prefers-color-scheme:dark){.tick,.span{stroke:#60a5fa}.arrow{fill:#60a5fa}.best{fill:#4ade80}"
    ".best.span{stroke:#4ade80}}"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `ticks` are the single values; `is_best` marks the row that is to stand out."""

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    ticks: tuple[float, ...] = ()
    is_best: bool = False
    note: str = ""
    """Why the row does not count, in a word or two: its mark is hollow then."""


@dataclass(frozen=True, slots=True)
class Rows:
    """One chart. A unit of % takes fractions. The axis begins at `origin`, or at the least value where that is None."""

    title: str
    unit: str
    rows: tuple[Row, ...]
    origin: float | None = 0.0
    reference: float | None = None
    """Where a line is drawn across, such as at no difference; differences then have a sign."""
    reference_words: str = ""
    """What that line is."""
    best_words: str = "best"
    """What the rows that stand out are."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """From values, in the unit that is shown, to places on the page."""

    low: float
    high: float
    step: float
    scale: float
    signed: bool

    def x(self, value: float) -> float:
        """Where a value is, at the edge where it lies beyond."""
        share = (value * self.scale - self.low) / (self.high - self.low)
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * min(max(share, 0.0), 1.0)

    def beyond(self, value: float) -> bool:
        """Whether it does."""
        spare = (self.high - self.low) * 1e-9
        return not self.low - spare <= value * self.scale <= self.high + spare

    def told(self, value: float) -> str:
        """The value as text."""
        shown = value * self.scale
        text = f"{shown:,.0f}" if abs(shown) >= 1_000 else f"{shown:.4g}"
        return f"+{text}" if self.signed and shown > 0 else text


def draw_rows(chart: Rows) -> str:
    """The chart as a well-formed SVG document."""
    axis = _axis(chart)
    height = _TOP + _ROW * max(1, len(chart.rows)) + _BOTTOM
    bounded = any(row.low is not None and row.high is not None for row in chart.rows)
    unit = escaped(chart.unit)
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escaped(chart.title)}">',
        f"<style>{STYLE}{_OWN_STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
        f'<text class="title" x="16" y="22">{escaped(chart.title)}</text>',
        f'<text x="{WIDTH - 14}" y="{_TOP - 14}" text-anchor="end">{unit}{" [low, high]" if bounded else ""}</text>',
        f'<text x="{(WIDTH + _LEFT - _RIGHT) / 2:g}" y="{height - 8}" text-anchor="middle">{unit}</text>',
        *_grid(axis, height),
        *_reference(chart, axis, height),
    ]
    if any(row.is_best and row.value is not None for row in chart.rows):
        body += [_diamond(24, 40), f'<text x="36" y="44">{escaped(chart.best_words)}</text>']
    for number, row in enumerate(chart.rows):
        body += _row(row, _TOP + _ROW * number + _ROW // 2, axis)
    return "\n".join([*body, "</svg>", ""])


def _axis(chart: Rows) -> _Axis:
    """Wide enough for all values, and for intervals as far as they do not make the values unreadable."""
    scale = 100.0 if chart.unit == "%" else 1.0
    core = [one * scale for row in chart.rows for one in (row.value, *row.ticks) if one is not None]
    if chart.reference is not None:
        core.append(chart.reference * scale)
    bounds = [one * scale for row in chart.rows for one in (row.low, row.high) if one is not None]
    if core:
        apart = max(max(core) - min(core), _LEAST_REACH * max(map(abs, core)))
        least, most = min(core) - _REACH * apart, max(core) + _REACH * apart
        bounds = [min(max(one, least), most) for one in bounds]
    origin = None if chart.origin is None else chart.origin * scale
    low, high, step = grid_range([*core, *bounds], origin, None)
    return _Axis(low, high, step, scale, signed=chart.reference == 0.0)


def _grid(axis: _Axis, height: int) -> Iterable[str]:
    thousands = max(abs(axis.low), abs(axis.high)) >= 10_000
    for at in range(round((axis.high - axis.low) / axis.step) + 1):
        value = axis.low + at * axis.step
        x = f"{axis.x(value / axis.scale):.2f}"
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP - 6}" y2="{height - _BOTTOM}"/>'
        written = grid_number(value, thousands=thousands)
        sign = "+" if axis.signed and value > 0 else ""
        yield f'<text x="{x}" y="{height - _BOTTOM + 16}" text-anchor="middle">{sign}{written}</text>'


def _reference(chart: Rows, axis: _Axis, height: int) -> Iterable[str]:
    if chart.reference is None:
        return
    x = f"{axis.x(chart.reference):.2f}"
    yield f'<line class="axis" stroke-width="1.6" x1="{x}" x2="{x}" y1="{_TOP - 8}" y2="{height - _BOTTOM}"/>'
    words = chart.reference_words or ("no difference" if chart.reference == 0 else "")
    yield f'<text x="{x}" y="{_TOP - 14}" text-anchor="middle">{escaped(words)}</text>'


def _row(row: Row, y: int, axis: _Axis) -> Iterable[str]:
    label = row.label if len(row.label) <= _LONGEST_LABEL else row.label[: _LONGEST_LABEL - 1] + "…"
    tip = f"<title>{escaped(row.label)}</title>" if label != row.label else ""
    yield f'<text x="{_LEFT - 10}" y="{y + 4}" text-anchor="end">{tip}{escaped(label)}</text>'
    for one in row.ticks[:_MOST_TICKS]:
        x = f"{axis.x(one):.2f}"
        yield f'<line class="tick" x1="{x}" x2="{x}" y1="{y - 9}" y2="{y + 9}"/>'
    best = " best" if row.is_best else ""
    if row.low is not None and row.high is not None:
        x1, x2 = axis.x(row.low), axis.x(row.high)
        yield f'<line class="span{best}" x1="{x1:.2f}" x2="{x2:.2f}" y1="{y}" y2="{y}"/>'
        if axis.beyond(row.low):
            yield _arrow(x1, y, -1, best)
        if axis.beyond(row.high):
            yield _arrow(x2, y, 1, best)
    if row.value is None:
        yield f'<text x="{_LEFT + 4}" y="{y + 4}">--</text>'
        return
    x0 = axis.x(row.value)
    hollow = " hollow" if row.note else ""
    yield _diamond(x0, y) if row.is_best else f'<circle class="dot{hollow}" cx="{x0:.2f}" cy="{y}" r="4.5"/>'
    told = axis.told(row.value) + (f", {escaped(row.note)}" if row.note else "")
    if row.low is not None and row.high is not None:
        told += f" [{axis.told(row.low)}, {axis.told(row.high)}]"
    yield f'<text class="note" x="{WIDTH - 14}" y="{y + 4}" text-anchor="end">{told}</text>'


def _diamond(x: float, y: float) -> str:
    """A shape of its own, so that colour is never the only difference."""
    r = _DIAMOND
    return f'<path class="dot best" d="M{x - r:.2f} {y:g} L{x:.2f} {y - r:g} L{x + r:.2f} {y:g} L{x:.2f} {y + r:g} Z"/>'


def _arrow(x: float, y: int, way: int, best: str) -> str:
    """The end of an interval that goes on."""
    return f'<path class="arrow{best}" d="M{x:.2f} {y - 6} L{x + 9 * way:.2f} {y} L{x:.2f} {y + 6} Z"/>'
