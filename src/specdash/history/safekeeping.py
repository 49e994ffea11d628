"""What becomes of a record that is damaged: it is moved aside, never deleted, and a new one begins."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final

from specdash.history.schema import MODE

if TYPE_CHECKING:
    from pathlib import Path

_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PRIMARY: Final = 0xFF
"""The part of an extended error code that names its kind."""


def is_damage(error: BaseException) -> bool:
    """Whether the error says that the file's content is not a sound database."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, sqlite3.DatabaseError) and code is not None and code & _PRIMARY in _DAMAGE


def move_aside(path: Path) -> Path | None:
    """Rename a damaged record to `NAME.corrupt-N`, with its write-ahead log; None when it is not damaged (any more).

    Of several processes that find it damaged, one moves it: the others find the new one. Raises OSError.
    """
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists() or _is_sound(path):
            return None
        number = 1
        while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
            number += 1
        path.rename(aside)
        for ending in ("-wal", "-shm"):
            beside = path.with_name(path.name + ending)
            if beside.exists():
                beside.rename(aside.with_name(aside.name + ending))
        return aside
    finally:
        os.close(lock)


def _is_sound(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(path.absolute().as_uri() + "?mode=rw", uri=True)) as connection:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        return not is_damage(error)
    return bool(found and found[0] == "ok")
