"""What the keys do that change nothing but how the screen looks, or keep a picture of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from textual.app import App

from specdash.core.config import WINDOWS_S
from specdash.tui.screens.base import DashboardScreen
from specdash.tui.themes import PALETTES, THEME_NAMES
from specdash.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from pathlib import Path

    from specdash.tui.screens.overview import OverviewScreen
    from specdash.tui.spans import Glyphs


class ViewActions(App[None]):
    """Mixed into the dashboard, which knows the rest of these names."""

    overview: OverviewScreen
    glyphs: Glyphs
    window_s: float
    screenshots: Path | None
    """Where screenshots go; None is the state directory."""

    def wall_time(self) -> float:
        """Unix time."""
        raise NotImplementedError

    def refresh_view(self) -> None:
        """Draw what there is now."""
        raise NotImplementedError

    def action_next_window(self) -> None:
        """The next longer window, from the longest back to the shortest."""
        windows = tuple(WINDOWS_S.values())
        self.window_s = next((window for window in windows if window > self.window_s), windows[0])
        self.refresh_view()

    def action_next_theme(self) -> None:
        """The next theme."""
        self.theme = THEME_NAMES[(THEME_NAMES.index(self.theme) + 1) % len(THEME_NAMES)]
        for screen in self.screen_stack:
            if isinstance(screen, DashboardScreen):
                screen.paint(PALETTES[self.theme])

    def action_save_screen(self) -> None:
        """Save the screen as SVG and say where."""
        from specdash.core.paths import state_dir
        from specdash.tui.export import portable_svg

        folder = self.screenshots or state_dir() / "screenshots"
        name = time.strftime("specdash-%Y%m%d-%H%M%S.svg", time.localtime(self.wall_time()))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(portable_svg(self.export_screenshot(title="specdash")), encoding="utf-8")
        except OSError as error:
            self.notify(f"cannot save {folder / name}: {error.strerror}", severity="error", markup=False)
            return
        self.notify(f"saved {_from_home(folder / name)}", markup=False)

    def action_show_help(self) -> None:
        """Open the help page."""
        from specdash.tui.screens.help import HelpScreen

        focused = self.overview.focused
        spec = focused.spec if isinstance(focused, Panel) else None
        self.push_screen(HelpScreen(PALETTES[self.theme], self.glyphs, spec))


def _from_home(path: Path) -> str:
    """`~/…` where it is there."""
    home = path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
