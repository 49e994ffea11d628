"""The base of the speculation screen's text panels: what does not fit is scrolled, and each says how high it would
be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from specdash.tui.formatting import bar
from specdash.tui.spans import Line, Span, wrap
from specdash.tui.widgets.panel import TitledPanel

if TYPE_CHECKING:
    from specdash.tui.view import View

PLENTY = 200
"""Lines that no content has."""


class Part(Protocol):
    """What the speculation screen asks of each of its panels."""

    def wanted(self, view: View, width: int) -> int:
        """Lines it would take to show everything, title included; 1 when the title says it all, 0 when there is
        nothing to say."""

    def least(self, view: View) -> int:
        """Lines below which it is not worth showing, unless it wants less."""


class TextPart(TitledPanel):
    """Title and text. A key of movement scrolls the text where it does not fit."""

    def __init__(self, title: str, *, id: str) -> None:  # noqa: A002 the name is Textual's
        super().__init__(title, id=id)
        self.top = 0

    def content(self, view: View, width: int, height: int) -> list[Line]:
        """All lines below the title, drawn for about `height` lines; none when the title says it all."""
        raise NotImplementedError

    def wanted(self, view: View, width: int) -> int:
        """See `Part`."""
        return 1 + len(self.content(view, width, PLENTY))

    def least(self, view: View) -> int:
        """See `Part`."""
        del view
        return 7

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The lines from `top` on; the last one tells how many more there are."""
        lines = self.content(view, width, height)
        self.top = max(min(self.top, len(lines) - height), 0)
        below = len(lines) - self.top - height
        shown = lines[self.top : self.top + height]
        if below > 0 and shown:
            shown[-1] = ((f"{below + 1} more lines{': ↓' if self.has_focus else ''}", "accent"),)
        return shown

    def move(self, lines: int) -> None:
        """Scroll by lines."""
        self.top = max(self.top + lines, 0)
        self.redraw()

    def page(self, pages: int) -> None:
        """Scroll by what is seen."""
        self.move(pages * max(self.size.height - 2, 1))

    def to_start(self) -> None:
        """To the first line."""
        self.move(-PLENTY)

    def to_end(self) -> None:
        """To the last line."""
        self.move(PLENTY)


def sentences(text: str, width: int, most: int, role: str = "dim") -> list[Line]:
    """A sentence in at most `most` lines."""
    return [((part, role),) for part in wrap(text, width, most)]


def marked_bar(share: float | None, mark: float | None, width: int, role: str, *, ascii_only: bool) -> Line:
    """A bar `width` cells long with an upright mark at another share of it."""
    filled, rest = bar(share, width, ascii_only=ascii_only)
    if mark is None or width < 1:
        return ((filled, f"{role} track"), (rest, "faint track"))
    at = min(max(round(mark * width), 0), width - 1)
    sign: Span = ("|" if ascii_only else "┃", "gain track bold")
    if at < len(filled):
        return (
            (filled[:at], f"{role} track"),
            sign,
            (filled[at + 1 :], f"{role} track"),
            (rest, "faint track"),
        )
    at -= len(filled)
    return ((filled, f"{role} track"), (rest[:at], "faint track"), sign, (rest[at + 1 :], "faint track"))
