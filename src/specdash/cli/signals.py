"""What Ctrl-C, SIGTERM and SIGHUP do to a command: end it, cancel an apply, or nothing.

One handler, and a stack of what is under way: a signal is noted at every level, and answered by the innermost one.
Handlers are not exchanged meanwhile, so that there is no moment at which a signal reaches one that is over.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field

from specdash.core.flag import Flag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STDOUT, _STDERR = 1, 2
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HAS_NO_TERMINAL = "SPECDASH_OVER_SSH"
"""Set where `cli.on` runs a command without a terminal, whose hangup would end it with the connection."""


def follow_connection() -> None:
    """Have a command that ssh runs without a terminal interrupted when the connection ends, as Ctrl-C would."""
    if os.environ.pop(HAS_NO_TERMINAL, None) is None:
        return

    def follow() -> None:
        output = select.poll()
        output.register(_STDOUT, 0)
        output.poll()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=follow, name="specdash-connection", daemon=True).start()


class Cancellable(Protocol):
    """An apply that runs: `control.change.Apply`."""

    @property
    def undoing(self) -> bool:
        """Whether it is rolling back: nothing stops that."""

    def cancel(self) -> bool:
        """Roll back and end; returns at once: False when it is too late."""


class Stoppable(Struct):
    """A command, or a part of it, that signals stop. `asked` is set once and for all by the first of them:
    it is looked at before anything else is started."""

    answer: Callable[[int], str] | None = None
    """Does what a signal is to do here, and says that in words; None: an exception ends the run."""
    asked: Flag = field(default_factory=Flag)
    ended: bool = False

    def over(self) -> None:
        """It has ended by itself, and puts things back: nothing is left to be stopped."""
        self.ended = True


change_begun = Flag()
"""Set once `apply` or `rollback` has begun a change: an interrupt before that has changed nothing."""
_under_way: list[Stoppable] = []
"""Innermost last."""


@contextmanager
def stopped_by_signals() -> Iterator[Stoppable]:
    """While inside, the first signal ends the run, as a KeyboardInterrupt, unless what is inside answers it,
    and then raises or looks at `asked`. Those that follow only get an answer: they must not disturb what
    puts things back."""
    with _signals_go_to(Stoppable()) as run:
        yield run


@contextmanager
def cancelled_by_signals(apply: Cancellable) -> Iterator[None]:
    """While inside, a signal means: roll back and end, or that it is too late for that. A second one changes nothing.
    Within a run, which puts everything back anyway, it is never too late: the run must look at `apply.cancelled`."""
    within = bool(_under_way)
    asked = False

    def ask(_number: int) -> str:
        nonlocal asked
        again, asked = apply.undoing or asked, True
        if apply.cancel():
            return "already rolling back, this does not stop it" if again else "rolling back"
        if within:
            return "stopping: the previous settings are restored"
        return "too late to roll back, the change is applied; `specdash rollback` undoes it"

    with _signals_go_to(Stoppable(ask)):
        yield


@contextmanager
def answered(answer: Callable[[int], str]) -> Iterator[Flag]:
    """While inside, a signal gets an answer and ends nothing. The flag that is yielded is set by the first one."""
    with _signals_go_to(Stoppable(answer)) as part:
        yield part.asked


def undisturbed() -> AbstractContextManager[Flag]:
    """While inside, signals end nothing: what is being brought back must come back."""
    return answered(lambda _: "the recovery goes on to its end")


@contextmanager
def ended_by_signals() -> Iterator[Flag]:
    """While inside, SIGTERM, SIGINT and SIGHUP only set what is yielded: a service ends by itself then."""
    stop = Flag()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in _STOPPING}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handle(number: int, _frame: object) -> None:
    if not _under_way:
        # It came while the handlers were being put in or taken out.
        raise KeyboardInterrupt
    innermost = _under_way[-1]
    first = not innermost.asked.is_set()
    for part in _under_way:
        part.asked.set()
    if innermost.answer is not None:
        text = innermost.answer(number)
    elif innermost.ended:
        text = "it has ended already, and puts everything back"
    elif first:
        raise KeyboardInterrupt
    else:
        text = "already stopping, this does not cut it short"
    # Past Python's own buffers, which may be in use right now; and the terminal may be what just went away.
    with suppress(OSError):
        os.write(_STDERR, f"\nspecdash: {signal.Signals(number).name}: {text}\n".encode())


@contextmanager
def _signals_go_to(part: Stoppable) -> Iterator[Stoppable]:
    """Signals that were ignored still are: SIGHUP is under nohup, and SIGINT in what a script runs in the
    background."""
    replaced: dict[signal.Signals, Any] = {}
    try:
        outermost = not _under_way
        _under_way.append(part)
        if outermost:
            for number in _STOPPING:
                before = signal.getsignal(number)
                if before is not signal.SIG_IGN:
                    replaced[number] = before
                    signal.signal(number, _handle)
        yield part
    finally:
        try:
            _leave(part, replaced)
        except KeyboardInterrupt:
            # The first signal of all came just now.
            _leave(part, replaced)
            raise


def _leave(part: Stoppable, replaced: dict[signal.Signals, Any]) -> None:
    for number, handler in replaced.items():
        signal.signal(number, handler)
    if part in _under_way:
        _under_way.remove(part)
