"""Values over time as an SVG file: no scripts, no fonts, no links, legible on light and dark pages."""

from __future__ import annotations

import math
import re
import time
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from specdash.system.data import dataclass
from specdash.system.text import clock, scale_time, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WIDTH, HEIGHT = 860, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 20, 54, 34
_TICKS_Y = 4
_TICKS_X = 8
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
_DAY_S = 86400.0
_LABEL_PX = 6.2
"""Width of a letter at the size of labels, on the safe side."""
_LONGEST_LABEL = 34
_LEAST = 1e-9
"""A smaller one is nothing."""
_MOST = 1e15
"""A larger value is no measurement."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_STYLE = (
    "text{font-family:system-ui,'DejaVu Sans',Helvetica,Arial,sans-serif;font-size:11px;fill:#4b5563}"
    ".page{fill:#fff}.title{font-size:14px;font-weight:600;fill:#111827}.grid{stroke:#e5e7eb}.axis{stroke:#9ca3af}"
    ".line{fill:none;stroke:#2563eb;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}"
    ".dot{fill:#2563eb}.band{fill-opacity:.13}.mark{stroke-width:1.3}"
    ".critical{stroke:#b91c1c;fill:#b91c1c}.warning{stroke:#b45309;fill:#b45309}.notice{stroke:#4b5563;fill:#4b5563}"
    ".apply{stroke:#7c3aed;fill:#7c3aed}text.label{stroke:none}.mark.apply{stroke-dasharray:5 3}rect.band{stroke:none}"
    "@media (prefers-color-scheme:dark){text{fill:#a8b3c4}.page{fill:#0f172a}.title{fill:#f1f5f9}"
    ".grid{stroke:#263349}.axis{stroke:#64748b}.line{stroke:#60a5fa}.dot{fill:#60a5fa}.band{fill-opacity:.2}"
    ".critical{stroke:#f87171;fill:#f87171}.warning{stroke:#fbbf24;fill:#fbbf24}.notice{stroke:#94a3b8;fill:#94a3b8}"
    ".apply{stroke:#c4b5fd;fill:#c4b5fd}}"
)


@dataclass(frozen=True, slots=True)
class Marker:
    """Something that happened at Unix time `at`, until `ended` where it lasts. `kind` is a severity, or `apply`."""

    at: float
    kind: str
    label: str
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Plot:
    """One chart: points are (Unix time, value), None a gap. A unit of % takes fractions."""

    title: str
    unit: str
    points: tuple[tuple[float, float | None], ...]
    since: float
    until: float
    markers: tuple[Marker, ...] = ()
    low: float | None = 0.0
    high: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is no value at all."""
        return not any(_is_number(value) for _, value in self.points)


def draw(plot: Plot) -> str:
    """The chart as a well-formed SVG document."""
    scale = 100.0 if plot.unit == "%" else 1.0
    points = [(at, value * scale if _is_number(value) else None) for at, value in plot.points]  # type: ignore[operator]
    values = [value for _, value in points if value is not None]
    high_given = plot.high * scale if plot.high is not None else None
    low, high, step = _grid_range(values, plot.low, high_given)
    body = [
        f'<text x="{_LEFT - 8}" y="{_TOP - 10}" text-anchor="end">{_escaped(plot.unit)}</text>',
        *_horizontal_grid(low, high, step),
        *_columns(plot),
        *_marks(plot),
        *_lines(plot, points, low, high),
    ]
    if not values:
        body.append(f'<text x="{WIDTH / 2:g}" y="{HEIGHT / 2:g}" text-anchor="middle">no values in this span</text>')
    title = _escaped(plot.title)
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
        f'<text class="title" x="{_LEFT}" y="20">{title}</text>',
    ]
    return "\n".join([*head, *body, "</svg>", ""])


def _is_number(value: float | None) -> bool:
    return value is not None and abs(value) < _MOST


def _grid_range(values: Sequence[float], low: float | None, high: float | None) -> tuple[float, float, float]:
    """Bottom, top and step of the grid: round numbers that hold every value."""
    least = min(values, default=0.0) if low is None else min(low, min(values, default=low))
    most = max([*values, high] if high is not None else values, default=1.0)
    if most - least <= max(1e-12, abs(least) * 1e-9):
        most = least + (abs(least) * 0.1 if abs(least) > _LEAST else 1.0)
    raw = (most - least) / _TICKS_Y
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    bottom = math.floor(least / step + 1e-9) * step
    top = math.ceil(most / step - 1e-9) * step
    return bottom, max(top, bottom + step), step


