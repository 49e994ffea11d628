"""Jump mode: a letter on each panel of the screen; pressing it gives that panel the focus. Imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.screen import ModalScreen

from specdash.tui.widgets.panel import LinesWidget, TitledPanel

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult

    from specdash.tui.screens.base import DashboardScreen
    from specdash.tui.spans import Line

LETTERS = "asdfghjklqwertyuiopzxcvbnm"
"""The home row comes first."""


class JumpMark(LinesWidget):
    """The letter of one panel, on its title."""

    DEFAULT_CSS = "JumpMark { position: absolute; width: 2; height: 1; }"

    def __init__(self, letter: str, panel: TitledPanel) -> None:
        super().__init__()
        self.palette, self.glyphs, self.panel = panel.palette, panel.glyphs, panel
        self.styles.offset = panel.region.offset
        line: Line = ((f"{letter} ", "banner.accent"),)
        self.set_lines([line])

    def on_click(self) -> None:
        """A click is as good as the letter."""
        self.screen.dismiss(self.panel)


class JumpScreen(ModalScreen[TitledPanel | None], inherit_bindings=False):
    """Stands above a screen for one key: a letter of a panel, or any other to leave."""

    DEFAULT_CSS = "JumpScreen, JumpScreen:ansi { background: transparent; }"

    def __init__(self, below: DashboardScreen) -> None:
        super().__init__()
        seen = [panel for panel in below.query(TitledPanel) if panel.focusable and panel.region.area]
        self.marks = dict(zip(LETTERS, sorted(seen, key=lambda panel: (panel.region.y, panel.region.x)), strict=False))

    def compose(self) -> ComposeResult:
        """The letters."""
        for letter, panel in self.marks.items():
            yield JumpMark(letter, panel)

    def on_key(self, event: events.Key) -> None:
        """Whatever the key: this was all it was there for."""
        event.stop()
        self.dismiss(self.marks.get(event.key))

    def on_resize(self, event: events.Resize) -> None:
        """The panels have other places now."""
        if event.size != self.app.size:
            self.dismiss(None)
