"""What the keys of the tuner's screen do: watch a run, whoever started it, and, when armed, start and stop one.

Runs are looked at, planned, started and stopped in a worker thread; the answer comes back to the event loop.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from specdash.tui.formatting import clean, count
from specdash.tui.incident_actions import IncidentActions
from specdash.tui.speculation_actions import SpeculationActions
from specdash.tui.themes import PALETTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.timer import Timer

    from specdash.tui.screens.tuner import TunerScreen
    from specdash.tui.tuner_model import TunerModel
    from specdash.tune.console import Look, TunerConsole
    from specdash.tune.status import Run, RunPlan

LOOK_S = 1.0
"""How often an open screen looks at the run."""
_LOOK, _PLAN, _WORK = "tuner-look", "tuner-plan", "tuner-work"


class TunerActions(IncidentActions, SpeculationActions):
    """Mixed into the dashboard, which knows the rest of these names."""

    tuner: TunerScreen | None
    """The tuner's screen while it is open."""
    tuner_console: TunerConsole | None
    demo: bool
    _tuner_model: TunerModel | None = None
    _tuner_timer: Timer | None = None

    @property
    def tuner_model(self) -> TunerModel:
        """What the screen knows; it outlives the screen, so that the budget does."""
        if self._tuner_model is None:
            from specdash.tui.tuner_model import TunerModel

            self._tuner_model = TunerModel()
        return self._tuner_model

    def action_toggle_tuner(self) -> None:
        """Open the tuner's screen, or leave it. The tune screen gives way to it; what is pending there stays."""
        if self.tuner is not None:
            if self.leave_tuner():
                self.call_after_refresh(self.show_now)
            return
        if self.tuner_console is None:
            self.notify("this dashboard has no tuner: use `specdash tune`", severity="warning", markup=False)
            return
        if self.tune is not None:
            if self.screen is not self.tune:
                return
            self.action_toggle_tune()
        from specdash.tui.screens.tuner import TunerScreen

        self.tuner = TunerScreen(self.tuner_model)
        self.tuner.footer.glyphs = self.glyphs
        self.tuner.paint(PALETTES[self.theme])
        self.push_screen(self.tuner)
        self._tuner_timer = self.set_interval(LOOK_S, partial(self.look_at_tuner, again=True))
        self.look_at_tuner()
        self.call_after_refresh(self.show_now)

    def leave_tuner(self) -> bool:
        """Close the screen, if it is open; False when something stands above it."""
        if self.tuner is None:
            return True
        if self.screen is not self.tuner:
            return False
        if self._tuner_timer is not None:
            self._tuner_timer.stop()
        self.tuner = None
        self.pop_screen()
        return True

    def action_toggle_tune(self) -> None:
        """Open the tune screen, or leave it. The tuner's gives way to it."""
        if self.leave_tuner():
            super().action_toggle_tune()

    def action_toggle_incidents(self) -> None:
        """Open the incidents screen, or leave it. The tuner's gives way to it."""
        was_above = self.tuner is not None
        if self.leave_tuner():
            if was_above and self.incidents is not None:
                self.call_after_refresh(self.show_now)
            else:
                super().action_toggle_incidents()

    def action_toggle_speculation(self) -> None:
        """Open the speculation screen, or leave it. The tuner's gives way to it."""
        was_above = self.tuner is not None
        if self.leave_tuner():
            if was_above and self.speculation is not None and self.incidents is None:
                self.call_after_refresh(self.show_now)
            else:
                super().action_toggle_speculation()

    def open_boot(self) -> None:
        """Everything about the selected boot, and back."""
        if self.tuner is not None:
            self.tuner.open_boot()
            self.call_after_refresh(self.show_now)

    def look_at_tuner(self, *, again: bool = False) -> None:
        """Ask how the run stands, without waiting. `again` as in `look_at_services`."""
        console = self.tuner_console
        if console is not None:
            self._ask(_LOOK, console.look, self._saw, again=again)

    def _saw(self, look: Look) -> None:
        from specdash.tui.tuner_model import Scene

        model = self.tuner_model
        first = not model.looked
        changed = model.take(look.run, look.gains, look.on_trial)
        if model.scene is Scene.PLAN and (first or (changed and model.plan is None)):
            self._plan_run()
        self._redraw_tuner()

    def _plan_run(self) -> None:
        """Ask what a run would do."""
        console, model = self.tuner_console, self.tuner_model
        if console is None:
            return
        model.planning, budget = True, model.budget

        def planned(plan: RunPlan | None, error: str) -> None:
            if model.budget == budget:
                model.plan, model.plan_error, model.planning = plan, error, False
                self._redraw_tuner()

        self._ask(_PLAN, partial(console.plan, budget), lambda plan: planned(plan, ""), lambda e: planned(None, e))

    def action_tuner_plan(self) -> None:
        """What a new run would do; back to the outcome of the last one."""
        model = self.tuner_model
        if model.under_way or model.run is None:
            self.notify("a run goes on" if model.under_way else "there is no outcome yet: this is what a run would do")
            return
        model.wants_plan = not model.wants_plan
        if model.wants_plan:
            model.plan, model.plan_error = None, ""
            self._plan_run()
        self._redraw_tuner()

    async def action_tuner_budget(self) -> None:
        """Ask for restarts and minutes."""
        screen, model = self.tuner, self.tuner_model
        if screen is None or self.screen is not screen:
            return
        if model.under_way:
            self.notify("the budget of a run that goes on stays as it is", severity="warning")
            return
        minutes = f" {model.budget.minutes:g}" if model.budget.minutes is not None else ""

        def answer(text: str | None) -> None:
            if text is None:
                return
            problem = model.read_budget(text)
            if problem:
                self.notify(problem, severity="error", markup=False)
                return
            self._plan_run()
            self._redraw_tuner()

        await screen.ask("restarts, and may be minutes", f"{model.budget.restarts}{minutes}", answer)

    def action_tuner_start(self) -> None:
        """Say what a run does to the service; enter there starts it."""
        from specdash.tui.tuner_model import Scene

        model, plan = self.tuner_model, self.tuner_model.plan
        if model.under_way or model.starting:
            self.notify("a run goes on already: x stops it", severity="warning")
        elif model.scene is not Scene.PLAN:
            self.action_tuner_plan()
            self.notify("this is what a new run would do; r again starts it", timeout=6)
        elif model.planning or (plan is None and not model.plan_error):
            self.notify("it is still found out what could be tuned", severity="warning")
        elif plan is None or plan.problem:
            self.notify(f"nothing to tune: {clean(model.plan_error or (plan.problem if plan else ''), 300)}",
                        severity="warning", markup=False)  # fmt: skip
        elif self._may_tune():
            self._confirm_tuner(
                f"Tune {clean(plan.service, 100)} with {count(plan.budget.restarts)} restarts?",
                _what_a_run_means(plan, demo=self.demo),
                self._start_run,
            )

    def action_tuner_stop(self) -> None:
        """Say what stopping means; enter there stops the run."""
        from specdash.tune.status import RunState

        run = self.tuner_model.run
        if run is not None and self.tuner_model.state is RunState.CUT_SHORT:
            if self._may_tune():
                title = f"End the run on {clean(run.plan.service, 100)} that was cut short?"
                back = "The settings from before are put back, by a restart where they are not in force."
                self._confirm_tuner(title, (back,), self._abort_run)
        elif run is None or not self.tuner_model.under_way:
            self.notify("no run goes on: there is nothing to stop", severity="warning")
        elif self._may_tune():
            spent = count(run.restarts)
            title = f"Stop the tuner on {clean(run.plan.service, 100)} after {spent} of its boots?"
            notes = (
                "The boot that is under way is broken off, and the original settings are put back by one more restart.",
                "What was measured stays on the disk. Without a confirmation nothing is recommended.",
            )
            self._confirm_tuner(title, notes, self._stop_run)

    def action_tuner_resume(self) -> None:
        """Say what taking a run up means; enter there does it."""
        from specdash.tune.status import RunState

        run = self.tuner_model.run
        if run is None or self.tuner_model.state is not RunState.CUT_SHORT:
            self.notify("no run was cut short: there is nothing to take up", severity="warning")
        elif self._may_tune():
            left = max(run.plan.budget.restarts - run.restarts, 0)
            title = f"Take up the run on {clean(run.plan.service, 100)}, with {count(left)} restarts left?"
            self._confirm_tuner(title, ("What it measured before is not measured again.",), self._resume_run)

    def action_tuner_take(self) -> None:
        """Open the tune screen with the chosen settings as pending changes; applying them is another key."""
        from specdash.core.changes import Role
        from specdash.tui.tuner_model import chosen_settings

        chosen = chosen_settings(self.tuner_model.run)
        if not chosen or self.tuner_model.under_way:
            self.notify("no run has found settings that are better: there is nothing to take", severity="warning")
            return
        if self.services is None:
            self.notify("this dashboard has no services to tune", severity="warning")
            return
        self.action_toggle_tune()
        if self.tune is None:
            return
        model = self.tune_model
        model.role = Role.BACKEND
        for key, value in chosen:
            model.set(key, value or None)
        self.tune.board.keys.chosen = chosen[0][0]
        self.check_changes()
        keys = ", ".join(key for key, _ in chosen)
        self.notify(f"pending, not applied: {clean(keys, 120)}. Look at the checks; A arms, a applies.", markup=False)
        self.call_after_refresh(self.show_now)

    def _may_tune(self) -> bool:
        """Whether a run may be started or stopped now, having said why not."""
        return self.tuner is not None and self.screen is self.tuner and self._may_change()

    def _confirm_tuner(self, title: str, notes: tuple[str, ...], then: Callable[[], None]) -> None:
        from specdash.tui.screens.confirm import ConfirmScreen

        def answered(yes: bool | None) -> None:
            # An arming that ran out meanwhile counts.
            if yes and self._may_change():
                then()
            self.show_now()

        self.push_screen(ConfirmScreen(PALETTES[self.theme], self.glyphs, title, notes), answered)

    def _start_run(self) -> None:
        console, model = self.tuner_console, self.tuner_model
        if console is not None:
            model.starting = True
            self._ask(_WORK, partial(console.start, model.budget), self._started, self._not_started)

    def _resume_run(self) -> None:
        console = self.tuner_console
        if console is not None:
            self.tuner_model.starting = True
            self._ask(_WORK, console.resume, self._started, self._not_started)

    def _abort_run(self) -> None:
        console = self.tuner_console

        def ended(words: str) -> None:
            self.notify(clean(words, 400), timeout=10, markup=False)
            self.look_at_tuner()

        if console is not None:
            self.notify("the settings from before are put back", timeout=6)
            self._ask(_WORK, console.abort, ended)

    def _stop_run(self) -> None:
        console, model, run = self.tuner_console, self.tuner_model, self.tuner_model.run
        if console is None or run is None:
            return

        def stopped(_: None) -> None:
            model.stopping = run.directory
            self.notify("the tuner was told to stop; it puts the original back", timeout=6)
            self._redraw_tuner()

        self._ask(_WORK, partial(console.stop, run), stopped)

    def _started(self, run: Run) -> None:
        del run
        self.tuner_model.starting = False
        self.tuner_model.stopping = ""
        self.look_at_tuner()

    def _not_started(self, error: str) -> None:
        self.tuner_model.starting = False
        self.notify(clean(error, 600), severity="error", timeout=20, markup=False)
        self._redraw_tuner()

    def _redraw_tuner(self) -> None:
        if self.tuner is not None:
            self.show_now()


def _what_a_run_means(plan: RunPlan, *, demo: bool) -> tuple[str, ...]:
    """For whoever uses the service."""
    from specdash.tui.widgets.tuner_bar import about

    took = f"about {about(plan.eta_s)}" if plan.eta_s is not None else "a time that is not known yet"
    waits = f", about {about(plan.downtime_s)} of which clients wait" if plan.downtime_s is not None else ""
    starts = f"Its engine is started anew {count(plan.budget.restarts)} times, and once more at the end"
    return (
        f"{starts}; that takes {took}{waits}. Requests that come through the proxy are held meanwhile; others fail.",
        "When the run ends, is stopped or fails, the settings from before are put back. Better ones are only shown.",
        "It ends with this demo; x on this screen stops it before."
        if demo
        else "It goes on when this dashboard ends; x on this screen stops it, from any dashboard.",
    )
