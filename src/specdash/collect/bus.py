"""Publish and subscribe: readings from the collectors' threads to whoever wants them."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from specdash.core.readings import Reading

    Sink = Callable[[Reading[Any]], None]

_log = logging.getLogger(__name__)


class Bus:
    """Hands every reading to every sink, one at a time, on the thread that published it.

    A sink that raises loses that reading and nothing else: the others get theirs and the collectors go on. The first
    error of each sink is logged, the rest are counted in `errors`.
    """

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self._sinks: list[Sink] = list(sinks)
        self._failed: set[int] = set()
        self._lock = threading.RLock()
        self._closed = False
        self.errors = 0

    def subscribe(self, sink: Sink) -> Callable[[], None]:
        """Add a sink; the returned function takes it off again."""
        with self._lock:
            self._sinks.append(sink)

        def unsubscribe() -> None:
            with self._lock:
                if sink in self._sinks:
                    self._sinks.remove(sink)

        return unsubscribe

    def publish(self, reading: Reading[Any]) -> None:
        """Hand a reading to every sink; nothing once the bus is closed."""
        with self._lock:
            if self._closed:
                return
            for sink in tuple(self._sinks):
                try:
                    sink(reading)
                except Exception:  # noqa: BLE001 - a sink is not ours, and no error of it may stop the collectors
                    self._note_error(sink, reading)

    def close(self) -> None:
        """Publish nothing from now on."""
        # Without the lock: a sink that hangs must not be able to hold up the end.
        self._closed = True

    def _note_error(self, sink: Sink, reading: Reading[Any]) -> None:
        self.errors += 1
        if id(sink) not in self._failed:
            self._failed.add(id(sink))
            _log.exception("a sink failed on a %s reading; further failures of it are not logged", reading.source)
