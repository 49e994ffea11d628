"""What the keys of the speculation screen do: look, and, when armed, save, restore and erase a slot.

Slots are looked at and changed in a worker thread; the answer comes back to the event loop.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from specdash.tui.formatting import clean
from specdash.tui.themes import PALETTES
from specdash.tui.tune_actions import TuneActions

if TYPE_CHECKING:
    from specdash.control.slot_console import SlotConsole
    from specdash.control.slots import SlotChange, SlotPlan
    from specdash.insight.drafter_picture import PrefixSlot
    from specdash.tui.screens.base import DashboardScreen
    from specdash.tui.screens.incidents import IncidentsScreen
    from specdash.tui.screens.overview import OverviewScreen
    from specdash.tui.screens.speculation import SpeculationScreen

_WORKER = "slots"
_MEANS = {
    "save": "What the slot holds stays as it is.",
    "restore": "What the slot holds now is lost; the next prompt that begins like the saved one is not read again.",
    "erase": "The next request of its session reads its whole prompt again.",
}


class SpeculationActions(TuneActions):
    """Mixed into the dashboard, which knows the rest of these names."""

    overview: OverviewScreen
    incidents: IncidentsScreen | None
    speculation: SpeculationScreen | None
    """The speculation screen while it is open."""
    slot_console: SlotConsole | None

    @property
    def shown(self) -> DashboardScreen:
        """The screen that is looked at."""
        raise NotImplementedError

    def action_toggle_incidents(self) -> None:
        """Open the incidents screen, or leave it."""
        raise NotImplementedError

    def action_toggle_speculation(self) -> None:
        """Open the speculation screen, or leave it. Tune and incidents screen give way to it; what is pending stays."""
        for above, leave in ((self.tune, self.action_toggle_tune), (self.incidents, self.action_toggle_incidents)):
            if above is not None:
                if self.screen is not above:
                    return
                leave()
                if self.shown is self.speculation:
                    return
        if self.speculation is not None:
            if self.screen is self.speculation:
                frozen, self.speculation = self.speculation.view, None
                self.pop_screen()
                self.overview.view = frozen or self.overview.view
                self.call_after_refresh(self.show_now)
            return
        from specdash.tui.screens.speculation import SpeculationScreen

        self.speculation = SpeculationScreen()
        self.speculation.footer.glyphs = self.glyphs
        self.speculation.paint(PALETTES[self.theme])
        self.push_screen(self.speculation)
        self.call_after_refresh(self.show_now)

    async def action_slot_save(self) -> None:
        """Ask for a file, then save what the selected slot holds to it."""
        slot = self._slot_to_change()
        if slot is not None:
            await self._ask_file("save", slot, f"slot-{slot.id}.bin")

    def action_slot_restore(self) -> None:
        """Ask for a file, the newest by default, then let the selected slot hold what it holds."""
        slot, console = self._slot_to_change(), self.slot_console
        if slot is None or console is None:
            return

        def ask(files: tuple[str, ...]) -> None:
            newest = files[0] if files else f"slot-{slot.id}.bin"
            self.call_later(self._ask_file, "restore", slot, newest)

        self._ask(_WORKER, console.files, ask)

    def action_slot_erase(self) -> None:
        """Let the selected slot forget what it holds."""
        slot = self._slot_to_change()
        if slot is not None:
            self._plan("erase", slot, None)

    async def _ask_file(self, action: str, slot: PrefixSlot, name: str) -> None:
        screen = self.speculation
        if screen is None or self.screen is not screen:
            return

        def answer(text: str | None) -> None:
            if text and text.strip():
                self._plan(action, slot, text.strip())

        await screen.ask(f"{action} slot {slot.id}: name of the file", name, answer)

    def _slot_to_change(self) -> PrefixSlot | None:
        """The selected slot; None, having said why, when it may not be changed now."""
        screen = self.speculation
        if screen is None or self.screen is not screen:
            return None
        if self.slot_console is None:
            self.notify("this dashboard cannot change slots; use `specdash slots`", severity="warning")
            return None
        if not self._may_change():
            return None
        if not screen.knows_slots:
            self.notify("no slot is known yet: there is nothing to change", severity="warning")
            return None
        if screen.bring_slots():
            self.notify("choose the slot with ↑↓, then press the key again", timeout=4)
            return None
        return screen.slot

    def _plan(self, action: str, slot: PrefixSlot, filename: str | None) -> None:
        """Look whether it can be done; a refusal is said, else it is asked whether to do it."""
        console = self.slot_console
        if console is not None:
            self._ask(_WORKER, partial(console.plan, action, slot.id, filename), self._confirm)

    def _confirm(self, plan: SlotPlan) -> None:
        from specdash.tui.screens.confirm import ConfirmScreen

        def answered(yes: bool | None) -> None:
            console = self.slot_console
            if yes and console is not None and self._may_change():
                self._ask(_WORKER, partial(console.carry_out, plan), self._changed)
            self.show_now()

        if self.screen is self.speculation:
            notes = (_MEANS[plan.action], *plan.warnings)
            self.push_screen(ConfirmScreen(PALETTES[self.theme], self.glyphs, plan.question, notes), answered)

    def _changed(self, change: SlotChange) -> None:
        self.notify(clean(change.sentence, 400), timeout=10, markup=False)
        for warning in change.warnings:
            self.notify(clean(warning, 400), severity="warning", timeout=10, markup=False)
        self.show_now()
