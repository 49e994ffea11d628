"""Speed by boot, with the start as a line: one column a boot, its interval upright, failures at the bottom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.tui.formatting import fit, rate
from specdash.tui.tuner_model import chosen_point, guessed_speed, start_speed
from specdash.tui.widgets.panel import TitledPanel, message
from specdash.tui.widgets.tuner_bar import gain_role
from specdash.tune.objective import unit_of
from specdash.tune.status import excluded_points

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.tui.spans import Line, Span
    from specdash.tui.tuner_model import TunerModel
    from specdash.tui.view import View
    from specdash.tune.gains import Gain
    from specdash.tune.status import Run

CHART = "tuner-chart"
_SCALE = 7
_LEAST_SPAN = 0.04
"""Of the speed: what differs by less is drawn as nearly alike as it is."""
_SLOWEST = 0.85
"""Of the start's speed: what is slower stands at the bottom with a sign of its own."""
_REACH = 0.5
"""Of how far the speeds lie apart: so far beyond them intervals are drawn."""
_MOST_CELLS = 8
"""Of one boot."""


@dataclass(frozen=True, slots=True)
class Dot:
    """One boot in the chart; `speed` None is a failure."""

    number: int
    speed: float | None
    low: float | None
    high: float | None
    is_start: bool
    role: str
    is_chosen: bool = False
    is_out: bool = False
    """Whether a limit rules its point out."""


class SpeedChart(TitledPanel):
    """The boots from the first to the last."""

    def __init__(self, model: TunerModel) -> None:
        super().__init__("Speed by boot", id=CHART)
        self.model = model

    def key_figure(self, view: View) -> Line:
        """The unit."""
        del view
        run = self.model.run
        return ((unit_of(run.plan.objective) if run is not None else "tok/s", "dim"),)

    def aside(self, view: View) -> Line:
        """What the signs mean."""
        run, signs = self.model.run, _signs(ascii_only=view.glyphs.ascii_only)
        if run is None or not run.boots:
            return ()
        legend: list[Span] = [(signs.start, "accent"), (" start  ", "dim"), (signs.tried, "text"), (" tried", "dim")]
        if any(one.excluded for one in run.boots):
            legend += [("  ", "dim"), (signs.out, "warn"), (" out by a limit", "dim")]
        if any(one.result.failure and not one.excluded for one in run.boots):
            legend += [("  ", "dim"), (signs.failed, "bad"), (" failed", "dim")]
        if guessed_speed(run) is not None:
            legend += [("  ", "dim"), (signs.guess, "gain"), (" best guess", "dim")]
        elif chosen_point(run) is not None:
            legend += [("  ", "dim"), (signs.guess, "good"), (" chosen", "dim")]
        return tuple(legend)

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The chart, or why there is none."""
        run = self.model.run
        if run is None or not run.boots:
            return message("no boot has ended yet", height)
        return chart_lines(run, self.model.gains, width, height, ascii_only=view.glyphs.ascii_only)


@dataclass(frozen=True, slots=True)
class _Signs:
    start: str
    tried: str
    failed: str
    below: str
    out: str
    guess: str
    bar: str
    line: str


_UNICODE = _Signs("◇", "●", "✖", "▼", "⊘", "◆", "│", "╌")
_ASCII = _Signs("=", "o", "x", "v", "%", "*", "|", "-")


def _signs(*, ascii_only: bool) -> _Signs:
    return _ASCII if ascii_only else _UNICODE


def dots_of(run: Run, gains: Mapping[int, Gain]) -> list[Dot]:
    """The boots, with their intervals as speeds where the start's is known."""
    start, chosen, out = start_speed(run), chosen_point(run), excluded_points(run.boots)
    dots = []
    for one in run.boots:
        is_start = one.result.point == run.plan.start
        is_out = one.result.point in out
        gain, failed = gains.get(one.number), bool(one.result.failure) and not is_out
        low = start * (1 + gain.low) if gain is not None and start and gain.low is not None else None
        high = start * (1 + gain.high) if gain is not None and start and gain.high is not None else None
        role = "bad" if failed else "accent" if is_start else gain_role(gain.low, gain.high) if gain else "text"
        is_chosen = one.result.point == chosen
        role = "good" if is_chosen else "warn" if is_out else role
        dots.append(Dot(one.number, None if failed else one.speed, low, high, is_start, role, is_chosen, is_out))
    return dots


