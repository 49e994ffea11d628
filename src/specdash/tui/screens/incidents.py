"""The incidents screen: what is wrong, since when, what to do, and what was. Imported when it is opened first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.tui.actions import Place
from specdash.tui.layout import Rect
from specdash.tui.screens.board import BoardScreen
from specdash.tui.widgets.alerts import ALERTS, DETAIL, AlertDetail, AlertsTable
from specdash.tui.widgets.placed import PlacedBoard
from specdash.tui.widgets.timeline import STRIP, STRIP_LINES, TimelineStrip

if TYPE_CHECKING:
    from specdash.core.alerts import Alert
    from specdash.tui.view import View
    from specdash.tui.widgets.panel import Movable

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
    """Above the overview, or the proxy screen, while it is open."""

    def __init__(self) -> None:
        super().__init__(IncidentsBoard(), Place.INCIDENTS)

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
