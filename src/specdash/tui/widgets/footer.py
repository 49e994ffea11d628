"""The footer: the keys worth knowing, from the registry."""

from __future__ import annotations

from specdash.tui.actions import ACTIONS, Action
from specdash.tui.spans import Line, Span, line_width
from specdash.tui.widgets.panel import LinesWidget


class Footer(LinesWidget):
    """One line of keys; those that do not fit are left out from the end."""

    def redraw(self) -> None:
        """Lay the keys out for the present width."""
        self.set_lines([footer_line(self.size.width)])


def footer_line(width: int) -> Line:
    """`1-9 panels  ? help  …`."""
    shown = [action for action in ACTIONS if action.footer]
    while True:
        line = _line(shown)
        if line_width(line) <= width or not shown:
            return line
        least = max(range(len(shown)), key=lambda i: (shown[i].rank, i))
        del shown[least]


def _line(actions: list[Action]) -> Line:
    spans: list[Span] = [(" 1-9", "accent"), (" panels", "dim")]
    for action in actions:
        keys = "+/-" if action.id == "faster" else action.shown_keys.split("  ")[0]
        spans += [("  " + keys, "accent"), (" " + action.footer, "dim")]
    return tuple(spans)
