"""What the keys of the tune screen do: the part of the dashboard that may change something.

All that may block is asked of the console in a worker thread; its answer comes back to the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from textual.app import App

from specdash.tui.themes import PALETTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.control.apply import ApplyPlan
    from specdash.control.console import Console, Running, ServicesView
    from specdash.control.profiles import Profile
    from specdash.core.applies import ApplyRecord
    from specdash.history.player import Player
    from specdash.tui.arming import Arming
    from specdash.tui.screens.apply import ApplyScreen
    from specdash.tui.screens.tune import TuneScreen
    from specdash.tui.spans import Glyphs
    from specdash.tui.tune_model import TuneModel

Answer = TypeVar("Answer")
LOOK_S = 2.0
"""How often an open tune screen looks at the services."""


class TuneActions(App[None]):
    """Mixed into the dashboard, which knows the rest of these names."""

    services: Console | None
    player: Player | None
    arming: Arming
    tune: TuneScreen | None
    cut_short: bool = False
    """An earlier apply waits to be finished or rolled back."""
    _tune_model: TuneModel | None = None
    glyphs: Glyphs

    def monotonic(self) -> float:
        """Seconds."""
        raise NotImplementedError

    def show_now(self) -> None:
        """Draw what just changed."""
        raise NotImplementedError

    @property
    def tune_model(self) -> TuneModel:
        """What the tune screen knows; it outlives the screen, so that pending changes do."""
        if self._tune_model is None:
            from specdash.tui.tune_model import TuneModel

            self._tune_model = TuneModel()
        return self._tune_model

    def action_toggle_tune(self) -> None:
        """Open the tune screen, or leave it."""
        if self.tune is not None:
            if self.screen is self.tune:
                self.tune = None
                self.pop_screen()
                self.call_after_refresh(self.show_now)
            return
        if self.services is None:
            self.notify("this dashboard has no services to tune", severity="warning")
            return
        from specdash.tui.screens.tune import TuneScreen

        self.tune = TuneScreen(self.tune_model)
        self.tune.footer.glyphs = self.glyphs
        self.tune.paint(PALETTES[self.theme])
        self.push_screen(self.tune)
        self.look_at_services()
        self.call_after_refresh(self.show_now)

    def look_at_services(self, *, again: bool = False) -> None:
        """Ask how the services are, without waiting. `again` is for looks that come by themselves: one that is under
        way is left to its end, however long it takes."""
        console = self.services
        if console is not None:
            self._ask("look", console.look, self._looked, again=again)

    def look_for_unfinished(self) -> None:
        """Ask whether an apply was cut short: whoever starts a dashboard shall hear of it."""
        console = self.services
        if console is not None:
            self._ask("unfinished", console.unfinished, self._found_unfinished)

    def _found_unfinished(self, words: str | None) -> None:
        self.cut_short = words is not None
        if words is not None:
            said = f"An apply was cut short: {words}. Press e, then A to arm; y finishes it, R rolls it back."
            self.notify(said, severity="error", timeout=30, markup=False)
        self.show_now()

    def _looked(self, services: ServicesView) -> None:
        self.cut_short = services.unfinished is not None
        changed = self.tune_model.services != services
        self.tune_model.services = services
        self.tune_model.settle()
        if changed:
            self.check_changes()
        self._redraw()

    def check_changes(self) -> None:
        """Ask preflight about the pending changes."""
        console, model = self.services, self.tune_model
        if console is None or not model.count:
            model.plan = model.plan_error = None
            model.checking = False
            return
        changes, profile = model.changes, model.profile
        model.checking = True

        def checked(plan: ApplyPlan | None, error: str | None) -> None:
            if model.changes.values != changes.values:
                return
            model.plan, model.plan_error, model.checking = plan, error, False
            self._redraw()

        self._ask(
            "check",
            lambda: console.plan(changes, profile),
            lambda plan: checked(plan, None),
            lambda e: checked(None, e),
        )

    async def edit_setting(self) -> None:
        """Ask for the value of the selected setting."""
        screen, model = self.tune, self.tune_model
        row = screen.board.keys.selected if screen is not None else None
        if screen is None or row is None:
            return
        secret = row.help is not None and row.help.secret
        text = row.wanted if row.pending else row.now

        def answer(value: str | None) -> None:
            if value is None:
                return
            problem = model.problem_with(row.key, value.strip())
            if problem is not None:
                self.notify(problem, severity="error", markup=False)
                return
            model.set(row.key, value.strip())
            self.check_changes()
            self._redraw()

        values = row.help.values if row.help is not None else ""
        await screen.ask(f"{row.key}  {values}", "" if secret else text or "", answer, secret=secret)

    def action_unset_key(self) -> None:
        """Remove the selected setting."""
        row = self.tune.board.keys.selected if self.tune is not None else None
        if row is not None and (row.now is not None or row.pending):
            self.tune_model.drop(row.key)
            if row.now is not None:
                self.tune_model.set(row.key, None)
            self.check_changes()
            self._redraw()

    def action_drop_change(self) -> None:
        """Forget the selected setting's change."""
        row = self.tune.board.keys.selected if self.tune is not None else None
        if row is not None and self.tune_model.drop(row.key):
            self.check_changes()
            self._redraw()

    def action_clear_changes(self) -> None:
        """Forget all changes."""
        self.tune_model.clear()
        self.check_changes()
        self._redraw()

    def action_next_service(self) -> None:
        """Backend or proxy."""
        from specdash.core.changes import Role

        model = self.tune_model
        model.role = Role.PROXY if model.role is Role.BACKEND else Role.BACKEND
        if self.tune is not None:
            self.tune.board.keys.to_start()
        self._redraw()

    def action_every_key(self) -> None:
        """All settings, or the usual ones."""
        self.tune_model.every_key = not self.tune_model.every_key
        self._redraw()

    def action_next_side(self) -> None:
        """Checks or the before/after card."""
        if self.tune is not None:
            self.tune.board.next_side()
            self.call_after_refresh(self.show_now)

    def action_presets(self) -> None:
        """Choose a preset."""
        console = self.services
        if console is None:
            return

        def choose(profiles: tuple[Profile, ...]) -> None:
            from specdash.tui.screens.presets import PresetsScreen

            self.push_screen(PresetsScreen(PALETTES[self.theme], self.glyphs, profiles), taken)

        def taken(profile: Profile | None) -> None:
            if profile is not None:
                self.tune_model.take(profile)
                self.check_changes()
            self._redraw()

        self._ask("presets", console.profiles, choose)

    def action_arm(self) -> None:
        """Arm or disarm."""
        if self.services is None or self.arming.locked:
            why = "started with --read-only" if self.arming.locked else "there is no service to change"
            self.notify(f"this dashboard stays read-only: {why}", severity="warning", markup=False)
            return
        if self.player is not None:
            self.notify("the past cannot be changed: L goes back to live", severity="warning")
            return
        if self.arming.toggle(self.monotonic()):
            idle = f"{self.arming.idle_s:g}"
            self.notify(f"armed: changes are allowed until {idle} s pass without a key", severity="warning")
        self.show_now()

    def action_apply(self) -> None:
        """Show what would be applied; enter there applies it."""
        console, plan = self.services, self.tune_model.plan
        if not self._may_change() or console is None:
            return
        if plan is None:
            model = self.tune_model
            told = model.plan_error or ("preflight still runs" if model.checking else "nothing is pending")
            self.notify(told, severity="warning", markup=False)
            return
        count = self.tune_model.count
        self._show_apply(f"Apply {count} change{'s' * (count > 1)}", plan, lambda: console.start(plan))

    def action_roll_back(self) -> None:
        """Show what going back would do; enter there does it. A cut-short apply comes first."""
        console = self.services
        if not self._may_change() or console is None:
            return
        if self.cut_short:
            self._show_apply("Roll back the apply that was cut short", None, lambda: console.recover(finish=False))
            return
        self._ask(
            "rollback",
            console.plan_rollback,
            lambda plan: self._show_apply("Roll back the last apply", plan, lambda: console.start(plan)),
        )

    def action_finish(self) -> None:
        """Finish what was cut short."""
        console = self.services
        if console is None or not self.cut_short:
            self.notify("no apply was cut short", severity="warning")
        elif self._may_change():
            self._show_apply("Finish the apply that was cut short", None, lambda: console.recover(finish=True))

    def _may_change(self) -> bool:
        if self.arming.armed(self.monotonic()):
            return True
        self.notify("read-only: press A to arm first", severity="warning")
        return False

    def _show_apply(self, title: str, plan: ApplyPlan | None, start: Callable[[], Running]) -> None:
        from specdash.tui.screens.apply import ApplyScreen

        screen: ApplyScreen = ApplyScreen(PALETTES[self.theme], self.glyphs, title, plan, start, self._applied)
        self.push_screen(screen)

    def _applied(self, record: ApplyRecord | None) -> None:
        from specdash.core.applies import Outcome

        if record is not None and record.outcome is Outcome.APPLIED:
            self.tune_model.clear()
        self.look_at_services()

    def _redraw(self) -> None:
        if self.tune is not None:
            self.show_now()

    def _ask(
        self,
        name: str,
        work: Callable[[], Answer],
        then: Callable[[Answer], None],
        failed: Callable[[str], None] | None = None,
        *,
        again: bool = False,
    ) -> None:
        """Do `work` in a thread and give its answer to `then` here; a newer one of the same name takes its place, but
        not one that is asked `again` and again by the clock."""
        from textual.worker import get_current_worker

        from specdash.core.errors import SpecdashError

        if again and any(worker.name == name and not worker.is_finished for worker in self.workers):
            return

        def run() -> None:
            worker = get_current_worker()
            try:
                answer = work()
            except SpecdashError as error:
                if not worker.is_cancelled:
                    self.call_from_thread(self._say, str(error), failed)
                return
            if not worker.is_cancelled:
                self.call_from_thread(then, answer)

        self.run_worker(run, name=name, group=name, exclusive=True, thread=True)

    def _say(self, error: str, failed: Callable[[str], None] | None) -> None:
        if failed is not None:
            failed(error)
        else:
            self.notify(error, severity="error", markup=False)
