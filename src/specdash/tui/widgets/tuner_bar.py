"""How the tuner stands, in one bar that is read in two seconds; and what it does now, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.change_words import change_words
from specdash.core.readings import Status
from specdash.tui.formatting import UNKNOWN, bar, clean, clock, count, duration, fit, rate
from specdash.tui.spans import BLANK, Line, Span, line_width, spread, wrap
from specdash.tui.tuner_model import guessed_speed
from specdash.tui.widgets.panel import LinesWidget
from specdash.tune.objective import unit_of
from specdash.tune.status import RunState, Step

if TYPE_CHECKING:
    from specdash.tui.spans import Glyphs
    from specdash.tui.tuner_model import TunerModel
    from specdash.tui.view import View
    from specdash.tune.problem import Point
    from specdash.tune.status import Guess, Now, Run

BAR = "tuner-bar"
LABEL = 10
_PROGRESS = 20
_AFTERWARDS = {
    Step.VERIFY: "COMPARING THE TEXTS of the choice with those without drafts,",
    Step.RESTORE: "PUTTING THE ORIGINAL BACK",
    Step.COMMIT: "APPLYING THE CHOICE",
}
"""What a run does once it boots no further point."""
_GO_ON = "armed, y takes the run up where it was; x ends it, and puts the settings from before back"


class TunerBar(LinesWidget):
    """The state; while a run goes on, the present boot, why it is made, and the model's best guess."""

    def __init__(self, model: TunerModel) -> None:
        super().__init__(id=BAR)
        self.model = model
        self.tall = False
        """Whether there is room for a bar of three lines."""

    def show(self, view: View) -> None:
        """Draw this view."""
        self.glyphs = view.glyphs
        width = self.size.width or self.app.size.width
        self.set_lines(bar_lines(self.model, view, width, tall=self.tall))


def bar_lines(model: TunerModel, view: View, width: int, *, tall: bool) -> list[Line]:
    """The banner, then what goes on."""
    wall, glyphs = view.picture.wall, view.glyphs
    words, role, glyph = _state(model, glyphs)
    texts, tone, aside = wrap(f"{glyph} {words}", width - 2, 2), f"banner.{role}", _aside(model, wall)
    if len(texts) > 1 or len(texts[0]) + len(aside) + 4 > width:
        aside = ""
    lines: list[Line] = [spread(((f" {text}", tone),), ((f"{aside} ", tone),), width, fill_role=tone) for text in texts]
    if tall:
        edge: Line = ((" " * width, tone),)
        lines = [edge, *lines, edge]
    run = model.run
    if model.under_way and run is not None:
        lines += _going_on(run, view, width, tall=tall)
    elif run is not None and not model.wants_plan and model.state is RunState.CUT_SHORT:
        lines += labelled("do", _GO_ON, "text bold", width, 2)
    return [*lines, BLANK] if tall else lines


def labelled(label: str, text: str, role: str, width: int, most: int) -> list[Line]:
    """A text behind its label, in at most `most` lines."""
    parts = wrap(text, width - LABEL - 2, most)
    return [((f" {label if index == 0 else '':<{LABEL}}", "accent"), (part, role)) for index, part in enumerate(parts)]


def point_words(point: Point | None, limit: int = 60) -> str:
    """A point by its name."""
    if point is None:
        return UNKNOWN
    return clean(point.name, limit) if point.types else "no drafts"


def gain_words(gain: float | None, low: float | None, high: float | None, digits: int = 1) -> str:
    """`+11.8 % [+6.0, +17.9]`; without an interval the gain alone."""
    text = change_words(gain, digits, " %")
    if gain is None or low is None or high is None:
        return text
    return f"{text} [{change_words(low, digits, '')}, {change_words(high, digits, '')}]"


def gain_role(low: float | None, high: float | None) -> str:
    """Green or red only where the whole interval is on one side."""
    if low is not None and low > 0:
        return "good"
    return "bad" if high is not None and high < 0 else "text"


def _state(model: TunerModel, glyphs: Glyphs) -> tuple[str, str, str]:
    """Words, role and glyph."""
    run, state = model.run, model.state
    if model.starting:
        return "STARTING", "accent", glyphs.loading
    if run is not None and state is RunState.RUNNING:
        return _boot_words(run), "accent", glyphs.live
    if run is not None and state is RunState.STOPPING:
        return "STOPPING: this boot is broken off, and the original put back", "warn", glyphs.busy
    if run is None or model.wants_plan:
        return _plan_state(model, glyphs)
    if state is RunState.FINISHED:
        return _outcome_state(run, glyphs)
    after = f"after {count(run.restarts)} restart{'s' * (run.restarts != 1)}"
    end = run.end
    if state is RunState.CUT_SHORT or end is None:
        if model.on_trial is False:
            return f"CUT SHORT {after}: its process is gone; the service is as it was", "warn", glyphs.note
        return f"CUT SHORT {after}: its process is gone, and the service may run what it tried", "bad", glyphs.alert
    role = "bad" if end.restored is False else "warn"
    back = "NOT KNOWN TO BE AS IT WAS" if end.restored is False else "the service is as it was"
    why = f": {clean(end.error, 300)}" if end.error else ""
    word = "FAILED" if state is RunState.FAILED else "STOPPED"
    return f"{word} {after}{why}; {back}", role, glyphs.down if word == "FAILED" else glyphs.note


def _plan_state(model: TunerModel, glyphs: Glyphs) -> tuple[str, str, str]:
    problem = model.plan_error or (model.plan.problem if model.plan is not None else "")
    if problem:
        return f"NOTHING TO TUNE: {clean(problem, 400)}", "warn", glyphs.alert
    if model.plan is None:
        return "LOOKING at what could be tuned", "dim", glyphs.unknown
    return "READY: A arms, r starts; nothing is touched before you confirm it", "accent", glyphs.stale


