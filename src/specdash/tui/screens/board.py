"""What screens have in common whose body is a board of parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from specdash.tui.screens.base import DashboardScreen
from specdash.tui.widgets.placed import FoldingBoard, PlacedBoard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.tui.actions import Place
    from specdash.tui.view import View
    from specdash.tui.widgets.panel import LinesWidget, TitledPanel

BoardType = TypeVar("BoardType", bound=PlacedBoard)
FoldingType = TypeVar("FoldingType", bound=FoldingBoard)


class BoardScreen(DashboardScreen, Generic[BoardType]):
    """Header, a board, footer."""

    def __init__(self, board: BoardType, place: Place) -> None:
        super().__init__(place=place)
        self.board = board

    def body(self) -> BoardType:
        """The board."""
        return self.board

    def painted(self) -> Sequence[LinesWidget]:
        """Everything in it."""
        return self.board.parts

    def show_body(self, view: View) -> None:
        """Draw this view."""
        self.board.show(view)


class FoldingScreen(BoardScreen[FoldingType]):
    """A screen of panels that do not all fit: `tab` brings them, and one can have the room of all."""

    @property
    def panel(self) -> TitledPanel:
        """The focused panel."""
        present = self.board.present()
        return next((one for one in present if one is self.focused), present[0])

    def next_panel(self, step: int) -> None:
        """Move the focus, also to a panel that has no place yet."""
        panels = self.board.present()
        at = next((i for i, one in enumerate(panels) if one is self.panel), -step)
        if panels:
            self.board.bring(panels[(at + step) % len(panels)])

    def toggle_zoom(self) -> None:
        """The focused panel alone, or all."""
        self.board.zoom(None if self.board.zoomed is not None else self.panel)

    def leave(self) -> bool:
        """Leave zoom; False when there is nothing to leave but the screen."""
        if self.board.zoomed is None:
            return False
        self.board.zoom(None)
        return True
