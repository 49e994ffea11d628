"""The tune screen: settings now, wanted and last good side by side, checked while they are edited, and applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.tui.actions import Place
from specdash.tui.layout import Rect
from specdash.tui.screens.board import BoardScreen
from specdash.tui.widgets.experiment import ExperimentCardView
from specdash.tui.widgets.placed import PlacedBoard
from specdash.tui.widgets.tune import ChecksPanel, KeyHelpPanel, KeysTable

if TYPE_CHECKING:
    from specdash.tui.tune_model import TuneModel
    from specdash.tui.view import View

KEYS, HELP, CHECKS, CARD = "tune-keys", "tune-help", "tune-checks", "tune-card"
_SIDE_BY_SIDE = 150
_CARD_LINES = 10
_TALL = 32


def arrange(width: int, height: int, side: str) -> dict[str, Rect]:
    """Where the parts go. Where they do not all fit, `side` (checks or card) is the one below the keys."""
    if width >= _SIDE_BY_SIDE:
        left = width * 3 // 5
        right, lower = width - left - 1, min(_CARD_LINES, height // 3)
        upper = height - lower
        helped = min(8, upper // 3)
        return {
            KEYS: Rect(0, 0, left, upper),
            HELP: Rect(left + 1, 0, right, helped),
            CHECKS: Rect(left + 1, helped, right, upper - helped),
            CARD: Rect(0, upper, width, lower),
        }
    helped = 5 if height < _TALL else 6
    if height >= _TALL:
        checks, card = 6, _CARD_LINES
        keys = height - helped - checks - card
        return {
            KEYS: Rect(0, 0, width, keys),
            HELP: Rect(0, keys, width, helped),
            CHECKS: Rect(0, keys + helped, width, checks),
            CARD: Rect(0, keys + helped + checks, width, card),
        }
    below = 5 if side == CHECKS else min(_CARD_LINES, height // 2)
    keys = height - helped - below
    if side == CARD:
        helped, keys = 0, height - below
    places = {KEYS: Rect(0, 0, width, keys), side: Rect(0, keys + helped, width, below)}
    return places | ({HELP: Rect(0, keys, width, helped)} if helped else {})


class TuneBoard(PlacedBoard):
    """The parts of the screen."""

    def __init__(self, model: TuneModel) -> None:
        super().__init__()
        self.keys = KeysTable(model)
        self.help = KeyHelpPanel(self.keys)
        self.checks = ChecksPanel(model)
        self.card = ExperimentCardView(id=CARD)
        self.side = CHECKS

    @property
    def parts(self) -> tuple[KeysTable, KeyHelpPanel, ChecksPanel, ExperimentCardView]:
        """All of them."""
        return self.keys, self.help, self.checks, self.card

    def places(self, width: int, height: int) -> dict[str, Rect]:
        """See `arrange`."""
        return arrange(width, height, self.side)

    def show(self, view: View) -> None:
        """Draw this view in all parts; the help follows the table's selection."""
        for part in self.parts:
            part.show(view)

    def next_side(self) -> None:
        """Checks or card, where only one has room."""
        self.side = CARD if self.side == CHECKS else CHECKS
        self.place_again()


class TuneScreen(BoardScreen[TuneBoard]):
    """Above the overview while it is open."""

    def __init__(self, model: TuneModel) -> None:
        super().__init__(TuneBoard(model), Place.TUNE)

    def on_mount(self) -> None:
        """The keys are what is worked on."""
        self.board.keys.focus()

    @property
    def moving(self) -> KeysTable:
        """What keys of movement move."""
        return self.board.keys

    def moved(self) -> None:
        """The selection moved: help follows it."""
        self.board.help.redraw()
