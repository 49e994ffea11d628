"""The incidents screen: what is wrong, since when, what to do, and what was. Imported when it is opened first."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from specdash.tui.action_table import FooterScreen, bindings
from specdash.tui.arming import in_background
from specdash.tui.layout import Rect
from specdash.tui.screens.base import BoardScreen
from specdash.tui.widgets.alerts import ALERTS, DETAIL, STRIP, STRIP_LINES, AlertDetail, AlertsTable, TimelineStrip
from specdash.tui.widgets.panel import PlacedBoard

if TYPE_CHECKING:
    from pathlib import Path

    from textual.binding import BindingType

    from specdash.core.records import Alert
    from specdash.tui.app import Dashboard
    from specdash.tui.view import View
    from specdash.tui.widgets.panel import Movable

RAISED_S = 0.5
"""So much later the alert is seen for certain."""
_WRITING = "incident"
_HEADS = 2
"""Lines of the table above its rows."""
_LEAST_ROWS, _MOST_ROWS = 3, 14
_TALL = 30


def arrange(width: int, height: int, alerts: int, *, zoomed: bool = False) -> dict[str, Rect]:
    """Where the parts go: alerts, the timeline below them, and the detail, which gets what is left. A zoomed detail has
    the screen to itself; without alerts it says what is judged."""
    if zoomed:
        return {DETAIL: Rect(0, 0, width, height)}
    most = max(height // 3 - _HEADS, _LEAST_ROWS) if height >= _TALL else _LEAST_ROWS + 1
    upper = _HEADS + min(max(alerts, 1 if height < _TALL else _LEAST_ROWS), most, _MOST_ROWS)
    detail = max(height - upper - STRIP_LINES, 0)
    return {
        ALERTS: Rect(0, 0, width, upper),
        STRIP: Rect(0, upper, width, STRIP_LINES),
        DETAIL: Rect(0, upper + STRIP_LINES, width, detail),
    }


class IncidentsBoard(PlacedBoard):
    """The parts of the screen."""

    def __init__(self) -> None:
        super().__init__()
        self.table = AlertsTable()
        self.strip = TimelineStrip()
        self.detail = AlertDetail(self.table)
        self.alerts = 0
        self.zoomed = False

    @property
    def parts(self) -> tuple[AlertsTable, TimelineStrip, AlertDetail]:
        """All of them."""
        return self.table, self.strip, self.detail

    def places(self, width: int, height: int) -> dict[str, Rect]:
        """See `arrange`."""
        return arrange(width, height, self.alerts, zoomed=self.zoomed)

    def show(self, view: View) -> None:
        """Draw this view; the detail follows the table's selection."""
        alerts = len(view.picture.alerts.active) + len(view.picture.alerts.past)
        if alerts != self.alerts:
            self.alerts = alerts
            self.place_again()
        for part in self.parts:
            part.show(view)

    def zoom(self, *, zoomed: bool) -> None:
        """Give the detail the whole room, or all parts their places."""
        self.zoomed = zoomed
        self.table.display = self.strip.display = not zoomed
        self.detail.top = 0
        self.detail.refresh(layout=True)


class IncidentsScreen(BoardScreen[IncidentsBoard]):
    """Looks, goes to the time of an alert, and takes its fix to the tune screen. It changes no service."""

    place = FooterScreen.INCIDENTS
    BINDINGS: ClassVar[list[BindingType]] = bindings(place)

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard, IncidentsBoard())

    def show_body(self, view: View) -> None:
        """Draw this view."""
        self.board.strip.problem = self._situation.recording_trouble
        super().show_body(view)

    def on_mount(self) -> None:
        """The alerts are what is chosen from."""
        self.board.table.focus()

    @property
    def selected(self) -> Alert | None:
        """The selected alert."""
        return self.board.table.selected

    @property
    def copied(self) -> str:
        """What to do about the selected alert: its settings where there are, else the runbook's words."""
        alert = self.selected
        if alert is None:
            return ""
        return " ".join(f"{key}={value}" for key, value in alert.fix if value is not None) or self.board.detail.remedy

    @property
    def moving(self) -> Movable:
        """What keys of movement move: the detail while it has the focus or the screen, else the selection."""
        return self.board.detail if self.board.zoomed or self.board.detail.has_focus else self.board.table

    def toggle_zoom(self) -> None:
        """The detail alone, or all."""
        self.board.zoom(zoomed=not self.board.zoomed)
        (self.board.detail if self.board.zoomed else self.board.table).focus()

    def leave(self) -> bool:
        """Leave zoom; False when there is nothing to leave but the screen."""
        if not self.board.zoomed:
            return False
        self.toggle_zoom()
        return True

    async def action_open(self) -> None:
        """Show the overview as it was when the selected alert was raised: what led to it is in its charts."""
        alert = self.selected
        if alert is not None:
            self.dashboard.action_toggle_screen(self.place)
            self.dashboard.travel.to(alert.raised + RAISED_S)

    def action_take(self) -> None:
        """Open the tune screen with the settings that would help as pending changes."""
        from specdash.tui.screens.tune import want_in_tune

        alert = self.selected
        if alert is not None and alert.fix:
            want_in_tune(self.dashboard, alert.fix)
        elif alert is not None:
            self.notify(f"{alert.title}: there is no one-key fix; see what to do", severity="warning", markup=False)


def write_bundle(dashboard: Dashboard) -> None:
    """Write an incident bundle in a thread, and say where it is."""
    write = dashboard.incident
    if write is None:
        dashboard.notify("this dashboard writes no incident bundles; use `specdash incident`", severity="warning")
        return
    if any(worker.name == _WRITING and not worker.is_finished for worker in dashboard.workers):
        dashboard.notify("an incident bundle is being written already")
        return
    dashboard.notify("writing an incident bundle", timeout=3)

    def written(path: Path) -> None:
        dashboard.notify(f"incident bundle: {path}", timeout=20, markup=False)

    def failed(error: str) -> None:
        dashboard.notify(f"no incident bundle was written: {error}", severity="error", timeout=20, markup=False)

    in_background(dashboard, _WRITING, write, written, failed)
