"""Something that is done again and again beside a run, in a thread of its own, and never at much cost."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

BEAT_S = 0.5
_IDLE = 20.0
"""At most one part in so many of the time is spent on it, however long one beat takes."""
_END_S = 5.0


class Pulse:
    """Calls `beat` every `BEAT_S` between enter and exit; None: nothing is done. `beat` must not raise."""

    def __init__(self, beat: Callable[[], None] | None, every_s: float = BEAT_S) -> None:
        self._beat = beat
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._beat is not None:
            self._thread = threading.Thread(target=self._go, args=(self._beat,), name="tune-pulse", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            # Whatever it was for has ended already: there is nothing left to interrupt.
            with contextlib.suppress(KeyboardInterrupt):
                self._thread.join(_END_S)

    def _go(self, beat: Callable[[], None]) -> None:
        took = 0.0
        while not self._ended.wait(max(self._every_s, _IDLE * took)):
            began = time.monotonic()
            beat()
            took = time.monotonic() - began
