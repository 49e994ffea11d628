"""A daemon thread that takes one step after another, for everything that may block."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

RETRY_S = 5.0


class Worker:
    """Calls `step` until stopped; each call returns the seconds to wait before the next.

    An error in a step is a bug: it is logged once, handed to `on_error` every time, and the steps go on after a pause.
    The thread is a daemon, so that a driver call that never returns cannot keep the program from ending.
    """

    def __init__(self, name: str, step: Callable[[], float], on_error: Callable[[Exception], None]) -> None:
        self._step = step
        self._on_error = on_error
        self._wake = threading.Event()
        self._stopping = False
        self._failed = False
        self._thread = threading.Thread(target=self._run, name=f"specdash-{name}", daemon=True)

    def start(self) -> None:
        """Take the first step at once, in the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Take the next step now."""
        self._wake.set()

    def stop(self) -> None:
        """Take no further step. Returns at once; `join` waits."""
        self._stopping = True
        self._wake.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; False when it did not come in time."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping:
            try:
                pause = self._step()
            except Exception as error:  # noqa: BLE001 - a bug shall show, not end the watch
                if not self._failed:
                    self._failed = True
                    _log.exception("%s failed", self._thread.name)
                self._on_error(error)
                pause = RETRY_S
            if self._wake.wait(pause):
                self._wake.clear()
