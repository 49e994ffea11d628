"""What the keys of the log do; keys of movement move the table of another screen while one is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import App

if TYPE_CHECKING:
    from specdash.tui.screens.overview import OverviewScreen
    from specdash.tui.widgets.panel import Movable


class LogActions(App[None]):
    """Mixed into the dashboard, which knows the rest of these names."""

    overview: OverviewScreen

    @property
    def moving(self) -> Movable | None:
        """What keys of movement move, None on the overview: there they move the log."""
        raise NotImplementedError

    def reveal_log(self) -> None:
        """Show the log panel."""
        raise NotImplementedError

    async def action_log_find(self) -> None:
        """Ask what to find."""
        log = self.overview.board.log_panel
        self.reveal_log()
        await self.overview.ask(
            "find in the log", log.buffer.needle, lambda text: None if text is None else log.find(text)
        )

    async def action_log_filter(self) -> None:
        """Ask what to filter by."""
        log = self.overview.board.log_panel
        self.reveal_log()
        await self.overview.ask(
            "show only lines with this text; empty shows all",
            log.buffer.filter,
            lambda text: None if text is None else log.filter_by(text),
        )

    def action_log_match(self, step: int) -> None:
        """Next or previous match."""
        self.overview.board.log_panel.next_match(step)

    def action_log_invert(self) -> None:
        """Invert the filter."""
        self.overview.board.log_panel.invert_filter()

    def action_log_toggle_filter(self) -> None:
        """Filter off or on."""
        self.overview.board.log_panel.toggle_filter()

    def action_log_follow(self) -> None:
        """Follow the end."""
        if (table := self.moving) is not None:
            table.to_end()
        else:
            self.overview.board.log_panel.follow()

    def action_log_top(self) -> None:
        """Oldest line kept."""
        if (table := self.moving) is not None:
            table.to_start()
        else:
            self.overview.board.log_panel.to_top()

    def action_log_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        if (table := self.moving) is not None:
            table.move(lines)
        else:
            self.overview.board.log_panel.scroll_lines(lines)

    def action_log_page(self, pages: int) -> None:
        """Scroll by pages."""
        if (table := self.moving) is not None:
            table.page(pages)
        else:
            self.overview.board.log_panel.scroll_page(pages)

    def action_log_shift(self, cells: int) -> None:
        """Scroll sideways."""
        self.overview.board.log_panel.scroll_sideways(cells)
