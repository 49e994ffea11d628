"""The line that a user's first dashboard shows once: the three keys worth knowing."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from specdash.system import files
from specdash.tui.arming import in_background
from specdash.tui.spans import fit
from specdash.tui.widgets.panel import LinesWidget

if TYPE_CHECKING:
    from pathlib import Path

    from specdash.tui.app import Dashboard

STAYS_S = 60.0
_KEYS = (("help", "all keys"), ("speculation", "why it pays or not"), ("tune", "what is set"))
"""Actions, and what they answer."""


class HintLine(LinesWidget):
    """Below everything else, until a key is pressed or `STAYS_S` have passed."""

    DEFAULT_CSS = "HintLine { dock: bottom; height: 1; }"

    def redraw(self) -> None:
        """Lay it out for the present width."""
        keys = cast("Dashboard", self.app).keys
        words = "  ·  ".join(f"{keys[action]} {answer}" for action, answer in _KEYS)
        self.set_lines([((fit(f" First time here?  {words}", self.size.width), "banner.accent"),)])


def is_first(path: Path) -> bool:
    """Whether no dashboard of this user has been opened before; `path` keeps that one has. False also where it cannot
    be kept: the line would come again and again."""
    if path.exists():
        return False
    try:
        files.save(path, b"")
    except OSError:
        return False
    return True


def greet(dashboard: Dashboard, path: Path) -> None:
    """Show the line where this is the user's first dashboard; found out in a thread."""

    def show(first: bool) -> None:
        if first:
            line = HintLine()
            line.palette, line.glyphs = dashboard.palette, dashboard.glyphs
            dashboard.overview.mount(line)
            dashboard.set_timer(STAYS_S, lambda: dismiss(dashboard))

    in_background(dashboard, "hint", lambda: is_first(path), show)


def dismiss(dashboard: Dashboard) -> None:
    """Take the line away, if it is there."""
    for line in dashboard.overview.query(HintLine):
        line.remove()
