"""Who wants to hear what a target's state derives: the recorder, a check. Called under the state's lock: be quick."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from specdash.core.alerts import AlertEvent
    from specdash.insight.charts import Metric


class Observer(Protocol):
    """Hears of every alert and of every point of every charted series."""

    def on_alert(self, event: AlertEvent) -> None:
        """An alert was raised, changed or is over."""

    def on_point(self, metric: Metric, at: float, value: float | None) -> None:
        """A series got a sample at monotonic time `at`; None is a gap."""
