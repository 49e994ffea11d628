"""What any process applies, measures or tries reaches the dashboard: real records, in the real files.

What is a record: tests/core/test_records.py.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from collect.seen import Seen
from specdash.collect.own_files import KEPT, MAX_LINE_BYTES, OwnFile, applies, baselines, trials
from specdash.core import paths
from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, Change, Role
from specdash.core.readings import FailureKind, Source
from specdash.core.records import Baseline, TrialNote

URL = "http://127.0.0.1:8080"
SECRET = "sk-of-the-original"
MEASURED = Baseline(100.0, "m.gguf", "b1", 512, 1, 40.0, 39.0, 41.0, 5, model_bytes=7, decode_tokens=128)


def record(number: int, url: str | None = URL) -> ApplyRecord:
    change = Change(Role.BACKEND, "LLAMA_DRAFT_MAX", "4", "12")
    at = 100.0 + number
    return ApplyRecord(number, at, at + 1.0, ApplyKind.APPLY, ApplyOutcome.APPLIED, (change,), url=url)


class OwnFiles(Seen):
    """A state directory of its own, with a collector for each file."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self.env = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
        self.applies, self.baselines = paths.applies_file(self.env), paths.baselines_file(self.env)
        self.trial = paths.trial_file(self.env)
        self.trial.parent.mkdir(parents=True)
        self.collectors = {
            Source.APPLIES: applies(URL, self.take, self.env),
            Source.BASELINES: baselines(self.take, self.env),
            Source.TRIAL: trials(URL, self.take, self.env),
        }

    def look(self, source: Source) -> Any:
        """Looks twice; the value of the latest reading."""
        collector: OwnFile = self.collectors[source]
        collector.step()
        count = len(self.readings)
        collector.step()
        assert len(self.readings) == count, "nothing new is not published again"
        return self.last(source)

    def add(self, *lines: ApplyRecord | bytes) -> None:
        with self.applies.open("ab") as file:
            for line in lines:
                file.write(line if isinstance(line, bytes) else line.to_json().encode() + b"\n")

    def numbers(self) -> list[int]:
        return [entry.number for entry in self.look(Source.APPLIES) or ()]

    def put(self, path: Path, text: str) -> None:
        fresh = path.with_name("fresh")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)

    def tried(self, process: psutil.Process | None = None, **more: object) -> tuple[TrialNote, ...]:
        """Writes the note of a trial and looks."""
        mine = process or psutil.Process()
        note = {"pid": mine.pid, "pid_started": mine.create_time(), "at": 5.0, "what": "tune", "url": URL}
        self.put(self.trial, json.dumps({**note, "service": "specdash-backend", "original": SECRET, **more}))
        found: tuple[TrialNote, ...] = self.look(Source.TRIAL)
        return found


@pytest.fixture
def own(tmp_path: Path) -> OwnFiles:
    return OwnFiles(tmp_path)


def test_without_files_there_is_a_reason_and_no_trial(own: OwnFiles) -> None:
    assert own.numbers() == []
    assert own.look(Source.BASELINES) is None
    assert own.kind(Source.APPLIES) is own.kind(Source.BASELINES) is FailureKind.NOT_CONFIGURED
    assert own.detail(Source.APPLIES) == "nothing was applied yet"
    assert own.look(Source.TRIAL) == ()


def test_applies_come_with_every_new_one_the_newest_stay_and_another_file_forgets_them(own: OwnFiles) -> None:
    own.add(record(1), record(2))
    assert own.look(Source.APPLIES) == (record(1), record(2))
    own.add(*(record(number) for number in range(3, KEPT + 30)))
    assert own.numbers() == list(range(30, KEPT + 30))
    own.put(own.applies, record(9).to_json() + "\n")
    assert own.numbers() == [9]
    own.applies.unlink()
    assert own.numbers() == []
    own.applies.mkdir()
    own.collectors[Source.APPLIES].step()
    assert "directory" in own.detail(Source.APPLIES)


def test_applies_to_another_server_are_left_out_and_those_without_an_address_are_not(own: OwnFiles) -> None:
    urls = ("http://127.0.0.1:9999", None, "http://localhost:8080/", "http://[::1", "http://127.0.0.1:99999", "")
    own.add(*(record(number, url) for number, url in enumerate(urls, 1)))
    assert own.numbers() == [2, 3]


def test_damaged_lines_are_passed_over_and_a_half_written_one_waits(own: OwnFiles) -> None:
    line = record(7).to_json().encode() + b"\n"
    late = line.replace(b"107.0", b"1e300")
    long = line.replace(b'"applied"', b'"applied", "x": "%s"' % (b"x" * MAX_LINE_BYTES))
    own.add(record(1), b"\n{\n[1]\n\xff\xfe\x00\n", b"[" * 5000 + b"\n", late, long, record(4), line[:50])
    assert own.numbers() == [1, 4]
    own.add(line[50:])
    assert own.numbers() == [1, 4, 7]


def test_baselines_are_those_of_the_file_and_other_lines_are_passed_over(own: OwnFiles) -> None:
    for row in ("null", MEASURED.to_json(), replace(MEASURED, low=50.0).to_json(), "half a li"):
        with own.baselines.open("a", encoding="utf-8") as file:
            file.write(f"{row}\n")
    assert own.look(Source.BASELINES) == (MEASURED,)
    own.put(own.baselines, "")
    assert own.look(Source.BASELINES) == ()


def test_a_trial_on_this_server_is_published_with_its_boots_and_without_its_settings(own: OwnFiles) -> None:
    assert own.tried() == (TrialNote("tune", "specdash-backend", 5.0),)
    assert own.tried(boot=3, planned=12)[0].words == "on trial by `specdash tune`, boot 3 of 12"
    assert own.tried(url="http://127.0.0.1:9999") == ()
    assert len(own.tried(url=None)) == 1
    own.trial.unlink()
    assert own.look(Source.TRIAL) == ()
    assert SECRET not in repr(own.readings)
    own.trial.write_text("{", encoding="utf-8")
    own.look(Source.TRIAL)
    assert "is not a note of this version" in own.detail(Source.TRIAL)


def test_a_trial_whose_process_has_died_is_left_behind(own: OwnFiles) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert own.tried(psutil.Process(child.pid))[0].alive
        child.kill()
    assert not own.look(Source.TRIAL)[0].alive
