"""What a run of the tuner is to do, and the card of what came out of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.changes import shown_value
from specdash.core.readings import ReadingStatus
from specdash.insight.charts import Metric
from specdash.system.text import UNKNOWN, clean, clock, counted, duration, number, percent
from specdash.system.text import gain as gain_text
from specdash.tui.layout import PanelId
from specdash.tui.spans import BLANK, GLYPHS, Line, Span, bar, fit, line_width, spread, wrap
from specdash.tui.tuner_model import TunerSituation, best_boot, chosen_settings
from specdash.tui.widgets.chart import Chart
from specdash.tui.widgets.panel import PLENTY, LinesWidget, TextPart
from specdash.tune.run.status import RunState, TuneStep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.tui.tuner_model import TunerModel
    from specdash.tui.view import View
    from specdash.tune.model.gains import Gain
    from specdash.tune.model.problem import Budget, Point, TuneOutcome
    from specdash.tune.run.status import CurrentStep, RunPlan, Settings, TuneRun


# How the tuner stands, in one bar that is read in two seconds; and what it does now, and why.

BAR = "tuner-bar"
LABEL = 10
_PROGRESS = 20


class TunerBar(LinesWidget):
    """The state; while a run goes on, the present boot, and why it is made."""

    def __init__(self, model: TunerModel) -> None:
        super().__init__(id=BAR)
        self.model = model
        self.tall = False
        """Whether there is room for a bar of three lines."""

    def show(self, view: View) -> None:
        """Draw this view."""
        width = self.size.width or self.app.size.width
        self.set_lines(bar_lines(self.model, view, width, tall=self.tall))


def bar_lines(model: TunerModel, view: View, width: int, *, tall: bool) -> list[Line]:
    """The banner, then what goes on."""
    wall = view.picture.wall
    words, role, glyph = _state(model, view)
    texts, tone, aside = wrap(f"{glyph} {words}", width - 2, 2), f"banner.{role}", _aside(model, wall)
    if len(texts) > 1 or len(texts[0]) + len(aside) + 4 > width:
        aside = ""
    lines: list[Line] = [spread(((f" {text}", tone),), ((f"{aside} ", tone),), width, fill_role=tone) for text in texts]
    if tall:
        edge: Line = ((" " * width, tone),)
        lines = [edge, *lines, edge]
    run = model.run
    if model.under_way and run is not None:
        lines += _going_on(run, view, width)
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


def gain_role(low: float | None, high: float | None) -> str:
    """Green or red only where the whole interval is on one side."""
    if low is not None and low > 0:
        return "good"
    return "bad" if high is not None and high < 0 else "text"


def _state(model: TunerModel, view: View) -> tuple[str, str, str]:
    """Words, role and glyph."""
    run, state = model.run, model.state
    if model.starting:
        return "STARTING", "accent", GLYPHS.loading
    if run is not None and state is RunState.RUNNING:
        return _boot_words(run), "accent", GLYPHS.live
    if run is not None and state is RunState.STOPPING:
        return "STOPPING: this boot is cancelled and your settings are put back", "warn", GLYPHS.busy
    if run is None or model.wants_plan:
        return _plan_state(model, view)
    if state is RunState.FINISHED:
        return _outcome_state(run)
    after = f"after {counted(run.restarts, 'restart')}"
    end = run.end
    if state is RunState.CUT_SHORT or end is None:
        words = f"CUT SHORT {after}: its process is gone, and the backend puts your settings back by itself"
        return words, "warn", GLYPHS.note
    role = "bad" if end.restored is False else "warn"
    back = "MAY STILL RUN WHAT WAS TRIED" if end.restored is False else "your settings are back"
    why = f": {clean(end.error, 300)}" if end.error else ""
    word = "FAILED" if state is RunState.FAILED else "STOPPED"
    return f"{word} {after}{why}; {back}", role, GLYPHS.down if word == "FAILED" else GLYPHS.note


def _plan_state(model: TunerModel, view: View) -> tuple[str, str, str]:
    keys = view.keys
    problem = model.plan_error or (model.plan.problem if model.plan is not None else "")
    if problem:
        return f"NOTHING TO TUNE: {clean(problem, 400)}", "warn", GLYPHS.alert
    if model.plan is None:
        return "LOOKING for what can be tuned", "dim", GLYPHS.unknown
    words = f"READY: press {keys['arm']} to arm, {keys['tuner.start']} to start; nothing changes until you confirm"
    return words, "accent", GLYPHS.stale


def _outcome_state(run: TuneRun) -> tuple[str, str, str]:
    outcome = run.end.outcome if run.end is not None else None
    if outcome is None:
        return "FINISHED, but left no result", "warn", GLYPHS.unknown
    if run.end is not None and run.end.restored is False:
        return "FINISHED, BUT YOUR SETTINGS MAY NOT BE BACK: restart the backend", "bad", GLYPHS.alert
    if outcome.improved:
        gain = gain_text(outcome.gain, outcome.low, outcome.high)
        return f"IMPROVED {gain}: {point_words(outcome.chosen, 80)}", "good", GLYPHS.live
    return "NO IMPROVEMENT FOUND: your settings stay", "dim", GLYPHS.note


def _boot_words(run: TuneRun) -> str:
    now = run.now
    after = f"after {number(run.restarts)} of {number(run.plan.budget.restarts)} boots"
    if now is not None and now.step is TuneStep.RESTORE:
        return f"PUTTING THE ORIGINAL BACK {after}"
    words = f"TUNING boot {number(now.number if now is not None else None)} of {number(run.plan.budget.restarts)}"
    return f"{words} · {now.stage}" if now is not None and now.stage is not None else words


def _aside(model: TunerModel, wall: float) -> str:
    """Time left of a run; when one that ended did so."""
    run = model.run
    if run is None or model.wants_plan or model.starting:
        return ""
    if model.under_way:
        left = run.now.left_s if run.now is not None else None
        left = None if left is None or run.now is None else max(left - max(wall - run.now.at, 0.0), 0.0)
        remaining = "time left unknown" if left is None else f"{duration(left, short=True)} left"
        return f"{remaining} · since {clock(run.head.at, seconds=False)}"
    if run.end is None:
        return f"begun {duration(wall - run.head.at)} ago"
    return f"{duration(wall - run.end.at)} ago"


def _going_on(run: TuneRun, view: View, width: int) -> list[Line]:
    now = run.now
    if now is None:
        return labelled("now", "no progress reported yet", "dim", width, 1)
    lines = [_now_line(now, _users(run, view), view.picture.wall, width)]
    if now.why:
        lines += labelled("why", clean(now.why, 400), "text", width, 2)
    return lines


def _users(run: TuneRun, view: View) -> Line:
    """Who waits, where this dashboard watches the server that is tuned."""
    held, queued = None, None
    if run.plan.url.rstrip("/") == view.picture.backend.url.rstrip("/"):
        proxy, deferred = view.picture.proxy, view.picture.backend.requests_deferred
        if proxy.status is ReadingStatus.KNOWN and proxy.live is not None:
            held = proxy.live.waiting
        queued = int(deferred) if deferred is not None else None
    return (("  held ", "dim"), _waiting(held), ("  queued ", "dim"), _waiting(queued), (" ", "dim"))


def _now_line(now: CurrentStep, users: Line, wall: float, width: int) -> Line:
    """What is done with which point, how far that is, and who waits for it."""
    spans: list[Span] = [(f" {'now':<{LABEL}}", "accent")]
    if now.point is not None:
        spans.append((point_words(now.point, 44) + "  ", "text bold"))
    spans.append((str(now.step), "text"))
    if now.done is not None and now.total:
        spans.append((f" {now.done} of {now.total} ", "text"))
    since: Line = ((f" {duration(max(wall - now.since, 0.0), short=True)}", "dim"),) if now.since is not None else ()
    room = width - line_width(spans) - line_width(users) - line_width(since)
    if now.done is not None and now.total and room >= 8:
        filled, rest = bar(now.done / now.total, min(_PROGRESS, room))
        spans += [(filled, "decode track"), (rest, "faint track")]
    left: Line = (*spans, *(since if room >= 0 else ()))
    gap = width - line_width(left) - line_width(users)
    return (*left, (" " * gap, "text"), *users) if gap >= 0 else left


def _waiting(requests: int | None) -> Span:
    return (number(requests), "warn bold" if requests else "dim" if requests is None else "text")


PLAN, CARD = "tuner-plan", "tuner-card"
_HOW = (
    (
        "first",
        "your settings are measured, then two boots that say most: a long draft, and one with a minimum probability",
    ),
    ("then", "the most promising settings; the best of them race against yours, boot by boot"),
    ("last", "your settings are put back; better ones are shown, and how sure that is"),
)
_MOST_WIDTH = 140
"""Longer lines are hard to read."""
_LEAST_SPEED, _MOST_SPEED = 10, 24
"""Lines of the chart below them."""


class PlanPanel(TextPart):
    """What is tuned, for how long, and at what price; before a run and while it goes on."""

    def __init__(self, model: TunerModel) -> None:
        super().__init__("What is tuned", id=PLAN)
        self.model = model
        self.chart = Chart(Metric.DECODE, PanelId.DECODE.value)

    def key_figure(self, view: View) -> Line:
        """The types in force."""
        plan = self._plan
        return ((clean(_types(plan), 60), "text bold"),) if plan is not None else ()

    def content(self, view: View, width: int, height: int) -> list[Line]:
        """Row by row."""
        model, plan = self.model, self._plan
        wide = min(width, _MOST_WIDTH)
        if plan is not None:
            if model.scene is not TunerSituation.PLAN:
                return plan_lines(plan, plan.budget, wide)
            lines = [
                *plan_lines(plan, model.budget, wide),
                BLANK,
                *([line for label, text in _HOW for line in labelled(label, text, "dim", wide, 2)]),
            ]
            return [*lines, *self._speed(view, width, height - len(lines))] if height < PLENTY else lines
        if model.plan_error:
            return [((f"  {clean(model.plan_error, 300)}", "warn"),)]
        return [(("  looking at the service and its traffic…", "dim"),)]

    def _speed(self, view: View, width: int, room: int) -> list[Line]:
        """Where there is room, what a run would raise: decode now."""
        if room < _LEAST_SPEED:
            return []
        title: Line = ((" Decode now", "text"), (f"  tok/s, last {duration(view.span_s, short=True)}", "dim"))
        return [BLANK, title, *self.chart.lines(view, width, min(room - 2, _MOST_SPEED))]

    @property
    def _plan(self) -> RunPlan | None:
        run = self.model.run
        return run.plan if run is not None and not self.model.wants_plan else self.model.plan


def plan_lines(plan: RunPlan, budget: Budget, width: int) -> list[Line]:
    """Label and value, the most important first."""
    where = " · ".join(part for part in (plan.service, plan.url) if part) or UNKNOWN
    lines = [
        *_row("service", clean(where.removeprefix("the service "), 200), width),
        *_row("start", _start(plan), width),
    ]
    keys = max((len(clean(knob.key, 30)) for knob in plan.knobs), default=0)
    for index, knob in enumerate(plan.knobs):
        label = f" {'knobs' if index == 0 else '':<{LABEL}}"
        text = fit(f"{clean(knob.key, 30):<{keys + 2}}{clean(knob.values, 80)}", max(width - len(label), 0)).rstrip()
        lines.append(((label, "accent"), (text, "text")))
    if not plan.knobs:
        lines += _row("knobs", UNKNOWN, width)
    points = f"{number(plan.points or None)} configurations to choose from"
    lines += [
        *_row("points", points, width),
        *_row("budget", budget_words(budget), width, "text bold"),
        *_row("downtime", _time_words(plan), width, "text bold"),
        *_row("goal", f"{clean(plan.objective, 80)}; a change must gain {percent(plan.least_gain)} or more", width),
    ]
    for index, limit in enumerate(plan.limits):
        lines += _row("limits" if index == 0 else "", clean(limit, 200), width)
    lines += _row("workload", _workload_words(plan), width, most=2)
    lines += _row("prompts", f"{number(plan.prompts or None)} in every boot, the same each time", width)
    for index, note in enumerate(plan.notes):
        lines += labelled("note" if index == 0 else "", clean(note, 400), "dim", width, 2)
    return lines


def budget_words(budget: Budget) -> str:
    """`12 restarts, at most 60 minutes`."""
    minutes = f", at most {budget.minutes:g} minutes" if budget.minutes is not None else ", however long they take"
    return f"{number(budget.restarts)} restarts{minutes}"


def _row(label: str, text: str, width: int, role: str = "text", most: int = 2) -> list[Line]:
    return labelled(label, text, role, width, most)


def _start(plan: RunPlan) -> str:
    held = " ".join(f"{clean(knob.key, 30)}={clean(knob.now, 30)}" for knob in plan.knobs if knob.now is not None)
    return " · ".join(part for part in (point_words(plan.start), held) if part)


def _types(plan: RunPlan) -> str:
    return ", ".join(plan.start.types) or "no speculation"


def _time_words(plan: RunPlan) -> str:
    if plan.downtime_s is None:
        return "for how long clients wait is not known"
    each = plan.downtime_s / max(plan.budget.restarts + 1, 1)
    return f"clients wait about {duration(plan.downtime_s)} in all, {duration(each)} at a time"


def _workload_words(plan: RunPlan) -> str:
    shares = ", ".join(f"{clean(kind, 20)} {percent(share)}" for kind, share in plan.workload.shares if share > 0)
    source = f"from {clean(plan.workload_words, 120)}" if plan.workload_words else ""
    return ", ".join(part for part in (shares, source) if part) or UNKNOWN


class OutcomeCard(TextPart):
    """What was found, how sure that is, and what is in force."""

    def __init__(self, model: TunerModel) -> None:
        super().__init__("Outcome", id=CARD)
        self.model = model

    def least(self, view: View) -> int:
        """All of it, if that can be."""
        return 9

    def aside(self, view: View) -> Line:
        """What can be done with it."""
        return (("a ", "accent"), ("takes them to the tune screen", "dim")) if chosen_settings(self.model.run) else ()

    def content(self, view: View, width: int, height: int) -> list[Line]:
        """Gain, settings, what is in force, and the evidence."""
        run = self.model.run
        return outcome_lines(run, self.model.gains, min(width, _MOST_WIDTH)) if run is not None else []


def outcome_lines(run: TuneRun, gains: Mapping[int, Gain], width: int) -> list[Line]:
    """The card below its title."""
    end = run.end
    outcome = end.outcome if end is not None else None
    lines: list[Line] = []
    if outcome is not None:
        lines += _gain_lines(run, outcome, width)
        if outcome.improved and end is not None:
            lines += _setting_lines(run, end.settings, width)
    if end is not None and end.restored is False:
        lines += labelled(
            "in force", f"{clean(end.in_force, 200) or 'not known'}: restart the backend", "bad", width, 2
        )
    elif end is not None and end.in_force:
        lines += labelled("in force", clean(end.in_force, 200), "text", width, 2)
    elif end is None:
        lines += labelled("in force", "the original, once the backend has put it back", "text", width, 1)
    lines += _evidence_lines(run, gains, outcome, width)
    if end is not None and end.error:
        lines += labelled("error", clean(end.error, 400), "bad", width, 3)
    where = end.report if end is not None and end.report else run.directory
    return [*lines, *labelled("files", clean(where, 300), "dim", width, 2)]


def _gain_lines(run: TuneRun, outcome: TuneOutcome, width: int) -> list[Line]:
    if not outcome.improved:
        return labelled("gain", "none confirmed, so nothing is recommended", "text bold", width, 1)
    gain = gain_text(outcome.gain, outcome.low, outcome.high)
    objective = clean(run.plan.objective, 60)
    confirmed: Line = (
        (f" {'gain':<{LABEL}}", "accent"),
        (gain, f"{gain_role(outcome.low, outcome.high)} bold"),
        (fit(f"   {objective} over the start, 90 % interval", max(width - 11 - len(gain), 0)).rstrip(), "dim"),
    )
    return [confirmed, *labelled("chosen", point_words(outcome.chosen, 100), "text bold", width, 1)]


def _setting_lines(run: TuneRun, settings: Settings, width: int) -> list[Line]:
    before = {knob.key: knob.now for knob in run.plan.knobs}
    lines: list[Line] = []
    for index, (key, value) in enumerate(settings):
        text = settings_words(((key, value),), 180)
        was = before.get(key)
        aside = f"   was {clean(was, 40)}" if was is not None else "   was not set" if key in before else ""
        label = f" {'settings' if index == 0 else '':<{LABEL}}"
        room = max(width - len(label), 0)
        lines.append(((label, "accent"), (fit(text, min(len(text), room)), "good bold"), (aside, "dim")))
    return lines


def _evidence_lines(run: TuneRun, gains: Mapping[int, Gain], outcome: TuneOutcome | None, width: int) -> list[Line]:
    spent = outcome.restarts if outcome is not None and outcome.restarts else run.restarts
    took = duration(run.end.at - run.head.at, short=True) if run.end is not None else ""
    failed = sum(bool(boot.result.failure) for boot in run.boots)
    parts = [f"{number(spent)} of {number(run.plan.budget.restarts)} restarts" + (f" in {took}" if took else "")]
    if failed:
        parts.append(f"{number(failed)} failed")
    if outcome is not None and outcome.noise is not None:
        parts.append(f"speeds differ by {outcome.noise_words.replace('%', ' %')} from boot to boot")
    lines = labelled("evidence", ", ".join(parts), "text", width, 2)
    if outcome is not None and outcome.why:
        lines += labelled("why", clean(outcome.why, 400), "text", width, 3)
    best = best_boot(run, gains) if outcome is None or not outcome.improved else None
    if best is not None:
        boot, gain = best
        found = f"{point_words(boot.result.point)} · {gain_text(gain.gain, gain.low, gain.high)}, not confirmed"
        lines += labelled("best seen", found, "text", width, 2)
    return lines


def settings_words(settings: Sequence[tuple[str, str]], most: int) -> str:
    """`KEY=VALUE KEY=VALUE`, secrets masked; what is taken out of the file as `KEY removed`."""
    words = (f"{key}={shown_value(key, value)}" if value else f"{key} removed" for key, value in settings)
    return clean("  ".join(words), most)
