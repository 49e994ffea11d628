"""Scenes for tests: a state fed with readings at given times, and rules made of a script."""

from collections.abc import Callable, Iterable
from typing import Any

from specdash.core.readings import (
    Counters,
    FailureKind,
    Health,
    HealthStatus,
    ProcessTree,
    Reading,
    Slot,
    Slots,
    Source,
)
from specdash.core.records import Alert, AlertEvent, AlertSeverity, Symptom, TimelineEvent
from specdash.core.target import Target
from specdash.insight.charts import Metric
from specdash.insight.rules.catalogue import Limits, Rule, shipped
from specdash.insight.rules.scene import RuleScene
from specdash.insight.state import TargetState

OK = Health(HealthStatus.OK)
LOADING = Health(HealthStatus.LOADING)
WALL = 1_800_000_000.0
"""Unix time of monotonic time 0."""


class Heard:
    """An observer that keeps what it hears."""

    trouble = ""

    def __init__(self) -> None:
        self.events: list[AlertEvent] = []

    def on_alert(self, event: AlertEvent) -> None:
        self.events.append(event)

    def on_event(self, event: TimelineEvent) -> None:
        return

    def on_point(self, metric: Metric, at: float, value: float | None) -> None:
        return


class Watch:
    """A server watched through readings that the test makes."""

    def __init__(self, rules: Iterable[Rule] | None = None) -> None:
        self.heard = Heard()
        self.offset = WALL
        self.state = TargetState(
            Target("http://127.0.0.1:8080"),
            rules=tuple(rules) if rules is not None else None,
            observer=self.heard,
            wall_offset=lambda: self.offset,
        )
        self.at = 0.0

    def read(self, source: Source, value: Any) -> None:
        """One reading of now: a value, or a `FailureKind`."""
        if isinstance(value, FailureKind):
            self.state.apply(Reading.unknown(source, self.at, value, "scripted"))
        else:
            self.state.apply(Reading.known(source, self.at, value))

    def look(self, seconds: float = 1.0, **readings: Any) -> None:
        """Every source once a second for so long, HEALTH last: `health`, `metrics`, `slots`, `process` …"""
        for _ in range(round(seconds)):
            self.at += 1.0
            for name in sorted(readings, key="health".__eq__):
                self.read(Source(name), readings[name])

    def alert(self, rule: str) -> Alert | None:
        """The rule's active alert."""
        active = self.state.alerts.picture().active
        return next((alert for alert in active if alert.rule == rule), None)

    def found(self, rule: str) -> Alert:
        """The rule's active alert, which there is."""
        alert = self.alert(rule)
        assert alert is not None, self.raised()
        return alert

    def raised(self) -> set[str]:
        """Rules with an active alert."""
        return {alert.rule for alert in self.state.alerts.picture().active}


def live(seconds: float = 20.0) -> Watch:
    """A server that has been well for a while."""
    watch = Watch()
    watch.look(seconds, health=OK, metrics=counters(100), slots=IDLE, process=process())
    assert watch.raised() == set()
    return watch


def process(pid: int = 10, *, stopped: bool = False, started: float = WALL - 1000.0) -> ProcessTree:
    """The server's process."""
    return ProcessTree(
        pid=pid, name="llama-server", started_wall=started, stopped=(pid,) if stopped else (), cpu_cores=0.5
    )


def working(decoded: int, task: int = 7, processed: int = 100) -> Slots:
    """One slot at work, one idle."""
    busy = Slot(0, is_processing=True, task=task, n_decoded=decoded, n_prompt_tokens_processed=processed)
    return Slots((busy, Slot(1, is_processing=False)))


IDLE = Slots((Slot(0, is_processing=False), Slot(1, is_processing=False)))


def counters(tokens: float, *, running: float = 0.0, calls: float | None = None) -> Counters:
    """Totals of a server that has generated so many tokens."""
    return Counters(
        prompt_tokens=tokens,
        predicted_tokens=tokens,
        decode_calls=tokens if calls is None else calls,
        requests_processing=running,
        requests_deferred=0.0,
    )


def rule(judge: Callable[[RuleScene, Limits], Iterable[Symptom]], rule_id: str = "scripted", **more: Any) -> Rule:
    """A rule for tests."""
    fields: dict[str, Any] = {"severity": AlertSeverity.WARNING, "hold_back": False, **more}
    return Rule(rule_id, "availability", "Scripted", meaning="", checks=(), judge=judge, **fields)


def only(*ids: str) -> tuple[Rule, ...]:
    """These rules of those shipped."""
    return tuple(item for item in shipped() if item.id in ids)
