"""The events file: JSON lines, appended and flushed one by one, rotated by size.

A reader that follows the file sees whole lines only: each is one write, and what a failed write left behind is ended
with a newline before the next. Trouble with the disk never breaks a request.
"""

from __future__ import annotations

import logging
import os
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


class EventsFile:
    """Appends lines to `path`, or drops them when it is None. `lost` counts lines that could not be written."""

    def __init__(self, path: Path | None, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.lost = 0
        self.max_bytes = max_bytes
        self._clock = clock
        self._fd: int | None = None
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

    def _append(self, path: Path, data: bytes) -> None:
        fd = self._fd if self._fd is not None else self._open(path)
        if self._size and self._size + len(data) > self.max_bytes:
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
        self._size = os.fstat(fd).st_size
        self._torn = self._size > 0 and os.pread(fd, 1, self._size - 1) != b"\n"
        self._fd = fd
        return fd

    def _failed(self, error: OSError) -> None:
        self.lost += 1
        self._failed_at = self._clock()
        if not self._told:
            self._told = True
            _log.warning("Events file %s cannot be written: %s; events are lost until it can", self.path, error)
        self.close()


def rotate(path: Path) -> None:
    """Move `path` to `.1`, `.1` to `.2`, and so on; the oldest of `KEPT` goes."""
    for number in range(KEPT - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    if path.exists():
        path.replace(path.with_name(f"{path.name}.1"))
