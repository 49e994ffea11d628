"""What a bundle is made of: plain data, gathered by `specdash.cli.incident`, written by `export.incident.bundle`.

Times are Unix times in seconds. Everything here is still as it was seen; the bundle redacts what it writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from specdash.core.alerts import Alert
    from specdash.core.applies import ApplyRecord
    from specdash.core.changes import Role
    from specdash.core.proxy_events import ProxyEvent
    from specdash.core.timeline import TimelineEvent
    from specdash.export.incident.excerpt import Excerpt
    from specdash.export.incident.redaction import Redactor
    from specdash.insight.charts import Metric
    from specdash.insight.picture import Picture
    from specdash.insight.rules.catalogue import RuleSpec

PLOTTED = ("acceptance", "decode", "prefill", "requests", "warnings", "gpu_utilisation")
"""The series that a bundle draws, by `insight.charts.Metric`."""
DEFAULT_SPAN_S = 900.0
LONGEST_SPAN_S = 86400.0
"""The longest span that one bundle may be about."""


@dataclass(frozen=True, slots=True)
class Span:
    """The time that a bundle is about."""

    since: float
    until: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.until - self.since

    def touches(self, begin: float, end: float | None) -> bool:
        """Whether what went on from `begin` to `end` (None: still) was going on in it."""
        return begin <= self.until and (end is None or end >= self.since)


@dataclass(frozen=True, slots=True)
class Missing:
    """A part that the bundle does not have, and why, in words without a full stop."""

    part: str
    why: str


@dataclass(frozen=True, slots=True)
class EnvVersion:
    """One text of an env file. `at` is when it was replaced by the next one, None for the file as it is now."""

    text: str = field(repr=False)
    at: float | None = None
    number: int | None = None
    """The number of the backup that holds it."""


@dataclass(frozen=True, slots=True)
class EnvPart:
    """One service's env file: as it is now, and the versions that were replaced within the span, oldest first."""

    role: Role
    path: Path
    now: EnvVersion
    before: tuple[EnvVersion, ...] = ()


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that a bundle is written from."""

    made: float
    span: Span
    url: str
    redactor: Redactor = field(repr=False)
    picture: Picture | None = None
    alerts: tuple[Alert, ...] = ()
    """Those of the span, oldest first."""
    cause: str = ""
    """What is likely behind it, one sentence without a full stop."""
    events: tuple[TimelineEvent, ...] = ()
    applies: tuple[ApplyRecord, ...] = ()
    rules: Mapping[str, RuleSpec] = field(default_factory=dict)
    series: Mapping[Metric, tuple[tuple[float, float | None], ...]] = field(default_factory=dict)
    extract: Callable[[Path], int] | None = field(default=None, repr=False)
    """Writes the record of the span to a file, redacted; the number of its readings."""
    envs: tuple[EnvPart, ...] = ()
    log: Excerpt | None = None
    proxy_events: tuple[ProxyEvent, ...] = ()
    versions: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] | None = field(default=None, repr=False)
    run_records: tuple[Mapping[str, Any], ...] = ()
    missing: tuple[Missing, ...] = ()
    anonymised: bool = False
