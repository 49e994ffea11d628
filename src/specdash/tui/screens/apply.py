"""One apply, from the last look at it to its end: what changes, each step as it goes, and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from specdash.core.changes import STEPS, ApplyOutcome, ApplyProgress, ApplyStep, StepState
from specdash.core.errors import Severity
from specdash.system.text import clean, percent, seconds, shortened
from specdash.tui.action_table import page_bindings
from specdash.tui.screens.modal import CLOSING, PageScreen
from specdash.tui.spans import BLANK, GLYPHS, Line, Span, bar, wrap
from specdash.tui.widgets.tuner.tune import NOT_SET, REMOVED, finding_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from textual.binding import BindingType

    from specdash.control.console import RunningApply
    from specdash.control.plan import ApplyPlan
    from specdash.core.changes import ApplyRecord, Change
    from specdash.tui.app import Dashboard

_REFRESH_S = 0.1
_KEY = 34
_BAR = 20
_BEFORE_DETAIL = 58
"""Columns of a step's sign, name, words and time."""
_STATES: dict[StepState, tuple[str, str]] = {
    StepState.RUNNING: ("..", "accent bold"),
    StepState.DONE: ("ok", "good"),
    StepState.SKIPPED: ("--", "dim"),
    StepState.FAILED: ("!!", "bad bold"),
}
_WORDS: dict[ApplyStep, str] = {
    ApplyStep.LOCK: "no other apply is running",
    ApplyStep.PREFLIGHT: "checks",
    ApplyStep.BACKUP: "the present settings are kept",
    ApplyStep.HOLD: "new requests wait in the proxy",
    ApplyStep.DRAIN: "running requests end",
    ApplyStep.WRITE: "settings are written",
    ApplyStep.RESTART: "the service takes them",
    ApplyStep.HEALTH: "it answers again",
    ApplyStep.SPECULATION: "it speculates as wanted",
    ApplyStep.PROBE: "it generates",
    ApplyStep.RESUME: "waiting requests go on",
    ApplyStep.REQUEST: "the proxy gets an answer",
    ApplyStep.SETTLE: "it goes on serving",
    ApplyStep.RECORD: "the apply is recorded",
    ApplyStep.ROLLBACK: "everything goes back",
}
_ENDS: dict[ApplyOutcome, tuple[str, str]] = {
    ApplyOutcome.APPLIED: ("APPLIED", "good"),
    ApplyOutcome.ROLLED_BACK: ("ROLLED BACK: everything is as it was before", "warn"),
    ApplyOutcome.ROLLBACK_FAILED: ("ROLLBACK FAILED: repair it by hand", "bad"),
    ApplyOutcome.REFUSED: ("REFUSED: nothing was touched", "warn"),
}


class ApplyScreen(PageScreen[None]):
    """Enter begins, escape leaves before the beginning and after the end, that of ending it rolls back.

    `start` begins the apply; `done` hears how it ended, None when it never began or failed before it could be recorded.
    """

    BINDINGS: ClassVar[list[BindingType]] = page_bindings({"open": "begin", "stop": "cancel"} | CLOSING)

    def __init__(
        self,
        dashboard: Dashboard,
        title: str,
        plan: ApplyPlan | None,
        start: Callable[[], RunningApply],
        done: Callable[[ApplyRecord | None], None],
    ) -> None:
        super().__init__(dashboard)
        self.running: RunningApply | None = None
        self._title = title
        self._plan = plan
        self._start = start
        self._done = done
        self._cancelled: bool | None = None
        """What became of the wish to cancel; None: there was none."""
        self._told = False

    def on_mount(self) -> None:
        """The page follows the steps."""
        self.set_interval(_REFRESH_S, self._follow)

    @property
    def busy(self) -> bool:
        """Whether the apply runs now."""
        return self.running is not None and self.running.is_alive()

    def action_begin(self) -> None:
        """Begin, once."""
        if self.running is None and not (self._plan is not None and self._plan.refused):
            self.running = self._start()
            self.page.redraw()

    def action_cancel(self) -> None:
        """Roll back and end."""
        if self.busy and self.running is not None and self._cancelled is None:
            self._cancelled = self.running.cancel()

    def action_leave(self) -> None:
        """Close, unless it runs: what runs has to be seen to its end."""
        if not self.busy:
            self.dismiss(None)

    def _follow(self) -> None:
        if self.running is None:
            return
        self.page.redraw()
        if not self.running.is_alive() and not self._told:
            self._told = True
            self._done(self.running.record)

    def lines(self, width: int, height: int) -> list[Line]:
        """The whole page."""
        lines: list[Line] = [((self._title, "accent bold"), ("  " + self._hint(), "dim")), BLANK]
        if self._plan is not None:
            lines += change_lines(self._plan.changes, width)
        lines.append(BLANK)
        running = self.running
        if running is None:
            return lines + self._before(width, height - len(lines))
        reports = latest(list(running.reports))
        lines += step_lines(reports, width)
        if not running.is_alive():
            lines += end_lines(running.record, str(running.error) if running.error else None, width)
        return lines[:height]

    def _hint(self) -> str:
        back = self.keys["back"]
        if self.running is None:
            refused = self._plan is not None and self._plan.refused
            return f"refused; {back} goes back" if refused else f"{self.keys['open']} applies, {back} goes back"
        if self.busy:
            if self._cancelled is None:
                return f"{self.keys['stop']} cancels and rolls back"
            return (
                "cancelling: everything is rolled back" if self._cancelled else "too late to cancel: it runs to its end"
            )
        return f"{back} closes"

    def _before(self, width: int, height: int) -> list[Line]:
        if self._plan is None:
            return []
        lines: list[Line] = []
        for edit in self._plan.edits:
            how = "restarts" if edit.needs_restart else "takes over while it runs"
            lines.append(((f"  {edit.role} ", "text bold"), (f"{how}; {edit.env_file}", "dim")))
        findings = [finding for finding in self._plan.findings if finding.severity is not Severity.INFO]
        if findings:
            lines += [BLANK, *finding_lines(findings, width, max(height - len(lines) - 1, 1), GLYPHS.alert)]
        return lines


