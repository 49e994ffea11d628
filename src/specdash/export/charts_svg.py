"""Small charts as SVG files of their own: no scripts, no fonts, no links, legible on light and dark pages.

`draw_rows` has figures with their intervals, `draw_curves` points of several series over any quantity.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from specdash.system.data import dataclass
from specdash.system.text import UNKNOWN, shortened, significant

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WIDTH, HEIGHT = 860, 260
_LEFT, _RIGHT = 64, 20
_TICKS_Y = 4
_LABEL_PX = 6.2
"""Width of a letter at the size of labels, on the safe side."""
_LEAST = 1e-9
"""A smaller one is nothing."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_STYLE = (
    "text{font-family:system-ui,'DejaVu Sans',Helvetica,Arial,sans-serif;font-size:11px;fill:#4b5563}"
    ".page{fill:#fff}.title{font-size:14px;font-weight:600;fill:#111827}.grid{stroke:#e5e7eb}.axis{stroke:#9ca3af}"
    ".dot{fill:#2563eb}"
    "@media (prefers-color-scheme:dark){text{fill:#a8b3c4}.page{fill:#0f172a}.title{fill:#f1f5f9}"
    ".grid{stroke:#263349}.axis{stroke:#64748b}.dot{fill:#60a5fa}}"
)


def _page(title: str, x: int, y: int, body: Iterable[str], height: int = HEIGHT, style: str = "") -> str:
    """The document around a chart: `x` and `y` are where its title stands."""
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{_escaped(title)}">',
        f"<style>{_STYLE}{style}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
        f'<text class="title" x="{x}" y="{y}">{_escaped(title)}</text>',
    ]
    return "\n".join([*head, *body, "</svg>", ""])


def _grid_range(values: Sequence[float], low: float | None) -> tuple[float, float, float]:
    """Bottom, top and step of the grid: round numbers that hold every value."""
    least = min(values, default=0.0) if low is None else min(low, min(values, default=low))
    most = max(values, default=1.0)
    if most - least <= max(1e-12, abs(least) * 1e-9):
        most = least + (abs(least) * 0.1 if abs(least) > _LEAST else 1.0)
    raw = (most - least) / _TICKS_Y
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    bottom = math.floor(least / step + 1e-9) * step
    top = math.ceil(most / step - 1e-9) * step
    return bottom, max(top, bottom + step), step


def _horizontal_grid(low: float, high: float, step: float, top: int, bottom: int) -> Iterable[str]:
    """Lines across the page at round values, with what they are."""
    for value in _steps(low, high, step):
        y = f"{top + (HEIGHT - top - bottom) * (1 - (value - low) / (high - low)):.2f}"
        kind = "grid" if value > low else "axis"
        yield f'<line class="{kind}" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{_LEFT - 8}" y="{float(y) + 4:g}" text-anchor="end">{_grid_number(value, low, high)}</text>'


def _steps(low: float, high: float, step: float) -> Iterable[float]:
    return (low + number * step for number in range(round((high - low) / step) + 1))


def _grid_number(value: float, low: float, high: float) -> str:
    return f"{value:,.0f}" if max(abs(low), abs(high)) >= 10_000 else f"{value:.6g}"


def _escaped(text: str) -> str:
    """As text of an element or value of an attribute, without what XML forbids."""
    return escape(_NOT_XML.sub("", text), {'"': "&quot;"})


_ROWS_LEFT, _ROWS_RIGHT, _ROWS_TOP, _ROWS_BOTTOM = 240, 190, 62, 40
_ROW_HEIGHT = 30
_LONGEST_ROW_LABEL = 36
_MOST_TICKS = 400
_REACH = 2.0
"""An interval is drawn so many times as far beyond the values as those lie apart; what is longer ends in an arrow."""
_LEAST_REACH = 0.1
"""Of the largest value, where the values lie together."""
_DIAMOND = 6.0
_ROWS_STYLE = (
    ".tick{stroke:#2563eb;stroke-opacity:.4}.span{stroke:#2563eb;stroke-width:3;stroke-linecap:round}"
    ".hollow{fill:none;stroke:#2563eb;stroke-width:1.6;stroke-dasharray:2 1.5}"
    ".arrow{fill:#2563eb}.best{fill:#15803d}.best.span{stroke:#15803d}.note{font-weight:600}"
    "@media (prefers-color-scheme:dark){.tick,.span{stroke:#60a5fa}.arrow{fill:#60a5fa}.best{fill:#4ade80}"
    ".best.span{stroke:#4ade80}}"
)


@dataclass(frozen=True, slots=True)
class FigureRow:
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
    rows: tuple[FigureRow, ...]
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
        return _ROWS_LEFT + (WIDTH - _ROWS_LEFT - _ROWS_RIGHT) * min(max(share, 0.0), 1.0)

    def beyond(self, value: float) -> bool:
        """Whether it does."""
        spare = (self.high - self.low) * 1e-9
        return not self.low - spare <= value * self.scale <= self.high + spare

    def label(self, value: float) -> str:
        """The value as text."""
        shown = value * self.scale
        text = significant(shown, 4)
        return f"+{text}" if self.signed and shown > 0 else text


