"""`specdash history`: what is in the record, for people and for programs, and one clear line where there is nothing."""

import csv
import io
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from specdash.core import paths
from specdash.core.records import Alert, AlertSeverity, EventKind, TimelineEvent
from specdash.history.store import VERSION
from specdash.history.writer import Batch, Bounds, Writer
from support.outside import say
from support.recording import URL, counters

NOW = 1_800_000_000.0


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten minutes, of which the clock says that they ended just now: decode is the number of the second."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    path = paths.history_file(os.environ)
    writer = Writer(path, URL, Bounds(3650.0, 10**9))
    writer.begin(TimelineEvent(NOW - 600, EventKind.RECORDER, "recording began", ref="began"), set())
    alert = Alert(
        "slot_hung", "Slot hangs", AlertSeverity.CRITICAL, "slot 1 is busy", NOW - 300, NOW - 290, NOW - 200, NOW - 200
    )
    for second in range(600):
        at = NOW - 600 + second
        alerts = [alert] if second == 400 else []
        writer.write(Batch([counters(float(second), at)], [(at, "decode", float(second))], alerts))
    writer.close()
    return path


def out(*words: str, code: int = 0) -> str:
    found, printed, _ = say("history", *words)
    assert found == code
    return printed


def told(*words: str) -> Any:
    return json.loads(out(*words))


@pytest.mark.usefixtures("record")
def test_query_gives_mean_least_and_most_of_every_step() -> None:
    found = told("query", "decode", "--since", "-10m", "--step", "1m", "--json")
    assert found["target"] == URL
    assert found["units"] == {"decode": "tok/s"}
    assert [row["at"] for row in found["rows"]] == [NOW - 600 + 60 * i for i in range(10)]
    assert found["rows"][1]["decode"] == {"mean": 89.5, "min": 60.0, "max": 119.0, "count": 60}


@pytest.mark.usefixtures("record")
@pytest.mark.parametrize("step", ["1s", "7s", "10s", "30s", "1m", "5m"])
def test_every_step_counts_every_sample_once(step: str) -> None:
    rows = told("query", "decode", "--since", "-10m", "--step", step, "--json")["rows"]
    assert sum(row["decode"]["count"] for row in rows) == 600


@pytest.mark.usefixtures("record")
def test_csv_is_csv_with_nothing_where_nothing_is_known() -> None:
    text = out("query", "decode", "cpu", "--since", "-1m", "--step", "10s", "--csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 6
    assert rows[0]["decode"] == "544.5"
    assert rows[0]["decode_max"] == "549"
    assert rows[0]["cpu"] == ""
    assert float(rows[0]["unix"]) == NOW - 60


@pytest.mark.usefixtures("record")
def test_query_prints_a_table_for_people() -> None:
    lines = out("query", "decode", "cpu", "--since", "-1m", "--step", "20s").splitlines()
    assert lines[0].split() == ["time", "decode", "cpu"]
    assert [line.split()[2:] for line in lines[1:]] == [["549.5", "--"], ["569.5", "--"], ["589.5", "--"]]


@pytest.mark.usefixtures("record")
def test_events_are_told_in_order_with_how_long_they_lasted() -> None:
    lines = out("events", "--since", "-1h").splitlines()
    assert [line[21:] for line in lines] == [
        "recorder  recording began",
        "critical  Slot hangs: slot 1 is busy (for 1 min 40 s)",
    ]
    found = told("events", "--since", "-1h", "--json")["events"]
    assert [(entry["kind"], entry["severity"], entry["ref"]) for entry in found] == [
        ("recorder", None, "began"),
        ("alert", "critical", "slot_hung"),
    ]


@pytest.mark.usefixtures("record")
def test_stats_tell_what_is_recorded_and_that_the_file_is_sound() -> None:
    text = out("stats", "--check")
    assert URL in text
    assert "9 min 59 s" in text
    assert text.endswith("sound\n")
    found = told("stats", "--json")
    assert found["schema"] == VERSION
    assert found["targets"][0]["target"] == URL


def test_stats_say_that_a_file_is_damaged(record: Path) -> None:
    data = bytearray(record.read_bytes())
    data[3 * 1024 : 9 * 1024] = os.urandom(6 * 1024)
    record.write_bytes(bytes(data))
    code, _, err = say("history", "stats", "--check")
    assert code == 3
    assert "damaged" in err


@pytest.mark.usefixtures("record")
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("query", "--since", "yesterday-ish"), 2, "'yesterday-ish' is no moment"),
        (("query", "--since", "-1m", "--until", "-2m"), 2, "is not before"),
        (("query", "--since", "25:61"), 2, "is no time of day"),
        (("query", "decoed"), 2, "'decoed' is not a metric"),
        (("query", "--step", "soon"), 2, "is no length of time"),
        (("query", "--step", "0.1s"), 2, "the finest is 1s"),
        (("query", "--since", "-3650d", "--step", "1s"), 2, "rows"),
        (("query", "--target", "http://elsewhere"), 3, f"no such target is in the record; recorded: {URL}"),
        (("query", "--since", "-3d", "--until", "-2d"), 1, "nothing is recorded about"),
        (("stats", "--file", "/nowhere/history.db"), 3, "no record"),
    ],
)
def test_what_cannot_be_meant_is_one_line_with_its_exit_code(words: tuple[str, ...], code: int, said: str) -> None:
    ended, _, told = say("history", *words)
    assert ended == code
    assert said in told
    assert len(told.strip().splitlines()) == 1


def test_without_a_record_it_says_how_to_get_one() -> None:
    code, _, err = say("history", "query")
    assert code == 3
    assert "no record; one is written while specdash runs" in err
