"""What the keys of the incidents screen do: look, go to the time of an alert, take its fix to the tune screen, write an
incident bundle. None of them changes a service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.tui.formatting import clean
from specdash.tui.themes import PALETTES
from specdash.tui.tune_actions import TuneActions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from specdash.core.alerts import Alert
    from specdash.tui.screens.incidents import IncidentsScreen
    from specdash.tui.screens.overview import OverviewScreen


RAISED_S = 0.5
"""So much later the alert is seen for certain."""


class IncidentActions(TuneActions):
    """Mixed into the dashboard, which knows the rest of these names."""

    overview: OverviewScreen
    incidents: IncidentsScreen | None
    """The incidents screen while it is open."""
    incident: Callable[[], Path] | None
    _is_writing = False

    def action_travel_to(self, wall: float) -> None:
        """Show the moment `wall` (Unix time)."""
        raise NotImplementedError

    def action_toggle_incidents(self) -> None:
        """Open the incidents screen, or leave it. The tune screen gives way to it; what is pending there stays."""
        if self.tune is not None:
            if self.screen is not self.tune:
                return
            self.action_toggle_tune()
            if self.incidents is not None:
                return
        if self.incidents is not None:
            if self.screen is self.incidents:
                frozen, self.incidents = self.incidents.view, None
                self.pop_screen()
                self.overview.view = frozen or self.overview.view
                self.call_after_refresh(self.show_now)
            return
        from specdash.tui.screens.incidents import IncidentsScreen

        self.incidents = IncidentsScreen()
        self.incidents.footer.glyphs = self.glyphs
        self.incidents.paint(PALETTES[self.theme])
        self.push_screen(self.incidents)
        self.call_after_refresh(self.show_now)

    def _selected_alert(self) -> Alert | None:
        return self.incidents.selected if self.incidents is not None else None

    def go_to_alert(self) -> None:
        """Show the overview as it was when the selected alert was raised: what led to it is in its charts."""
        alert = self._selected_alert()
        if alert is None:
            return
        self.action_toggle_incidents()
        self.action_travel_to(alert.raised + RAISED_S)

    def action_take_fix(self) -> None:
        """Open the tune screen with the settings that would help as pending changes; applying them is another key."""
        alert = self._selected_alert()
        if alert is None:
            return
        if not alert.fix:
            self.notify(f"{alert.title}: there is no one-key fix; see what to do", severity="warning", markup=False)
            return
        from specdash.core.changes import Role
        from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS

        model, shown_role = self.tune_model, None
        self.action_toggle_tune()
        if self.tune is None:
            return
        for key, value in alert.fix:
            model.role = Role.PROXY if key in PROXY_KEYS else Role.BACKEND
            shown_role = shown_role or model.role
            model.set(key, value)
        model.role = shown_role or model.role
        self.tune.board.keys.chosen = alert.fix[0][0]
        self.check_changes()
        keys = ", ".join(key for key, _ in alert.fix)
        self.notify(f"pending, not applied: {clean(keys, 80)}. Look at the checks; A arms, a applies.", markup=False)
        self.call_after_refresh(self.show_now)

    def action_write_incident(self) -> None:
        """Write an incident bundle in a thread, and say where it is."""
        write = self.incident
        if write is None:
            self.notify("this dashboard writes no incident bundles; use `specdash incident`", severity="warning")
            return
        if self._is_writing:
            self.notify("an incident bundle is being written already")
            return
        self._is_writing = True
        self.notify("writing an incident bundle", timeout=3)
        self.run_worker(lambda: self._write(write), name="incident", group="incident", thread=True)

    def _write(self, write: Callable[[], Path]) -> None:
        from specdash.core.errors import SpecdashError

        try:
            said, severity = f"incident bundle: {write()}", "information"
        except (SpecdashError, OSError) as error:
            said, severity = f"no incident bundle was written: {error}", "error"
        self.call_from_thread(self._wrote, said, severity)

    def _wrote(self, said: str, severity: str) -> None:
        self._is_writing = False
        self.notify(said, severity=severity, timeout=20, markup=False)  # type: ignore[arg-type]
