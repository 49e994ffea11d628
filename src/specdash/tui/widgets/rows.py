"""A table of which one row is selected; the selection keeps to its row, whatever comes above it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from specdash.tui.spans import wrap
from specdash.tui.widgets.panel import TitledPanel
from specdash.tui.widgets.table import Column, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events

    from specdash.tui.spans import Line
    from specdash.tui.view import View

RowT = TypeVar("RowT")
_HEAD = 2
"""Lines above the first row: title and headings."""


class RowsPanel(TitledPanel, Generic[RowT]):
    """Rows below headings. Without a choice of the user's the first row is the selected one, whichever it is."""

    def __init__(self, title: str, *, id: str) -> None:  # noqa: A002 the name is Textual's
        super().__init__(title, id=id)
        self.chosen: str | None = None
        self._rows: list[RowT] = []
        self._top = 0

    def rows(self, view: View) -> Sequence[RowT]:
        """What there is to show, first row first."""
        raise NotImplementedError

    def key(self, row: RowT) -> str:
        """The identity of a row."""
        raise NotImplementedError

    def columns(self, view: View) -> Sequence[Column[RowT]]:
        """The columns."""
        raise NotImplementedError

    def nothing(self, view: View) -> str:
        """Why there are no rows."""
        raise NotImplementedError

    def mark(self, row: RowT) -> str:
        """One character before a row that is not the selected one."""
        del row
        return " "

    @property
    def selected(self) -> RowT | None:
        """The selected row."""
        return self._rows[self._index()] if self._rows else None

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The rows around the selected one."""
        self._rows = list(self.rows(view))
        if not self._rows:
            texts = [text for part in self.nothing(view).splitlines() for text in wrap(part, width - 4, height)]
            return [((f"  {text}", "dim"),) for text in texts[:height]]
        if all(self.key(row) != self.chosen for row in self._rows):
            self.chosen = None
        index, room = self._index(), max(height - 1, 1)
        self._top = max(min(self._top, index, len(self._rows) - room), index - room + 1, 0)
        shown = self._rows[self._top : self._top + room]
        heading, *lines = table(self.columns(view), shown, width - 2)
        return [(("  ", "dim"), *heading), *map(self._gutter, shown, lines, range(self._top, self._top + len(shown)))]

    def move(self, lines: int) -> None:
        """Select another row."""
        if not self._rows:
            return
        index = min(max(self._index() + lines, 0), len(self._rows) - 1)
        self.chosen = self.key(self._rows[index]) if index or lines > 0 else None
        self.redraw()

    def page(self, pages: int) -> None:
        """Select a row as far away as the panel is high."""
        self.move(pages * max(self.size.height - _HEAD - 1, 1))

    def to_end(self) -> None:
        """Select the last row."""
        self.move(len(self._rows))

    def to_start(self) -> None:
        """Select the first row, whichever it is from now on."""
        self.move(-len(self._rows))

    def on_click(self, event: events.Click) -> None:
        """Select the row."""
        index = self._top + event.y - _HEAD
        if event.y >= _HEAD and index < len(self._rows):
            self.chosen = self.key(self._rows[index])
            self.redraw()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """One row up."""
        event.stop()
        self.move(-1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """One row down."""
        event.stop()
        self.move(1)

    def _index(self) -> int:
        if self.chosen is None:
            return 0
        return next((i for i, row in enumerate(self._rows) if self.key(row) == self.chosen), 0)

    def _gutter(self, row: RowT, line: Line, index: int) -> Line:
        if index == self._index() and self.has_focus:
            return ((">" + self.mark(row), "accent bold track"), *((text, f"{role} track") for text, role in line))
        return ((" " + self.mark(row), "accent bold"), *line)
