"""A server's output: kept in its log file, copied to standard error, and searched for what went wrong."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
from collections import deque
from pathlib import Path

from specdash.core.errors import InputError
from specdash.core.masking import without_secrets
from specdash.system.files import NO_SPACE, write_all
from specdash.system.text import MIB

CHUNK = 64 * 1024
"""Bytes of output read at once."""
_MOST_PENDING = 1024
"""Pieces of output that wait for a slow reader of standard error."""
_LAST_S = 1.0
_LINES = 2048
"""Enough for all that a start prints."""
_ERROR_LINE = re.compile(r"^\s*[\d.]*\s*E |error|failed|GGML_ASSERT|CUDA|terminate called|couldn't", re.IGNORECASE)


class Tail:
    """The last lines of the output: for why the server fails, or runs without speculation."""

    def __init__(self) -> None:
        self.lines: deque[bytes] = deque(maxlen=_LINES)
        self.open = b""

    def feed(self, data: bytes) -> None:
        """Take the next piece, cut anywhere."""
        *whole, self.open = (self.open + data[-CHUNK:]).split(b"\n")
        self.open = self.open[-1024:]
        self.lines.extend(line[:1024] for line in whole if line.strip())

    def texts(self) -> list[str]:
        """All that is kept, in its order. From any thread."""
        # A copy in one step of the interpreter: another thread may append.
        last = [*self.lines.copy(), *([self.open] if self.open.strip() else [])]
        return [line.decode("utf-8", "replace") for line in last]

    def errors(self) -> tuple[str, ...]:
        """The last three lines that look like errors, else the last one; without secrets."""
        lines = self.texts()
        found = [line for line in lines if _ERROR_LINE.search(line)] or lines[-1:]
        texts = [re.sub(r"^\s*[\d.]+\s+[A-Z]\s+", "", without_secrets(line)).strip() for line in found]
        return tuple(dict.fromkeys(texts))[-3:]


class Echo(threading.Thread):
    """Copies output to a descriptor that may be slow or gone, without making its writer wait."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(name="echo", daemon=True)
        self._descriptor = descriptor
        self._pieces: queue.Queue[bytes] = queue.Queue(_MOST_PENDING)
        self._dropped = 0
        self.start()

    def feed(self, data: bytes) -> None:
        """Write `data` as soon as the descriptor takes it."""
        try:
            self._pieces.put_nowait(data)
        except queue.Full:
            self._dropped += len(data)

    def run(self) -> None:
        """The thread."""
        for data in iter(self._pieces.get, b""):
            if self._dropped:
                data += b"\nspecdash: %d bytes not shown here; the log file has them\n" % self._dropped
                self._dropped = 0
            # Gone, or a file on a full disk: what comes next is tried again.
            with contextlib.suppress(OSError):
                write_all(self._descriptor, data)

    def close(self) -> None:
        """Wait a moment for what is not written yet."""
        self.feed(b"")
        self.join(_LAST_S)


class LogFile:
    """Appends bytes to `path`, mode 0600.

    At opening, and whenever the file passes `max_mib` (0: never), what was there is renamed to `<path>.1`, so that at
    most twice `max_mib` is on disk, plus one write. Something that is no regular file (`/dev/null`, a FIFO) is written
    to as it is. A full disk loses output and sets `lost`; it never stops the server, and where there was no room for
    the file itself, it is made as soon as there is.
    """

    def __init__(self, path: str | Path, max_mib: int) -> None:
        self.path = Path(path).absolute()
        self.max_mib = max_mib
        self.lost = 0
        """Bytes of pieces that could not be written."""
        self._fd = -1
        try:
            self._open()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise InputError(f"log file {path}: cannot be written ({error.strerror}); name another one") from None

    def write(self, data: bytes) -> None:
        """Append `data` unchanged."""
        size = os.fstat(self._fd).st_size if self._fd >= 0 else 0
        if self._fd < 0 or (self.max_mib and size and size + len(data) > self.max_mib * MIB):
            with contextlib.suppress(OSError):
                self._open()
        try:
            write_all(self._fd, data)
        except OSError:
            self.lost += len(data)

    def close(self) -> None:
        """Close the file; it stays where it is."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _open(self) -> None:
        """Begin a new file, and put the one before aside."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.path.is_file() and self.path.stat().st_size:
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))
        fresh = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.close()
        self._fd = fresh
        if self.path.is_file():
            os.fchmod(fresh, 0o600)
