"""One apply, from the last look at it to its end: what changes, each step as it goes, and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.screen import ModalScreen

from specdash.core.applies import STEPS, Outcome, Progress, Step, StepState
from specdash.core.findings import Severity
from specdash.tui.formatting import bar, clean, percent, seconds
from specdash.tui.spans import BLANK, Line, Span, wrap
from specdash.tui.widgets.panel import LinesWidget
from specdash.tui.widgets.tune import NOT_SET, REMOVED, finding_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from specdash.control.apply import ApplyPlan
    from specdash.control.console import Running
    from specdash.core.applies import ApplyRecord
    from specdash.core.changes import KeyChange
    from specdash.tui.spans import Glyphs
    from specdash.tui.themes import Palette

_REFRESH_S = 0.1
_KEY = 34
_BAR = 20
_STATES: dict[StepState, tuple[str, str]] = {
    StepState.RUNNING: ("..", "accent bold"),
    StepState.DONE: ("ok", "good"),
    StepState.SKIPPED: ("--", "dim"),
    StepState.FAILED: ("!!", "bad bold"),
}
_WORDS: dict[Step, str] = {
    Step.LOCK: "nobody else applies",
    Step.PREFLIGHT: "checks",
    Step.BACKUP: "the present settings are kept",
    Step.HOLD: "new requests wait in the proxy",
    Step.DRAIN: "running requests end",
    Step.WRITE: "settings are written",
    Step.RESTART: "the service takes them",
    Step.HEALTH: "it answers again",
    Step.SPECULATION: "it speculates as wanted",
    Step.PROBE: "it generates",
    Step.RESUME: "waiting requests go on",
    Step.REQUEST: "the proxy gets an answer",
    Step.SETTLE: "it goes on serving",
    Step.RECORD: "the apply is recorded",
    Step.ROLLBACK: "everything goes back",
}
_ENDS: dict[Outcome, tuple[str, str]] = {
    Outcome.APPLIED: ("APPLIED", "good"),
    Outcome.ROLLED_BACK: ("ROLLED BACK: everything is as it was before", "warn"),
    Outcome.ROLLBACK_FAILED: ("ROLLBACK FAILED: a person is needed", "bad"),
    Outcome.REFUSED: ("REFUSED: nothing was touched", "warn"),
}


class ApplyPage(LinesWidget):
    """The page's text."""

    def __init__(self, screen: ApplyScreen) -> None:
        super().__init__(id="apply-page")
        self._screen = screen

    def redraw(self) -> None:
        """Lay out for the present size and moment."""
        width, height = self.size
        self.set_lines(self._screen.lines(width, height))


