"""What every screen of the dashboard has: header, footer, and the notice of a terminal that is too small."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from textual.screen import Screen

from specdash.system.text import clean
from specdash.tui.layout import MINIMUM_HEIGHT, MINIMUM_WIDTH
from specdash.tui.widgets.header import DashboardHeader, Footer, HeaderSituation, SmallNotice
from specdash.tui.widgets.panel import FoldingBoard, PlacedBoard, TitledPanel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.widget import Widget

    from specdash.tui.action_table import FooterScreen
    from specdash.tui.app import Dashboard
    from specdash.tui.spans import Palette
    from specdash.tui.view import View
    from specdash.tui.widgets.panel import LinesWidget, Movable
    from specdash.tui.widgets.prompt import TextPrompt


class DashboardScreen(Screen[None], inherit_bindings=False):
    """Header, body, footer; and the notice of a small terminal in their place.

    A screen holds the keys that are its own (`BINDINGS`) and does what they ask for (`action_...`). What every screen
    has in its own way is here; what is the same on all of them (pause, window, theme, arming, help) is the dashboard's.
    """

    place: ClassVar[FooterScreen]
    DEFAULT_CSS = """
    DashboardScreen { layout: vertical; overflow: hidden; }
    DashboardScreen DashboardHeader { height: 2; }
    DashboardScreen #board { height: 1fr; }
    DashboardScreen Footer { height: 1; }
    DashboardScreen SmallNotice { height: 1fr; display: none; }
    DashboardScreen.-small SmallNotice { display: block; }
    DashboardScreen.-small DashboardHeader { display: none; }
    DashboardScreen.-small #board, DashboardScreen.-small Footer { display: none; }
    """

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__()
        self.dashboard = dashboard
        self.prompt: TextPrompt | None = None
        """The line that is asked for now."""
        self.header = DashboardHeader(id="header")
        self.footer = Footer(id="footer", place=self.place)
        self.notice = SmallNotice(id="notice")
        self.footer.keys = dashboard.keys
        self.view: View | None = None
        self._situation = HeaderSituation(0.0)

    def body(self) -> Widget:
        """What stands between header and footer; its id is `board`."""
        raise NotImplementedError

    def painted(self) -> Sequence[LinesWidget]:
        """The widgets in the body that take colours."""
        raise NotImplementedError

    def show_body(self, view: View) -> None:
        """Draw this view in the body."""
        raise NotImplementedError

    @classmethod
    def refusal(cls, dashboard: Dashboard) -> str:
        """Why the screen cannot be opened, "" when it can."""
        return ""

    def look(self, *, again: bool = False) -> None:
        """Ask for what the screen needs to know, without waiting; nothing where the picture has it all. One that is
        asked `again` by the clock waits for the one before."""

    @property
    def moving(self) -> Movable:
        """What keys of movement move."""
        raise NotImplementedError

    @property
    def tunes(self) -> bool:
        """Whether the screen shows a tuner that is at work."""
        return False

    def toggle_zoom(self) -> None:
        """The focused panel alone, or all; nothing where no panel can be zoomed."""

    def leave(self) -> bool:
        """Leave zoom or a filter; False when there is nothing to leave but the screen."""
        return False

    def redraw(self) -> None:
        """Draw what just changed, if this is what is looked at."""
        if self.dashboard.shown.place is self.place:
            self.dashboard.show_now()

    def redraw_soon(self) -> None:
        """Draw once what just changed has its place."""
        self.dashboard.call_after_refresh(self.dashboard.show_now)

    def confirm(self, title: str, notes: Sequence[str], then: Callable[[], None]) -> None:
        """Ask before `then` is done; an arming that ran out meanwhile counts as a no."""
        from specdash.tui.screens.modal import ConfirmScreen

        def answered(yes: bool | None) -> None:
            if yes and self.dashboard.access.may_change():
                then()
            self.dashboard.show_now()

        if self.is_current:
            self.app.push_screen(ConfirmScreen(self.dashboard, title, notes), answered)

    def action_move(self, lines: int) -> None:
        """Move by lines."""
        self.moving.move(lines)

    def action_page(self, pages: int) -> None:
        """Move by pages."""
        self.moving.page(pages)

    def action_to_start(self) -> None:
        """To the first line."""
        self.moving.to_start()

    def action_to_end(self) -> None:
        """To the last line."""
        self.moving.to_end()

    def action_next_panel(self, step: int) -> None:
        """Move the focus to the next panel (1), or to the one before (-1)."""
        if self.prompt is not None:
            return
        if step > 0:
            self.focus_next(TitledPanel)
        else:
            self.focus_previous(TitledPanel)

    def action_zoom(self) -> None:
        """The focused panel alone, or all."""
        self.toggle_zoom()
        self.redraw_soon()

    def action_leave(self) -> None:
        """Leave one thing: zoom first, then a filter, then the screen."""
        if self.leave():
            self.redraw_soon()
        else:
            self.dashboard.action_toggle_screen(self.place)

    async def action_open(self) -> None:
        """Open what is selected; nothing where nothing is."""

    def action_take(self) -> None:
        """Make what would be better pending on the tune screen: what the verdict says."""
        self.dashboard.take_verdict()

    @property
    def copied(self) -> str:
        """What the cursor is on, as text; "" where it is on nothing. Secrets are masked."""
        return ""

    def action_yank(self) -> None:
        """Copy what the cursor is on, by OSC 52: over ssh too, to the clipboard of anyone who sits at the terminal."""
        if text := self.copied:
            self.app.copy_to_clipboard(text)
            self.notify(f"copied: {clean(text, 60)}", timeout=3, markup=False)
        else:
            self.notify("nothing to copy here", severity="warning")

    def action_write_incident(self) -> None:
        """Write an incident bundle in a thread, and say where it is."""
        from specdash.tui.screens.incidents import write_bundle

        write_bundle(self.dashboard)

    def action_travel(self, seconds: float) -> None:
        """Step back (negative) or forward in the record."""
        self.dashboard.travel.step(seconds)

    def action_travel_window(self, windows: int) -> None:
        """Step by whole windows."""
        self.dashboard.travel.step(windows * self.dashboard.window_s)

    def action_travel_event(self, step: int) -> None:
        """Go to the event before (-1) or the next one (1)."""
        self.dashboard.travel.to_event(step)

    async def action_travel_ask(self) -> None:
        """Ask for a moment."""
        if self.dashboard.travel.may_ask():
            await self.ask("go to: 02:00, -3h, 2026-03-01T02:00", "", self.dashboard.travel.to_text)

    def action_travel_live(self) -> None:
        """Back to live."""
        self.dashboard.travel.to_live()

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

    def show(self, view: View, situation: HeaderSituation) -> None:
        """Draw this view."""
        self.view, self._situation = view, situation
        if self.has_class("-small"):
            self.notice.show(view, situation)
            return
        self.header.show(view, situation)
        self.show_body(view)

    def show_situation(self, situation: HeaderSituation) -> None:
        """Draw the header alone: a frozen display still shows the time and that it is frozen."""
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

    async def ask(
        self,
        label: str,
        text: str,
        answer: Callable[[str | None], None],
        *,
        secret: bool = False,
        accepts: Callable[[str], bool] | None = None,
        inside: Widget | None = None,
        keys: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:
        """Ask for one line, at the bottom or `inside` another widget, and return once it takes keys.

        `answer` gets it, or None when it was called off. A secret is not shown. What `accepts` refuses stays to be
        mended; `keys` are done in place of what they mean in a text.
        """
        from specdash.tui.widgets.prompt import TextPrompt

        if self.prompt is not None:
            self.set_focus(self.prompt)
            return
        focused = self.focused

        def done(value: str | None) -> None:
            if value is not None and accepts is not None and not accepts(value):
                return
            prompt, self.prompt = self.prompt, None
            if prompt is not None:
                prompt.remove()
            self.footer.display = True
            self.set_focus(focused)
            answer(value)

        self.prompt = TextPrompt(label, text, done, secret=secret, keys=keys)
        self.footer.display = False
        await (inside or self).mount(self.prompt)
        self.set_focus(self.prompt)


# What screens have in common whose body is a board of parts.


BoardType = TypeVar("BoardType", bound=PlacedBoard)
FoldingType = TypeVar("FoldingType", bound=FoldingBoard)


class BoardScreen(DashboardScreen, Generic[BoardType]):
    """Header, a board, footer."""

    def __init__(self, dashboard: Dashboard, board: BoardType) -> None:
        super().__init__(dashboard)
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
        return next((titled_panel for titled_panel in present if titled_panel is self.focused), present[0])

    def action_next_panel(self, step: int) -> None:
        """Move the focus, also to a panel that has no place yet."""
        panels = self.board.present()
        at = next((i for i, panel in enumerate(panels) if panel is self.panel), -step)
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
