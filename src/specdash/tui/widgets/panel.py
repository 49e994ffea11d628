"""The base of every widget here: lines of spans, cached as strips; only rows that changed are painted again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from textual.geometry import Region
from textual.widget import Widget

from specdash.tui.layout import PANELS, PanelId
from specdash.tui.spans import BLANK, UNICODE, Glyphs, Line, line_width, to_strip
from specdash.tui.themes import PALETTES, Palette

if TYPE_CHECKING:
    from textual import events
    from textual.strip import Strip

    from specdash.tui.view import View


class LinesWidget(Widget):
    """A widget whose content is a list of lines; setting them repaints the rows that differ."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 the name is Textual's
        super().__init__(id=id, markup=False)
        self.palette: Palette = next(iter(PALETTES.values()))
        self.glyphs: Glyphs = UNICODE
        self._lines: list[Line] = []
        self._strips: dict[int, Strip] = {}

    @property
    def lines(self) -> list[Line]:
        """What is drawn now, top first."""
        return self._lines

    def set_lines(self, lines: list[Line]) -> None:
        """Draw these lines from now on."""
        old, self._lines = self._lines, lines
        width = self.size.width
        changed = [
            y
            for y in range(max(len(old), len(lines)))
            if (old[y] if y < len(old) else BLANK) != (lines[y] if y < len(lines) else BLANK)
        ]
        for y in changed:
            self._strips.pop(y, None)
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed if y < self.size.height))

    def repaint(self, palette: Palette) -> None:
        """Draw everything again in these colours."""
        self.palette = palette
        self._strips.clear()
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        """Strips are as wide as the widget, so none survives."""
        del event
        self._strips.clear()
        self.redraw()

    def redraw(self) -> None:
        """Build the lines anew for the present size."""

    def render_line(self, y: int) -> Strip:
        """One painted row."""
        strip = self._strips.get(y)
        if strip is None:
            line = self._lines[y] if y < len(self._lines) else BLANK
            strip = to_strip(line, self.size.width, self.palette, ascii_only=self.glyphs.ascii_only)
            self._strips[y] = strip
        return strip


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

    def __init__(self, title: str, digit: str = "", *, id: str | None = None) -> None:  # noqa: A002 the name is Textual's
        super().__init__(id=id)
        self.panel_title = title
        self.digit = digit
        self.view: View | None = None

    def show(self, view: View) -> None:
        """Draw this view."""
        self.view = view
        self.glyphs = view.glyphs
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
        del view
        return ()

    def aside(self, view: View) -> Line:
        """What stands at the title line's right end, where there is room."""
        del view
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
        return (*left, (" " + self.glyphs.rule * max(rule, 0), "faint"), *right)

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
        self.panel = panel


def message(text: str, height: int, role: str = "dim") -> list[Line]:
    """A body that says why there is nothing to show."""
    return [((f"  {text}" if text else "", role),)] if height > 0 else []