class ApplyScreen(ModalScreen[None]):
    """Enter begins, escape leaves before the beginning and after the end, c cancels and rolls back.

    `start` begins the apply; `done` hears how it ended, None when it never began or failed before it could be recorded.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "begin", "Apply", show=False),
        Binding("escape,q", "leave", "Close", show=False),
        Binding("c", "cancel", "Cancel", show=False),
    ]
    CSS = "ApplyScreen { background: $background; } #apply-page { width: 1fr; height: 1fr; margin: 1 2; }"

    def __init__(
        self,
        palette: Palette,
        glyphs: Glyphs,
        title: str,
        plan: ApplyPlan | None,
        start: Callable[[], Running],
        done: Callable[[ApplyRecord | None], None],
    ) -> None:
        super().__init__()
        self.running: Running | None = None
        self._title = title
        self._plan = plan
        self._start = start
        self._done = done
        self._cancelled: bool | None = None
        """What became of the wish to cancel; None: there was none."""
        self._told = False
        self.page = ApplyPage(self)
        self.page.palette, self.page.glyphs = palette, glyphs

    def compose(self) -> ComposeResult:
        """One page."""
        yield self.page

    def on_mount(self) -> None:
        """The page follows the steps."""
        self.set_interval(_REFRESH_S, self._follow)

    @property
    def busy(self) -> bool:
        """Whether the apply runs now."""
        return self.running is not None and self.running.busy

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
        if not self.running.busy and not self._told:
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
        lines += step_lines(reports, width, ascii_only=self.page.glyphs.ascii_only)
        if not running.busy:
            lines += end_lines(running.record, str(running.error) if running.error else None, width)
        return lines[:height]

    def _hint(self) -> str:
        if self.running is None:
            refused = self._plan is not None and self._plan.refused
            return "refused; esc goes back" if refused else "enter applies, esc goes back"
        if self.busy:
            if self._cancelled is None:
                return "c cancels and rolls back"
            return "cancelling: everything goes back" if self._cancelled else "it goes on to its end"
        return "esc closes"

    def _before(self, width: int, height: int) -> list[Line]:
        if self._plan is None:
            return []
        lines: list[Line] = []
        for edit in self._plan.edits:
            how = "restarts" if edit.needs_restart else "takes over while it runs"
            lines.append(((f"  {edit.service.name} ", "text bold"), (f"{how}; {edit.service.env_file}", "dim")))
        said = [one for one in self._plan.findings if one.severity is not Severity.INFO]
        if said:
            lines += [BLANK, *finding_lines(said, width, max(height - len(lines) - 1, 1), self.page.glyphs.alert)]
        return lines


def change_lines(changes: Iterable[KeyChange], width: int) -> list[Line]:
    """`KEY  now → wanted`, secrets masked."""
    lines: list[Line] = []
    for one in changes:
        before, after = one.shown
        old = NOT_SET if before is None else clean(before, 200) or "''"
        new = REMOVED if after is None else clean(after, 200) or "''"
        rest = max(width - _KEY - len(old) - 6, 8)
        lines.append(
            (
                (f"  {one.key:<{_KEY}}", "text"),
                (old, "dim"),
                (" → ", "accent"),
                (new if len(new) <= rest else new[: rest - 1] + "…", "warn bold"),
            )
        )
    return lines


def latest(reports: Sequence[Progress]) -> list[Progress]:
    """The last report of each step, in the order in which the steps began; those to come are not there."""
    last = {report.step: report for report in reports}
    order = [step for step in (*STEPS, Step.ROLLBACK) if step in last]
    return [last[step] for step in order]


def step_lines(reports: Sequence[Progress], width: int, *, ascii_only: bool) -> list[Line]:
    """A line a step: its state, what it is about, its time, and what it does at the moment."""
    lines: list[Line] = []
    for one in reports:
        sign, role = _STATES[one.state]
        spans: list[Span] = [
            (f"  {sign} ", role),
            (f"{one.step:<12}", "text bold" if one.state is StepState.RUNNING else "text"),
            (f"{_WORDS[one.step]:<32}", "dim"),
            (f"{seconds(one.seconds) if one.state is not StepState.SKIPPED else '':>7}  ", "text"),
        ]
        if one.fraction is not None and one.state is StepState.RUNNING:
            filled, rest = bar(one.fraction, _BAR, ascii_only=ascii_only)
            spans += [(filled + rest, "accent track"), (f" {percent(one.fraction)} ", "text")]
        spans.append((clean(one.detail, max(width - 60, 20)), "bad" if one.state is StepState.FAILED else "dim"))
        lines.append(tuple(spans))
    return lines


def end_lines(record: ApplyRecord | None, error: str | None, width: int) -> list[Line]:
    """How it ended: the outcome, the step and the reason, and the log lines that show why."""
    if record is None:
        told = error or "it ended without a record"
        return [BLANK, *[((f" {part}", "banner.bad"),) for part in wrap(clean(told, 600), width - 2, 4)]]
    words, role = _ENDS[record.outcome]
    if record.outcome is Outcome.APPLIED and record.downtime_s is not None:
        words += f"; the backend did not answer for {seconds(record.downtime_s)}"
    lines: list[Line] = [BLANK, ((f" {words} ", f"banner.{role}"),)]
    if record.reason:
        failed = f"{record.failed_step}: " if record.failed_step else ""
        lines += [((f"  {part}", "bad"),) for part in wrap(clean(failed + record.reason, 600), width - 3, 4)]
    lines += [((f"  {clean(line, width - 3)}", "dim"),) for line in record.log_lines[-8:]]
    lines += [((f"  {clean(line, width - 3)}", "warn"),) for line in record.warnings[:4]]
    return lines
