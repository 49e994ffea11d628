"""The boots of a run, one row each, and everything about the selected one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.core.change_words import change_words
from specdash.tui.formatting import UNKNOWN, clean, clock, count, duration, fit, percent, rate, seconds
from specdash.tui.tuner_model import chosen_point, class_speeds
from specdash.tui.widgets.part import TextPart
from specdash.tui.widgets.rows import RowsPanel
from specdash.tui.widgets.table import Column, table
from specdash.tui.widgets.tuner_bar import gain_role, gain_words, labelled, point_words
from specdash.tui.widgets.tuner_plan import settings_words
from specdash.tune.objective import unit_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual import events

    from specdash.tui.spans import Line, Span
    from specdash.tui.tuner_model import ClassSpeed, TunerModel
    from specdash.tui.view import View
    from specdash.tune.problem import Point, Stage
    from specdash.tune.status import Boot, Now, Run

BOOTS, DETAIL = "tuner-boots", "tuner-detail"


@dataclass(frozen=True, slots=True)
class BootRow:
    """One boot, ended or going on; of the latter `boot` is None."""

    number: int
    stage: Stage | None
    point: Point | None
    boot: Boot | None = None
    now: Now | None = None


def boot_rows(run: Run | None) -> list[BootRow]:
    """The newest first."""
    if run is None:
        return []
    rows = [BootRow(one.number, one.stage, one.result.point, one) for one in reversed(run.boots)]
    now = run.now
    if now is not None and now.number is not None and all(row.number != now.number for row in rows):
        rows.insert(0, BootRow(now.number, now.stage, now.point, now=now))
    return rows


class BootsTable(RowsPanel[BootRow]):
    """Number, stage, point, speed, gain over the start or why it failed."""

    def __init__(self, model: TunerModel) -> None:
        super().__init__("Boots", id=BOOTS)
        self.model = model
        self.follow: Callable[[], None] = lambda: None
        """Told that another row was selected."""

    def move(self, lines: int) -> None:
        """Select another row."""
        super().move(lines)
        self.follow()

    def on_click(self, event: events.Click) -> None:
        """Select the row."""
        super().on_click(event)
        self.follow()

    def key_figure(self, view: View) -> Line:
        """How many there were, and how many failed."""
        del view
        run = self.model.run
        if run is None:
            return ()
        failed = sum(bool(one.result.failure) for one in run.boots)
        spans: list[Span] = [(f"{count(run.restarts)} of {count(run.plan.budget.restarts)}", "text bold")]
        return (*spans, (f"  {count(failed)} failed", "warn")) if failed else tuple(spans)

    def aside(self, view: View) -> Line:
        """Whether this run was taken up again."""
        del view
        run = self.model.run
        if run is None:
            return ()
        again = "taken up again, " if run.heads > 1 else ""
        return ((f"{again}{clean(run.head.command, 40)}, pid {run.head.pid}", "dim"),)

    def rows(self, view: View) -> Sequence[BootRow]:
        """The newest first."""
        del view
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
        del view
        return "no boot has begun yet"

    def columns(self, view: View) -> Sequence[Column[BootRow]]:
        """What stands in each."""
        del view
        run, wide = self.model.run, self.size.width >= 100
        return (
            Column("#", 3, lambda row: (str(row.number), "dim")),
            Column("stage", 9, lambda row: (str(row.stage or UNKNOWN), "dim"), rank=2, right=False),
            Column("point", 32 if wide else 22, self._point, right=False),
            Column(unit_of(run.plan.objective) if run is not None else "tok/s", 6, _speed, right=True),
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
            return (f"failed: {clean(boot.result.failure, 200)}", "bad")
        if run is not None and row.point == run.plan.start:
            return ("the start itself", "dim")
        gain = self.model.gains.get(boot.number)
        if gain is None:
            return (UNKNOWN, "dim")
        return (gain_words(gain.gain, gain.low, gain.high), gain_role(gain.low, gain.high))


def _speed(row: BootRow) -> Span:
    return (rate(row.boot.speed) if row.boot is not None else "", "text")


def _took(row: BootRow) -> Span:
    return (duration(row.boot.seconds) if row.boot is not None else "", "dim")


class DetailPanel(TextPart):
    """Why the selected boot was made, with what, and what each class of prompts did."""

    def __init__(self, model: TunerModel, boots: BootsTable) -> None:
        super().__init__("Boot", id=DETAIL)
        self.model = model
        self._boots = boots

    def key_figure(self, view: View) -> Line:
        """Which boot."""
        del view
        row = self._boots.selected
        if row is None:
            return ()
        return ((f"{row.number}  ", "dim"), (point_words(row.point), "text bold"))

    def content(self, view: View, width: int, height: int) -> list[Line]:
        """Reason, settings, failure, classes."""
        del view, height
        row, run = self._boots.selected, self.model.run
        if row is None or run is None:
            return [(("  no boot has begun yet", "dim"),)]
        if row.boot is None:
            lines = labelled("why", clean(row.now.why, 400) if row.now is not None else UNKNOWN, "text", width, 4)
            return lines + self._earlier(run, row.point, width)
        return boot_lines(run, row.boot, width)

    def _earlier(self, run: Run, point: Point | None, width: int) -> list[Line]:
        """What other boots of this point measured."""
        same = [one for one in run.boots if one.result.point == point]
        lines: list[Line] = []
        for index, one in enumerate(same):
            gain = self.model.gains.get(one.number)
            told = gain_words(gain.gain, gain.low, gain.high) if gain is not None else one.result.failure or "the start"
            text = f"boot {one.number}: {rate(one.speed)} tok/s, {clean(told, 200)}"
            lines += labelled("earlier" if index == 0 else "", text, "text", width, 1)
        return lines


def boot_lines(run: Run, boot: Boot, width: int) -> list[Line]:
    """All there is to know of a boot that ended."""
    lines = labelled("why", clean(boot.why, 400) or UNKNOWN, "text", width, 3)
    if boot.result.failure:
        lines += labelled("failed", clean(boot.result.failure, 600), "bad", width, 6)
    settings = settings_words(boot.settings, 400) or "the start's"
    lines += labelled("settings", settings, "text", width, 3)
    gone = f", clients waited {seconds(boot.downtime_s)}" if boot.downtime_s is not None else ""
    lines += labelled("took", f"{duration(boot.seconds)}{gone}", "dim", width, 1)
    classes = class_speeds(run, boot)
    if classes:
        lines += [((" ", "text"), *line) for line in table(_CLASS_COLUMNS, classes, width - 1)]
    if boot.result.ttft_s is not None:
        lines += labelled("TTFT", f"{seconds(boot.result.ttft_s)}, median", "dim", width, 1)
    return lines


def _change(row: ClassSpeed) -> Span:
    if row.speed is None or not row.start:
        return (UNKNOWN, "dim")
    return (change_words(row.speed / row.start - 1, 1, " %"), "text")


_CLASS_COLUMNS: tuple[Column[ClassSpeed], ...] = (
    Column("class", 10, lambda row: (fit(clean(row.kind, 30), 10).rstrip(), "text"), right=False),
    Column("speed", 7, lambda row: (rate(row.speed), "text bold")),
    Column("start", 7, lambda row: (rate(row.start), "dim")),
    Column("change", 8, _change),
    Column("accepted", 9, lambda row: (percent(row.acceptance), "text"), rank=1),
)
