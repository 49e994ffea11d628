"""A real run of the tuner on a real service, seen by whoever watches that service: whose restarts these are is said,
and none of them is an incident; what a killed run leaves behind is told."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from specdash.collect.discover import target_for_url
from specdash.collect.hub import Hub
from specdash.core.records import AlertEvent, AlertSeverity, TimelineEvent, TrialNote
from specdash.insight.charts import Metric
from specdash.insight.state import TargetState
from support.deployment import Rig, running_deployment

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]
TUNE = ("tune", "--yes", "--busy-ok", "--each", "2", "--tokens", "24", "--ttft", "100")


class Heard:
    """What was raised and ended."""

    trouble = ""

    def __init__(self) -> None:
        self.alerts: list[AlertEvent] = []

    def on_alert(self, event: AlertEvent) -> None:
        self.alerts.append(event)

    def on_event(self, event: TimelineEvent) -> None:
        """Not looked at."""

    def on_point(self, metric: Metric, at: float, value: float | None) -> None:
        """Not looked at."""


class Watcher:
    """A dashboard's collectors and rules on the rig's service, and what they said."""

    def __init__(self, rig: Rig) -> None:
        self.heard = Heard()
        env = {**os.environ, **rig.env, "LLAMA_API_KEY": rig.values()["LLAMA_API_KEY"]}
        self.target = target_for_url(rig.backend_url, env)
        self.state = TargetState(self.target, observer=self.heard)
        self.hub = Hub(self.target, [self.state.apply], on_target=self.state.retarget, env=env)

    @property
    def trial(self) -> TrialNote | None:
        return self.state.picture(time.monotonic(), time.time()).trial

    def until(self, true: Callable[[], bool], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, (self.trial, [alert.alert.summary for alert in self.heard.alerts])
            time.sleep(0.05)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with running_deployment("daemon") as item:
        yield item


@pytest.fixture
def watcher(rig: Rig) -> Iterator[Watcher]:
    item = Watcher(rig)
    with item.hub:
        item.until(lambda: item.state.picture(time.monotonic(), time.time()).backend.state == "live")
        yield item


@pytest.fixture
def run(rig: Rig, watcher: Watcher) -> Iterator[subprocess.Popen[str]]:
    """A run of the tuner that is watched from before its first boot."""
    process = rig.start_command(*TUNE, "--restarts", "3")
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def is_incident(rule: str, severity: str) -> bool:
    """Whether an alert is about what a run does; a machine that is too busy for this test is not."""
    return severity != AlertSeverity.NOTICE and rule != "cpu_starved"


def test_no_boot_of_a_run_is_an_incident_and_every_look_says_whose_it_is(
    rig: Rig, watcher: Watcher, run: subprocess.Popen[str]
) -> None:
    watcher.until(lambda: watcher.trial is not None and (watcher.trial.boot or 0) >= 2)
    seen = watcher.trial
    assert seen is not None
    assert seen.words == f"on trial by `specdash tune`, boot {seen.boot} of 3"
    checked = rig.command("check", "--url", rig.backend_url, "--json")
    told = json.loads(checked.stdout)
    assert [alert["rule"] for alert in told["alerts"] if is_incident(alert["rule"], alert["severity"])] == []
    assert told["trial"]["command"] == "specdash tune"
    assert "on trial by `specdash tune`, boot" in told["line"]
    watcher.until(lambda: run.poll() is not None)
    watcher.until(lambda: watcher.trial is None)
    time.sleep(4.0)
    heard = [alert.alert for alert in watcher.heard.alerts]
    assert [alert.rule for alert in heard if is_incident(alert.rule, alert.severity)] == []
    assert "crash_loop" not in {alert.alert.rule for alert in watcher.heard.alerts}
