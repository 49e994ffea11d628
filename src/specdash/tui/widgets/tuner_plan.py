"""What a run of the tuner is to do, and the card of what came out of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.changes import shown_value
from specdash.tui.formatting import UNKNOWN, clean, count, duration, fit, percent
from specdash.tui.spans import BLANK, Line
from specdash.tui.tuner_model import Scene, best_boot, chosen_settings
from specdash.tui.widgets.part import TextPart
from specdash.tui.widgets.tuner_bar import LABEL, about, gain_role, gain_words, labelled, point_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.tui.tuner_model import TunerModel
    from specdash.tui.view import View
    from specdash.tune.gains import Gain
    from specdash.tune.problem import Budget, Outcome
    from specdash.tune.status import Run, RunPlan, Settings

PLAN, CARD = "tuner-plan", "tuner-card"
_HOW = (
    ("first", "the start is measured, and then two boots that tell the model most: a long draft, and one with a gate"),
    ("then", "what the model expects most of; the best of it races against the start, boot by boot"),
    ("last", "the settings from before are put back; better ones are shown, with how sure that is"),
)
_MOST_WIDTH = 140
"""Longer lines are hard to read."""


class PlanPanel(TextPart):
    """What is tuned, for how long, and at what price; before a run and while it goes on."""

    def __init__(self, model: TunerModel) -> None:
        super().__init__("What is tuned", id=PLAN)
        self.model = model

    def key_figure(self, view: View) -> Line:
        """The types in force."""
        del view
        plan = self._plan
        return ((clean(_types(plan), 60), "text bold"),) if plan is not None else ()

    def content(self, view: View, width: int, height: int) -> list[Line]:
        """Row by row."""
        del view, height
        model, plan = self.model, self._plan
        wide = min(width, _MOST_WIDTH)
        if plan is not None:
            if model.scene is not Scene.PLAN:
                return plan_lines(plan, plan.budget, wide)
            return [*plan_lines(plan, model.budget, wide), BLANK, *_how_lines(wide)]
        if model.plan_error:
            return [((f"  {clean(model.plan_error, 300)}", "warn"),)]
        return [(("  looking at the service and its traffic…", "dim"),)]

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
    points = f"{count(plan.points or None)} configurations to choose from"
    lines += [
        *_row("points", points, width),
        *_row("budget", budget_words(budget), width, "text bold"),
        *_row("takes", _time_words(plan), width, "text bold"),
        *_row("goal", f"{clean(plan.objective, 80)}; a change must gain {percent(plan.least_gain)} or more", width),
    ]
    for index, limit in enumerate(plan.limits):
        lines += _row("limits" if index == 0 else "", clean(limit, 200), width)
    lines += _row("workload", _workload_words(plan), width, most=2)
    lines += _row("prompts", f"{count(plan.prompts or None)} in every boot, the same each time", width)
    for index, note in enumerate(plan.notes):
        lines += labelled("note" if index == 0 else "", clean(note, 400), "dim", width, 2)
    return lines


def _how_lines(width: int) -> list[Line]:
    """For whoever does it for the first time."""
    return [line for label, text in _HOW for line in labelled(label, text, "dim", width, 2)]


def budget_words(budget: Budget) -> str:
    """`12 restarts, at most 60 minutes`."""
    minutes = f", at most {budget.minutes:g} minutes" if budget.minutes is not None else ", however long they take"
    return f"{count(budget.restarts)} restarts{minutes}"


def _row(label: str, text: str, width: int, role: str = "text", most: int = 2) -> list[Line]:
    return labelled(label, text, role, width, most)


def _start(plan: RunPlan) -> str:
    held = " ".join(f"{clean(knob.key, 30)}={clean(knob.now, 30)}" for knob in plan.knobs if knob.now is not None)
    return " · ".join(part for part in (point_words(plan.start), held) if part)


def _types(plan: RunPlan) -> str:
    return ", ".join(plan.start.types) or "no speculation"


def _time_words(plan: RunPlan) -> str:
    took = f"about {about(plan.eta_s)}" if plan.eta_s is not None else "a time that is not known yet"
    if plan.downtime_s is None:
        return f"{took}; for how long clients wait is not known"
    each = plan.downtime_s / max(plan.budget.restarts + 1, 1)
    return f"{took}; clients wait about {about(plan.downtime_s)} of it, {about(each)} at a time"


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
        del view
        return 9

    def aside(self, view: View) -> Line:
        """What can be done with it."""
        del view
        return (("a ", "accent"), ("takes them to the tune screen", "dim")) if chosen_settings(self.model.run) else ()

    def content(self, view: View, width: int, height: int) -> list[Line]:
        """Gain, settings, what is in force, and the evidence."""
        del view, height
        run = self.model.run
        return (
            outcome_lines(run, self.model.gains, self.model.on_trial, min(width, _MOST_WIDTH))
            if run is not None
            else []
        )


def outcome_lines(run: Run, gains: Mapping[int, Gain], on_trial: bool | None, width: int) -> list[Line]:
    """The card below its title."""
    end = run.end
    outcome = end.outcome if end is not None else None
    lines: list[Line] = []
    if outcome is not None:
        lines += _gain_lines(run, outcome, width)
        if outcome.improved and end is not None:
            lines += _setting_lines(run, end.settings, width)
    if end is not None and end.restored is False:
        lines += labelled("in force", f"{clean(end.in_force, 200) or 'not known'}: `specdash recover`", "bad", width, 2)
    elif end is not None and end.in_force:
        lines += labelled("in force", clean(end.in_force, 200), "text", width, 2)
    elif end is None and on_trial is False:
        lines += labelled("in force", "the original", "text", width, 1)
    elif end is None:
        lines += labelled("in force", "may be what was tried: x or `specdash recover` puts it back", "bad", width, 2)
    if end is not None and end.texts:
        lines += labelled("texts", clean(end.texts, 200), "text", width, 2)
    lines += _evidence_lines(run, gains, outcome, width)
    if end is not None and end.error:
        lines += labelled("error", clean(end.error, 400), "bad", width, 3)
    where = end.report if end is not None and end.report else run.directory
    return [*lines, *labelled("files", clean(where, 300), "dim", width, 2)]


def _gain_lines(run: Run, outcome: Outcome, width: int) -> list[Line]:
    if not outcome.improved:
        return labelled("gain", "none was confirmed: nothing is recommended", "text bold", width, 1)
    gain = gain_words(outcome.gain, outcome.low, outcome.high)
    told = clean(run.plan.objective, 60)
    confirmed: Line = (
        (f" {'gain':<{LABEL}}", "accent"),
        (gain, f"{gain_role(outcome.low, outcome.high)} bold"),
        (fit(f"   {told} over the start, 90 % interval", max(width - 11 - len(gain), 0)).rstrip(), "dim"),
    )
    return [confirmed, *labelled("chosen", point_words(outcome.chosen, 100), "text bold", width, 1)]


def _setting_lines(run: Run, settings: Settings, width: int) -> list[Line]:
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


def _evidence_lines(run: Run, gains: Mapping[int, Gain], outcome: Outcome | None, width: int) -> list[Line]:
    spent = outcome.restarts if outcome is not None and outcome.restarts else run.restarts
    took = duration(run.end.at - run.head.at) if run.end is not None and run.heads == 1 else ""
    failed = sum(bool(one.result.failure) for one in run.boots)
    parts = [f"{count(spent)} of {count(run.plan.budget.restarts)} restarts" + (f" in {took}" if took else "")]
    if failed:
        parts.append(f"{count(failed)} failed")
    if outcome is not None and outcome.noise is not None:
        parts.append(f"speeds differ by {outcome.noise_words.replace('%', ' %')} from boot to boot")
    lines = labelled("evidence", ", ".join(parts), "text", width, 2)
    if outcome is not None and outcome.why:
        lines += labelled("why", clean(outcome.why, 400), "text", width, 3)
    best = best_boot(run, gains) if outcome is None or not outcome.improved else None
    if best is not None:
        boot, gain = best
        told = f"{point_words(boot.result.point)} · {gain_words(gain.gain, gain.low, gain.high)}, not confirmed"
        lines += labelled("best seen", told, "text", width, 2)
    return lines


def settings_words(settings: Sequence[tuple[str, str]], most: int) -> str:
    """`KEY=VALUE KEY=VALUE`, secrets masked; what is taken out of the file as `KEY removed`."""
    words = (f"{key}={shown_value(key, value)}" if value else f"{key} removed" for key, value in settings)
    return clean("  ".join(words), most)
