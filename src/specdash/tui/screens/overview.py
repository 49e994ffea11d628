"""The overview: header, board of panels, footer; the prompt for find and filter takes the footer's place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.tui.actions import Place
from specdash.tui.screens.board import BoardScreen
from specdash.tui.widgets.board import Board

if TYPE_CHECKING:
    from specdash.tui.view import View
    from specdash.tui.widgets.header import Situation


class OverviewScreen(BoardScreen[Board]):
    """The one screen that is always there."""

    def __init__(self) -> None:
        super().__init__(Board(), Place.OVERVIEW)

    def prime(self, view: View, situation: Situation) -> None:
        """Hand out the first view before anything has a size: every widget draws it as soon as it gets one, so that the
        first paint is already the whole picture."""
        self.view, self._situation = view, situation
        self.footer.glyphs = view.glyphs
        self.header.show(view, situation)
        self.board.prime(view)
