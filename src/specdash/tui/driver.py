"""What of Textual costs more than a dashboard at rest may: its driver of terminals, which here has no second reader of
the keys and sleeps until one comes, and its compositor, which here asks nothing of widgets that did not change."""

from __future__ import annotations

import os
import selectors
import threading
import time
from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, Any

from textual._compositor import Compositor, CompositorUpdate, LayoutUpdate
from textual._xterm_parser import XTermParser
from textual.constants import ESCAPE_DELAY
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Region

from specdash.tui.terminal_picture import ChangedUpdate, RowsUpdate, TerminalPicture, WholeUpdate
from specdash.tui.widgets.panel import LinesWidget

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import App
    from textual.strip import Strip

UNFINISHED_S, LOOK_S = ESCAPE_DELAY + 1.0, 0.1
"""Whether more of a sequence follows a lone escape only time can tell: so long after a key, and so often, it is asked
for."""
_READ_BYTES = 4096


class _Ended(threading.Event):
    """An event that a selector waits for, too."""

    def __init__(self) -> None:
        super().__init__()
        self.readable, self._written = os.pipe()
        os.set_blocking(self.readable, False)

    def set(self) -> None:
        super().set()
        os.write(self._written, b".")

    def clear(self) -> None:
        super().clear()
        try:
            os.read(self.readable, _READ_BYTES)
        except BlockingIOError:
            return


class TerminalDriver(LinuxDriver):
    """Begins again only after it was suspended itself.

    Textual's own begins again at every SIGCONT, which a terminal also sends when it goes away: a second thread then
    reads the same keys, and only one of the two is ever ended. It also wakes up ten times a second for keys.
    """

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        self.exit_event: _Ended = _Ended()

    def _sigcont_application(self, *signalled: object) -> None:
        if self._must_signal_resume:
            super()._sigcont_application(*signalled)

    def run_input_thread(self) -> None:
        """Wait for keys and hand them on, until the driver ends."""
        parser, decoder = XTermParser(self._debug), getincrementaldecoder("utf-8")()
        last = float("-inf")
        with selectors.SelectSelector() as selector:
            selector.register(self.exit_event.readable, selectors.EVENT_READ)
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                ready = selector.select(LOOK_S if time.monotonic() - last < UNFINISHED_S else None)
                if any(key.fd == self.fileno for key, _ in ready):
                    last = time.monotonic()
                    if data := os.read(self.fileno, _READ_BYTES):
                        for message in parser.feed(decoder.decode(data)):
                            self.process_message(message)
                    else:
                        # The terminal is gone, and reading it never waits.
                        self.exit_event.wait(LOOK_S)
                for message in parser.tick():
                    self.process_message(message)


class TouchedCompositor(Compositor):
    """Renders, of what changed, the rows of the widgets that it touches.

    Textual's own renders every line of every widget within the rectangle around all changes: of the header's clock and
    a figure at the bottom, the whole screen. Of what it rendered it writes what the terminal's `picture` has not yet.
    """

    def __init__(self, picture: TerminalPicture) -> None:
        super().__init__()
        self._picture = picture
        self._touched: list[Region] = []

    def render_full_update(self, simplify: bool = False) -> LayoutUpdate:
        """The whole screen."""
        update = super().render_full_update(simplify)
        return update if simplify else WholeUpdate(update, self._picture)

    def render_partial_update(self) -> CompositorUpdate | None:  # type: ignore[override]
        """What changed since the last update, None when nothing has."""
        touched = list(self._dirty_regions)
        rows = self._rows(touched)
        if rows:
            self._dirty_regions.clear()
            return RowsUpdate(rows, self._picture)
        self._touched = touched
        try:
            update = super().render_partial_update()
        finally:
            self._touched = []
        return ChangedUpdate(update, self._picture) if update is not None else None

    def _rows(self, changed: Iterable[Region]) -> list[tuple[int, int, LinesWidget, int]]:
        """Where all that changed is whole rows of lines, those: row and first column of the screen, the widget and its
        row; else none."""
        rows: list[tuple[int, int, LinesWidget, int]] = []
        for touched in changed:
            for widget, (region, clip) in self.visible_widgets.items():
                seen = region.intersection(clip)
                if not seen.overlaps(touched):
                    continue
                is_whole = touched.column_span == region.column_span and seen.contains_region(touched)
                if not is_whole or not isinstance(widget, LinesWidget):
                    return []
                rows += [(y, region.x, widget, y - region.y) for y in touched.line_range]
                break
        return rows

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        if not self._touched:
            yield from super()._get_renders(crop)
            return
        uncovered = self._touched
        for widget, (region, clip) in self.visible_widgets.items():
            seen = region.intersection(clip)
            parts = [part for touched in uncovered if (part := touched.intersection(seen))]
            if parts:
                top, bottom = min(part.y for part in parts), max(part.bottom for part in parts)
                rows = Region(seen.x, top, seen.width, bottom - top)
                yield region, rows, widget.render_lines(rows.translate(-region.offset))
                # Widgets come front to back: of what lies behind this one nothing is seen.
                uncovered = [touched for touched in uncovered if not seen.contains_region(touched)]
                if not uncovered:
                    return
