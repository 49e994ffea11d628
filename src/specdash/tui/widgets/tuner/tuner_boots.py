"""The boots of a run, one row each, and everything about the selected one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.system.text import UNKNOWN, change, clean, clock, duration, number, percent, rate, seconds
from specdash.system.text import gain as gain_text
from specdash.tui.spans import fit
from specdash.tui.tuner_model import chosen_point, start_speed
from specdash.tui.widgets.panel import Column, RowsPanel, TextPart, TitledPanel, message, table
from specdash.tui.widgets.tuner.tuner_plan import gain_role, labelled, point_words, settings_words
from specdash.tune.run.status import ClassFigures, by_class, excluded_points

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.tui.spans import Line, Span
    from specdash.tui.tuner_model import TunerModel
    from specdash.tui.view import View
    from specdash.tune.model.gains import Gain
    from specdash.tune.model.problem import Point, Stage
    from specdash.tune.run.status import Boot, CurrentStep, TuneRun


# Speed by boot, with the start as a line: one column a boot, its interval upright, failures at the bottom.

CHART = "tuner-chart"
_SCALE = 7
_WIDE = 100
_LEAST_SPAN = 0.04
"""Of the speed: what differs by less is drawn as nearly alike as it is."""
_SLOWEST = 0.85
"""Of the start's speed: what is slower stands at the bottom with a sign of its own."""
_REACH = 0.5
"""Of how far the speeds lie apart: so far beyond them intervals are drawn."""
_MOST_CELLS = 8
"""Of one boot."""


class BootDot(Struct, frozen=True):
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
        return (("tok/s", "dim"),)

    def aside(self, view: View) -> Line:
        """What the signs mean."""
        run, signs = self.model.run, _SIGNS
        if run is None or not run.boots:
            return ()
        legend: list[Span] = [(signs.start, "accent"), (" start  ", "dim"), (signs.tried, "text"), (" tried", "dim")]
        if any(boot.excluded for boot in run.boots):
            legend += [("  ", "dim"), (signs.out, "warn"), (" out by a limit", "dim")]
        if any(boot.result.failure and not boot.excluded for boot in run.boots):
            legend += [("  ", "dim"), (signs.failed, "bad"), (" failed", "dim")]
        if chosen_point(run) is not None:
            legend += [("  ", "dim"), (signs.chosen, "good"), (" chosen", "dim")]
        return tuple(legend)

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The chart, or why there is none."""
        run = self.model.run
        if run is None or not run.boots:
            return message("no boot has ended yet", width, height)
        return chart_lines(run, self.model.gains, width, height)


class _Signs(Struct, frozen=True):
    start: str
    tried: str
    failed: str
    below: str
    out: str
    chosen: str
    bar: str
    line: str


_SIGNS = _Signs("◇", "●", "✖", "▼", "⊘", "◆", "│", "╌")


def dots_of(run: TuneRun, gains: Mapping[int, Gain]) -> list[BootDot]:
    """The boots, with their intervals as speeds where the start's is known."""
    start, chosen, out = start_speed(run), chosen_point(run), excluded_points(run.boots)
    dots = []
    for boot in run.boots:
        is_start = boot.result.point == run.plan.start
        is_out = boot.result.point in out
        gain, failed = gains.get(boot.number), bool(boot.result.failure) and not is_out
        low = start * (1 + gain.low) if gain is not None and start and gain.low is not None else None
        high = start * (1 + gain.high) if gain is not None and start and gain.high is not None else None
        role = "bad" if failed else "accent" if is_start else gain_role(gain.low, gain.high) if gain else "text"
        is_chosen = boot.result.point == chosen
        role = "good" if is_chosen else "warn" if is_out else role
        dots.append(BootDot(boot.number, None if failed else boot.speed, low, high, is_start, role, is_chosen, is_out))
    return dots


def chart_lines(run: TuneRun, gains: Mapping[int, Gain], width: int, height: int) -> list[Line]:
    """`height` lines: the plot, and below it the boots' numbers."""
    rows = height - 1
    dots, start, signs = dots_of(run, gains), start_speed(run), _SIGNS
    speeds = [value for value in (*(dot.speed for dot in dots), start) if value is not None]
    room = width - _SCALE
    if rows < 2 or room < 10:
        return []
    if not speeds:
        return message(f"no boot has measured a speed yet: {len(dots)} failed", width, height, "warn")
    low, high = _scale(speeds, [end for dot in dots for end in (dot.low, dot.high) if end is not None], start)
    columns = max(len(dots), run.plan.budget.restarts)
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
    labels = {rows - 1: rate(low), 0: rate(high)}
    lines: list[Line] = []
    for y, row in enumerate(grid):
        is_start = start is not None and y == row_of(start)
        text = rate(start) if is_start else labels.get(y, "")
        lines.append(((fit(text, _SCALE - 1, right=True) + " ", "accent" if is_start else "dim"), *_joined(row)))
    return [*lines, _numbers(dots, cells, room)]


