"""Something that is asked for once and for all, also by a signal handler."""

from __future__ import annotations

import contextlib
import threading


class Flag:
    """What `threading.Event` is, for handlers of signals too.

    An Event's `set` takes a lock that the thread which waits for it takes as well: a handler that runs in that thread
    at the wrong moment waits for ever. Here, asking only gives a lock back, which never waits. Nor does a signal
    make a wait longer: `Lock.acquire` counts on from where it was, other than `queue.SimpleQueue.get`, which waits
    without a bound once its time is up when a handler ends (`Modules/_queuemodule.c` of CPython 3.11).
    """

    def __init__(self) -> None:
        self._is_set = False
        self._closed = threading.Lock()
        self._closed.acquire()

    def set(self) -> None:
        """Ask for it. Safe from any thread and from a signal handler; returns at once."""
        self._is_set = True
        self._open()

    def is_set(self) -> bool:
        """Whether it was asked for."""
        return self._is_set

    def clear(self) -> None:
        """Let it be asked for again. A request meanwhile is seen now or by the next `wait`."""
        self._closed.acquire(blocking=False)
        self._is_set = False

    def wait(self, seconds: float) -> bool:
        """Wait until it is asked for, at most so long; whether it was."""
        if self._is_set:
            return True
        if self._closed.acquire(timeout=max(0.0, seconds)):
            # Others may wait, too.
            self._open()
            return True
        return self._is_set

    def _open(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is open
            self._closed.release()
