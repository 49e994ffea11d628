"""What every screen of the dashboard has: header, footer, and the notice of a terminal that is too small."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.screen import Screen

from specdash.tui.actions import Place
from specdash.tui.layout import MINIMUM_HEIGHT, MINIMUM_WIDTH
from specdash.tui.widgets.footer import Footer
from specdash.tui.widgets.header import Header, Situation
from specdash.tui.widgets.panel import TitledPanel
from specdash.tui.widgets.small import SmallNotice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.widget import Widget

    from specdash.tui.themes import Palette
    from specdash.tui.view import View
    from specdash.tui.widgets.panel import LinesWidget, Movable
    from specdash.tui.widgets.prompt import Prompt


class DashboardScreen(Screen[None], inherit_bindings=False):
    """Header, body, footer; and the notice of a small terminal in their place."""

    DEFAULT_CSS = """
    DashboardScreen { layout: vertical; overflow: hidden; }
    DashboardScreen Header { height: 2; }
    DashboardScreen #board { height: 1fr; }
    DashboardScreen Footer { height: 1; }
    DashboardScreen SmallNotice { height: 1fr; display: none; }
    DashboardScreen.-small SmallNotice { display: block; }
    DashboardScreen.-small Header, DashboardScreen.-small #board, DashboardScreen.-small Footer { display: none; }
    """

    def __init__(self, *, place: Place = Place.OVERVIEW) -> None:
        super().__init__()
        self.place = place
        self.prompt: Prompt | None = None
        """The line that is asked for now."""
        self.header = Header(id="header")
        self.footer = Footer(id="footer", place=place)
        self.notice = SmallNotice(id="notice")
        self.view: View | None = None
        self._situation = Situation(0.0)

    def body(self) -> Widget:
        """What stands between header and footer; its id is `board`."""
        raise NotImplementedError

    def painted(self) -> Sequence[LinesWidget]:
        """The widgets in the body that take colours."""
        raise NotImplementedError

    def show_body(self, view: View) -> None:
        """Draw this view in the body."""
        raise NotImplementedError

    @property
    def moving(self) -> Movable | None:
        """What keys of movement move; None where they move the log."""
        return None

    def next_panel(self, step: int) -> None:
        """Move the focus to the next panel (1), or to the one before (-1)."""
        if step > 0:
            self.focus_next(TitledPanel)
        else:
            self.focus_previous(TitledPanel)

    def toggle_zoom(self) -> None:
        """The focused panel alone, or all; nothing where no panel can be zoomed."""

    def leave(self) -> bool:
        """Leave zoom or a filter; False when there is nothing to leave but the screen."""
        return False

    def compose(self) -> ComposeResult:
        """Header, body, footer; and the notice."""
        yield self.header
        yield self.body()
        yield self.footer
        yield self.notice

    def paint(self, palette: Palette) -> None:
        """Take these colours."""
        for widget in (self.header, self.footer, self.notice, *self.painted()):
            widget.repaint(palette)

    def show(self, view: View, situation: Situation) -> None:
        """Draw this view."""
        self.view, self._situation = view, situation
        self.footer.glyphs = view.glyphs
        if self.has_class("-small"):
            self.notice.show(view, situation)
            return
        self.header.show(view, situation)
        self.show_body(view)

    def show_situation(self, situation: Situation) -> None:
        """Draw the header alone: a frozen display still tells the time and that it is frozen."""
        self._situation = situation
        if self.view is not None and self.has_class("-small"):
            self.notice.show(self.view, situation)
        elif self.view is not None:
            self.header.show(self.view, situation)

    def on_resize(self, event: events.Resize) -> None:
        """Below the minimum the notice takes over."""
        self.set_class(event.size.width < MINIMUM_WIDTH or event.size.height < MINIMUM_HEIGHT, "-small")
        if self.view is not None:
            self.call_after_refresh(self._show_again)

    def _show_again(self) -> None:
        if self.view is not None:
            self.show(self.view, self._situation)

    async def ask(self, label: str, text: str, answer: Callable[[str | None], None], *, secret: bool = False) -> None:
        """Ask for one line at the bottom, and return once it takes keys.

        `answer` gets it, or None when it was called off. A secret is not shown.
        """
        from specdash.tui.widgets.prompt import Prompt

        if self.prompt is not None:
            return
        focused = self.focused

        def done(value: str | None) -> None:
            prompt, self.prompt = self.prompt, None
            if prompt is not None:
                prompt.remove()
            self.footer.display = True
            self.set_focus(focused)
            answer(value)

        self.prompt = Prompt(label, text, done, secret=secret)
        self.footer.display = False
        await self.mount(self.prompt)
        self.set_focus(self.prompt)
