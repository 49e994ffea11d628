"""What was drawn, as plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.tui.action_table import FooterScreen
    from specdash.tui.app import Dashboard
    from specdash.tui.spans import Line


def text(line: Line) -> str:
    """One line without its roles."""
    return "".join(part for part, _ in line)


def block(lines: Iterable[Line]) -> str:
    """Lines, one below the other."""
    return "\n".join(text(line).rstrip() for line in lines)


def screen(app: Dashboard) -> str:
    """Everything that the overview shows."""
    overview = app.overview
    panels = "\n".join(block(panel.lines) for panel in overview.board.visible_panels())
    return "\n".join((block(overview.header.lines), panels, block(overview.footer.lines)))


def is_open(app: Dashboard, place: FooterScreen) -> bool:
    """Whether a screen is looked at, or stands under the one that is."""
    return any(getattr(screen, "place", None) is place for screen in app.screen_stack)
