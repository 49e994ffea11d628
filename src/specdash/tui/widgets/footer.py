"""The footer: the keys worth knowing, from the registry."""

from __future__ import annotations

from specdash.tui.actions import ACTIONS
from specdash.tui.spans import Line, Span, line_width
from specdash.tui.widgets.panel import LinesWidget


class Footer(LinesWidget):
    """One line of keys; those that do not fit are left out from the end."""

    def redraw(self) -> None:
        """Lay the keys out for the present width."""
        self.set_lines([footer_line(self.size.width)])


def footer_line(width: int) -> Line:
    """`1-9 panels  ? help  …`."""
    spans: list[Span] = [(" 1-9", "accent"), (" panels", "dim")]
    for action in ACTIONS:
        if not action.footer:
            continue
        keys = "+/-" if action.id == "faster" else action.shown_keys.split("  ")[0]
        entry: list[Span] = [("  " + keys, "accent"), (" " + action.footer, "dim")]
        if line_width(spans) + line_width(entry) > width:
            break
        spans += entry
    return tuple(spans)