def change_lines(changes: Iterable[Change], width: int) -> list[Line]:
    """`KEY  now → wanted`, secrets masked."""
    lines: list[Line] = []
    for change in (each.masked for each in changes):
        old = NOT_SET if change.before is None else clean(change.before, 200) or "''"
        new = REMOVED if change.after is None else clean(change.after, 200) or "''"
        rest = max(width - _KEY - len(old) - 6, 8)
        lines.append(
            (
                (f"  {change.key:<{_KEY}}", "text"),
                (old, "dim"),
                (" → ", "accent"),
                (shortened(new, rest), "warn bold"),
            )
        )
    return lines


def latest(reports: Sequence[ApplyProgress]) -> list[ApplyProgress]:
    """The last report of each step, in the order in which the steps began; those to come are not there."""
    last = {report.step: report for report in reports}
    order = [step for step in (*STEPS, ApplyStep.ROLLBACK) if step in last]
    return [last[step] for step in order]


def step_lines(reports: Sequence[ApplyProgress], width: int) -> list[Line]:
    """A line a step: its state, what it is about, its time, and what it does at the moment; below it where that has no
    room."""
    lines: list[Line] = []
    for report in reports:
        sign, role = _STATES[report.state]
        spans: list[Span] = [
            (f"  {sign} ", role),
            (f"{report.step:<12}", "text bold" if report.state is StepState.RUNNING else "text"),
            (f"{_WORDS[report.step]:<32}", "dim"),
            (f"{seconds(report.seconds) if report.state is not StepState.SKIPPED else '':>7}  ", "text"),
        ]
        running = report.state is StepState.RUNNING
        room = max(width - _BEFORE_DETAIL, 0)
        if report.fraction is not None and running:
            length = max(min(_BAR, room - 6), 4)
            filled, rest = bar(report.fraction, length)
            spans += [(filled + rest, "accent track"), (f" {percent(report.fraction)} ", "text")]
            room -= length + 6
        detail, role = clean(report.detail, 400), "bad" if report.state is StepState.FAILED else "dim"
        if running and len(detail) > room:
            # What it waits for, and until when at most, must be readable on 80 columns.
            lines += [tuple(spans), ((f"     {shortened(detail, width - 6)}", "text"),)]
            continue
        spans.append((shortened(detail, max(room, 1)), role))
        lines.append(tuple(spans))
    return lines


def end_lines(record: ApplyRecord | None, error: str | None, width: int) -> list[Line]:
    """How it ended: the outcome, the step and the reason, and the log lines that show why."""
    if record is None:
        reason = error or "it ended and left no record"
        return [BLANK, *[((f" {part}", "banner.bad"),) for part in wrap(clean(reason, 600), width - 2, 4)]]
    words, role = _ENDS[record.outcome]
    if record.outcome is ApplyOutcome.APPLIED and record.downtime_s is not None:
        words += f"; the backend did not answer for {seconds(record.downtime_s)}"
    lines: list[Line] = [BLANK, ((f" {words} ", f"banner.{role}"),)]
    if record.reason:
        failed = f"{record.failed_step}: " if record.failed_step else ""
        lines += [((f"  {part}", "bad"),) for part in wrap(clean(failed + record.reason, 600), width - 3, 4)]
    lines += [((f"  {clean(line, width - 3)}", "dim"),) for line in record.log_lines[-8:]]
    lines += [((f"  {clean(line, width - 3)}", "warn"),) for line in record.warnings[:4]]
    return lines
