"""The overview: header, board of panels, footer; the prompt for find and filter takes the footer's place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.screen import Screen

from specdash.tui.layout import MINIMUM_HEIGHT, MINIMUM_WIDTH
from specdash.tui.widgets.board import Board
from specdash.tui.widgets.footer import Footer
from specdash.tui.widgets.header import Header, Situation
from specdash.tui.widgets.small import SmallNotice

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual import events
    from textual.app import ComposeResult

    from specdash.tui.themes import Palette
    from specdash.tui.view import View
    from specdash.tui.widgets.panel import LinesWidget
    from specdash.tui.widgets.prompt import Prompt


class OverviewScreen(Screen[None], inherit_bindings=False):
    """The one screen that is always there."""

    DEFAULT_CSS = """
    OverviewScreen { layout: vertical; overflow: hidden; }
    Header { height: 2; }
    Board { height: 1fr; }
    Footer { height: 1; }
    SmallNotice { height: 1fr; display: none; }
    OverviewScreen.-small SmallNotice { display: block; }
    OverviewScreen.-small Header, OverviewScreen.-small Board, OverviewScreen.-small Footer { display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.header = Header(id="header")
        self.board = Board()
        self.footer = Footer(id="footer")
        self.notice = SmallNotice(id="notice")
        self.view: View | None = None
        self._situation = Situation(0.0)
        self._prompt: Prompt | None = None

    def compose(self) -> ComposeResult:
        """Header, board, footer; and the notice of a small terminal in their place."""
        yield self.header
        yield self.board
        yield self.footer
        yield self.notice

    def paint(self, palette: Palette) -> None:
        """Take these colours."""
        widgets: list[LinesWidget] = [self.header, self.footer, self.notice, *self.board.panels.values()]
        for widget in widgets:
            widget.repaint(palette)

    def prime(self, view: View, situation: Situation) -> None:
        """Hand out the first view before anything has a size: every widget draws it as soon as it gets one, so that the
        first paint is already the whole picture."""
        self.view, self._situation = view, situation
        self.footer.glyphs = view.glyphs
        self.header.show(view, situation)
        self.board.prime(view)

    def show(self, view: View, situation: Situation) -> None:
        """Draw this view."""
        self.view, self._situation = view, situation
        self.footer.glyphs = view.glyphs
        if self.has_class("-small"):
            self.notice.show(view)
            return
        self.header.show(view, situation)
        self.board.show(view)

    def show_situation(self, situation: Situation) -> None:
        """Draw the header alone: a frozen display still tells the time and that it is frozen."""
        self._situation = situation
        if self.view is not None and not self.has_class("-small"):
            self.header.show(self.view, situation)

    def on_resize(self, event: events.Resize) -> None:
        """Below the minimum the notice takes over."""
        self.set_class(event.size.width < MINIMUM_WIDTH or event.size.height < MINIMUM_HEIGHT, "-small")
        if self.view is not None:
            self.call_after_refresh(self._show_again)

    def _show_again(self) -> None:
        if self.view is not None:
            self.show(self.view, self._situation)

    def ask(self, label: str, text: str, answer: Callable[[str | None], None]) -> None:
        """Ask for one line at the bottom; `answer` gets it, or None when it was called off."""
        from specdash.tui.widgets.prompt import Prompt

        if self._prompt is not None:
            return
        focused = self.focused

        def done(value: str | None) -> None:
            prompt, self._prompt = self._prompt, None
            if prompt is not None:
                prompt.remove()
            self.footer.display = True
            self.set_focus(focused)
            answer(value)

        self._prompt = Prompt(label, text, done)
        self.footer.display = False
        self.mount(self._prompt)
        self._prompt.focus()
