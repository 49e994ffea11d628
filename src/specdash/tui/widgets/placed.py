"""What is common to the bodies of all screens: parts that stand where a pure function of the size says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.geometry import NULL_OFFSET, NULL_SPACING, Region
from textual.layout import Layout, WidgetPlacement
from textual.widget import Widget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.geometry import Size
    from textual.layout import ArrangeResult

    from specdash.tui.layout import Rect
    from specdash.tui.view import View
    from specdash.tui.widgets.panel import LinesWidget, TitledPanel


class _PlacedLayout(Layout):
    """Textual's side of `PlacedBoard.places`."""

    name = "placed"

    def arrange(self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True) -> ArrangeResult:
        """A placement for every part that has a place."""
        del greedy
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
        """Lay out anew: `places` has changed."""
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
        """Display exactly the panels that have a place; lay out anew where one changed."""
        places = self.places(*self.size)
        if places == self._shown:
            return
        self._shown = places
        for part in self.parts:
            part.display = part.id in places
        self.place_again()

    def on_resize(self, event: events.Resize) -> None:
        """Another size has room for other panels."""
        del event
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
