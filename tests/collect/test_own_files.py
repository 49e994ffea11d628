"""What any process applies, measures or tries reaches the dashboard: real records, in the real files."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.collect.hub import Hub
from specdash.collect.own_files import KEPT, MAX_LINE_BYTES, OwnFile, applies, baselines, trials
from specdash.core import paths
from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, Change, Role
from specdash.core.readings import FailureKind, Reading, Source
from specdash.core.records import Baseline, TrialNote
from specdash.core.target import Target
from support.waiting import until

URL = "http://127.0.0.1:8080"
SECRET = "sk-of-the-original"
MEASURED = Baseline(100.0, "m.gguf", "b1", 512, 1, 40.0, 39.0, 41.0, 5, model_bytes=7, decode_tokens=128)


def record(number: int, url: str | None = URL) -> ApplyRecord:
    change = Change(Role.BACKEND, "LLAMA_DRAFT_MAX", "4", "12")
    return ApplyRecord(
        number, 100.0 + number, 101.0 + number, ApplyKind.APPLY, ApplyOutcome.APPLIED, (change,), url=url
    )


class OwnFiles:
    """A state directory of its own, with a collector for each file; `seen` is what they published."""

    def __init__(self, home: Path) -> None:
        self.env = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
        self.seen: list[Reading[Any]] = []
        self.applies, self.baselines = paths.applies_file(self.env), paths.baselines_file(self.env)
        self.trial = paths.trial_file(self.env)
        self.trial.parent.mkdir(parents=True)
        self.apply_collector = applies(URL, self.seen.append, self.env)
        self.baseline_collector = baselines(self.seen.append, self.env)
        self.trial_collector = trials(URL, self.seen.append, self.env)

    def look(self, collector: OwnFile) -> Any:
        """Looks twice; the value of the latest reading."""
        collector.step()
        count = len(self.seen)
        collector.step()
        assert len(self.seen) == count, "nothing new is not published again"
        return self.seen[-1].value

    def add(self, *records: ApplyRecord | bytes) -> None:
        with self.applies.open("ab") as file:
            for entry in records:
                file.write(entry if isinstance(entry, bytes) else entry.to_json().encode() + b"\n")

    def numbers(self) -> list[int]:
        return [entry.number for entry in self.look(self.apply_collector) or ()]

    def detail(self, kind: FailureKind) -> str:
        failure = self.seen[-1].failure
        assert failure is not None
        assert failure.kind is kind
        return failure.detail

    def put(self, path: Path, text: str) -> None:
        fresh = path.with_name("fresh")
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, path)  # noqa: PTH105

    def measured(self, *rows: Baseline | str) -> tuple[Baseline, ...]:
        """Replaces the file and looks."""
        self.put(self.baselines, "".join(f"{row if isinstance(row, str) else row.to_json()}\n" for row in rows))
        found: tuple[Baseline, ...] = self.look(self.baseline_collector)
        return found

    def tried(self, process: psutil.Process | None = None, **more: object) -> tuple[TrialNote, ...]:
        """Writes the note of a trial and looks."""
        mine = process or psutil.Process()
        original = base64.b64encode(f"LLAMA_API_KEY={SECRET}\n".encode()).decode()
        note = {"pid": mine.pid, "pid_started": mine.create_time(), "at": 5.0, "what": "tune", "url": URL}
        self.put(self.trial, json.dumps({**note, "service": "specdash-backend", "original": original, **more}))
        found: tuple[TrialNote, ...] = self.look(self.trial_collector)
        return found


@pytest.fixture
def own(tmp_path: Path) -> OwnFiles:
    return OwnFiles(tmp_path)


def test_without_files_there_is_a_reason_and_no_trial(own: OwnFiles) -> None:
    for collector, detail in (
        (own.apply_collector, "nothing was applied yet"),
        (own.baseline_collector, "no baseline was recorded yet; `specdash baseline record` measures one"),
    ):
        assert own.look(collector) is None
        assert own.detail(FailureKind.NOT_CONFIGURED) == detail
    assert own.look(own.trial_collector) == ()


def test_applies_come_with_every_new_one_the_newest_stay_and_a_file_begun_anew_forgets_them(own: OwnFiles) -> None:
    own.add(record(1), record(2))
    assert own.look(own.apply_collector) == (record(1), record(2))
    own.add(record(3))
    assert own.numbers() == [1, 2, 3]
    own.add(*(record(number) for number in range(4, KEPT + 30)))
    assert own.numbers() == list(range(30, KEPT + 30))
    own.put(own.applies, record(9).to_json() + "\n")
    assert own.numbers() == [9]
    own.applies.unlink()
    assert own.numbers() == []
    own.applies.mkdir()
    own.apply_collector.step()
    assert "directory" in own.detail(FailureKind.UNAVAILABLE)


def test_applies_to_another_server_are_left_out_and_those_without_an_address_are_not(own: OwnFiles) -> None:
    own.add(record(1, "http://127.0.0.1:9999"), record(2, None), record(3, "http://localhost:8080/"))
    own.add(record(4, "http://[::1"), record(5, "http://127.0.0.1:99999"), record(6, ""))
    assert own.numbers() == [2, 3]


def test_damaged_lines_are_passed_over_and_a_half_written_one_waits(own: OwnFiles) -> None:
    bad = [b"", b"{", b"null", b"[1]", b"\xff\xfe\x00", b'{"number": 1}', b"[" * 5000, b'{"number": Infinity}']
    bad.append(record(2).to_json().replace('"applied"', '"exploded"').encode())
    bad.append(record(3).to_json().replace('"number":3', '"number":Infinity').encode())
    bad.append(record(5).to_json().replace("105.0", "NaN").encode())
    bad.append(record(6).to_json().replace("107.0", "1e300").encode())
    bad.append(b"x" * (MAX_LINE_BYTES + 5))
    line = record(7).to_json().encode() + b"\n"
    own.add(record(1), b"\n".join(bad) + b"\n", record(4), line[:50])
    assert own.numbers() == [1, 4]
    own.add(line[50:])
    assert own.numbers() == [1, 4, 7]


def test_the_hub_publishes_an_apply_where_the_environment_says(own: OwnFiles) -> None:
    seen: list[tuple[int, ...]] = []

    def take(reading: Reading[Any]) -> None:
        if reading.source is Source.APPLIES:
            seen.append(tuple(row.number for row in reading.value or ()))

    with Hub(Target("http://127.0.0.1:1"), [take], gpu=False, host=False, env=own.env):
        until(lambda: seen == [()], 15)
        own.add(record(1, "http://127.0.0.1:1"))
        until(lambda: seen == [(), (1,)], 15)


def test_baselines_are_those_of_the_file_and_other_lines_are_passed_over(own: OwnFiles) -> None:
    second = replace(MEASURED, context=4096)
    assert own.measured(MEASURED, second) == (MEASURED, second)
    assert own.measured("[]", "null", "{}", "half a li", replace(MEASURED, low=50.0), MEASURED) == (MEASURED,)
    assert own.measured("") == ()


@given(
    st.builds(
        Baseline,
        st.floats(0, 1e10),
        st.text(max_size=20),
        st.text(max_size=20),
        st.integers(0, 1 << 20),
        st.integers(1, 64),
        decode_rate=st.floats(1, 1e5),
        low=st.floats(0.1, 1),
        high=st.floats(1e5, 1e6),
        requests=st.integers(1, 100),
        model_bytes=st.none() | st.integers(0, 1 << 40),
        gpu=st.none() | st.text(max_size=10),
        decode_tokens=st.none() | st.integers(1, 1000),
    )
)
def test_a_baseline_survives_the_file_and_fields_of_newer_versions_do_not_hurt(baseline: Baseline) -> None:
    assert Baseline.from_json(baseline.to_json()) == baseline
    assert Baseline.from_json(baseline.to_json().replace("{", '{"new": 1, ', 1)) == baseline


def test_a_trial_on_this_server_is_published_with_its_boots_and_without_its_settings(own: OwnFiles) -> None:
    assert own.tried() == (TrialNote("tune", "specdash-backend", 5.0),)
    assert own.tried(boot=3, planned=12)[0].words == "on trial by `specdash tune`, boot 3 of 12"
    assert own.tried(url="http://127.0.0.1:9999") == ()
    assert len(own.tried(url=None)) == 1
    own.trial.unlink()
    assert own.look(own.trial_collector) == ()
    assert SECRET not in repr(own.seen)
    own.trial.write_text("{", encoding="utf-8")
    own.trial_collector.step()
    assert own.detail(FailureKind.UNAVAILABLE), "a note that cannot be read"


def test_a_trial_whose_process_has_died_is_left_behind(own: OwnFiles) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert own.tried(psutil.Process(child.pid))[0].alive
        child.kill()
    assert not own.look(own.trial_collector)[0].alive


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda item: st.lists(item)),
    st.sampled_from(["pid", "pid_started", "at", "what", "service", "boot", "planned", "url"]),
)
def test_any_note_is_read_or_refused(value: object, field: str) -> None:
    note = {"pid": 1, "pid_started": 1.0, "at": 1.0, "what": "tune", "service": "s", "url": URL, field: value}
    found = TrialNote.from_json(json.dumps(note))
    if found is not None:
        assert "\n" not in found.words
        assert found.words.isprintable()
