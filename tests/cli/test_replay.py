"""`specdash replay`: a moment of a record as a snapshot, the ways to name one, and what cannot be shown."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from history.test_replay import OK, counters_at
from specdash.core import paths
from specdash.core.readings import Reading, Source
from specdash.core.records import EventKind, TimelineEvent
from specdash.core.target import Target
from specdash.history.writer import Batch, Bounds, Writer
from support.outside import say

START = 1_790_000_000.0
SECONDS = 200
URL = "http://127.0.0.1:8080"


def record(path: Path, name: str = URL, start: float = START) -> Path:
    """A record of a server that makes 100 tokens a second."""
    writer = Writer(path, name, Bounds(7.0, 10**9))
    writer.begin(TimelineEvent(start, EventKind.RECORDER, "recording began", ref="began"), set())
    readings: list[Reading[Any]] = []
    for second in range(SECONDS):
        at = start + second
        readings += [
            Reading.known(Source.METRICS, at, counters_at(second)),
            Reading.known(Source.HEALTH, at + 0.001, OK),
        ]
    writer.write(Batch(readings, [], [], []))
    writer.close()
    return path


def replayed(*arguments: str) -> dict[str, Any]:
    code, out, _ = say("replay", "--json", *arguments)
    assert code == 0
    document: dict[str, Any] = json.loads(out)
    return document


def failed(*arguments: str) -> tuple[int, str]:
    code, _, said = say("replay", "--json", *arguments)
    assert "Traceback" not in said
    assert said.count("\n") == 1
    return code, said


def test_a_moment_of_the_record_is_a_snapshot_of_then(tmp_path: Path) -> None:
    path = record(tmp_path / "history.db")
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(START + 50.5))
    shown = replayed(str(path), "--since", when)
    assert shown["backend"]["state"] == "live"
    assert shown["backend"]["url"] == URL
    assert shown["backend"]["counters"]["predicted_tokens"] == 5000.0
    ago = replayed(str(path), "--since", "-99s")
    assert ago["backend"]["counters"]["predicted_tokens"] == 10000.0


def test_the_users_own_record_is_the_default() -> None:
    record(paths.history_file(), start=time.time() - SECONDS)
    assert replayed("--since", "-60s")["backend"]["state"] == "live"
    code, out, _ = say("replay", "--headless", "--since", "-60s")
    assert code == 0
    assert "LIVE" in out


def test_of_several_servers_one_is_named(tmp_path: Path) -> None:
    path = record(tmp_path / "history.db")
    record(path, "http://127.0.0.1:9090 coder", START + 1000)
    assert replayed(str(path))["backend"]["url"] == "http://127.0.0.1:9090"
    assert replayed(str(path), "--target", "127.0.0.1:8080")["backend"]["url"] == URL
    code, said = failed(str(path), "--target", "http://127.0.0.1:1")
    assert code == 2
    assert "it has http://127.0.0.1:9090 coder, http://127.0.0.1:8080" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        (b"", "is not a specdash record"),
        (b"hello", "is not a specdash record; name a history.db"),
        (b"\x1f\x8b" + bytes(20), "unpack it and name the history.db in it"),
        (b"SQLite format 3\0", ""),
    ],
    ids=["missing", "empty", "foreign", "bundle", "damaged"],
)
def test_what_is_no_record_is_one_clear_line(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "some.db"
    if content is not None:
        path.write_bytes(content)
    code, message = failed(str(path))
    assert code == 3
    assert str(path) in message
    assert said in message


def test_nothing_recorded_says_how_it_would_be() -> None:
    code, said = failed()
    assert code == 3
    assert "no record; one is written while specdash runs" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--since", "2020-01-01"), "is not recorded; the record is from"),
        (("--since", "yesterday"), "is no moment"),
        (("--since", "-60s", "--until", "-90s"), "not after the beginning"),
        (("--speed", "0"), "must be more than 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    code, message = failed(str(record(tmp_path / "history.db")), *arguments)
    assert code == 2
    assert said in message


def test_it_leaves_the_record_as_it_was(tmp_path: Path) -> None:
    path = record(tmp_path / "history.db")
    before = path.read_bytes()
    replayed(str(path))
    assert path.read_bytes() == before


def test_without_a_terminal_the_dashboard_is_refused(tmp_path: Path) -> None:
    code, _, err = say("replay", str(record(tmp_path / "history.db")))
    assert code == 2
    assert "needs a terminal" in err


def test_the_target_of_a_router_keeps_its_model(tmp_path: Path) -> None:
    from specdash.history.replay import open_session

    session = open_session(record(tmp_path / "history.db", "http://127.0.0.1:9090 coder"), None)
    assert session.target == Target("http://127.0.0.1:9090", model="coder", origin="record")
    session.close()
