"""A record in memory, with the methods of `history.store.Store` that replay reads: for tests of replay alone."""

from collections.abc import Callable, Iterator
from typing import Any

from specdash.core.readings import Reading, Source
from specdash.core.records import Alert, AlertEvent, TimelineEvent, Transition
from specdash.insight.charts import Metric
from specdash.insight.derive import of_alert

STILL = (Source.PROPS, Source.APPLIES, Source.BASELINES)


class ListRecord:
    """Keeps readings, points, events and alerts of one target. An observer: `wall_of` makes Unix times of a live
    state's moments."""

    trouble = ""

    def __init__(self, wall_of: Callable[[float], float] = lambda at: at) -> None:
        self._wall_of = wall_of
        self.kept: list[tuple[float, Reading[Any]]] = []
        self.charted: dict[Metric, list[tuple[float, float]]] = {}
        self.happened: list[TimelineEvent] = []
        self.raised: dict[tuple[str, str, float], Alert] = {}
        self.is_closed = False

    def on_alert(self, event: AlertEvent) -> None:
        assert event.transition in Transition
        self.raised[*event.alert.key, event.alert.raised] = event.alert

    def on_event(self, event: TimelineEvent) -> None:
        self.happened.append(event)

    def on_point(self, metric: Metric, at: float, value: float | None) -> None:
        if value is not None:
            self.charted.setdefault(metric, []).append((self._wall_of(at), value))

    def readings(self, target: str, since: float, until: float) -> Iterator[tuple[float, Reading[Any]]]:
        return ((wall, reading) for wall, reading in self.kept if since <= wall <= until)

    def stills(self, target: str, at: float) -> tuple[tuple[float, Reading[Any]], ...]:
        found = {
            reading.source: (wall, reading)
            for wall, reading in self.kept
            if wall <= at and reading.source in STILL and reading.value
        }
        return tuple(found.values())

    def points(self, target: str, metric: Metric, since: float, until: float, count: int) -> list[float | None]:
        columns: list[list[float]] = [[] for _ in range(count)]
        for at, value in self.charted.get(metric, []):
            if since <= at < until:
                columns[int((at - since) / (until - since) * count)].append(value)
        return [sum(column) / len(column) if column else None for column in columns]

    def events(self, target: str, since: float, until: float) -> tuple[TimelineEvent, ...]:
        found = [*self.happened, *map(of_alert, self.raised.values())]
        return tuple(
            sorted(
                (timeline_event for timeline_event in found if since <= timeline_event.at <= until),
                key=lambda timeline_event: timeline_event.at,
            )
        )

    def alerts(self, target: str, since: float, until: float) -> tuple[Alert, ...]:
        return tuple(
            alert
            for alert in self.raised.values()
            if alert.since <= until and (alert.ended is None or alert.ended >= since)
        )

    def span(self, target: str) -> tuple[float, float] | None:
        return (self.kept[0][0], self.kept[-1][0]) if self.kept else None

    def close(self) -> None:
        self.is_closed = True
