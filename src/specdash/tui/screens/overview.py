"""The overview: header, board of panels, footer; the prompt for find and filter takes the footer's place."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from specdash.tui.action_table import FooterScreen, bindings
from specdash.tui.layout import PanelId
from specdash.tui.screens.base import BoardScreen
from specdash.tui.widgets.board import Board
from specdash.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from textual.binding import BindingType

    from specdash.tui.app import Dashboard
    from specdash.tui.view import View
    from specdash.tui.widgets.header import HeaderSituation
    from specdash.tui.widgets.logs import LogPanel


class OverviewScreen(BoardScreen[Board]):
    """The one screen that is always there."""

    place = FooterScreen.OVERVIEW
    BINDINGS: ClassVar[list[BindingType]] = bindings(place)

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard, Board())
        self._last_panel = PanelId.ACCEPTANCE

    def prime(self, view: View, situation: HeaderSituation) -> None:
        """Hand out the first view before anything has a size: every widget draws it as soon as it gets one, so that the
        first paint is already the whole picture."""
        self.view, self._situation = view, situation
        self.header.show(view, situation)
        self.board.prime(view)

    @property
    def log_panel(self) -> LogPanel:
        """The log's panel."""
        return self.board.log_panel

    @property
    def moving(self) -> LogPanel:
        """Keys of movement move the log."""
        return self.log_panel

    def toggle_zoom(self) -> None:
        """The focused or last panel alone, or all."""
        self.board.zoom(None if self.board.zoomed is not None else self._focused_panel())

    def leave(self) -> bool:
        """Leave zoom first, then find, then filter; the overview itself is left for a fleet alone."""
        if self.board.zoomed is not None:
            self.toggle_zoom()
        elif self.log_panel.buffer.needle:
            self.log_panel.find("")
        elif self.log_panel.buffer.filter:
            self.log_panel.filter_by("")
        elif self.dashboard.of_fleet:
            self.dashboard.leave_for_fleet()
        return True

    def _focused_panel(self) -> PanelId:
        if isinstance(self.focused, Panel):
            self._last_panel = self.focused.panel
        return self._last_panel

    def action_next_panel(self, step: int) -> None:
        """Move the focus."""
        super().action_next_panel(step)
        self._focused_panel()

    def action_toggle_panel(self, panel: str) -> None:
        """Show or hide one panel."""
        chosen = PanelId(panel)
        self.board.toggle(chosen)
        if self.board.choices[chosen]:
            self._last_panel = chosen
        self.redraw_soon()

    def action_reset_panels(self) -> None:
        """Back to the panels of this screen size."""
        self.board.reset()
        self.redraw_soon()

    async def action_log_find(self) -> None:
        """Ask what to find."""
        self._reveal_log()
        await self.ask(
            "find in the log",
            self.log_panel.buffer.needle,
            lambda text: None if text is None else self.log_panel.find(text),
        )

    async def action_log_filter(self) -> None:
        """Ask what to filter by."""
        self._reveal_log()
        await self.ask(
            "show only lines with this text; empty shows all",
            self.log_panel.buffer.filter,
            lambda text: None if text is None else self.log_panel.filter_by(text),
        )

    def action_log_match(self, step: int) -> None:
        """Next or previous match."""
        self.log_panel.next_match(step)

    def action_log_invert(self) -> None:
        """Invert the filter."""
        self.log_panel.invert_filter()

    def action_log_toggle_filter(self) -> None:
        """Filter off or on."""
        self.log_panel.toggle_filter()

    def action_log_shift(self, cells: int) -> None:
        """Scroll sideways."""
        self.log_panel.scroll_sideways(cells)

    @property
    def copied(self) -> str:
        """The log line that was found, else the lowest one shown."""
        return self.log_panel.line

    def _reveal_log(self) -> None:
        self._last_panel = PanelId.LOG
        if all(panel.panel is not PanelId.LOG for panel in self.board.visible_panels()):
            self.board.toggle(PanelId.LOG)