def chart_lines(run: Run, gains: Mapping[int, Gain], width: int, height: int, *, ascii_only: bool) -> list[Line]:
    """`height` lines: the plot, and below it the boots' numbers."""
    rows = height - 1
    dots, start, signs = dots_of(run, gains), start_speed(run), _signs(ascii_only=ascii_only)
    guess = guessed_speed(run)
    speeds = [value for value in (*(dot.speed for dot in dots), start, guess) if value is not None]
    room = width - _SCALE
    if rows < 2 or room < 10:
        return []
    if not speeds:
        return message(f"no boot has measured a speed yet: {len(dots)} failed", height, "warn")
    low, high = _scale(speeds, [end for dot in dots for end in (dot.low, dot.high) if end is not None], start)
    columns = max(len(dots) + (guess is not None), run.plan.budget.restarts)
    cells = max(min(room // columns, _MOST_CELLS), 1)
    dots = dots[-(room // cells) :]
    grid: list[list[Span]] = [[(" ", "faint")] * room for _ in range(rows)]

    def row_of(speed: float) -> int:
        return rows - 1 - round((min(max(speed, low), high) - low) / (high - low) * (rows - 1))

    if start is not None:
        grid[row_of(start)] = [(signs.line, "accent")] * room
    for index, dot in enumerate(dots):
        x = index * cells + cells // 2
        below = dot.speed is not None and dot.speed < low
        if dot.low is not None and dot.high is not None and not below:
            for y in range(row_of(dot.high), row_of(dot.low) + 1):
                grid[y][x] = (signs.bar, dot.role)
        sign = _sign(dot, signs, below=below)
        grid[rows - 1 if dot.speed is None else row_of(dot.speed)][x] = (sign, f"{dot.role} bold")
    x = len(dots) * cells + cells // 2
    if guess is not None and x < room:
        grid[row_of(guess)][x] = (signs.guess, "gain bold")
    labels = {rows - 1: rate(low), 0: rate(high)}
    lines: list[Line] = []
    for y, row in enumerate(grid):
        is_start = start is not None and y == row_of(start)
        text = rate(start) if is_start else labels.get(y, "")
        lines.append(((fit(text, _SCALE - 1, right=True) + " ", "accent" if is_start else "dim"), *_joined(row)))
    return [*lines, _numbers(dots, cells, room)]


def _sign(dot: Dot, signs: _Signs, *, below: bool) -> str:
    if dot.speed is None:
        return signs.failed
    if below:
        return signs.below
    if dot.is_out:
        return signs.out
    if dot.is_chosen:
        return signs.guess
    return signs.start if dot.is_start else signs.tried


def _scale(speeds: list[float], ends: list[float], start: float | None) -> tuple[float, float]:
    """From a little below the lowest to a little above the highest; what is far slower than the start, as no drafts
    often are, shall not press the rest together, nor shall the ends of intervals that hardly bound anything."""
    apart = _REACH * max(max(speeds) - min(speeds), _LEAST_SPAN * max(speeds))
    low = min([*speeds, *(max(one, min(speeds) - apart) for one in ends)])
    high = max([*speeds, *(min(one, max(speeds) + apart) for one in ends)])
    low = max(low, start * _SLOWEST) if start is not None else low
    span = max(high - low, _LEAST_SPAN * high, 1e-6)
    middle = (low + high) / 2
    return max(middle - span * 0.55, 0.0), middle + span * 0.55


def _numbers(dots: list[Dot], cells: int, room: int) -> Line:
    """The boots' numbers below them, those that have room."""
    spans: list[Span] = [(" " * _SCALE, "dim")]
    free = 0
    for index, dot in enumerate(dots):
        name = str(dot.number)
        x = index * cells + cells // 2 - (len(name) - 1) // 2
        if x >= free + (index > 0) and x + len(name) <= room:
            spans += [(" " * (x - free), "dim"), (name, "dim")]
            free = x + len(name)
    return tuple(spans)


def _joined(row: list[Span]) -> Line:
    spans: list[Span] = []
    for char, role in row:
        if spans and spans[-1][1] == role:
            spans[-1] = (spans[-1][0] + char, role)
        else:
            spans.append((char, role))
    return tuple(spans)
