"""What a widget gets to draw: the picture, the way to the charts' columns and log lines, and how to draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from specdash.core.readings import Source
from specdash.insight.charts import Metric
from specdash.insight.picture import BackendState
from specdash.tui.action_table import DEFAULT_KEYS, KeyTable

if TYPE_CHECKING:
    from specdash.core.log_facts import LogLine
    from specdash.insight.picture import Picture, SourcePicture


class DashboardState(Protocol):
    """The part of `specdash.insight.state.TargetState` that the dashboard uses."""

    def picture(self, now: float, wall: float, window_s: float = ...) -> Picture:
        """Everything known at `now`."""

    def columns(self, metric: Metric, now: float, window_s: float, count: int) -> list[float | None]:
        """Chart columns of one series."""

    def log_lines(self, after: int = ..., limit: int = ...) -> tuple[int, tuple[LogLine, ...]]:
        """The newest sequence number, and raw log lines after `after`, at most the last `limit`."""


_SPANS_S = (30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0)
"""What charts of a server span that is watched for less than the window."""
_MISSING = {
    BackendState.DOWN: "the server is away",
    BackendState.LOADING: "waiting for the model",
    BackendState.UNAUTHORIZED: "needs the API key",
    BackendState.UNKNOWN: "waiting for the server",
}
"""What a panel without figures waits for, where the header says why and what to do."""
_OF_SERVER = (Source.METRICS, Source.SLOTS)
_OLDEST = 60
"""Parts of the window among which the oldest with a value is looked for."""


def chart_span(state: DashboardState, now: float, window_s: float) -> float:
    """Seconds that charts go back: the window, or while nothing is known of most of it, a round span with all that
    is."""
    oldest = _OLDEST
    for metric in (Metric.CPU, Metric.DECODE, Metric.ACCEPTANCE):
        columns = state.columns(metric, now, window_s, _OLDEST)
        oldest = next((i for i, value in enumerate(columns[:oldest]) if value is not None), oldest)
    known = window_s * (_OLDEST - oldest) / _OLDEST
    return min((span for span in _SPANS_S if 0 < known <= span < window_s), default=window_s)


class View(Struct, frozen=True):
    """One refresh: everything in it belongs to the same moment."""

    picture: Picture
    state: DashboardState
    interval_s: float = 1.0
    keys: KeyTable = DEFAULT_KEYS
    chart_s: float | None = None
    """Seconds that charts go back; None for the picture's window."""

    @property
    def span_s(self) -> float:
        """Seconds that charts go back."""
        return self.chart_s or self.picture.window_s

    def columns(self, metric: Metric, count: int) -> tuple[float | None, ...]:
        """Chart columns of one series at this view's moment."""
        picture = self.picture
        return tuple(self.state.columns(metric, picture.at, self.span_s, count))

    @property
    def is_tried(self) -> bool:
        """Whether settings are tried on the server now, so that what they do to it is no one's fault."""
        trial = self.picture.trial
        return trial is not None and trial.alive

    def source(self, source: Source) -> SourcePicture | None:
        """Freshness of one source, None when the picture does not speak of it."""
        return next((entry for entry in self.picture.backend.sources if entry.source is source), None)

    def why(self, source: Source, otherwise: str) -> str:
        """In words why a source has nothing to show; of the server's own, first what stands in the way of them all."""
        entry = self.source(source)
        if source in _OF_SERVER and (missing := _MISSING.get(self.picture.backend.state)):
            return missing
        return entry.reason if entry is not None and entry.reason else otherwise
