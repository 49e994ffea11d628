"""Points of several series over any quantity as SVG files, such as times over lengths of a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.export.plots_svg import HEIGHT, LABEL_PX, STYLE, WIDTH, escaped, grid_number, grid_range

if TYPE_CHECKING:
    from collections.abc import Iterable

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 20, 44, 44
_LONGEST_NAME = 18
_COLOURS = (("#2563eb", "#60a5fa"), ("#b45309", "#fbbf24"), ("#15803d", "#4ade80"), ("#7c3aed", "#c4b5fd"))


def _colours(which: int) -> str:
    return "".join(f".c{number}{{stroke:{one[which]};fill:{one[which]}}}" for number, one in enumerate(_COLOURS))


_OWN_STYLE = (
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
    left, right, step_x = grid_range(across, 0.0, None)
    low, high, step_y = grid_range(values, 0.0, None)

    def place(x: float, y: float) -> tuple[str, str]:
        return (
            f"{_LEFT + (WIDTH - _LEFT - _RIGHT) * (x - left) / (right - left):.2f}",
            f"{_TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - (y - low) / (high - low)):.2f}",
        )

    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escaped(chart.title)}">',
        f"<style>{STYLE}{_OWN_STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
        f'<text class="title" x="{_LEFT}" y="20">{escaped(chart.title)}</text>',
        f'<text x="{_LEFT - 8}" y="{_TOP - 8}" text-anchor="end">{escaped(chart.unit)}</text>',
        f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 10}" text-anchor="end">{escaped(chart.over)}</text>',
    ]
    for value in _steps(low, high, step_y):
        y = place(left, value)[1]
        body.append(
            f'<line class="{"grid" if value > low else "axis"}" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>'
        )
        body.append(f'<text x="{_LEFT - 8}" y="{float(y) + 4:g}" text-anchor="end">{_number(value, high)}</text>')
    for value in _steps(left, right, step_x):
        x = place(value, low)[0]
        body.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>')
        body.append(f'<text x="{x}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{_number(value, right)}</text>')
    at = WIDTH - _RIGHT - sum(map(_key_width, chart.curves))
    for number, curve in enumerate(chart.curves):
        kind = f"c{number % len(_COLOURS)}"
        body.append(_mark(number, at, 16, 4.5))
        body.append(f'<text class="key {kind}" x="{at + 9:g}" y="20">{escaped(_short(curve.name))}</text>')
        at += _key_width(curve)
        places = [place(x, y) for x, y in sorted(curve.points)]
        if len(places) > 1:
            body.append(f'<path class="curve {kind}" d="M{" L".join(f"{x} {y}" for x, y in places)}"/>')
        body += [_mark(number, float(x), float(y), 3) for x, y in places]
    if not values:
        body.append(f'<text x="{WIDTH / 2:g}" y="{HEIGHT / 2:g}" text-anchor="middle">no values</text>')
    return "\n".join([*body, "</svg>", ""])


def _mark(number: int, x: float, y: float, r: float) -> str:
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
    return 9 + LABEL_PX * len(_short(curve.name)) + 22


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _steps(low: float, high: float, step: float) -> Iterable[float]:
    return (low + number * step for number in range(round((high - low) / step) + 1))


def _number(value: float, most: float) -> str:
    return grid_number(value, thousands=most >= 10_000)
