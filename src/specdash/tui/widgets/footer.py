"""The footer: the keys worth knowing, from the registry."""

from __future__ import annotations

from specdash.tui.actions import ACTIONS, Action
from specdash.tui.spans import Line, Span, line_width
from specdash.tui.widgets.panel import LinesWidget


class Footer(LinesWidget):
    """One line of keys, the overview's or the proxy screen's; those that do not fit are left out from the end."""

    def __init__(self, *, id: str, proxy: bool = False) -> None:  # noqa: A002 the name is Textual's
        super().__init__(id=id)
        self._proxy = proxy

    def redraw(self) -> None:
        """Lay the keys out for the present width."""
        self.set_lines([footer_line(self.size.width, proxy=self._proxy)])


def footer_line(width: int, *, proxy: bool = False) -> Line:
    """`1-9 panels  ? help  …`."""
    shown = [action for action in ACTIONS if (action.proxy_footer if proxy else action.footer)]
    while True:
        line = _line(shown, proxy=proxy)
        if line_width(line) <= width or not shown:
            return line
        least = max(range(len(shown)), key=lambda i: (shown[i].proxy_rank if proxy else shown[i].rank, i))
        del shown[least]


def _line(actions: list[Action], *, proxy: bool) -> Line:
    spans: list[Span] = [(" ↑↓", "accent"), (" row", "dim")] if proxy else [(" 1-9", "accent"), (" panels", "dim")]
    for action in actions:
        keys = "+/-" if action.id == "faster" else action.shown_keys.split("  ")[0]
        spans += [("  " + keys, "accent"), (" " + (action.proxy_footer if proxy else action.footer), "dim")]
    return tuple(spans)