def _horizontal_grid(low: float, high: float, step: float) -> Iterable[str]:
    """Lines across the page at round values, with what they are."""
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        y = _y(value, low, high)
        kind = "grid" if value > low else "axis"
        yield f'<line class="{kind}" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{_LEFT - 8}" y="{float(y) + 4:g}" text-anchor="end">{_grid_number(value, low, high)}</text>'


def _grid_number(value: float, low: float, high: float) -> str:
    return f"{value:,.0f}" if max(abs(low), abs(high)) >= 10_000 else f"{value:.6g}"


def _columns(plot: Plot) -> Iterable[str]:
    span = plot.until - plot.since
    step = next(
        (number for number in _STEPS_S if span / number <= _TICKS_X), math.ceil(span / _TICKS_X / _DAY_S) * _DAY_S
    )
    offset = time.localtime(plot.since).tm_gmtoff or 0
    at = math.ceil((plot.since + offset) / step) * step - offset
    while at <= plot.until:
        x = _x(plot, at)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'
        label = scale_time(at, span, step)
        middle = min(float(x), WIDTH - 4 - len(label) * _LABEL_PX / 2)
        yield f'<text x="{middle:g}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{label}</text>'
        at += step


def _marks(plot: Plot) -> Iterable[str]:
    """Lines where something happened, bands where it lasted, and as many labels as fit beside each other."""
    free = [-1.0, -1.0]
    bottom = HEIGHT - _BOTTOM
    for mark in sorted(plot.markers, key=lambda marker: marker.at):
        if mark.at > plot.until or (mark.ended if mark.ended is not None else mark.at) < plot.since:
            continue
        begin = float(_x(plot, max(mark.at, plot.since)))
        kind = mark.kind if mark.kind in ("critical", "warning", "notice", "apply") else "notice"
        if mark.ended is not None and mark.ended > mark.at:
            end = float(_x(plot, min(mark.ended, plot.until)))
            yield (
                f'<rect class="band {kind}" x="{begin:g}" y="{_TOP}" width="{max(1.0, end - begin):.2f}"'
                f' height="{bottom - _TOP}"/>'
            )
        words = shortened(mark.label, _LONGEST_LABEL)
        tip = f"<title>{_escaped(mark.label)}, {clock(mark.at)}</title>"
        if mark.at >= plot.since:
            x = f'x1="{begin:g}" x2="{begin:g}"'
            yield f'<line class="mark {kind}" {x} y1="{_TOP}" y2="{bottom}">{tip}</line>'
        width = len(words) * _LABEL_PX
        left = min(begin + 3, WIDTH - _RIGHT - width)
        row = next((row for row, taken in enumerate(free) if left >= taken), None)
        if row is not None:
            free[row] = left + width + 8
            y = _TOP - 6 - 12 * row
            yield f'<text class="label {kind}" x="{left:.1f}" y="{y}">{_escaped(words)}</text>'


def _lines(plot: Plot, points: Iterable[tuple[float, float | None]], low: float, high: float) -> Iterable[str]:
    """One line for each run of values without a gap; a lone value is a dot."""
    runs: list[list[tuple[float, float]]] = [[]]
    for at, value in sorted(points, key=lambda pair: pair[0]):
        if value is None:
            runs.append([])
        elif plot.since <= at <= plot.until:
            runs[-1].append((at, value))
    for run in runs:
        if len(run) == 1:
            yield f'<circle class="dot" cx="{_x(plot, run[0][0])}" cy="{_y(run[0][1], low, high)}" r="1.8"/>'
        elif run:
            places = [f"{_x(plot, at)} {_y(value, low, high)}" for at, value in _thinned(run)]
            yield f'<path class="line" d="M{" L".join(places)}"/>'


def _thinned(run: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without the middle of three equal values in a row."""
    kept = [run[0]]
    kept += [two for two, three in pairwise(run[1:]) if not kept[-1][1] == two[1] == three[1]]
    return [*kept, run[-1]]


def _x(plot: Plot, at: float) -> str:
    width = WIDTH - _LEFT - _RIGHT
    return f"{_LEFT + width * (at - plot.since) / max(1e-9, plot.until - plot.since):.2f}"


def _y(value: float, low: float, high: float) -> str:
    height = HEIGHT - _TOP - _BOTTOM
    return f"{_TOP + height * (1 - (value - low) / (high - low)):.2f}"


def _escaped(text: str) -> str:
    """As text of an element or value of an attribute, without what XML forbids."""
    return escape(_NOT_XML.sub("", text), {'"': "&quot;"})
