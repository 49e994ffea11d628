"""What the record and the screen know of the time that an incident bundle is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdash.core.target import Target
from specdash.core.timeline import EventKind, TimelineEvent
from specdash.history.extract import copy_span
from specdash.history.store import Store, target_name
from specdash.insight.charts import Metric
from specdash.insight.timeline import of_alert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from specdash.core.alerts import Alert
    from specdash.core.readings import Source
    from specdash.export.incident.parts import Span
    from specdash.export.incident.redaction import Redactor
    from specdash.insight.picture import Picture
    from specdash.insight.rules.catalogue import Rule

    Columns = Callable[[Metric, float, float, int], list[float | None]]

Series = dict[Metric, tuple[tuple[float, float | None], ...]]
"""(Unix time, value) of each metric; None is a gap."""
MOST_READINGS_S = 7200.0
"""Of a longer span, the extract has every reading of its end only."""
MOST_LOOKS = 4
"""Moments at which a source that is silent at the end is looked for."""
POINTS = 430
"""Columns of a plot: one for two pixels."""
GAP_S = 6.0
"""Values that are further apart than this, and than three columns, are not joined by a line."""


class Recorded:
    """What is recorded of one target in one span."""

    def __init__(self, store: Store, name: str, span: Span) -> None:
        self._store = store
        self.name = name
        self._span = span

    def alerts(self) -> tuple[Alert, ...]:
        """Those that held at any time of it."""
        return self._store.alerts(self.name, self._span.since, self._span.until)

    def events(self) -> tuple[TimelineEvent, ...]:
        """What happened, alerts left out."""
        found = self._store.events(self.name, self._span.since, self._span.until)
        return tuple(one for one in found if one.kind is not EventKind.ALERT)

    def series(self) -> Series:
        """Every series that has a value."""
        since, until = self._span.since, self._span.until
        return _series(lambda metric: self._store.points(self.name, metric, since, until, POINTS), self._span)

    def last(self, alerts: Sequence[Alert]) -> Mapping[Source, Any]:
        """What was last known of each source: at the end of the span, else before one of the newest alerts began."""
        moments = [self._span.until, *(one.since for one in reversed(alerts))][:MOST_LOOKS]
        found: dict[Source, Any] = {}
        for moment in moments:
            for _, reading in self._store.latest(self.name, moment):
                if reading.value is not None:
                    found.setdefault(reading.source, reading.value)
        return found


def name_in(store: Store, target: Target) -> str | None:
    """What the record calls the target, None when it has nothing of it."""
    known = store.targets()
    return next((name for name in (target_name(target), target.url) if name in known), None)


def last_target(store: Store) -> Target | None:
    """The server that was recorded last."""
    name = next(iter(store.targets()), None)
    if name is None:
        return None
    url, _, model = name.partition(" ")
    return Target(url, model=model or None, origin="the server that was recorded last")


def extract(history: Path, name: str, span: Span, redactor: Redactor, path: Path) -> int:
    """Copy the span of the record at `history` to a new file, redacted; how many readings."""
    from specdash.export.incident.values import redacted

    with Store(history) as store:
        return copy_span(
            store,
            name,
            span.since,
            span.until,
            path,
            name=redactor.text(name),
            change=lambda value: redacted(value, redactor),
            readings_since=span.until - MOST_READINGS_S,
        )


def live_series(columns: Columns, picture: Picture, span: Span) -> Series:
    """What the screen's charts hold."""
    return _series(lambda metric: columns(metric, picture.at, span.seconds, POINTS), span)


def all_alerts(picture: Picture | None, recorded: Sequence[Alert], span: Span) -> tuple[Alert, ...]:
    """Recorded ones, and those that are active now: an alert seen both ways is told as it was recorded."""
    found = {(one.key, one.raised): one for one in recorded}
    active = {one.key for one in recorded if one.is_active}
    if picture is not None:
        for one in (*picture.alerts.past, *picture.alerts.active):
            seen = (one.key, one.raised) in found or (one.is_active and one.key in active)
            if not seen and span.touches(one.since, one.ended):
                found[one.key, one.raised] = one
    return tuple(sorted(found.values(), key=lambda one: one.since))


def all_events(
    picture: Picture | None, recorded: Sequence[TimelineEvent], alerts: Sequence[Alert], span: Span
) -> tuple[TimelineEvent, ...]:
    """Everything that happened, each thing once, oldest first."""
    live = picture.timeline if picture is not None else ()
    told = [one for one in (*recorded, *live) if one.kind is not EventKind.ALERT]
    unique = {(round(one.at), one.kind, one.title): one for one in told if span.touches(one.at, one.ended or one.at)}
    return tuple(sorted([*unique.values(), *map(of_alert, alerts)], key=lambda one: one.at))


def cause(picture: Picture | None, alerts: Sequence[Alert], rules: Sequence[Rule]) -> str:
    """The likely cause, in one sentence: of what is wrong now, unless worse is over; then of all that was wrong."""
    from specdash.insight.rules.cause import likely_cause

    def worst(some: Iterable[Alert]) -> int:
        return max((one.severity.rank for one in some if not one.refuted), default=-1)

    active = [one for one in alerts if one.is_active]
    is_now = bool(active) and worst(active) >= worst(alerts)
    found = likely_cause(active if is_now else alerts, rules)
    if is_now and picture is not None and picture.alerts.cause_key is not None:
        # The one on the screen, in the words of whoever saw it begin.
        found = next((one for one in active if one.key == picture.alerts.cause_key), found)
    return f"{found.title}: {found.summary}" if found is not None else ""


def _series(columns: Callable[[Metric], list[float | None]], span: Span) -> Series:
    found: Series = {}
    for metric in Metric:
        values = columns(metric)
        if any(value is not None for value in values):
            found[metric] = _joined(values, span)
    return found


def _joined(values: Sequence[float | None], span: Span) -> tuple[tuple[float, float | None], ...]:
    """Columns as points; a few columns without a value, which a slow series has between two, are no gap."""
    width = span.seconds / len(values)
    longest = max(3, round(GAP_S / width))
    points: list[tuple[float, float | None]] = []
    empty = 0
    for at, value in enumerate(values):
        if value is None:
            empty += 1
            continue
        if empty > longest:
            points.append((span.since + (at - 0.5) * width, None))
        points.append((span.since + (at + 0.5) * width, value))
        empty = 0
    return tuple(points)
