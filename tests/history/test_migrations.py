"""Records of older versions are read and go on; those of newer ones are left alone."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import specdash.history.schema as module
from specdash.core.errors import InputError
from specdash.core.timeline import EventKind, TimelineEvent
from specdash.history.pruning import Bounds
from specdash.history.schema import MIGRATIONS, NewerSchemaError, connect
from specdash.history.store import Store
from specdash.history.writer import Batch, Writer
from support.recording import URL, counters

V1 = Path(__file__).parents[1] / "data" / "history" / "v1.db"
"""Written by the first released version: 90 readings of three sources, an alert, and what a killed recorder left."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "history.db"
    shutil.copy(V1, path)
    return path


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


@pytest.fixture
def _next_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it will be when there is a further version: one more table, and a column of an existing one."""
    further = "ALTER TABLE eras ADD COLUMN host TEXT; CREATE TABLE further (id INTEGER PRIMARY KEY)"
    monkeypatch.setattr(module, "MIGRATIONS", (*MIGRATIONS, further))
    monkeypatch.setattr(module, "VERSION", len(MIGRATIONS) + 1)


def test_a_record_of_the_first_version_is_read_by_this_one(old: Path) -> None:
    with Store(old) as store:
        assert len(list(store.readings(URL, 0, 4e9))) == 90
        assert len(store.alerts(URL, 0, 4e9)) == 1
        assert not store.check()


def test_a_record_of_the_first_version_goes_on_with_blocks_of_this_one(old: Path) -> None:
    writer = Writer(old, URL, Bounds(3650.0, 10**9))
    writer.begin(TimelineEvent(1.9e9, EventKind.RECORDER, "goes on"), set())
    writer.write(Batch([counters(1.0, 1.9e9)]))
    writer.end(TimelineEvent(1.9e9 + 1, EventKind.RECORDER, "ended"))
    writer.close()
    assert version(old) == len(MIGRATIONS)
    with Store(old) as store:
        assert len(list(store.readings(URL, 0, 4e9))) == 91
        assert not store.damaged


@pytest.mark.usefixtures("_next_version")
def test_a_record_of_version_1_is_brought_to_the_next_and_keeps_all_it_has(old: Path) -> None:
    with Store(old) as store:
        assert len(list(store.readings(URL, 0, 4e9))) == 90
    assert version(old) == len(MIGRATIONS) + 1
    writer = Writer(old, URL, Bounds(3650.0, 10**9))
    writer.begin(TimelineEvent(1.9e9, EventKind.RECORDER, "goes on"), set())
    writer.write(Batch([counters(1.0, 1.9e9)]))
    writer.close()
    with Store(old) as store:
        assert len(list(store.readings(URL, 0, 4e9))) == 91


def test_a_migration_that_fails_half_way_leaves_the_old_version(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "CREATE TABLE half (id INTEGER); CREATE TABLE half (id INTEGER)"
    monkeypatch.setattr(module, "MIGRATIONS", (*MIGRATIONS, broken))
    monkeypatch.setattr(module, "VERSION", len(MIGRATIONS) + 1)
    before = version(old)
    with pytest.raises(sqlite3.OperationalError):
        connect(old, read_only=False)
    monkeypatch.undo()
    assert version(old) == before
    with Store(old) as store:
        assert len(list(store.readings(URL, 0, 4e9))) == 90
        assert store._rows("SELECT count(*) FROM sqlite_master WHERE name = 'half'") == [(0,)]


def test_a_record_of_a_newer_version_is_left_as_it_is_and_said_so(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = old.read_bytes()
    for read_only in (True, False):
        with pytest.raises(NewerSchemaError, match="schema 99"):
            connect(old, read_only=read_only)
    assert old.read_bytes() == before


def test_files_that_are_no_record_are_refused_with_one_line(tmp_path: Path) -> None:
    missing, text, empty = tmp_path / "missing.db", tmp_path / "text.db", tmp_path / "empty.db"
    text.write_text("not a database, but long enough to look at " * 50)
    empty.write_bytes(b"")
    for path in (missing, text, empty, tmp_path):
        with pytest.raises(InputError) as error:
            Store(path)
        assert str(path) in str(error.value)
