"""The footer: the keys worth knowing, from the registry."""

from __future__ import annotations

from specdash.tui.actions import ACTIONS, Action, Place
from specdash.tui.spans import Line, Span, line_width
from specdash.tui.widgets.panel import LinesWidget

_FIRST = {
    Place.OVERVIEW: ("1-9", "panels"),
    Place.PROXY: ("↑↓", "row"),
    Place.TUNE: ("↑↓", "setting"),
    Place.INCIDENTS: ("↑↓", "alert"),
    Place.SPECULATION: ("↑↓", "row"),
    Place.TUNER: ("↑↓", "boot"),
}


class Footer(LinesWidget):
    """One line of keys of one screen; those that do not fit are left out from the end."""

    def __init__(self, *, id: str, place: Place = Place.OVERVIEW) -> None:  # noqa: A002 the name is Textual's
        super().__init__(id=id)
        self._place = place

    def redraw(self) -> None:
        """Lay the keys out for the present width."""
        self.set_lines([footer_line(self.size.width, self._place)])


def footer_line(width: int, place: Place = Place.OVERVIEW) -> Line:
    """`1-9 panels  ? help  …`."""
    shown = [(action, label) for action in ACTIONS if (label := action.label(place)) is not None]
    while True:
        line = _line([(action, label.text) for action, label in shown], place)
        if line_width(line) <= width or not shown:
            return line
        least = max(range(len(shown)), key=lambda i: (shown[i][1].rank, i))
        del shown[least]


def _line(actions: list[tuple[Action, str]], place: Place) -> Line:
    keys, word = _FIRST[place]
    spans: list[Span] = [(f" {keys}", "accent"), (f" {word}", "dim")]
    for action, text in actions:
        keys = "+/-" if action.id == "faster" else action.shown_keys.split("  ")[0]
        spans += [("  " + keys, "accent"), (" " + text, "dim")]
    return tuple(spans)
