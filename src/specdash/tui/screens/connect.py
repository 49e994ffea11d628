"""First contact: what is shown when no server was found, and the choice where there are several."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from textual.app import App

from specdash.collect.discover import place
from specdash.system.text import UNKNOWN, clean
from specdash.tui.action_table import DEFAULT_KEYS, KeyTable, page_bindings
from specdash.tui.screens.modal import CLOSING, MOVING, PageScreen
from specdash.tui.spans import (
    BLANK,
    PALETTES,
    THEME_NAMES,
    Line,
    default_theme,
    fit,
    textual_theme,
    wrap,
)
from specdash.tui.widgets.panel import LinesWidget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from specdash.collect.targets import TargetLook
    from specdash.core.target import Target
    from specdash.tui.screens.modal import Painter
    from specdash.tui.spans import Palette

FoundT = TypeVar("FoundT")
DIGITS = "123456789"
LOOK_S = 3.0
"""How often the page and the list look again."""

WAYS: tuple[tuple[str, str], ...] = (
    ("specdash --url http://127.0.0.1:8080", "a server that is running, here or behind an ssh tunnel"),
    ("specdash --url URL --log FILE", "with its log: requests, warnings and live acceptance come from there"),
    ("specdash --api-key-env NAME", "when the server wants a key: the variable that holds it"),
    ("specdash demo", "no server at hand: a real llama.cpp on a tiny model, under load"),
    ("specdash backend run --env-file FILE", "start a server with every flag that specdash can use"),
    ("specdash doctor", "what is reachable, and which flags enable the missing panels"),
)
_FLAGS = "A server shows most with --metrics and --slots, and LLAMA_TRACE=1 in its environment for live acceptance."


class ConnectPage(LinesWidget):
    """The page's text."""

    def __init__(self, tried: Sequence[tuple[str, str]], *, looking: bool, quit_key: str) -> None:
        super().__init__(id="connect")
        self.tried = tuple(tried)
        self.looking = looking
        self.quit_key = quit_key

    def redraw(self) -> None:
        """Lay out for the present size."""
        self.set_lines(connect_lines(self.size.width, self.tried, looking=self.looking, quit_key=self.quit_key))


def connect_lines(width: int, tried: Sequence[tuple[str, str]], *, looking: bool, quit_key: str = "q") -> list[Line]:
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
    return [*lines, ((ending, "text"), (quit_key, "accent"), (" quits", "text"))]


class SmallApp(App[FoundT], Generic[FoundT]):
    """A program of one page, before there is a dashboard."""

    TITLE = "specdash"
    AUTO_FOCUS = None
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = page_bindings({"quit": "quit", "back": "quit"})

    def __init__(self, *, theme: str | None = None, keys: KeyTable = DEFAULT_KEYS) -> None:
        chosen = theme if theme in PALETTES else default_theme(os.environ)
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self.animation_level = "none"
        for name in THEME_NAMES:
            self.register_theme(textual_theme(PALETTES[name]))
        self.theme = chosen
        self.palette: Palette = PALETTES[chosen]
        self.keys = keys
        self.set_keymap(keys.keymap)


class ConnectApp(SmallApp[FoundT]):
    """The page as a program of its own. `run()` returns what `look` found, or None when the user quit.

    `look` is called in a thread every `interval_s` seconds until it returns something; it may block for a while.
    """

    CSS = "#connect { width: 1fr; height: 1fr; margin: 1 2; }"

    def __init__(
        self,
        tried: Sequence[tuple[str, str]],
        *,
        look: Callable[[], FoundT | None] | None = None,
        interval_s: float = LOOK_S,
        theme: str | None = None,
        keys: KeyTable = DEFAULT_KEYS,
    ) -> None:
        super().__init__(theme=theme, keys=keys)
        self._page = ConnectPage(tried, looking=look is not None, quit_key=keys["quit"])
        self._look = look
        self._interval_s = interval_s

    def compose(self) -> ComposeResult:
        """One page."""
        yield self._page

    def on_mount(self) -> None:
        """Start looking."""
        self._page.repaint(self.palette)
        if self._look is not None:
            self.run_worker(self._keep_looking(self._look), exclusive=True)

    async def _keep_looking(self, look: Callable[[], FoundT | None]) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            found = await asyncio.to_thread(look)
            if found is not None:
                self.exit(found)
                return


# The choice among several servers: before there is a dashboard, and above one that shall watch another.


