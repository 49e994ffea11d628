"""How a program that draws on a terminal is run, and the one way in which it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from specdash.core.errors import ExitCode, UsageError
from specdash.core.flag import Flag

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import App

ResultT = TypeVar("ResultT")

LEAVE_S = 10.0
"""How long leaving may take once it was asked for, the demo's servers included."""
_LOOK_S, _ENDING_LOOK_S = 1.0, 0.2
"""Between two looks at whether the terminal is still there, and while the program is to end."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STREAMS = (0, 1, 2)
_DUMB = ("dumb", "unknown")
"""Values of TERM that name no terminal on which text can be placed."""


def need_terminal(command: str, instead: str) -> None:
    """Raise `UsageError` unless the program can read keys and draw; Textual draws on standard error."""
    if not (os.isatty(0) and os.isatty(2)):
        raise UsageError(f"{command} needs a terminal; {instead}")
    term = os.environ.get("TERM", "")
    if term in _DUMB:
        raise UsageError(
            f"{command} needs a terminal that can place text; TERM={term} says this one cannot: {instead}, or set TERM "
            "to what the terminal is (TERM=xterm-256color suits most)"
        )


def run_app(
    app: App[ResultT],
    *,
    seconds: float | None = None,
    tidy: Callable[[], object] = lambda: None,
) -> ResultT | None:
    """Run the app until the user quits, or for `seconds`, and return what it returns.

    Raises KeyboardInterrupt when SIGINT, SIGTERM or SIGHUP asked for the end, or the terminal is gone. The process then
    ends within `LEAVE_S` of the end of `tidy`, even when the app, its threads or the terminal hang; further signals
    change nothing. `tidy` is called in a thread of its own, and puts back what must not stay as it is.
    """

    asked, ended = Flag(), Flag()
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in _SIGNALS}
    guard = threading.Thread(target=_guard, args=(app, asked, ended, seconds, tidy), name="specdash-guard", daemon=True)
    guard.start()
    try:
        result = app.run()
    finally:
        ended.set()
        if not asked.is_set():
            for number, handler in before.items():
                signal.signal(number, handler)
    if asked.is_set():
        raise KeyboardInterrupt
    return result


def _guard(app: App[ResultT], asked: Flag, ended: Flag, seconds: float | None, tidy: Callable[[], object]) -> None:
    """Watch over the app, outside of its event loop, which may hang."""
    terminals = [number for number in _STREAMS if os.isatty(number)]
    until = None if seconds is None else time.monotonic() + seconds
    while not asked.wait(_LOOK_S if until is None else min(_LOOK_S, max(_ENDING_LOOK_S, until - time.monotonic()))):
        if ended.is_set():
            return
        if until is not None and time.monotonic() >= until:
            app.call_later(app.exit)
        if not all(map(os.isatty, terminals)):
            asked.set()
    threading.Thread(target=_end_for_certain, args=(tidy,), name="specdash-end", daemon=True).start()
    while not ended.is_set():
        if not all(map(os.isatty, terminals)):
            _let_go(terminals)
            terminals = []
        app.call_later(app.exit)
        ended.wait(_ENDING_LOOK_S)


def _let_go(terminals: list[int]) -> None:
    """Put streams that behave in the place of a terminal that is gone.

    Reading that one never blocks, so that Textual's reader would take a whole core, and writing to it fails, so that
    nothing would ever take from the queue of Textual's writer. A pipe without a writer is never ready; a reader
    that takes the terminal for ready fails.
    """
    silence, _ = os.pipe()
    os.set_blocking(silence, False)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in terminals:
        os.dup2(nowhere if number else silence, number)


def _end_for_certain(tidy: Callable[[], object]) -> None:
    """What a killed program leaves behind ends by itself: children with their parent, a demo's directory by its
    janitor."""
    try:
        tidy()
    finally:
        time.sleep(LEAVE_S)
        os._exit(int(ExitCode.INTERRUPTED))
