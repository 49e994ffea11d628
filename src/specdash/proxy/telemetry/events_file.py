"""The proxy's files, events and log: lines, appended and flushed one by one, rotated by size.

A reader that follows the file sees whole lines only: each is one write, and what a failed write left behind is ended
with a newline before the next. Trouble with the disk never breaks a request.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.core.paths import state_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KEPT = 3
RETRY_S = 5.0
"""Pause before the file is tried again after an error."""
_log = logging.getLogger("specdash.proxy")


def events_path(setting: str | None, env: Mapping[str, str] = os.environ) -> Path | None:
    """Where events go: the file named, the default place when unset, None for `off`."""
    if setting is None:
        return state_dir(env) / "proxy-events.jsonl"
    return None if setting.strip().lower() in {"off", "none", "0", "false", "no"} else Path(setting).expanduser()


class RotatedFile:
    """Appends lines to `path`, or drops them when it is None. `lost` counts lines that could not be written.

    `name` is what the log calls the file. Only a regular file is rotated, and one that is moved away is begun anew.
    """

    def __init__(
        self,
        path: Path | None,
        max_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        name: str = "Events file",
    ) -> None:
        self.path = path
        self.name = name
        self.lost = 0
        self.max_bytes = max_bytes
        self._clock = clock
        self._fd: int | None = None
        self._identity = (0, 0)
        self._is_regular = True
        self._size = 0
        self._torn = False
        self._failed_at: float | None = None
        self._told = False

    def write(self, line: str) -> None:
        """Append one line; a failure is counted, logged once and tried again after a while."""
        if self.path is None:
            return
        if self._failed_at is not None and self._clock() - self._failed_at < RETRY_S:
            self.lost += 1
            return
        data = (line + "\n").encode("utf-8", "backslashreplace")
        try:
            self._append(self.path, data)
        except OSError as error:
            self._failed(error)
        else:
            self._failed_at = None
            self._told = False

    def reopen(self) -> None:
        """Let go of the file, so that the next line goes to whatever is at the path by then."""
        self.close()
        self._failed_at = None

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def open(self) -> None:
        """Open the file now. Raises OSError."""
        if self.path is not None and self._fd is None:
            self._open(self.path)

    def _append(self, path: Path, data: bytes) -> None:
        if self._fd is not None and _identity(path) != self._identity:
            self.close()
        fd = self._fd if self._fd is not None else self._open(path)
        if self._is_regular and self._size and self._size + len(data) > self.max_bytes:
            self.close()
            rotate(path)
            fd = self._open(path)
        if self._torn:
            data = b"\n" + data
        written = os.write(fd, data)
        self._size += written
        self._torn = written < len(data)
        if self._torn:
            raise OSError("the line was written only in part")

    def _open(self, path: Path) -> int:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        found = os.fstat(fd)
        self._size = found.st_size
        self._identity = (found.st_dev, found.st_ino)
        self._is_regular = stat.S_ISREG(found.st_mode)
        self._torn = self._size > 0 and os.pread(fd, 1, self._size - 1) != b"\n"
        self._fd = fd
        return fd

    def _failed(self, error: OSError) -> None:
        self.lost += 1
        self._failed_at = self._clock()
        if not self._told:
            self._told = True
            reason = os.strerror(error.errno) if error.errno else error
            _log.warning("%s %s cannot be written: %s; lines are lost until it can", self.name, self.path, reason)
        self.close()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def rotate(path: Path) -> None:
    """Move `path` to `.1`, `.1` to `.2`, and so on; the oldest of `KEPT` goes."""
    for number in range(KEPT - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    if path.exists():
        path.replace(path.with_name(f"{path.name}.1"))
