"""Alerts and the timeline in the snapshot and in `specdash check`. The schema is documented in docs/snapshot.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdash.core.alerts import Alert
    from specdash.core.timeline import TimelineEvent
    from specdash.insight.alerts_picture import AlertsPicture
    from specdash.insight.picture import Picture

TIMELINE_SHOWN = 200
"""The newest events are told, so many."""


def alerts_json(alerts: AlertsPicture) -> dict[str, Any]:
    """Active and past alerts, the likely cause, and what cannot be judged."""
    return {
        "cause": alerts.cause or None,
        "active": [alert_json(alert) for alert in alerts.active],
        "past": [alert_json(alert) for alert in alerts.past],
        "unjudged": dict(alerts.unjudged),
    }


def alert_json(alert: Alert) -> dict[str, Any]:
    """One alert; moments are Unix times."""
    return {
        "rule": alert.rule,
        "subject": alert.subject or None,
        "title": alert.title,
        "severity": str(alert.severity),
        "summary": alert.summary,
        "since": alert.since,
        "raised": alert.raised,
        "last": alert.last,
        "ended": alert.ended,
        "evidence": [{"label": label, "value": value} for label, value in alert.evidence],
        "fix": [{"key": key, "value": value} for key, value in alert.fix],
        "chart": alert.chart,
    }


def timeline_json(picture: Picture) -> list[dict[str, Any]]:
    """The newest events, oldest first."""
    return [_event(event) for event in picture.timeline[-TIMELINE_SHOWN:]]


def _event(event: TimelineEvent) -> dict[str, Any]:
    return {
        "at": event.at,
        "ended": event.ended,
        "kind": str(event.kind),
        "title": event.title,
        "severity": str(event.severity) if event.severity is not None else None,
        "detail": event.detail or None,
        "ref": event.ref or None,
    }


def alerts_rows(picture: Picture) -> list[tuple[str, str]]:
    """For people: the likely cause first, then every active alert; `none` when nothing is wrong."""
    alerts = picture.alerts
    if not alerts.active:
        over = f"  ({len(alerts.past)} over)" if alerts.past else ""
        return [("alerts", f"none{over}")]
    rows = [("cause", alerts.cause)] if alerts.cause and len(alerts.active) > 1 else []
    return [*rows, *(("alerts" if not index else "", alert_line(alert)) for index, alert in enumerate(alerts.active))]


def alert_line(alert: Alert) -> str:
    """`CRITICAL  Server is down: …`."""
    return f"{alert.severity.upper()}  {alert.title}: {alert.summary}"
