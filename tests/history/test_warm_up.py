"""What a dashboard that opens takes from the record: the past as past, and nothing of another process."""

import time
from pathlib import Path
from typing import Any

from history.test_replay import OK, counters_at
from specdash.core.readings import ProcessTree, Reading, Source
from specdash.core.records import Alert, AlertSeverity, EventKind, TimelineEvent
from specdash.core.target import Target
from specdash.history.warm_up import warm_up
from specdash.history.writer import Batch, Bounds, Writer
from specdash.insight.charts import Memory, Metric
from specdash.insight.picture import BackendState
from specdash.insight.state import TargetState

TARGET = Target("http://127.0.0.1:8080")
OLD = Alert("backend_down", "Server is down", AlertSeverity.CRITICAL, "refused", 0.0, 0.0, 0.0)


def record(path: Path, *, ended_ago: float, alerts: tuple[Alert, ...] = (), seconds: int = 600) -> Path:
    """A record of a server at 100 tokens a second, that ended so long ago."""
    start = time.time() - ended_ago - seconds
    writer = Writer(path, TARGET.url, Bounds(7.0, 10**9))
    writer.begin(TimelineEvent(start, EventKind.RECORDER, "recording began", ref="began"), set())
    for first in range(0, seconds, 30):
        readings: list[Reading[Any]] = []
        points = []
        for second in range(first, first + 30):
            at = start + second
            process = ProcessTree(7, started_wall=start - 5.0)
            readings.append(Reading.known(Source.METRICS, at, counters_at(second)))
            readings.append(Reading.known(Source.HEALTH, at + 0.001, OK))
            readings.append(Reading.known(Source.PROCESS, at + 0.002, process))
            points.append((at, Metric.DECODE.value, 50.0))
        restart = TimelineEvent(start + 100, EventKind.RESTART, "restarted")
        writer.write(Batch(readings, points, list(alerts), [restart] if not first else []))
    writer.close()
    return path


def recalled(path: Path) -> Memory:
    memory = warm_up(path, TARGET, budget_s=30.0)
    assert memory is not None
    return memory


def opened(memory: Memory, tokens_after_s: float) -> TargetState:
    """A live state that begins with the memory, and looks once."""
    state = TargetState(TARGET)
    state.remember(memory)
    now = time.monotonic()
    state.apply(Reading.known(Source.METRICS, now, counters_at(tokens_after_s)))
    state.apply(Reading.known(Source.HEALTH, now + 0.001, OK))
    return state


def test_charts_reach_back_into_the_record(tmp_path: Path) -> None:
    memory = recalled(record(tmp_path / "history.db", ended_ago=2.0))
    state = opened(memory, 602.0)
    now = time.monotonic()
    columns = state.columns(Metric.DECODE, now, 900.0, 30)
    assert [column for column in columns[-18:-2] if column is None] == []
    picture = state.picture(now, time.time(), 300.0)
    assert picture.backend.state is BackendState.LIVE
    assert [timeline_event.kind for timeline_event in picture.timeline] == [EventKind.RESTART]
    assert picture.alerts.active == ()


def test_alerts_are_past_unless_they_were_active_a_moment_ago(tmp_path: Path) -> None:
    now = time.time()
    over = Alert("swapping", "Swapping", AlertSeverity.WARNING, "s", now - 400, now - 390, now - 300, ended=now - 300)
    active = Alert("backend_down", "Down", AlertSeverity.CRITICAL, "refused", now - 60, now - 57, now - 3)
    memory = recalled(record(tmp_path / "new.db", ended_ago=2.0, alerts=(over, active)))
    assert [alert.rule for alert in memory.past] == ["swapping"]
    assert [alert.rule for alert in memory.active] == ["backend_down"]
    memory = recalled(record(tmp_path / "old.db", ended_ago=300.0, alerts=(over, active)))
    assert memory.active == []
    assert [(alert.rule, alert.ended is not None) for alert in memory.past] == [
        ("swapping", True),
        ("backend_down", True),
    ]


def test_without_a_record_or_with_a_damaged_one_there_is_no_memory(tmp_path: Path) -> None:
    assert warm_up(tmp_path / "none.db", TARGET) is None
    (tmp_path / "bad.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    assert warm_up(tmp_path / "bad.db", TARGET) is None
    path = record(tmp_path / "history.db", ended_ago=2.0, seconds=60)
    assert warm_up(path, Target("http://127.0.0.1:1")) is None


def test_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    memory = warm_up(record(tmp_path / "history.db", ended_ago=2.0), TARGET, budget_s=0.0)
    assert memory is not None
    assert not any(memory.points.values())
