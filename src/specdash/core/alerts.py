"""The vocabulary of alerts: what a rule says while it holds, the alert that it raises, and what becomes of it.

Moments are Unix times in seconds. Texts never hold a secret or prompt text: they go into bundles and tickets.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any


class AlertSeverity(StrEnum):
    """How bad it is. A notice is worth knowing and needs nobody; a warning needs somebody today; a critical one now."""

    NOTICE = "notice"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0 for the mildest."""
        return tuple(AlertSeverity).index(self)


@dataclass(frozen=True, slots=True)
class Symptom:
    """What a rule says while it holds. `summary` is one sentence without a full stop that names the cause with its
    figures; `evidence` are labels and formatted values.

    `subject` tells several alerts of one rule apart (`slot 3`, `GPU 0`, a session's id). `fix` are settings that would
    help, as (key, value), None for a key to be removed: the tune screen takes them as pending, nothing applies them by
    itself. `severity` overrides the rule's own.
    """

    summary: str
    evidence: tuple[tuple[str, str], ...] = ()
    subject: str = ""
    fix: tuple[tuple[str, str | None], ...] = ()
    severity: AlertSeverity | None = None
    names: tuple[tuple[str, str], ...] = ()
    """What the runbook's placeholders stand for here, where that is particular to the symptom: (placeholder, value)."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `since` is when its symptom was first seen, `raised` when it had lasted long enough, `last` when it
    was last seen, `ended` when it was over."""

    rule: str
    title: str
    severity: AlertSeverity
    summary: str
    since: float
    raised: float
    last: float
    ended: float | None = None
    subject: str = ""
    evidence: tuple[tuple[str, str], ...] = ()
    fix: tuple[tuple[str, str | None], ...] = ()
    chart: str | None = None
    """The `insight.charts.Metric` that shows it best."""
    names: tuple[tuple[str, str], ...] = ()
    """What the placeholders of its runbook stand for, as far as it was known: (placeholder, value)."""
    refuted: bool = False
    """It is over, and what was seen since shows that it was never so; the evidence says what."""

    @property
    def key(self) -> tuple[str, str]:
        """What makes it the same alert."""
        return self.rule, self.subject

    @property
    def is_active(self) -> bool:
        """Whether it is not over."""
        return self.ended is None

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Alert | None:
        """The alert of `to_json`, None for anything else."""
        try:
            values: dict[str, Any] = json.loads(text)
            alert = cls(**values)
            return replace(
                alert,
                severity=AlertSeverity(alert.severity),
                evidence=tuple((str(label), str(value)) for label, value in alert.evidence),
                fix=tuple((str(key), value if value is None else str(value)) for key, value in alert.fix),
                names=tuple((str(name), str(value)) for name, value in alert.names),
            )
        except (ValueError, TypeError):
            return None


class Transition(StrEnum):
    """What became of an alert."""

    RAISED = "raised"
    CHANGED = "changed"
    """Its severity is another one."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """One transition of one alert, at Unix time `at`."""

    transition: Transition
    alert: Alert
    at: float
