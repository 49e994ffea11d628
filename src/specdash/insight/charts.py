"""The time series behind the charts, declared once, and what a target's state shares with a record of itself."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.core.records import Alert, AlertEvent, TimelineEvent


class Metric(StrEnum):
    """Identity of one charted series."""

    ACCEPTANCE = "acceptance"
    PREFILL = "prefill"
    DECODE = "decode"
    TOKENS_PER_DECODE = "tokens_per_decode"
    REQUESTS = "requests"
    WARNINGS = "warnings"
    GPU_UTILISATION = "gpu_utilisation"
    CPU = "cpu"


class ChartSpec(Struct, frozen=True):
    """How a series reads: its title, unit, and fixed range where it has one."""

    metric: Metric
    title: str
    unit: str
    low: float | None = 0.0
    high: float | None = None


CHARTS: dict[Metric, ChartSpec] = {
    spec.metric: spec
    for spec in (
        ChartSpec(Metric.ACCEPTANCE, "Acceptance", "%", 0.0, 1.0),
        ChartSpec(Metric.PREFILL, "Prefill", "tok/s"),
        ChartSpec(Metric.DECODE, "Decode", "tok/s"),
        ChartSpec(Metric.TOKENS_PER_DECODE, "Tokens per decode", "tok"),
        ChartSpec(Metric.REQUESTS, "Requests", "in flight"),
        ChartSpec(Metric.WARNINGS, "Warnings", "/min"),
        ChartSpec(Metric.GPU_UTILISATION, "GPU", "%", 0.0, 1.0),
        ChartSpec(Metric.CPU, "CPU", "%", 0.0, 1.0),
    )
}


class TargetObserver(Protocol):
    """Gets every alert, every change of the server's state, and every point of every charted series: the recorder, a
    check. Called under the state's lock: be quick."""

    @property
    def trouble(self) -> str:
        """What is wrong with the recording of it, "" when nothing is."""

    def on_alert(self, event: AlertEvent) -> None:
        """An alert was raised, changed or is over."""

    def on_point(self, metric: Metric, at: float, value: float | None) -> None:
        """A series got a sample at monotonic time `at`; None is a gap."""

    def on_event(self, event: TimelineEvent) -> None:
        """The server restarted, or its state is another one."""


class Memory(Struct, frozen=True):
    """What a record says of the time before a state's first reading: its end, at monotonic time `at`. The points of
    charts are on the same clock, oldest first."""

    at: float
    points: Mapping[Metric, Sequence[tuple[float, float | None]]] = field(default_factory=dict)
    events: Sequence[TimelineEvent] = ()
    """Restarts and changes of state, oldest first."""
    past: Sequence[Alert] = ()
    """Alerts that were over by then."""
    active: Sequence[Alert] = ()
    """Alerts that were not: they go on, or end, with what is judged next."""
