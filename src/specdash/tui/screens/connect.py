"""What is shown when no server was found: where specdash looked, and how to point it at one."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from textual.app import App
from textual.binding import Binding

from specdash.tui.formatting import clean, fit
from specdash.tui.spans import ASCII, BLANK, UNICODE, Line, wrap
from specdash.tui.themes import PALETTES, default_theme, textual_theme
from specdash.tui.widgets.panel import LinesWidget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

FoundT = TypeVar("FoundT")

WAYS: tuple[tuple[str, str], ...] = (
    ("specdash --url http://127.0.0.1:8080", "a server that is running, here or behind an ssh tunnel"),
    ("specdash --url URL --log FILE", "with its log: requests, warnings and live acceptance come from there"),
    ("specdash --api-key-env NAME", "when the server wants a key: the variable that holds it"),
    ("specdash demo", "no server at hand: a real llama.cpp on a tiny model, under load"),
    ("specdash backend run --env-file FILE", "start a server with all the flags that light every panel"),
    ("specdash doctor", "what is reachable, and which server flag would light which panel"),
)
_FLAGS = "A server shows most with --metrics and --slots, and LLAMA_TRACE=1 in its environment for live acceptance."


class ConnectPage(LinesWidget):
    """The page's text."""

    def __init__(self, tried: Sequence[tuple[str, str]], *, looking: bool) -> None:
        super().__init__(id="connect")
        self.tried = tuple(tried)
        self.looking = looking

    def redraw(self) -> None:
        """Lay out for the present size."""
        self.set_lines(connect_lines(self.size.width, self.tried, looking=self.looking))


def connect_lines(width: int, tried: Sequence[tuple[str, str]], *, looking: bool) -> list[Line]:
    """What was tried, what to do, how to leave."""
    lines: list[Line] = [((" No llama-server found ", "banner.warn"),), BLANK]
    if tried:
        place = min(max(len(where) for where, _ in tried) + 2, width // 2)
        lines.append((("Looked here", "text bold"),))
        lines += [
            ((f"  {fit(clean(where, 200), place)}", "text"), (clean(what, 200), "dim")) for where, what in tried[:8]
        ]
        lines.append(BLANK)
    lines.append((("Point specdash at one", "text bold"),))
    command_width = max(len(command) for command, _ in WAYS) + 2
    for command, meaning in WAYS:
        if width >= command_width + 48:
            lines.append(((f"  {command:<{command_width}}", "accent"), (meaning, "dim")))
        else:
            lines += [((f"  {command}", "accent"),), ((f"    {meaning}", "dim"),)]
    lines += [BLANK, *(((text, "dim"),) for text in wrap(_FLAGS, width, 3)), BLANK]
    ending = "Looking again every few seconds; " if looking else ""
    return [*lines, ((ending, "text"), ("q", "accent"), (" quits", "text"))]


class ConnectApp(App[FoundT], Generic[FoundT]):
    """The page as a program of its own. `run()` returns what `look` found, or None when the user quit.

    `look` is called in a thread every `interval_s` seconds until it returns something; it may block for a while.
    """

    TITLE = "specdash"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,escape,ctrl+c", "quit", "Quit", show=False, priority=True)]
    CSS = "#connect { width: 1fr; height: 1fr; margin: 1 2; }"

    def __init__(
        self,
        tried: Sequence[tuple[str, str]],
        *,
        look: Callable[[], FoundT | None] | None = None,
        interval_s: float = 3.0,
        theme: str | None = None,
        ascii_only: bool = False,
    ) -> None:
        chosen = theme if theme in PALETTES else default_theme(os.environ)
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self.animation_level = "none"
        for palette in PALETTES.values():
            self.register_theme(textual_theme(palette))
        self.theme = chosen
        self._page = ConnectPage(tried, looking=look is not None)
        self._page.glyphs = ASCII if ascii_only else UNICODE
        self._look = look
        self._interval_s = interval_s

    def compose(self) -> ComposeResult:
        """One page."""
        yield self._page

    def on_mount(self) -> None:
        """Start looking."""
        self._page.repaint(PALETTES[self.theme])
        if self._look is not None:
            self.run_worker(self._keep_looking(self._look), exclusive=True)

    async def _keep_looking(self, look: Callable[[], FoundT | None]) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            found = await asyncio.to_thread(look)
            if found is not None:
                self.exit(found)
                return
