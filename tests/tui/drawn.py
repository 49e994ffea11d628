"""What was drawn, as plain text."""

from collections.abc import Iterable

from textual.geometry import Region
from textual.widget import Widget

from specdash.tui.action_table import FooterScreen
from specdash.tui.app import Dashboard
from specdash.tui.spans import Line


def text(line: Line) -> str:
    """One line without its roles."""
    return "".join(part for part, _ in line)


def block(lines: Iterable[Line]) -> str:
    """Lines, one below the other."""
    return "\n".join(text(line).rstrip() for line in lines)


def painted(widget: Widget) -> str:
    """What a widget paints on the screen, as plain text."""
    width, height = widget.size
    return "\n".join(strip.text.rstrip() for strip in widget.render_lines(Region(0, 0, width, height)))


def screen(app: Dashboard) -> str:
    """Everything that the overview shows."""
    overview = app.overview
    return "\n".join(map(painted, (overview.header, *overview.board.visible_panels(), overview.footer)))


def is_open(app: Dashboard, place: FooterScreen) -> bool:
    """Whether a screen is looked at, or stands under the one that is."""
    return any(getattr(screen, "place", None) is place for screen in app.screen_stack)
