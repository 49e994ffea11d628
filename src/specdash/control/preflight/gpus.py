"""What NVML says now, asked for at most every two seconds: a check runs at every keystroke in the dashboard."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdash.core.observations import Gpus
    from specdash.core.readings import Reading

_GOOD_FOR_S = 2.0
_ABSENT_FOR_S = 30.0


class _Watch:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: Gpus | None = None
        self._due = 0.0
        self._collector: Any = None

    def look(self) -> Gpus | None:
        with self._lock:
            if time.monotonic() >= self._due:
                if self._collector is None:
                    from specdash.collect.gpu import GpuCollector

                    self._collector = GpuCollector(self._take)
                self._collector.step(_GOOD_FOR_S)
                self._due = time.monotonic() + (_ABSENT_FOR_S if self._seen is None else _GOOD_FOR_S)
            return self._seen

    def _take(self, reading: Reading[Gpus]) -> None:
        self._seen = reading.value


_WATCH = _Watch()


def nvml_gpus() -> Gpus | None:
    """The GPUs of this machine, None when NVML shows none."""
    return _WATCH.look()