class TargetsScreen(PageScreen["Target | None"]):
    """Enter, a digit or a click takes a server, escape none."""

    BINDINGS: ClassVar[list[BindingType]] = page_bindings({"open": "watch"} | CLOSING | MOVING)

    def __init__(self, painter: Painter, looks: Sequence[TargetLook], watched: str | None = None) -> None:
        """`watched` is the address that is looked at now."""
        super().__init__(painter)
        self.looks = tuple(looks)
        self.watched = place(watched) if watched is not None else None
        self.index = next((at for at, look in enumerate(self.looks) if place(look.target.url) == self.watched), 0)

    def lines(self, width: int, height: int) -> list[Line]:
        """See `target_lines`."""
        return target_lines(self.looks, self.index, width, self.keys, self.watched)[:height]

    def take_looks(self, looks: Sequence[TargetLook]) -> None:
        """Show what a newer look showed; the selection stays at its server."""
        chosen = self.looks[self.index].target.url if self.looks else None
        self.looks = tuple(looks)
        self.index = next((at for at, look in enumerate(self.looks) if look.target.url == chosen), 0)
        self.page.redraw()

    def action_move(self, lines: int) -> None:
        """Select another."""
        self.index = min(max(self.index + lines, 0), max(len(self.looks) - 1, 0))
        self.page.redraw()

    def on_key(self, event: events.Key) -> None:
        """The number of a server takes it."""
        if event.key in DIGITS:
            self.action_watch(int(event.key))

    def action_watch(self, number: int | None = None) -> None:
        """Close with the selected server, or with that of this number; nothing where there is none of it."""
        at = self.index if number is None else number - 1
        if at < len(self.looks):
            target: Target = self.looks[at].target
            self.dismiss(target)

    def clicked(self, line: int) -> None:
        """Take the server in that line."""
        if 0 <= line - _TARGETS_HEAD < len(self.looks):
            self.action_watch(line - _TARGETS_HEAD + 1)


_TARGETS_HEAD = 3
_ADDRESS = 28


def target_lines(
    looks: Sequence[TargetLook],
    index: int,
    width: int,
    keys: KeyTable = DEFAULT_KEYS,
    watched: tuple[str, int] | None = None,
) -> list[Line]:
    """Address, state and model, one server a line, and below them how the selected one was found."""
    where = "" if any(look.target.name for look in looks) else " on this machine"
    heading = f"server{'s' * (len(looks) != 1)}{where}"
    lines: list[Line] = [
        ((f"{len(looks)} {heading}", "accent bold"), ("  which one to watch?", "text")),
        BLANK,
        ((f"     {'address':<{_ADDRESS}}  {'state':<18}  model", "dim"),),
    ]
    for at, look in enumerate(looks):
        chosen = at == index
        digit = f"{at + 1}" if at < 9 else " "
        state = fit(look.state_words, 18)
        model = clean(look.model or UNKNOWN, max(width - _ADDRESS - 27, 8))
        here = " watched now" if place(look.target.url) == watched else ""
        role = "text bold" if chosen else "text"
        lines.append(
            (
                ("> " if chosen else "  ", "accent bold"),
                (f"{digit}  ", "accent"),
                (fit(clean(look.target.label, 200), _ADDRESS) + "  ", role),
                (state + "  ", "good" if look.answers and look.state == "ok" else "warn"),
                (model, "dim" if look.model is None else role),
                (here, "accent"),
            )
        )
    if looks:
        chosen_look = looks[index]
        lines.append(BLANK)
        about = [
            ("address", chosen_look.target.url if chosen_look.target.name else None),
            ("found by", chosen_look.target.origin),
            ("engine", chosen_look.engine),
            ("log", chosen_look.target.log),
        ]
        lines += [
            ((f"     {name:<10}", "dim"), (clean(words, max(width - 16, 10)), "text")) for name, words in about if words
        ]
        if chosen_look.needs_key and not chosen_look.key_known:
            lines.append((("     its key: ", "dim"), ("--api-key-env NAME or --api-key-file FILE", "warn")))
    ways = (
        (keys["open"], " or its number watches it   "),
        (keys.arrows, " select   "),
        (keys["back"], " leaves"),
    )
    return [*lines, BLANK, tuple(span for key, word in ways for span in ((key, "accent"), (word, "dim")))]


class ChooseApp(SmallApp["Target"]):
    """The choice as a program of its own. `run()` returns the server that was taken, or None when the user quit.

    `look` is called in a thread now and again; the list begins with `looks`.
    """

    BINDINGS: ClassVar[list[BindingType]] = page_bindings({"quit": "quit"})

    def __init__(
        self,
        looks: Sequence[TargetLook],
        look: Callable[[], Sequence[TargetLook]],
        *,
        theme: str | None = None,
        keys: KeyTable = DEFAULT_KEYS,
    ) -> None:
        super().__init__(theme=theme, keys=keys)
        self._choice = TargetsScreen(self, looks)
        self._look = look

    def on_mount(self) -> None:
        """Show the list, then fill it."""
        self.push_screen(self._choice, self.exit)
        self.run_worker(self._keep_looking(), exclusive=True)

    async def _keep_looking(self) -> None:
        while True:
            self._choice.take_looks(await asyncio.to_thread(self._look))
            await asyncio.sleep(LOOK_S)
