"""The board of the overview: places the panels where `layout.arrange` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.tui.layout import PanelId, arrange
from specdash.tui.widgets.acceptance import AcceptancePanel
from specdash.tui.widgets.chart import decode_panel, gain_panel, prefill_panel
from specdash.tui.widgets.host import MachinePanel
from specdash.tui.widgets.logs import LogPanel
from specdash.tui.widgets.placed import PlacedBoard
from specdash.tui.widgets.proxy import ProxyPanel
from specdash.tui.widgets.requests import RequestsPanel
from specdash.tui.widgets.slots import SlotsPanel
from specdash.tui.widgets.warnings import WarningsPanel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual import events

    from specdash.tui.layout import Rect
    from specdash.tui.view import View
    from specdash.tui.widgets.panel import Panel


class Board(PlacedBoard):
    """All panels. Those without a place are not displayed and do no work."""

    def __init__(self) -> None:
        super().__init__()
        self.choices: dict[PanelId, bool] = {}
        self.zoomed: PanelId | None = None
        self.bare: frozenset[PanelId] = frozenset()
        """Panels that have nothing but their title now."""
        self.log_panel = LogPanel()
        panels: tuple[Panel, ...] = (
            AcceptancePanel(),
            prefill_panel(),
            decode_panel(),
            SlotsPanel(),
            RequestsPanel(),
            WarningsPanel(),
            MachinePanel(),
            self.log_panel,
            gain_panel(),
            ProxyPanel(),
        )
        self.panels: dict[PanelId, Panel] = {panel.panel: panel for panel in panels}

    @property
    def parts(self) -> tuple[Panel, ...]:
        """The panels."""
        return tuple(self.panels.values())

    def places(self, width: int, height: int) -> dict[str, Rect]:
        """See `layout.arrange`."""
        return {self.panels[one].id or "": place for one, place in self._arranged(width, height).items()}

    def _arranged(self, width: int, height: int) -> dict[PanelId, Rect]:
        return arrange(width, height, self.choices, self.zoomed, self.bare)

    def visible_panels(self) -> Iterator[Panel]:
        """Panels that have a place now."""
        places = self._arranged(*self.size)
        return (panel for panel_id, panel in self.panels.items() if panel_id in places)

    def prime(self, view: View) -> None:
        """Give every panel a view to draw once it has a size."""
        self.log_panel.take_new_lines(view)
        self.bare = _bare(view)
        for panel in self.panels.values():
            panel.show(view)

    def show(self, view: View) -> None:
        """Draw this view in every visible panel."""
        self.log_panel.take_new_lines(view)
        bare = _bare(view)
        if bare != self.bare:
            self.bare = bare
            self.sync()
            self.place_again()
        for panel in self.visible_panels():
            panel.show(view)

    def on_resize(self, event: events.Resize) -> None:
        """Another size has room for other panels."""
        del event
        self._display()

    def toggle(self, panel: PanelId) -> None:
        """Hide a visible panel, show a hidden one."""
        visible = self.zoomed == panel or (self.zoomed is None and panel in self._arranged(*self.size))
        self.zoomed = None
        self.choices[panel] = not visible
        self.sync()

    def reset(self) -> None:
        """Forget what the user switched on and off."""
        self.choices.clear()
        self.zoomed = None
        self.sync()

    def zoom(self, panel: PanelId | None) -> None:
        """Give one panel the whole board, or with None all panels their places."""
        self.zoomed = panel
        self.sync()

    def sync(self) -> None:
        """Lay out anew, displaying exactly the panels that have a place."""
        self._display()
        self.refresh(layout=True)

    def _display(self) -> None:
        places = self._arranged(*self.size)
        for panel_id, panel in self.panels.items():
            panel.display = panel_id in places


def _bare(view: View) -> frozenset[PanelId]:
    return frozenset() if view.picture.proxy.configured else frozenset({PanelId.PROXY})