def _sign(dot: BootDot, signs: _Signs, *, below: bool) -> str:
    if dot.speed is None:
        return signs.failed
    if below:
        return signs.below
    if dot.is_out:
        return signs.out
    if dot.is_chosen:
        return signs.chosen
    return signs.start if dot.is_start else signs.tried


def _scale(speeds: list[float], ends: list[float], start: float | None) -> tuple[float, float]:
    """From a little below the lowest to a little above the highest; what is far slower than the start, as no drafts
    often are, shall not press the rest together, nor shall the ends of intervals that hardly bound anything."""
    apart = _REACH * max(max(speeds) - min(speeds), _LEAST_SPAN * max(speeds))
    low = min([*speeds, *(max(end, min(speeds) - apart) for end in ends)])
    high = max([*speeds, *(min(end, max(speeds) + apart) for end in ends)])
    low = max(low, start * _SLOWEST) if start is not None else low
    span = max(high - low, _LEAST_SPAN * high, 1e-6)
    middle = (low + high) / 2
    return max(middle - span * 0.55, 0.0), middle + span * 0.55


def _numbers(dots: list[BootDot], cells: int, room: int) -> Line:
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


BOOTS, DETAIL = "tuner-boots", "tuner-detail"


class BootRow(Struct, frozen=True):
    """One boot, ended or going on; of the latter `boot` is None."""

    number: int
    stage: Stage | None
    point: Point | None
    boot: Boot | None = None
    now: CurrentStep | None = None


def boot_rows(run: TuneRun | None) -> list[BootRow]:
    """The newest first."""
    if run is None:
        return []
    rows = [BootRow(boot.number, boot.stage, boot.result.point, boot) for boot in reversed(run.boots)]
    now = run.now
    if now is not None and now.number is not None and all(row.number != now.number for row in rows):
        rows.insert(0, BootRow(now.number, now.stage, now.point, now=now))
    return rows


class BootsTable(RowsPanel[BootRow]):
    """Number, stage, point, speed, gain over the start or why it failed."""

    def __init__(self, model: TunerModel) -> None:
        super().__init__("Boots", id=BOOTS)
        self.model = model

    def key_figure(self, view: View) -> Line:
        """How many there were, and how many failed."""
        run = self.model.run
        if run is None:
            return ()
        failed = sum(bool(boot.result.failure) for boot in run.boots)
        spans: list[Span] = [(f"{number(run.restarts)} of {number(run.plan.budget.restarts)}", "text bold")]
        return (*spans, (f"  {number(failed)} failed", "warn")) if failed else tuple(spans)

    def aside(self, view: View) -> Line:
        """Who does this run."""
        run = self.model.run
        return ((f"{clean(run.head.command, 40)}, pid {run.head.pid}", "dim"),) if run is not None else ()

    def rows(self, view: View) -> Sequence[BootRow]:
        """The newest first."""
        return boot_rows(self.model.run)

    def key(self, row: BootRow) -> str:
        """Its number."""
        return str(row.number)

    def mark(self, row: BootRow) -> str:
        """The start's boots, those of what was chosen and the present one are marked by more than their colour."""
        run = self.model.run
        if row.boot is None:
            return "+"
        if row.point == chosen_point(run):
            return "*"
        return "=" if run is not None and row.point == run.plan.start else " "

    def nothing(self, view: View) -> str:
        """There is none yet."""
        return "no boot has begun yet"

    def columns(self, view: View) -> Sequence[Column[BootRow]]:
        """What stands in each."""
        wide = self.size.width >= _WIDE
        return (
            Column("#", 3, lambda row: (str(row.number), "dim")),
            Column("stage", 9, lambda row: (str(row.stage or UNKNOWN), "dim"), rank=2 if wide else 5, right=False),
            Column("point", 32 if wide else 30, self._point, right=False),
            Column("tok/s", 6, _speed, right=True),
            Column("against the start", 24, self._verdict, right=False, stretch=True),
            Column("took", 6, _took, rank=3),
            Column("at", 8, lambda row: (clock(row.boot.at) if row.boot else "", "dim"), rank=4),
        )

    def _point(self, row: BootRow) -> Span:
        failed = row.boot is not None and row.boot.result.failure
        if row.boot is not None and row.point == chosen_point(self.model.run):
            return (point_words(row.point), "good bold")
        return (point_words(row.point), "bad" if failed else "accent" if row.boot is None else "text")

    def _verdict(self, row: BootRow) -> Span:
        """The gain with its interval; why it failed; what is done now."""
        boot, now, run = row.boot, row.now, self.model.run
        if boot is None:
            done = f" {now.done} of {now.total}" if now is not None and now.done is not None and now.total else ""
            return (f"{now.step}{done}…" if now is not None else UNKNOWN, "accent")
        if boot.excluded:
            return (f"out by a limit: {clean(boot.excluded, 200)}", "warn")
        if boot.result.failure:
            return (f"{'failed: ' if self.size.width >= _WIDE else ''}{clean(boot.result.failure, 200)}", "bad")
        if run is not None and row.point == run.plan.start:
            return ("the start itself", "dim")
        gain = self.model.gains.get(boot.number)
        if gain is None:
            return (UNKNOWN, "dim")
        return (gain_text(gain.gain, gain.low, gain.high), gain_role(gain.low, gain.high))


