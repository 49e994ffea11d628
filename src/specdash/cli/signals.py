"""What Ctrl-C, SIGTERM and SIGHUP do to a command: end it, cancel an apply, or nothing."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdash.control.apply import Apply

_STDERR = 2
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stopped_by_signals() -> Iterator[Callable[[], None]]:
    """While inside, the first signal ends the run, as a KeyboardInterrupt. Those that follow only get an answer: they
    must not disturb what puts things back. What is yielded makes the first one such a follower, too, for a run that has
    ended by itself."""
    ending = False

    def end() -> None:
        nonlocal ending
        ending = True

    def stop(_number: int) -> str:
        if not ending:
            end()
            raise KeyboardInterrupt
        return "already stopping, this does not cut it short"

    with _on_signals(stop):
        yield end


@contextmanager
def cancelled_by_signals(apply: Apply) -> Iterator[None]:
    """While inside, a signal means: roll back and end. A second one changes nothing."""
    asked: set[int] = set()

    def ask(number: int) -> str:
        again = apply.undoing or bool(asked)
        asked.add(number)
        apply.cancel()
        return "already rolling back, this does not stop it" if again else "rolling back"

    with _on_signals(ask):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """While inside, signals end nothing: what is being brought back must come back."""
    with _on_signals(lambda _: "the recovery goes on to its end"):
        yield


@contextmanager
def _on_signals(answer: Callable[[int], str]) -> Iterator[None]:
    """While inside, a signal does what `answer` does, and what that returns is said. Signals that were ignored still
    are: SIGHUP is under nohup, and SIGINT in what a script runs in the background."""

    def handle(number: int, _frame: object) -> None:
        text = f"\nspecdash: {signal.Signals(number).name}: {answer(number)}\n"
        # Past Python's own buffers, which may be in use right now; and the terminal may be what just went away.
        with suppress(OSError):
            os.write(_STDERR, text.encode())

    replaced: dict[signal.Signals, Any] = {}
    try:
        for number in _STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                replaced[number] = signal.signal(number, handle)
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
