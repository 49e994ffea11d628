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
from specdash.collect.own_files import (
    KEPT,
    MAX_LINE_BYTES,
    applies,
    baselines,
    trials,
)
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
    """A state directory of its own, with a collector for each file; `said` is what they published."""

    def __init__(self, home: Path) -> None:
        self.env = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
        self.said: list[Reading[Any]] = []
        self.applies, self.baselines = paths.applies_file(self.env), paths.baselines_file(self.env)
        self.trial = paths.trial_file(self.env)
        self.trial.parent.mkdir(parents=True)
        self.apply_collector = applies(URL, self.said.append, self.env)
        self.baseline_collector = baselines(self.said.append, self.env)
        self.trial_collector = trials(URL, self.said.append, self.env)

    def add(self, *records: ApplyRecord | bytes) -> None:
        with self.applies.open("ab") as file:
            for entry in records:
                file.write(entry if isinstance(entry, bytes) else entry.to_json().encode() + b"\n")

    def numbers(self) -> list[int]:
        """Looks once; the numbers of the latest reading."""
        self.apply_collector.step()
        return [entry.number for entry in self.said[-1].value or ()]

    def detail(self, kind: FailureKind) -> str:
        failure = self.said[-1].failure
        assert failure is not None
        assert failure.kind is kind
        return failure.detail

    def put(self, path: Path, text: str) -> None:
        fresh = path.with_name("fresh")
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, path)  # noqa: PTH105

    def measured(self, *baselines: Baseline) -> tuple[Baseline, ...]:
        """Replaces the file and looks twice; the latest reading."""
        self.put(self.baselines, "".join(baseline.to_json() + "\n" for baseline in baselines) or "\n")
        for _ in range(2):
            self.baseline_collector.step()
        found: tuple[Baseline, ...] | None = self.said[-1].value
        assert found is not None
        return found

    def tried(self, process: psutil.Process | None = None, **more: object) -> tuple[TrialNote, ...]:
        """Writes the note of a trial and looks."""
        mine = process or psutil.Process()
        original = base64.b64encode(f"LLAMA_API_KEY={SECRET}\n".encode()).decode()
        note = {"pid": mine.pid, "pid_started": mine.create_time(), "at": 5.0, "what": "tune", "url": URL}
        self.put(self.trial, json.dumps({**note, "service": "specdash-backend", "original": original, **more}))
        return self.trials()

    def trials(self) -> tuple[TrialNote, ...]:
        self.trial_collector.step()
        found: tuple[TrialNote, ...] | None = self.said[-1].value
        assert found is not None
        return found


@pytest.fixture
def own(tmp_path: Path) -> OwnFiles:
    return OwnFiles(tmp_path)


def test_without_files_the_reason_is_said_once(own: OwnFiles) -> None:
    for collector, detail in (
        (own.apply_collector, "nothing was applied yet"),
        (own.baseline_collector, "no baseline was recorded yet; `specdash baseline record` measures one"),
    ):
        own.said.clear()
        for _ in range(3):
            collector.step()
        assert own.detail(FailureKind.NOT_CONFIGURED) == detail
        assert len(own.said) == 1


def test_all_applies_are_told_at_the_start_and_with_every_new_apply(own: OwnFiles) -> None:
    own.add(record(1), record(2))
    assert own.numbers() == [1, 2]
    assert own.said[0].value == (record(1), record(2))
    own.add(record(3))
    assert own.numbers() == [1, 2, 3]
    for _ in range(5):
        own.apply_collector.step()
    assert len(own.said) == 2, "nothing new is not told again"


def test_applies_to_another_server_are_left_out_and_those_without_an_address_are_not(own: OwnFiles) -> None:
    own.add(record(1, "http://127.0.0.1:9999"), record(2, None), record(3, "http://localhost:8080/"))
    own.add(record(4, "http://[::1"), record(5, "http://127.0.0.1:99999"), record(6, ""))
    assert own.numbers() == [2, 3]
    own.add(record(7, "http://10.0.0.1:8080"))
    own.apply_collector.step()
    assert len(own.said) == 1


