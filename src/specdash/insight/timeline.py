"""One line of time out of alerts, applies, restarts and changes of state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.timeline import EventKind, TimelineEvent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.core.alerts import Alert
    from specdash.insight.alerts_picture import AlertsPicture
    from specdash.insight.experiment_picture import ApplyMark


def events(
    happened: Iterable[TimelineEvent], alerts: AlertsPicture, applies: Iterable[ApplyMark]
) -> tuple[TimelineEvent, ...]:
    """All events, oldest first. `happened` are restarts and changes of state."""
    found = [*happened, *map(of_alert, (*alerts.past, *alerts.active)), *map(of_apply, applies)]
    return tuple(sorted(found, key=lambda one: one.at))


def of_alert(alert: Alert) -> TimelineEvent:
    """An alert, from its beginning to its end."""
    return TimelineEvent(
        at=alert.since,
        kind=EventKind.ALERT,
        title=alert.title,
        severity=alert.severity,
        ended=alert.ended,
        detail=alert.summary,
        ref=alert.rule,
    )


def of_apply(mark: ApplyMark) -> TimelineEvent:
    """An apply."""
    return TimelineEvent(mark.wall, EventKind.APPLY, mark.text, detail=str(mark.outcome), ref=str(mark.number))