def _speed(row: BootRow) -> Span:
    return (rate(row.boot.speed) if row.boot is not None else "", "text")


def _took(row: BootRow) -> Span:
    return (duration(row.boot.seconds, short=True) if row.boot is not None else "", "dim")


class DetailPanel(TextPart):
    """Why the selected boot was made, with what, and what each class of prompts did."""

    def __init__(self, model: TunerModel, boots: BootsTable) -> None:
        super().__init__("Boot", id=DETAIL)
        self.model = model
        self._boots = boots

    def key_figure(self, view: View) -> Line:
        """Which boot."""
        row = self._boots.selected
        if row is None:
            return ()
        return ((f"{row.number}  ", "dim"), (point_words(row.point), "text bold"))

    def content(self, view: View, width: int, height: int) -> list[Line]:
        """Reason, settings, failure, classes."""
        row, run = self._boots.selected, self.model.run
        if row is None or run is None:
            return [(("  no boot has begun yet", "dim"),)]
        if row.boot is None:
            lines = labelled("why", clean(row.now.why, 400) if row.now is not None else UNKNOWN, "text", width, 4)
            return lines + self._earlier(run, row.point, width)
        return boot_lines(run, row.boot, width)

    def _earlier(self, run: TuneRun, point: Point | None, width: int) -> list[Line]:
        """What other boots of this point measured."""
        same = [boot for boot in run.boots if boot.result.point == point]
        lines: list[Line] = []
        for index, boot in enumerate(same):
            gain = self.model.gains.get(boot.number)
            outcome = (
                gain_text(gain.gain, gain.low, gain.high) if gain is not None else boot.result.failure or "the start"
            )
            text = f"boot {boot.number}: {rate(boot.speed)} tok/s, {clean(outcome, 200)}"
            lines += labelled("earlier" if index == 0 else "", text, "text", width, 1)
        return lines


def boot_lines(run: TuneRun, boot: Boot, width: int) -> list[Line]:
    """All there is to know of a boot that ended."""
    lines = labelled("why", clean(boot.why, 400) or UNKNOWN, "text", width, 3)
    if boot.result.failure:
        lines += labelled("failed", clean(boot.result.failure, 600), "bad", width, 6)
    settings = settings_words(boot.settings, 400) or "the start's"
    lines += labelled("settings", settings, "text", width, 3)
    gone = f", clients waited {seconds(boot.downtime_s)}" if boot.downtime_s is not None else ""
    lines += labelled("took", f"{duration(boot.seconds, short=True)}{gone}", "dim", width, 1)
    starts = [each.result for each in run.boots if each.result.point == run.plan.start]
    at_start = by_class(prompt for result in starts for prompt in result.prompts)
    rows = [(kind, own, at_start.get(kind)) for kind, own in by_class(boot.result.prompts).items()]
    if rows:
        lines += [((" ", "text"), *line) for line in table(_CLASS_COLUMNS, rows, width - 1)]
    if boot.result.ttft_s is not None:
        lines += labelled("TTFT", f"{seconds(boot.result.ttft_s)}, median", "dim", width, 1)
    return lines


ClassRow = tuple[str, ClassFigures, ClassFigures | None]
"""A class in one boot, and on the start's settings, all its boots together."""


def _change(row: ClassRow) -> Span:
    _, own, start = row
    if own.speed is None or start is None or not start.speed:
        return (UNKNOWN, "dim")
    return (change(own.speed / start.speed - 1), "text")


_CLASS_COLUMNS: tuple[Column[ClassRow], ...] = (
    Column("class", 10, lambda row: (fit(clean(row[0], 30), 10).rstrip(), "text"), right=False),
    Column("speed", 7, lambda row: (rate(row[1].speed), "text bold")),
    Column("start", 7, lambda row: (rate(row[2].speed if row[2] is not None else None), "dim")),
    Column("change", 8, _change),
    Column("accepted", 9, lambda row: (percent(row[1].acceptance), "text"), rank=1),
)
