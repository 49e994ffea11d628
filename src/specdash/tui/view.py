"""What a widget gets to draw: the picture, the way to the charts' columns and log lines, and how to draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from specdash.tui.spans import UNICODE, Glyphs

if TYPE_CHECKING:
    from specdash.core.readings import Source
    from specdash.insight.charts import Metric
    from specdash.insight.picture import Picture, SourcePicture


class State(Protocol):
    """The part of `specdash.insight.state.TargetState` that the dashboard uses."""

    def picture(self, now: float, wall: float, window_s: float = ...) -> Picture:
        """Everything known at `now`."""

    def columns(self, metric: Metric, now: float, window_s: float, count: int) -> list[float | None]:
        """Chart columns of one series."""

    def log_lines(self, after: int = ..., limit: int = ...) -> tuple[int, tuple[str, ...]]:
        """The newest sequence number, and raw log lines after `after`, at most the last `limit`."""


@dataclass(frozen=True, slots=True)
class View:
    """One refresh: everything in it belongs to the same moment."""

    picture: Picture
    state: State
    glyphs: Glyphs = UNICODE
    interval_s: float = 1.0

    def columns(self, metric: Metric, count: int) -> tuple[float | None, ...]:
        """Chart columns of one series at this view's moment."""
        picture = self.picture
        return tuple(self.state.columns(metric, picture.at, picture.window_s, count))

    def source(self, source: Source) -> SourcePicture | None:
        """Freshness of one source, None when the picture does not speak of it."""
        return next((entry for entry in self.picture.backend.sources if entry.source is source), None)

    def why(self, source: Source, otherwise: str) -> str:
        """In words why a source has nothing to show."""
        entry = self.source(source)
        return entry.reason if entry is not None and entry.reason else otherwise
