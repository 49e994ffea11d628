"""The base of every widget here: lines of spans; only rows that changed are painted again."""

from __future__ import annotations

from itertools import takewhile, zip_longest
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from msgspec import Struct
from textual.geometry import NULL_OFFSET, NULL_SPACING, Region
from textual.layout import Layout, WidgetPlacement
from textual.widget import Widget

from specdash.tui.layout import PANELS, PanelId
from specdash.tui.spans import (
    BLANK,
    GLYPHS,
    PALETTES,
    Line,
    Palette,
    Span,
    bar,
    fit,
    line_width,
    to_strip,
    wrap,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.geometry import Size
    from textual.layout import ArrangeResult
    from textual.strip import Strip

    from specdash.tui.layout import Rect
    from specdash.tui.spans import Line, Span
    from specdash.tui.view import View


class LinesWidget(Widget):
    """A widget whose content is a list of lines; setting them repaints the rows that differ."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 the name is Textual's
        super().__init__(id=id, markup=False)
        self.palette: Palette = next(iter(PALETTES.values()))
        self._lines: list[Line] = []
        self._laid_out_for: Size | None = None

    @property
    def lines(self) -> list[Line]:
        """What is drawn now, top first."""
        return self._lines

    def set_lines(self, lines: list[Line]) -> None:
        """Draw these lines from now on."""
        old, self._lines = self._lines, lines
        width, height = self.size
        rows = list(zip_longest(old, lines, fillvalue=BLANK))[:height]
        if seen := [_changed(*row, y, width) for y, row in enumerate(rows) if row[0] != row[1]]:
            self.refresh(*seen)

    def repaint(self, palette: Palette) -> None:
        """Draw everything again in these colours."""
        self.palette = palette
        self.refresh()

    def redraw(self) -> None:
        """Build the lines for the present size."""

    def render_line(self, y: int) -> Strip:
        """One painted row. After a change of size the lines are built first: the message about it comes after the
        paint."""
        if self._laid_out_for != self.size:
            self._laid_out_for = self.size
            self.redraw()
        line = self._lines[y] if y < len(self._lines) else BLANK
        return to_strip(line, self.size.width, self.palette.style)


def _changed(before: Line, after: Line, y: int, width: int) -> Region:
    """The cells of a row between the spans that both have at its beginning and at its end."""
    left = line_width([span for span, _ in takewhile(_is_same, zip(after, before, strict=False))])
    right = line_width(after)
    if line_width(before) != right:
        right = width
    else:
        pairs = zip(reversed(after), reversed(before), strict=False)
        right -= line_width([span for span, _ in takewhile(_is_same, pairs)])
    return Region(left, y, max(right - left, 1), 1)


def _is_same(spans: tuple[Span, Span]) -> bool:
    return spans[0] == spans[1]


class Movable(Protocol):
    """What keys of movement move: a selection, or what is seen of a long text."""

    def move(self, lines: int) -> None:
        """By lines; negative is up."""

    def page(self, pages: int) -> None:
        """By as many lines as are seen."""

    def to_start(self) -> None:
        """To the first line."""

    def to_end(self) -> None:
        """To the last line."""


class TitledPanel(LinesWidget, can_focus=True):
    """One title line with the key figure, then the body. It has no frame, so that at 80x24 every row and column carries
    content."""

    about = ""
    """What it shows, in one sentence for the help page."""

    def __init__(self, title: str, digit: str = "", *, id: str | None = None) -> None:  # noqa: A002 the name is Textual's
        super().__init__(id=id)
        self.panel_title = title
        self.digit = digit
        self.view: View | None = None

    def show(self, view: View) -> None:
        """Draw this view."""
        self.view = view
        self.redraw()

    def redraw(self) -> None:
        """Build title and body for the present view, size and focus."""
        width, height = self.size
        if self.view is None or width < 1 or height < 1:
            return
        body = self.body(self.view, width, height - 1)
        self.set_lines([self.title_line(width), *body[: height - 1]])

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The lines below the title."""
        raise NotImplementedError

    def key_figure(self, view: View) -> Line:
        """What stands right after the title."""
        return ()

    def aside(self, view: View) -> Line:
        """What stands at the title line's right end, where there is room."""
        return ()

    def title_line(self, width: int) -> Line:
        """`1 Acceptance  67 % ──────── lifetime 63 %`."""
        if self.view is None:
            return ()
        key, aside = self.key_figure(self.view), self.aside(self.view)
        marker = "accent bold reverse" if self.has_focus else "accent"
        name = "accent bold" if self.has_focus else "text"
        if self.digit:
            left: Line = ((self.digit, marker), (" " + self.panel_title, name))
        else:
            left = ((self.panel_title, marker if self.has_focus else name),)
        if key:
            left = (*left, ("  ", "text"), *key)
        room = width - line_width(left) - 2
        right: Line = ()
        if aside and line_width(aside) + 3 <= room:
            right = ((" ", "text"), *aside)
        rule = width - line_width(left) - line_width(right) - 1
        return (*left, (" " + GLYPHS.rule * max(rule, 0), "faint"), *right)

    def on_focus(self) -> None:
        """The title shows the focus."""
        self.redraw()

    def on_blur(self) -> None:
        """The title shows the focus."""
        self.redraw()


class Panel(TitledPanel):
    """A part of the overview."""

    panel: PanelId

    def __init__(self, panel: PanelId) -> None:
        self.spec = PANELS[panel]
        super().__init__(self.spec.title, self.spec.digit, id=f"panel-{panel}")
        self.about = self.spec.about
        self.panel = panel

    def show(self, view: View) -> None:
        """Draw this view, under the user's key for the panel."""
        self.digit = view.keys[f"panel.{self.panel}"]
        super().show(view)


def message(text: str, width: int, height: int, role: str = "dim") -> list[Line]:
    """A body that says why there is nothing to show."""
    return [((f"  {part}", role),) for part in wrap(text, width - 2, height)]


# Aligned columns that give way in order of importance as the room shrinks.

RowT = TypeVar("RowT")


class Column(Struct, Generic[RowT], frozen=True):
    """One column: its heading, width, what it shows of a row as (text, role), and its rank (0 stays longest).

    A column with `stretch` takes the cells that are left over.
    """

    heading: str
    width: int
    cell: Callable[[RowT], Span]
    rank: int = 0
    right: bool = True
    stretch: bool = False


def columns_that_fit(columns: Sequence[Column[RowT]], width: int) -> list[tuple[Column[RowT], int]]:
    """The most important columns that fit side by side with one cell between, and the width of each."""
    kept: set[int] = set()
    left = width + 1
    for index in sorted(range(len(columns)), key=lambda i: columns[i].rank):
        if columns[index].width + 1 > left:
            break
        kept.add(index)
        left -= columns[index].width + 1
    chosen = [column for index, column in enumerate(columns) if index in kept]
    grow = next((column for column in chosen if column.stretch), None)
    return [(column, column.width + (left if column is grow else 0)) for column in chosen]


def table(columns: Sequence[Column[RowT]], rows: Sequence[RowT], width: int, *, heading: bool = True) -> list[Line]:
    """The rows as lines, under one dim heading line."""
    fitting = columns_that_fit(columns, width)
    lines: list[Line] = []
    if heading:
        lines.append(tuple((fit(c.heading, w, right=c.right) + " ", "dim") for c, w in fitting))
    for row in rows:
        spans: list[Span] = []
        for column, cells in fitting:
            text, role = column.cell(row)
            spans.append((fit(text, cells, right=column.right) + " ", role))
        lines.append(tuple(spans))
    return lines


# A table of which one row is selected; the selection keeps to its row, no matter what comes above it.


EntryT = TypeVar("EntryT")
_HEAD = 2
"""Lines above the first row: title and headings."""


class RowsPanel(TitledPanel, Generic[EntryT]):
    """Rows below headings. Without a choice of the user's the first row is the selected one, whichever it is."""

    def __init__(self, title: str, *, id: str) -> None:  # noqa: A002 the name is Textual's
        super().__init__(title, id=id)
        self.chosen: str | None = None
        self.follow: Callable[[], None] = lambda: None
        """Called when another row was selected."""
        self._rows: list[EntryT] = []
        self._top = 0

    def rows(self, view: View) -> Sequence[EntryT]:
        """What there is to show, first row first."""
        raise NotImplementedError

    def key(self, row: EntryT) -> str:
        """The identity of a row."""
        raise NotImplementedError

    def columns(self, view: View) -> Sequence[Column[EntryT]]:
        """The columns."""
        raise NotImplementedError

    def nothing(self, view: View) -> str:
        """Why there are no rows."""
        raise NotImplementedError

    def mark(self, row: EntryT) -> str:
        """One character before a row that is not the selected one."""
        return " "

    @property
    def selected(self) -> EntryT | None:
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
        self.follow()

    def page(self, pages: int) -> None:
        """Select a row as far away as the panel is high."""
        self.move(pages * max(self.size.height - _HEAD - 1, 1))

    def to_end(self) -> None:
        """Select the last row."""
        self.move(len(self._rows))

    def to_start(self) -> None:
        """Select the first row, whichever it is from now on."""
        self.move(-len(self._rows))

    async def on_click(self, event: events.Click) -> None:
        """Select the row; a double click opens it."""
        index = self._top + event.y - _HEAD
        if event.y >= _HEAD and index < len(self._rows):
            self.chosen = self.key(self._rows[index])
            self.redraw()
            self.follow()
            if event.chain > 1:
                await self.screen.run_action("open")

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

    def _gutter(self, row: EntryT, line: Line, index: int) -> Line:
        if index == self._index() and self.has_focus:
            return ((">" + self.mark(row), "accent bold track"), *((text, f"{role} track") for text, role in line))
        return ((" " + self.mark(row), "accent bold"), *line)


# The base of the speculation screen's text panels: what does not fit is scrolled, and each says how high it would be.


PLENTY = 200
"""Lines that no content has."""


class PanelPart(Protocol):
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
        """See `PanelPart`."""
        return 1 + len(self.content(view, width, PLENTY))

    def least(self, view: View) -> int:
        """See `PanelPart`."""
        return 7

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The lines from `top` on; the last one says how many more there are."""
        lines = self.content(view, width, height)
        self.top = max(min(self.top, len(lines) - height), 0)
        below = len(lines) - self.top - height
        shown = lines[self.top : self.top + height]
        if below > 0 and shown:
            shown[-1] = ((f"{below + 1} more lines{f': {view.keys.arrows[1:]}' if self.has_focus else ''}", "accent"),)
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


def marked_bar(share: float | None, mark: float | None, width: int, role: str) -> Line:
    """A bar `width` cells long with an upright mark at another share of it."""
    filled, rest = bar(share, width)
    if mark is None or width < 1:
        return ((filled, f"{role} track"), (rest, "faint track"))
    at = min(max(round(mark * width), 0), width - 1)
    sign: Span = ("┃", "gain track bold")
    if at < len(filled):
        return (
            (filled[:at], f"{role} track"),
            sign,
            (filled[at + 1 :], f"{role} track"),
            (rest, "faint track"),
        )
    at -= len(filled)
    return ((filled, f"{role} track"), (rest[:at], "faint track"), sign, (rest[at + 1 :], "faint track"))


# What is common to the bodies of all screens: parts that stand where a pure function of the size says.


class _PlacedLayout(Layout):
    """Textual's side of `PlacedBoard.places`."""

    name = "placed"

    def arrange(self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True) -> ArrangeResult:
        """A placement for every part that has a place."""
        if not isinstance(parent, PlacedBoard):
            return []
        places = parent.places(size.width, size.height)
        return [
            WidgetPlacement(Region(place.x, place.y, place.width, place.height), NULL_OFFSET, NULL_SPACING, child)
            for child in children
            if (place := places.get(child.id or "")) is not None
        ]


class PlacedBoard(Widget):
    """The parts of a screen. Those without a place are not drawn."""

    def __init__(self) -> None:
        super().__init__(id="board")
        self._layout = _PlacedLayout()

    @property
    def layout(self) -> Layout:
        """Where children go. (`styles.layout` takes only the layouts that Textual knows by name.)"""
        return self._layout

    @property
    def parts(self) -> Sequence[LinesWidget]:
        """All of them."""
        raise NotImplementedError

    def places(self, width: int, height: int) -> Mapping[str, Rect]:
        """Where the parts go now, by their ids."""
        raise NotImplementedError

    def show(self, view: View) -> None:
        """Draw this view."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        """The parts."""
        yield from self.parts

    def place_again(self) -> None:
        """Lay out again: `places` has changed."""
        # A widget forgets where it put its children only when one of them asks.
        self.parts[0].refresh(layout=True)


class FoldingBoard(PlacedBoard):
    """A board with more panels than there is room for: those without a place are not displayed and do no work."""

    def __init__(self) -> None:
        super().__init__()
        self.zoomed: str | None = None
        """The panel that has the room of all."""
        self._view: View | None = None
        self._shown: Mapping[str, Rect] = {}

    def present(self) -> list[TitledPanel]:
        """The panels that have something to say, in the order of the focus."""
        raise NotImplementedError

    def bring(self, panel: TitledPanel) -> None:
        """Give a panel a place and the focus."""
        if self.zoomed is not None:
            self.zoomed = panel.id
        self.sync()
        if self._view is not None:
            panel.show(self._view)
        panel.focus()

    def sync(self) -> None:
        """Display exactly the panels that have a place; lay out again where one changed."""
        places = self.places(*self.size)
        if places == self._shown:
            return
        self._shown = places
        for part in self.parts:
            part.display = part.id in places
        self.place_again()

    def on_resize(self, event: events.Resize) -> None:
        """Another size has room for other panels."""
        self._shown = {}
        if self._view is not None:
            self.show(self._view)

    def seen(self, panel: TitledPanel) -> bool:
        """Whether it has a place now."""
        return panel.id in self._shown

    def zoom(self, panel: TitledPanel | None) -> None:
        """Give one panel the room of all, or with None all their places."""
        self.zoomed = panel.id if panel is not None else None
        self.sync()