def _outcome_state(run: Run, glyphs: Glyphs) -> tuple[str, str, str]:
    outcome = run.end.outcome if run.end is not None else None
    if outcome is None:
        return "FINISHED, and it does not say with what", "warn", glyphs.unknown
    if run.end is not None and run.end.restored is False:
        return "FINISHED, BUT THE SERVICE IS NOT KNOWN TO BE AS IT WAS: `specdash recover`", "bad", glyphs.alert
    if outcome.improved:
        gain = gain_words(outcome.gain, outcome.low, outcome.high)
        return f"IMPROVED {gain}: {point_words(outcome.chosen, 80)}", "good", glyphs.live
    return "NO IMPROVEMENT FOUND: the original stays", "dim", glyphs.note


def _boot_words(run: Run) -> str:
    now = run.now
    number = now.number if now is not None else None
    after = f"after {count(run.restarts)} of {count(run.plan.budget.restarts)} boots"
    if now is not None and now.step in _AFTERWARDS:
        return f"{_AFTERWARDS[now.step]} {after}"
    words = f"TUNING boot {count(number)} of {count(run.plan.budget.restarts)}"
    return f"{words} · {now.stage}" if now is not None and now.stage is not None else words


def _aside(model: TunerModel, wall: float) -> str:
    """Time left of a run; when one that ended did so."""
    run = model.run
    if run is None or model.wants_plan or model.starting:
        return ""
    if model.under_way:
        left = run.now.left_s if run.now is not None else None
        left = None if left is None or run.now is None else max(left - max(wall - run.now.at, 0.0), 0.0)
        told = "time left not known" if left is None else f"{duration(left)} left"
        return f"{told} · since {clock(run.head.at)[:5]}"
    if run.end is None:
        return f"begun {ago(wall - run.head.at)}"
    return ago(wall - run.end.at)


def about(seconds: float | None) -> str:
    """A time that is not known well: `40 s`, `31 min`, `2.5 h`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return "under 1 s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_970 else f"{seconds / 3600:.1f} h"


def ago(seconds: float) -> str:
    """`3m10s ago`."""
    return f"{duration(seconds)} ago"


def _going_on(run: Run, view: View, width: int, *, tall: bool) -> list[Line]:
    now = run.now
    if now is None:
        return labelled("now", "it has not said yet what it does", "dim", width, 1)
    lines = [_now_line(now, _users(run, now, view), view.picture.wall, width, view.glyphs)]
    if now.why:
        lines += labelled("why", clean(now.why, 400), "text", width, 2 if tall else 1)
    if now.guess is not None:
        lines.append(_guess_line(run, now.guess, width))
    return lines


def _users(run: Run, now: Now, view: View) -> Line:
    """Who waits: as the run tells, else as this dashboard sees it, where it is the same server that it watches."""
    held, queued = now.held, now.queued
    if run.plan.url.rstrip("/") == view.picture.backend.url.rstrip("/"):
        proxy, deferred = view.picture.proxy, view.picture.backend.requests_deferred
        if held is None and proxy.status is Status.KNOWN and proxy.live is not None:
            held = proxy.live.waiting
        if queued is None and deferred is not None:
            queued = int(deferred)
    return (("  held ", "dim"), _waiting(held), ("  queued ", "dim"), _waiting(queued), (" ", "dim"))


def _now_line(now: Now, users: Line, wall: float, width: int, glyphs: Glyphs) -> Line:
    """What is done with which point, how far that is, and who waits for it."""
    spans: list[Span] = [(f" {'now':<{LABEL}}", "accent")]
    if now.point is not None:
        spans.append((point_words(now.point, 44) + "  ", "text bold"))
    spans.append((str(now.step), "text"))
    if now.done is not None and now.total:
        spans.append((f" {now.done} of {now.total} ", "text"))
    since: Line = ((f" {duration(max(wall - now.since, 0.0))}", "dim"),) if now.since is not None else ()
    room = width - line_width(spans) - line_width(users) - line_width(since)
    if now.done is not None and now.total and room >= 8:
        filled, rest = bar(now.done / now.total, min(_PROGRESS, room), ascii_only=glyphs.ascii_only)
        spans += [(filled, "decode track"), (rest, "faint track")]
    elif now.detail and room >= 12:
        spans.append((fit(f"  {clean(now.detail, 200)}", room - 2).rstrip(), "dim"))
    left: Line = (*spans, *(since if room >= 0 else ()))
    gap = width - line_width(left) - line_width(users)
    return (*left, (" " * gap, "text"), *users) if gap >= 0 else left


def _waiting(requests: int | None) -> Span:
    return (count(requests), "warn bold" if requests else "dim" if requests is None else "text")


def _guess_line(run: Run, guess: Guess, width: int) -> Line:
    spans: list[Span] = [(f" {'best':<{LABEL}}", "accent"), (point_words(guess.point, 44), "text bold")]
    if guess.point == run.plan.start:
        return (*spans, ("  the start: nothing better is believed yet", "dim"))
    speed = guessed_speed(run)
    spans += [
        (f"  {rate(speed)} {unit_of(run.plan.objective)}  " if speed is not None else "  ", "text"),
        (gain_words(guess.gain, guess.low, guess.high), gain_role(guess.low, guess.high)),
    ]
    note = "  the model's guess, not confirmed"
    return (*spans, (note, "dim")) if line_width(spans) + len(note) <= width else tuple(spans)
