"""What happened, on one line of time: alerts, applies and restarts. The charts, the incidents screen, history and
bundles all show these."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdash.core.alerts import AlertSeverity


class EventKind(StrEnum):
    """What kind of thing happened."""

    ALERT = "alert"
    APPLY = "apply"
    RESTART = "restart"
    STATE = "state"
    """The server's state is another one: down, loading, live."""
    RECORDER = "recorder"
    """Recording began, ended, or lost something."""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One event at Unix time `at`, until `ended` where it lasts. `title` is a few words, without secrets."""

    at: float
    kind: EventKind
    title: str
    severity: AlertSeverity | None = None
    ended: float | None = None
    detail: str = ""
    ref: str = ""
    """What it is about: a rule's id, an apply's number."""
