"""A trial that any process makes on the watched server reaches the dashboard, without the settings in its note."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
from hypothesis import given
from hypothesis import strategies as st

from specdash.collect.trials import TrialCollector
from specdash.core import paths
from specdash.core.readings import FailureKind, Reading, Source
from specdash.core.trials import TrialNote, read_note

if TYPE_CHECKING:
    from pathlib import Path

URL = "http://127.0.0.1:8080"
SECRET = "sk-of-the-original"


class Room:
    def __init__(self, home: Path) -> None:
        self.env = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
        self.file = paths.trial_file(self.env)
        self.file.parent.mkdir(parents=True)
        self.said: list[Reading[Any]] = []
        self.collector = TrialCollector(URL, self.said.append, self.env)

    def write(self, process: psutil.Process | None = None, **more: object) -> None:
        mine = process or psutil.Process()
        original = base64.b64encode(f"LLAMA_API_KEY={SECRET}\n".encode()).decode()
        note = {"pid": mine.pid, "pid_started": mine.create_time(), "at": 5.0, "what": "tune", "url": URL}
        text = json.dumps({**note, "service": "specdash-backend", "original": original, "tried": [], **more})
        fresh = self.file.with_name("fresh")
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, self.file)  # noqa: PTH105

    def looked(self) -> Reading[Any]:
        self.collector.step()
        return self.said[-1]

    def trials(self) -> tuple[TrialNote, ...]:
        found: tuple[TrialNote, ...] | None = self.looked().value
        assert found is not None
        return found


def test_nothing_on_trial_is_known_and_told_once(tmp_path: Path) -> None:
    room = Room(tmp_path)
    assert room.trials() == ()
    room.looked()
    assert len(room.said) == 1


def test_a_trial_is_told_with_every_boot_and_its_end(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.write()
    assert room.looked() == Reading.known(Source.TRIAL, room.said[-1].at, (TrialNote("tune", "specdash-backend", 5.0),))
    room.write(boot=3, planned=12)
    assert room.trials()[0].words == "on trial by `specdash tune`, boot 3 of 12"
    room.file.unlink()
    assert room.trials() == ()


def test_a_trial_on_another_server_is_not_told(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.write(url="http://127.0.0.1:9999")
    assert room.trials() == ()


def test_a_note_without_an_address_concerns_every_server(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.write(url=None)
    assert len(room.trials()) == 1


def test_a_trial_whose_process_has_died_is_told_as_left_behind(tmp_path: Path) -> None:
    room = Room(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        room.write(psutil.Process(child.pid))
        assert room.trials()[0].alive
        child.kill()
    assert not room.trials()[0].alive


def test_a_note_that_is_none_is_said_to_be_none(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.file.write_text("{", encoding="utf-8")
    failure = room.looked().failure
    assert failure is not None
    assert failure.kind is FailureKind.UNAVAILABLE


def test_no_setting_of_the_note_leaves_it(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.write()
    assert SECRET not in repr(room.looked())


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda one: st.lists(one)),
    st.sampled_from(["pid", "pid_started", "at", "what", "service", "boot", "planned", "url"]),
)
def test_any_note_is_read_or_refused(value: object, field: str) -> None:
    note = {"pid": 1, "pid_started": 1.0, "at": 1.0, "what": "tune", "service": "s", "url": URL, field: value}
    found = read_note(json.dumps(note))
    if found is not None:
        assert "\n" not in found.note.words
        assert found.note.words.isprintable()
