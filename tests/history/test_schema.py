"""Records of other versions, and files that are none: one sentence, nothing lost, and a new record begins."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from specdash.core.errors import InputError
from specdash.history.store import VERSION, NewerSchemaError, OlderSchemaError, Store, connect
from support.recording import URL, counters, file_of, hurry, recording
from support.waiting import until


def of_version(path: Path, number: int) -> Path:
    """A record that says it is of that version."""
    connect(path, read_only=False).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO targets (name) VALUES ('kept')")
        connection.execute(f"PRAGMA user_version = {number}")
        connection.commit()
    return path


@pytest.mark.parametrize(
    ("number", "error", "words"),
    [
        (99, NewerSchemaError, f"written by a newer specdash (schema 99, this one knows {VERSION}); update specdash"),
        (1, OlderSchemaError, f"written by an older specdash (schema 1, this one reads {VERSION}); it is set aside"),
        (2, OlderSchemaError, f"written by an older specdash (schema 2, this one reads {VERSION}); it is set aside"),
    ],
)
def test_a_record_of_another_version_is_left_as_it_is_and_said_so(
    tmp_path: Path, number: int, error: type[Exception], words: str
) -> None:
    path = of_version(tmp_path / "history.db", number)
    before = path.read_bytes()
    for read_only in (True, False):
        with pytest.raises(error) as raised:
            connect(path, read_only=read_only)
        assert f"{path}: {words}" in str(raised.value)
    assert path.read_bytes() == before


def test_a_record_of_an_older_version_is_set_aside_and_a_new_one_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    path = file_of(tmp_path)
    path.parent.mkdir(parents=True)
    of_version(path, VERSION - 1)
    with recording(tmp_path) as recorder:
        recorder.on_reading(counters(1.0))
        until(lambda: recorder.is_recording and not recorder.problem)
    with closing(sqlite3.connect(path.with_name("history.db.old-1"))) as aside:
        assert aside.execute("SELECT name FROM targets").fetchall() == [("kept",)]
    with Store(path) as store:
        assert len(list(store.readings(URL, 0, 4e9))) == 1
        assert "the record was of an older specdash; it is kept as history.db.old-1" in [
            event.title for event in store.events(URL, 0, 4e9)
        ]


def test_a_record_of_a_newer_version_is_not_moved_and_nothing_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    path = file_of(tmp_path)
    path.parent.mkdir(parents=True)
    before = of_version(path, VERSION + 1).read_bytes()
    with recording(tmp_path) as recorder:
        recorder.on_reading(counters(1.0))
        until(lambda: "newer specdash" in recorder.problem)
    assert path.read_bytes() == before


def test_files_that_are_no_record_are_refused_with_one_line(tmp_path: Path) -> None:
    missing, text, empty = tmp_path / "missing.db", tmp_path / "text.db", tmp_path / "empty.db"
    text.write_text("not a database, but long enough to look at " * 50)
    empty.write_bytes(b"")
    for path in (missing, text, empty, tmp_path):
        with pytest.raises(InputError) as error:
            Store(path)
        assert str(path) in str(error.value)
