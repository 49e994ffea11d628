"""A span of the record as a file of its own: the same readings, changed on their way, and nothing else."""

import sqlite3
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from specdash.core.readings import Health, HealthStatus, Props, Reading, Source
from specdash.core.records import Alert, AlertSeverity, EventKind, TimelineEvent
from specdash.history.store import Store
from specdash.history.writer import RUN_UP_S, Batch, Bounds, Writer, copy_span
from specdash.insight.charts import Metric

URL = "http://127.0.0.1:8080"
NOW = 1_700_000_000.0
SECONDS = 600


def recorded(directory: Path) -> Path:
    """Ten minutes: health every second, properties once at the beginning, decode at 50 tok/s, one alert."""
    path = directory / "history.db"
    alert = Alert("busy", "Busy", AlertSeverity.NOTICE, "secret summary", NOW + 300, NOW + 301, NOW + 320, NOW + 320)
    writer = Writer(path, URL, Bounds(7, 500_000_000))
    writer.begin(TimelineEvent(NOW, EventKind.RECORDER, "recording began", ref="began"), frozenset())
    props = Reading.known(Source.PROPS, NOW, Props(model_alias="secret-model", total_slots=4))
    for second in range(SECONDS):
        at = NOW + second
        health = Reading.known(Source.HEALTH, at, Health(HealthStatus.OK, latency_s=second / 1e3))
        writer.write(Batch([props, health] if not second else [health], [(at, "decode", 50.0)]))
    writer.write(Batch(alerts=[alert]))
    writer.end(TimelineEvent(NOW + SECONDS, EventKind.RECORDER, "recording ended"))
    writer.close()
    return path


def without_secrets(value: Any) -> Any:
    if isinstance(value, Alert):
        return replace(value, summary="hidden")
    if isinstance(value, Reading) and isinstance(value.value, Props):
        return replace(value, value=replace(value.value, model_alias="hidden"))
    return value


def test_what_is_copied_is_what_was_recorded_but_for_what_was_changed(tmp_path: Path) -> None:
    record = recorded(tmp_path)
    path = tmp_path / "extract.db"
    since, until = NOW + 240, NOW + 480
    with Store(record) as store:
        count = copy_span(store, URL, since, until, path, name="http://there", change=without_secrets)
        original = [reading for _, reading in store.readings(URL, since - RUN_UP_S, until)]
        columns = store.points(URL, Metric.DECODE, since, until, 24)
    with Store(path) as copy:
        assert copy.targets() == ("http://there",)
        assert [reading for _, reading in copy.readings("http://there", 0, 2e9)] == original
        assert len(original) == count
        assert copy.points("http://there", Metric.DECODE, since, until, 24) == columns
        assert [alert.summary for alert in copy.alerts("http://there", since, until)] == ["hidden"]
        props: Any
        (props,) = [
            reading.value for _, reading in copy.latest("http://there", until) if reading.source is Source.PROPS
        ]
        assert (props.model_alias, props.total_slots) == ("hidden", 4)
        assert copy.check() == ""
    assert [path.name for path in tmp_path.glob("extract*")] == ["extract.db"], "a -wal would be lost"
    with sqlite3.connect(path) as connection:
        assert b"secret" not in b"".join(bytes(line, "utf-8") for line in connection.iterdump())
    connection.close()


def test_readings_may_begin_later_than_the_span(tmp_path: Path) -> None:
    record = recorded(tmp_path)
    path = tmp_path / "extract.db"
    with Store(record) as store:
        copy_span(store, URL, NOW, NOW + 599, path, name=URL, change=lambda value: value, readings_since=NOW + 500)
    with Store(path) as copy:
        span = copy.span(URL)
        assert span is not None
        assert span[0] >= NOW + 500 - RUN_UP_S
        assert any(copy.points(URL, Metric.DECODE, NOW, NOW + 300, 10))
