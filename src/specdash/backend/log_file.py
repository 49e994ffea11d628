"""The file the server's output is kept in: private, the previous run kept beside it, its growth bounded."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from specdash.core.errors import InputError

MODE = 0o600
_MIB = 1024 * 1024


class LogFile:
    """Appends bytes to `path`, mode 0600.

    At opening, and whenever the file passes `max_mib`, what was there is renamed to `<path>.1` (replacing the one
    before); so at most twice `max_mib` is on disk, plus one write. Something that is no regular file (`/dev/null`, a
    FIFO) is written to as it is. A full disk loses output and sets `lost`; it never stops the server.
    """

    def __init__(self, path: str | Path, max_mib: int) -> None:
        self.path = Path(path).absolute()
        self.bound(max_mib)
        self.lost = 0
        """Bytes that could not be written."""
        self._size = 0
        self._regular = True
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._fd = self._open(rotate=True)
        except OSError as error:
            raise InputError(f"log file {path}: cannot be written ({error.strerror}); name another one") from None

    def bound(self, max_mib: int) -> None:
        """Let the file grow to `max_mib` from now on; 0: without end."""
        self.limit = max_mib * _MIB

    def write(self, data: bytes) -> None:
        """Append `data` unchanged."""
        if self._regular and self.limit and self._size + len(data) > self.limit and self._size:
            self._rotate()
        view = memoryview(data)
        try:
            while view:
                written = os.write(self._fd, view)
                self._size += written
                view = view[written:]
        except OSError:
            self.lost += len(view)

    def close(self) -> None:
        """Close the file; it stays where it is."""
        os.close(self._fd)

    def _open(self, *, rotate: bool) -> int:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            found = None
        self._regular = found is None or stat.S_ISREG(found.st_mode)
        if rotate and self._regular and found is not None and found.st_size:
            self.path.replace(f"{self.path}.1")
        self._size = 0
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, MODE)
        if self._regular:
            os.fchmod(descriptor, MODE)
        return descriptor

    def _rotate(self) -> None:
        try:
            fresh = self._open(rotate=True)
        except OSError:
            self._size = 0
            return
        os.close(self._fd)
        self._fd = fresh