def test_damaged_lines_are_passed_over(own: OwnFiles) -> None:
    bad = [b"", b"{", b"null", b"[1]", b"\xff\xfe\x00", b'{"number": 1}', b"[" * 5000, b'{"number": Infinity}']
    bad.append(record(2).to_json().replace('"applied"', '"exploded"').encode())
    bad.append(record(3).to_json().replace('"number":3', '"number":Infinity').encode())
    bad.append(record(5).to_json().replace("105.0", "NaN").encode())
    bad.append(record(6).to_json().replace("107.0", "1e300").encode())
    bad.append(b"x" * (MAX_LINE_BYTES + 5))
    own.add(record(1), b"\n".join(bad) + b"\n", record(4))
    assert own.numbers() == [1, 4]


def test_a_line_that_is_half_written_is_told_once_it_is_whole(own: OwnFiles) -> None:
    line = record(1).to_json().encode() + b"\n"
    own.add(line[:50])
    assert own.numbers() == []
    assert own.said[-1].value == ()
    own.add(line[50:])
    assert own.numbers() == [1]


def test_only_the_newest_are_kept(own: OwnFiles) -> None:
    own.add(*(record(number) for number in range(KEPT + 30)))
    assert own.numbers() == list(range(30, KEPT + 30))


def test_a_file_begun_anew_forgets_the_old_records(own: OwnFiles) -> None:
    own.add(record(1), record(2))
    assert own.numbers() == [1, 2]
    own.put(own.applies, record(9).to_json() + "\n")
    assert own.numbers() == [9]
    own.applies.unlink()
    assert own.numbers() == []
    assert own.detail(FailureKind.NOT_CONFIGURED) == "nothing was applied yet"


def test_a_directory_in_its_place_is_said(own: OwnFiles) -> None:
    own.applies.mkdir()
    own.apply_collector.step()
    assert own.said[-1].failure is not None
    assert "directory" in own.said[-1].failure.detail


def test_the_hub_publishes_an_apply_where_the_environment_says(own: OwnFiles) -> None:
    seen: list[tuple[int, ...]] = []

    def take(reading: Reading[Any]) -> None:
        if reading.source is Source.APPLIES:
            seen.append(tuple(row.number for row in reading.value or ()))

    with Hub(Target("http://127.0.0.1:1"), [take], gpu=False, host=False, env=own.env):
        until(lambda: seen == [()], 15)
        own.add(record(1, "http://127.0.0.1:1"))
        until(lambda: seen == [(), (1,)], 15)


def test_baselines_are_published_whenever_the_file_is_replaced_and_its_last_is_forgotten(own: OwnFiles) -> None:
    assert own.measured(MEASURED) == (MEASURED,)
    second = replace(MEASURED, context=4096)
    assert own.measured(MEASURED, second) == (MEASURED, second)
    assert own.measured() == ()


def test_lines_that_are_no_baselines_are_passed_over(own: OwnFiles) -> None:
    impossible = replace(MEASURED, low=50.0)
    own.put(own.baselines, f"[]\nnull\n{{}}\nhalf a li\n{impossible.to_json()}\n{MEASURED.to_json()}\n")
    own.baseline_collector.step()
    assert own.said[-1].value == (MEASURED,)


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


def test_nothing_on_trial_is_known_and_told_once(own: OwnFiles) -> None:
    assert own.trials() == own.trials() == ()
    assert len(own.said) == 1


def test_a_trial_is_told_with_every_boot_and_its_end_and_without_the_settings_in_its_note(own: OwnFiles) -> None:
    assert own.tried() == (TrialNote("tune", "specdash-backend", 5.0),)
    assert own.tried(boot=3, planned=12)[0].words == "on trial by `specdash tune`, boot 3 of 12"
    own.trial.unlink()
    assert own.trials() == ()
    assert SECRET not in repr(own.said)


def test_a_trial_on_another_server_is_not_told_and_one_without_an_address_is(own: OwnFiles) -> None:
    assert own.tried(url="http://127.0.0.1:9999") == ()
    assert len(own.tried(url=None)) == 1


def test_a_trial_whose_process_has_died_is_told_as_left_behind(own: OwnFiles) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert own.tried(psutil.Process(child.pid))[0].alive
        child.kill()
    assert not own.trials()[0].alive


def test_a_note_that_is_none_is_said_to_be_none(own: OwnFiles) -> None:
    own.trial.write_text("{", encoding="utf-8")
    own.trial_collector.step()
    assert own.detail(FailureKind.UNAVAILABLE)


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
