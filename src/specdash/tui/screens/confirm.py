"""One question before something is done that cannot be undone: what, to which, and what it means."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.screen import ModalScreen

from specdash.tui.formatting import clean
from specdash.tui.spans import BLANK, Line, wrap
from specdash.tui.widgets.panel import LinesWidget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from specdash.tui.spans import Glyphs
    from specdash.tui.themes import Palette


class ConfirmPage(LinesWidget):
    """The page's text."""

    def __init__(self, palette: Palette, glyphs: Glyphs, title: str, notes: Sequence[str]) -> None:
        super().__init__(id="confirm-page")
        self.palette, self.glyphs = palette, glyphs
        self._title, self._notes = title, tuple(notes)

    def redraw(self) -> None:
        """Lay out for the present size."""
        self.set_lines(confirm_lines(self._title, self._notes, self.size.width)[: self.size.height])


class ConfirmScreen(ModalScreen[bool]):
    """Enter answers yes, escape no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "answer(True)", "Do it", show=False),
        Binding("escape,q,n", "answer(False)", "Leave", show=False),
    ]
    CSS = "ConfirmScreen { background: $background; } #confirm-page { width: 1fr; height: 1fr; margin: 1 2; }"

    def __init__(self, palette: Palette, glyphs: Glyphs, title: str, notes: Sequence[str]) -> None:
        super().__init__()
        self.page = ConfirmPage(palette, glyphs, title, notes)

    def compose(self) -> ComposeResult:
        """One page."""
        yield self.page

    def action_answer(self, yes: bool) -> None:
        """Close with an answer."""
        self.dismiss(yes)


def confirm_lines(title: str, notes: Sequence[str], width: int) -> list[Line]:
    """The question, what it means, and the keys."""
    lines: list[Line] = [((part, "accent bold"),) for part in wrap(clean(title, 400), width, 3)]
    lines.append(BLANK)
    for note in notes:
        lines += [((part, "text"),) for part in wrap(clean(note, 600), width, 4)]
    return [*lines, BLANK, (("enter", "accent"), (" do it   ", "dim"), ("esc", "accent"), (" leave it", "dim"))]
