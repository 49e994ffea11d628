"""Applies made by any process reach the dashboard: real records, in the real file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from specdash.collect.applies import KEPT, MAX_LINE_BYTES, PERIOD_S, ApplyCollector
from specdash.collect.hub import Hub
from specdash.core import paths
from specdash.core.applies import ApplyKind, ApplyRecord, Outcome, StoredChange
from specdash.core.readings import FailureKind, Reading, Source, Status
from specdash.core.target import Target

if TYPE_CHECKING:
    from pathlib import Path

URL = "http://127.0.0.1:8080"


def record(number: int, url: str | None = URL) -> ApplyRecord:
    change = StoredChange("backend", "LLAMA_DRAFT_MAX", "4", "12")
    return ApplyRecord(number, 100.0 + number, 101.0 + number, ApplyKind.APPLY, Outcome.APPLIED, (change,), url=url)


class Room:
    """A state directory of its own, and what the collector said of it."""

    def __init__(self, home: Path) -> None:
        self.env = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
        self.file = paths.applies_file(self.env)
        self.said: list[Reading[Any]] = []
        self.collector = ApplyCollector(URL, self.said.append, self.env)

    def write(self, data: bytes) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("ab") as file:
            file.write(data)

    def add(self, *records: ApplyRecord) -> None:
        for one in records:
            self.write(one.to_json().encode() + b"\n")

    def numbers(self) -> list[int]:
        """Looks once; the numbers of the latest reading."""
        self.collector.step()
        value = self.said[-1].value
        return [one.number for one in value] if value is not None else []


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def test_without_a_file_nothing_was_applied_yet_and_that_is_said_once(room: Room) -> None:
    for _ in range(3):
        room.collector.step()
    assert [(one.source, one.status) for one in room.said] == [(Source.APPLIES, Status.UNKNOWN)]
    assert room.said[0].failure is not None
    assert room.said[0].failure.kind is FailureKind.NOT_CONFIGURED
    assert room.said[0].failure.detail == "nothing was applied yet"


def test_all_records_are_told_at_the_start_and_with_every_one_that_comes(room: Room) -> None:
    room.add(record(1), record(2))
    assert room.numbers() == [1, 2]
    assert room.said[0].value == (record(1), record(2))
    room.add(record(3))
    assert room.numbers() == [1, 2, 3]


def test_nothing_new_is_not_told_again(room: Room) -> None:
    room.add(record(1))
    pauses = [room.collector.step() for _ in range(5)]
    assert len(room.said) == 1
    assert set(pauses) == {PERIOD_S}


def test_a_file_that_comes_later_is_found(room: Room) -> None:
    room.collector.step()
    room.add(record(1))
    assert room.numbers() == [1]
    assert room.said[-1].status is Status.KNOWN


def test_records_of_another_server_are_left_out_and_those_without_an_address_are_not(room: Room) -> None:
    room.add(record(1, "http://127.0.0.1:9999"), record(2, None), record(3, "http://localhost:8080/"))
    room.add(record(4, "http://[::1"), record(5, "http://127.0.0.1:99999"), record(6, ""))
    assert room.numbers() == [2, 3]
    room.add(record(7, "http://10.0.0.1:8080"))
    room.collector.step()
    assert len(room.said) == 1


def test_damaged_lines_are_passed_over(room: Room) -> None:
    room.add(record(1))
    bad = [b"", b"{", b"null", b"[1]", b"\xff\xfe\x00", b'{"number": 1}', b"[" * 5000, b'{"number": Infinity}']
    bad.append(record(2).to_json().replace('"applied"', '"exploded"').encode())
    bad.append(record(3).to_json().replace('"number": 3', '"number": Infinity').encode())
    bad.append(record(5).to_json().replace("105.0", "NaN").encode())
    bad.append(record(6).to_json().replace("107.0", "1e300").encode())
    bad.append(b"x" * (MAX_LINE_BYTES + 5))
    room.write(b"\n".join(bad) + b"\n")
    room.add(record(4))
    assert room.numbers() == [1, 4]


def test_a_line_that_is_half_written_is_told_once_it_is_whole(room: Room) -> None:
    line = record(1).to_json().encode() + b"\n"
    room.write(line[:50])
    assert room.numbers() == []
    assert room.said[-1].value == ()
    room.write(line[50:])
    assert room.numbers() == [1]


def test_only_the_newest_are_kept(room: Room) -> None:
    room.add(*(record(number) for number in range(KEPT + 30)))
    assert room.numbers() == list(range(30, KEPT + 30))


def test_a_file_begun_anew_forgets_the_old_records(room: Room) -> None:
    room.add(record(1), record(2))
    assert room.numbers() == [1, 2]
    fresh = room.file.with_suffix(".new")
    fresh.write_text(record(9).to_json() + "\n")
    fresh.replace(room.file)
    assert room.numbers() == [9]
    room.file.unlink()
    assert room.numbers() == []
    assert room.said[-1].failure is not None
    assert room.said[-1].failure.detail == "nothing was applied yet"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_must_not_be_read_is_not_one_that_is_not_there(room: Room) -> None:
    room.add(record(1))
    room.file.chmod(0)
    room.collector.step()
    assert room.said[-1].failure is not None
    assert room.said[-1].failure.kind is FailureKind.UNAVAILABLE


def test_a_directory_in_its_place_is_said(room: Room) -> None:
    room.file.mkdir(parents=True)
    room.collector.step()
    assert room.said[-1].failure is not None
    assert "directory" in room.said[-1].failure.detail


def test_the_hub_tells_of_an_apply_of_another_process_where_the_environment_says(tmp_path: Path) -> None:
    room = Room(tmp_path)
    told: list[Reading[Any]] = []

    def until(count: int) -> None:
        deadline = time.monotonic() + 15
        while len([one for one in told if one.source is Source.APPLIES]) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    with Hub(Target("http://127.0.0.1:1"), [told.append], gpu=False, host=False, env=room.env):
        until(1)
        writes = "import sys, pathlib; p = pathlib.Path(sys.argv[1]); p.parent.mkdir(); p.write_text(sys.argv[2])"
        room.file.parent.parent.mkdir()
        line = record(1, "http://127.0.0.1:1").to_json() + "\n"
        subprocess.run([sys.executable, "-c", writes, str(room.file), line], check=True, timeout=20)
        until(2)
    (number,) = [one.number for reading in told if reading.source is Source.APPLIES for one in reading.value or ()]
    assert number == 1
