"""The tables of the record, how a database is opened, and how one of an older version becomes one of this version."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from specdash.core.errors import InputError, SpecdashError

if TYPE_CHECKING:
    from pathlib import Path

APPLICATION_ID: Final = 0x73706463
"""Says `spdc` in the file's header."""
BUSY_S: Final = 5.0
"""How long a writer waits for another one."""
MODE: Final = 0o600
PAGE_BYTES: Final = 1024
"""A block's last page is half empty on average."""

MIGRATIONS: Final[tuple[str, ...]] = (
    """
    CREATE TABLE targets (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
    CREATE TABLE eras (
        id INTEGER PRIMARY KEY, target INTEGER NOT NULL, pid INTEGER NOT NULL, began REAL NOT NULL, ended REAL
    );
    CREATE TABLE blocks (
        id INTEGER PRIMARY KEY, target INTEGER NOT NULL, era INTEGER NOT NULL,
        first REAL NOT NULL, last REAL NOT NULL, readings INTEGER NOT NULL, data BLOB NOT NULL
    );
    CREATE INDEX blocks_by_time ON blocks (target, first, last, era);
    CREATE TABLE fresh (
        id INTEGER PRIMARY KEY, target INTEGER NOT NULL, era INTEGER NOT NULL,
        first REAL NOT NULL, last REAL NOT NULL, data BLOB NOT NULL
    );
    CREATE TABLE stills (
        target INTEGER NOT NULL, digest TEXT NOT NULL, last REAL NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (target, digest)
    ) WITHOUT ROWID;
    CREATE TABLE tiers (
        target INTEGER NOT NULL, step INTEGER NOT NULL, start INTEGER NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (target, step, start)
    );
    CREATE TABLE alerts (
        target INTEGER NOT NULL, rule TEXT NOT NULL, subject TEXT NOT NULL, raised REAL NOT NULL,
        since REAL NOT NULL, ended REAL, data TEXT NOT NULL,
        PRIMARY KEY (target, rule, subject, raised)
    );
    CREATE TABLE events (
        target INTEGER NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL, ref TEXT NOT NULL, title TEXT NOT NULL,
        ended REAL, severity TEXT, detail TEXT NOT NULL,
        PRIMARY KEY (target, at, kind, ref, title)
    );
    """,
    "-- blocks and tiers may hold columns as JSON (see `history.columns`)",
)
"""What makes version N of the schema out of version N - 1; an entry that was released never changes."""
VERSION: Final = len(MIGRATIONS)


class NewerSchemaError(SpecdashError):
    """A newer specdash wrote the record."""


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open the record; for writing it is created, and brought to this version, where need be.

    Raises InputError when there is nothing to read, NewerSchemaError, and sqlite3.Error for what is damaged or cannot
    be opened.
    """
    if not read_only:
        return _for_writing(path)
    if not path.exists():
        raise InputError(f"{path}: no record; one is written while specdash runs (setting record)")
    try:
        connection = _for_reading(path)
        version = _version(connection)
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path}: cannot be read as a record: {error}") from error
    if version == VERSION:
        return connection
    connection.close()
    _refuse_newer(path, version)
    if version == 0:
        raise InputError(f"{path}: no record of specdash, or nothing is recorded yet")
    _for_writing(path).close()
    return _for_reading(path)


def _for_reading(path: Path) -> sqlite3.Connection:
    address = path.absolute().as_uri()
    connection = _open(f"{address}?mode=ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        if path.with_name(path.name + "-wal").exists():
            raise
        # A copy in a directory that may not be written to: nobody else writes it either.
        connection = _open(f"{address}?immutable=1")
    return connection


def _open(address: str) -> sqlite3.Connection:
    return sqlite3.connect(address, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


def _for_writing(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Made here, and not by SQLite, so that it is private from its first byte; its -wal and -shm get its mode.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, MODE))
    connection = _open(path.absolute().as_uri() + "?mode=rw")
    try:
        version = _version(connection)
        _refuse_newer(path, version)
        if version == 0:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 1024")
        connection.execute("PRAGMA journal_size_limit = 1048576")
        if version < VERSION:
            _migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection) -> None:
    """One transaction: a process that dies in it leaves the old version; of two processes the second finds it done."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for number in range(_version(connection), VERSION):
            for statement in MIGRATIONS[number].split(";"):
                if statement.strip():
                    connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _refuse_newer(path: Path, version: int) -> None:
    if version > VERSION:
        raise NewerSchemaError(
            f"{path}: written by a newer specdash (schema {version}, this one knows {VERSION}); "
            "update specdash, or move the file away"
        )
