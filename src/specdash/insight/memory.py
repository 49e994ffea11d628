"""What a record says of the time before a state's first reading."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.core.records import Alert, TimelineEvent
    from specdash.insight.charts import Metric
    from specdash.insight.log.counter_log import Scrape


@dataclass(frozen=True, slots=True)
class Memory:
    """The end of a record, at monotonic time `at`; its charts' points are on the same clock, oldest first."""

    at: float
    points: Mapping[Metric, Sequence[tuple[float, float | None]]] = field(default_factory=dict)
    scrapes: Sequence[Scrape] = ()
    """Of the server process that runs still, oldest first."""
    events: Sequence[TimelineEvent] = ()
    """Restarts and changes of state, oldest first."""
    past: Sequence[Alert] = ()
    """Alerts that were over by then."""
    active: Sequence[Alert] = ()
    """Alerts that were not: they go on, or end, with what is judged next."""
