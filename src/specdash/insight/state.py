"""The state of one target: readings in, the picture out."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from specdash.insight.picture import BackendPicture, Picture

if TYPE_CHECKING:
    from specdash.core.readings import Reading
    from specdash.core.target import Target
    from specdash.insight.charts import Metric


class TargetState:
    """Collects the readings of one target and derives its `Picture`.

    Thread-safe: collectors call `apply` from their thread, screens call the other methods from theirs.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._lock = threading.Lock()

    def apply(self, reading: Reading[Any]) -> None:
        """Take in one reading; times must not decrease per source."""

    def picture(self, now: float, wall: float, window_s: float = 300.0) -> Picture:
        """Everything known at monotonic time `now`, with windowed figures over the last `window_s` seconds."""
        return Picture(at=now, wall=wall, window_s=window_s, backend=BackendPicture(url=self.target.url))

    def columns(self, metric: Metric, now: float, window_s: float, count: int) -> list[float | None]:
        """Chart columns of one series (see `Series.columns`)."""
        return [None] * count

    def log_lines(self, after: int = 0, limit: int = 1000) -> tuple[int, tuple[str, ...]]:
        """Raw log lines with a sequence number greater than `after`, at most the last `limit`; and the newest number.

        Call with the number returned last to get only what is new.
        """
        return 0, ()
