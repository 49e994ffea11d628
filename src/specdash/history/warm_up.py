"""What a record gives a live dashboard that just opened: the last hour's charts, and the alerts and events of the
last day. Bounded by time: what does not fit is left out, the oldest first."""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specdash.core.errors import SpecdashError
from specdash.core.records import EventKind
from specdash.history.store import Store, target_name
from specdash.insight.charts import Memory, Metric

if TYPE_CHECKING:
    from pathlib import Path

    from specdash.core.target import Target

BUDGET_S = 0.3
HOUR_S = 3600.0
DAY_S = 86400.0
NEAR_S, NEAR_STEP_S, STEP_S = 300.0, 1.0, 10.0
"""The last minutes are remembered by the second, the rest of the hour in wider points."""
STILL_S = 60.0
"""An alert that was active so short a time ago is not over."""
_EVENTS = (EventKind.STATE, EventKind.RESTART)


def warm_up(path: Path, target: Target, *, budget_s: float = BUDGET_S) -> Memory | None:
    """The memory of a state whose first reading is yet to come; None when there is no record, or it cannot be read."""
    if not path.exists():
        return None
    deadline = time.monotonic() + budget_s
    with suppress(SpecdashError, OSError, sqlite3.Error), Store(path) as store:
        return _Recalled(store, target_name(target), time.monotonic(), time.time(), deadline).memory()
    return None


class _Recalled:
    """One look at the record; `now` and `wall` are one moment."""

    def __init__(self, store: Store, name: str, now: float, wall: float, deadline: float) -> None:
        self._store, self._name = store, name
        self._now, self._wall, self._deadline = now, wall, deadline

    def memory(self) -> Memory | None:
        span = self._store.span(self._name)
        if span is None:
            return None
        known = self._store.alerts(self._name, self._wall - DAY_S, self._wall)
        is_still = self._wall - span[1] <= STILL_S
        return Memory(
            at=self._now,
            points={metric: self._points(metric) for metric in Metric},
            events=[
                event
                for event in self._store.events(self._name, self._wall - DAY_S, self._wall)
                if event.kind in _EVENTS
            ],
            past=[
                alert if alert.ended is not None else replace(alert, ended=alert.last)
                for alert in known
                if not (is_still and alert.is_active)
            ],
            active=[alert for alert in known if alert.is_active] if is_still else [],
        )

    def _at(self, wall: float) -> float:
        return wall - self._wall + self._now

    def _points(self, metric: Metric) -> list[tuple[float, float]]:
        found: list[tuple[float, float]] = []
        for since, until, step in (
            (self._wall - HOUR_S, self._wall - NEAR_S, STEP_S),
            (self._wall - NEAR_S, self._wall, NEAR_STEP_S),
        ):
            if time.monotonic() > self._deadline:
                break
            columns = self._store.points(self._name, metric, since, until, round((until - since) / step))
            found += [
                (self._at(since + (i + 0.5) * step), value) for i, value in enumerate(columns) if value is not None
            ]
        return found