def draw_rows(chart: Rows) -> str:
    """The chart as a well-formed SVG document."""
    axis = _rows_axis(chart)
    height = _ROWS_TOP + _ROW_HEIGHT * max(1, len(chart.rows)) + _ROWS_BOTTOM
    bounds = " [low, high]" if any(row.low is not None and row.high is not None for row in chart.rows) else ""
    unit = _escaped(chart.unit)
    body = [
        f'<text x="{WIDTH - 14}" y="{_ROWS_TOP - 14}" text-anchor="end">{unit}{bounds}</text>',
        f'<text x="{(WIDTH + _ROWS_LEFT - _ROWS_RIGHT) / 2:g}" y="{height - 8}" text-anchor="middle">{unit}</text>',
        *_rows_grid(axis, height),
        *_reference(chart, axis, height),
    ]
    if any(row.is_best and row.value is not None for row in chart.rows):
        body += [_diamond(24, 40), f'<text x="36" y="44">{_escaped(chart.best_words)}</text>']
    for number, row in enumerate(chart.rows):
        body += _one_row(row, _ROWS_TOP + _ROW_HEIGHT * number + _ROW_HEIGHT // 2, axis)
    return _page(chart.title, 16, 22, body, height, _ROWS_STYLE)


def _rows_axis(chart: Rows) -> _Axis:
    """Wide enough for all values, and for intervals as far as they do not make the values unreadable."""
    scale = 100.0 if chart.unit == "%" else 1.0
    core = [tick * scale for row in chart.rows for tick in (row.value, *row.ticks) if tick is not None]
    if chart.reference is not None:
        core.append(chart.reference * scale)
    bounds = [value * scale for row in chart.rows for value in (row.low, row.high) if value is not None]
    if core:
        apart = max(max(core) - min(core), _LEAST_REACH * max(map(abs, core)))
        least, most = min(core) - _REACH * apart, max(core) + _REACH * apart
        bounds = [min(max(bound, least), most) for bound in bounds]
    origin = None if chart.origin is None else chart.origin * scale
    low, high, step = _grid_range([*core, *bounds], origin)
    return _Axis(low, high, step, scale, signed=chart.reference == 0.0)


def _rows_grid(axis: _Axis, height: int) -> Iterable[str]:
    for value in _steps(axis.low, axis.high, axis.step):
        x = f"{axis.x(value / axis.scale):.2f}"
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{_ROWS_TOP - 6}" y2="{height - _ROWS_BOTTOM}"/>'
        sign = "+" if axis.signed and value > 0 else ""
        written = f"{sign}{_grid_number(value, axis.low, axis.high)}"
        yield f'<text x="{x}" y="{height - _ROWS_BOTTOM + 16}" text-anchor="middle">{written}</text>'


def _reference(chart: Rows, axis: _Axis, height: int) -> Iterable[str]:
    if chart.reference is None:
        return
    x = f"{axis.x(chart.reference):.2f}"
    yield f'<line class="axis" stroke-width="1.6" x1="{x}" x2="{x}" y1="{_ROWS_TOP - 8}" y2="{height - _ROWS_BOTTOM}"/>'
    words = chart.reference_words or ("no difference" if chart.reference == 0 else "")
    yield f'<text x="{x}" y="{_ROWS_TOP - 14}" text-anchor="middle">{_escaped(words)}</text>'


def _one_row(row: FigureRow, y: int, axis: _Axis) -> Iterable[str]:
    label = shortened(row.label, _LONGEST_ROW_LABEL)
    tip = f"<title>{_escaped(row.label)}</title>" if label != row.label else ""
    yield f'<text x="{_ROWS_LEFT - 10}" y="{y + 4}" text-anchor="end">{tip}{_escaped(label)}</text>'
    for tick in row.ticks[:_MOST_TICKS]:
        x = f"{axis.x(tick):.2f}"
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
        yield f'<text x="{_ROWS_LEFT + 4}" y="{y + 4}">{UNKNOWN}</text>'
        return
    x0 = axis.x(row.value)
    hollow = " hollow" if row.note else ""
    yield _diamond(x0, y) if row.is_best else f'<circle class="dot{hollow}" cx="{x0:.2f}" cy="{y}" r="4.5"/>'
    label = axis.label(row.value) + (f", {_escaped(row.note)}" if row.note else "")
    if row.low is not None and row.high is not None:
        label += f" [{axis.label(row.low)}, {axis.label(row.high)}]"
    yield f'<text class="note" x="{WIDTH - 14}" y="{y + 4}" text-anchor="end">{label}</text>'


def _diamond(x: float, y: float) -> str:
    """A shape of its own, so that colour is never the only difference."""
    r = _DIAMOND
    return f'<path class="dot best" d="M{x - r:.2f} {y:g} L{x:.2f} {y - r:g} L{x + r:.2f} {y:g} L{x:.2f} {y + r:g} Z"/>'


def _arrow(x: float, y: int, way: int, best: str) -> str:
    """The end of an interval that goes on."""
    return f'<path class="arrow{best}" d="M{x:.2f} {y - 6} L{x + 9 * way:.2f} {y} L{x:.2f} {y + 6} Z"/>'


_CURVES_TOP, _CURVES_BOTTOM = 44, 44
_LONGEST_NAME = 18
_COLOURS = (("#2563eb", "#60a5fa"), ("#b45309", "#fbbf24"), ("#15803d", "#4ade80"), ("#7c3aed", "#c4b5fd"))


def _colours(which: int) -> str:
    return "".join(
        f".c{number}{{stroke:{colour[which]};fill:{colour[which]}}}" for number, colour in enumerate(_COLOURS)
    )


_CURVES_STYLE = (
    _colours(0)
    + "path.curve{fill:none;stroke-width:1.4}.mark{stroke:none}text.key{stroke:none}"
    + f"@media (prefers-color-scheme:dark){{{_colours(1)}}}"
)


@dataclass(frozen=True, slots=True)
class Curve:
    """One series; points are drawn in the order of their first values."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Curves:
    """One chart; both axes begin at 0. At most four series."""

    title: str
    unit: str
    """Of the values."""
    over: str
    """What they are drawn over, with its unit."""
    curves: tuple[Curve, ...]


def draw_curves(chart: Curves) -> str:
    """The chart as a well-formed SVG document."""
    across = [x for curve in chart.curves for x, _ in curve.points]
    values = [y for curve in chart.curves for _, y in curve.points]
    left, right, step_x = _grid_range(across, 0.0)
    low, high, step_y = _grid_range(values, 0.0)

    def place(x: float, y: float) -> tuple[str, str]:
        return (
            f"{_LEFT + (WIDTH - _LEFT - _RIGHT) * (x - left) / (right - left):.2f}",
            f"{_CURVES_TOP + (HEIGHT - _CURVES_TOP - _CURVES_BOTTOM) * (1 - (y - low) / (high - low)):.2f}",
        )

    body = [
        f'<text x="{_LEFT - 8}" y="{_CURVES_TOP - 8}" text-anchor="end">{_escaped(chart.unit)}</text>',
        f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 10}" text-anchor="end">{_escaped(chart.over)}</text>',
    ]
    body += _horizontal_grid(low, high, step_y, _CURVES_TOP, _CURVES_BOTTOM)
    for value in _steps(left, right, step_x):
        x = place(value, low)[0]
        body.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{_CURVES_TOP}" y2="{HEIGHT - _CURVES_BOTTOM}"/>')
        written = _grid_number(value, 0, right)
        body.append(f'<text x="{x}" y="{HEIGHT - _CURVES_BOTTOM + 16}" text-anchor="middle">{written}</text>')
    at = WIDTH - _RIGHT - sum(map(_key_width, chart.curves))
    for number, curve in enumerate(chart.curves):
        kind = f"c{number % len(_COLOURS)}"
        body.append(_point(number, at, 16, 4.5))
        body.append(
            f'<text class="key {kind}" x="{at + 9:g}" y="20">{_escaped(shortened(curve.name, _LONGEST_NAME))}</text>'
        )
        at += _key_width(curve)
        places = [place(x, y) for x, y in sorted(curve.points)]
        if len(places) > 1:
            body.append(f'<path class="curve {kind}" d="M{" L".join(f"{x} {y}" for x, y in places)}"/>')
        body += [_point(number, float(x), float(y), 3) for x, y in places]
    if not values:
        body.append(f'<text x="{WIDTH / 2:g}" y="{HEIGHT / 2:g}" text-anchor="middle">no values</text>')
    return _page(chart.title, _LEFT, 20, body, style=_CURVES_STYLE)


def _point(number: int, x: float, y: float, r: float) -> str:
    """A point, in a shape of its series' own, so that colour is never the only difference."""
    kind = f"c{number % len(_COLOURS)}"
    shape = (
        f'<circle class="mark {kind}" cx="{x:g}" cy="{y:g}" r="{r:g}"/>',
        f'<path class="mark {kind}" d="M{x - r:g} {y - r:g} h{2 * r:g} v{2 * r:g} h{-2 * r:g} Z"/>',
        f'<path class="mark {kind}" d="M{x - r:g} {y + r:g} L{x:g} {y - r:g} L{x + r:g} {y + r:g} Z"/>',
        f'<path class="mark {kind}" d="M{x - r:g} {y:g} L{x:g} {y - r:g} L{x + r:g} {y:g} L{x:g} {y + r:g} Z"/>',
    )
    return shape[number % len(shape)]


def _key_width(curve: Curve) -> float:
    return 9 + _LABEL_PX * len(shortened(curve.name, _LONGEST_NAME)) + 22
