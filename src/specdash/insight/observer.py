"""Who wants to hear what a target's state derives: the recorder, a check. Called under the state's lock: be quick."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from specdash.core.records import AlertEvent, TimelineEvent
    from specdash.insight.charts import Metric


class TargetObserver(Protocol):
    """Hears of every alert, of every change of the server's state, and of every point of every charted series."""

    @property
    def trouble(self) -> str:
        """What is wrong with the recording of it, "" when nothing is."""

    def on_alert(self, event: AlertEvent) -> None:
        """An alert was raised, changed or is over."""

    def on_point(self, metric: Metric, at: float, value: float | None) -> None:
        """A series got a sample at monotonic time `at`; None is a gap."""

    def on_event(self, event: TimelineEvent) -> None:
        """The server restarted, or its state is another one."""
