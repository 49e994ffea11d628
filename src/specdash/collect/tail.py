"""Follows one growing file through everything that happens to log files, by polling.

`stat` and `read` at intervals work on every file system; inotify does not on network and overlay ones, and `select`
on a regular file always says ready.
"""

from __future__ import annotations

import contextlib
import os
import stat

from msgspec import Struct

from specdash.core.readings import Failure, FailureKind

WHOLE_BELOW_BYTES = 8 * 1024 * 1024
"""A file smaller than this is read from its start, so that totals are those of the whole run."""

BACKFILL_BYTES = 256 * 1024
"""How much of the end of a larger file is read."""

MAX_READ_BYTES = 1024 * 1024


class TailChunk(Struct, frozen=True):
    """What one read yielded: `data` is new, `more`: there is more to read at once.

    `replaced` marks the first data of another file, or of the same one begun again; what came before is the old one's.
    `failure` says why nothing can be read now; it goes away by itself when the file comes back.
    """

    data: bytes = b""
    more: bool = False
    replaced: bool = False
    failure: Failure | None = None


class LogTail:
    """Follows the file at `path`. Each `read` takes what is new, bounded, and never waits.

    Only another inode, or a file that has become shorter, is a new file: what was read is never counted twice. Survives
    a file that is not there yet, rotation (the old file is read to its end first), truncation, deletion, errors of a
    moment as on network file systems, and a path or symlink that comes to name another file.
    """

    def __init__(self, path: str, *, whole_below: int = WHOLE_BELOW_BYTES, backfill: int = BACKFILL_BYTES) -> None:
        self.path, self._whole_below, self._backfill = path, whole_below, backfill
        self._fd: int | None = None
        self._file: tuple[int, int] | None = None
        """Device and inode of the file that is read, also while it is let go of because of an error."""
        self._position = 0
        self.written_at: float | None = None
        """Unix time of the last write to the file, None while it is not open or not read to its end."""
        self._to_line_start = False
        self._replaced = False
        """The next data is the first of another file, or of the same one begun again."""
        self._was_cut = False
        """The file has become shorter, and nothing has been read of it since."""
        self._may_be_old = True
        """What the next file holds may be of long ago; a file that came while it was waited for is new."""

    def follow(self, path: str) -> None:
        """Another path from now on; what the file before it still holds is read first."""
        self.path, self._may_be_old = path, True

    def read(self, limit: int = MAX_READ_BYTES) -> TailChunk:
        """What is new, at most `limit` bytes."""
        try:
            if self._fd is None and (failure := self._open()) is not None:
                return TailChunk(failure=failure)
            return self._next(limit) or self._at_the_end(limit)
        except OSError as error:
            # Of a moment, as ESTALE and EIO on a network file system are: the next `read` goes on in the file.
            self.close()
            return TailChunk(failure=_failure(self.path, _words(error)))

    def close(self) -> None:
        """Let go of the file; the next `read` goes on in it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = self.written_at = None

    def _open(self) -> Failure | None:
        """Begin to read the file at the path, or go on in it."""
        may_be_old, self._may_be_old = self._may_be_old, False
        try:
            # Without O_NONBLOCK, opening a FIFO waits for its writer.
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            return _failure(self.path, _words(error))
        except ValueError:
            return _failure(repr(self.path), "cannot be the name of a file")
        self._fd = fd
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            return _failure(self.path, "is not a log file")
        file = status.st_dev, status.st_ino
        if self._file == file:
            return None
        self._replaced = self._replaced or self._file is not None
        self._file, self._position, self._to_line_start, self._was_cut = file, 0, False, False
        if may_be_old and status.st_size >= self._whole_below:
            self._position, self._to_line_start = status.st_size - self._backfill, True
        return None

    def _next(self, limit: int) -> TailChunk | None:
        """What is new in the open file; None where nothing is."""
        assert self._fd is not None  # noqa: S101 - for the type checker
        status = os.fstat(self._fd)
        if status.st_size < self._position:
            self._position, self._to_line_start, self._replaced, self._was_cut = 0, False, True, True
        data = os.pread(self._fd, limit, self._position)
        more = len(data) == limit
        if self._was_cut and data[:1] == b"\0":
            # A writer that does not append leaves a hole when its file is truncated.
            with contextlib.suppress(OSError):
                self._position = os.lseek(self._fd, 0, os.SEEK_DATA)
            data = os.pread(self._fd, limit, self._position)
            self._position += len(data) - len(data.lstrip(b"\0"))
            data = data.lstrip(b"\0")
        self._position += len(data)
        if self._position >= status.st_size:
            self.written_at = status.st_mtime
        if not data:
            return None
        if self._to_line_start:
            _, newline, data = data.partition(b"\n")
            self._to_line_start = not newline
        replaced, self._replaced, self._was_cut = self._replaced, False, False
        return TailChunk(data, more, replaced)

    def _at_the_end(self, limit: int) -> TailChunk:
        """Nothing new in the open file: see whether the path still names it."""
        try:
            named = os.stat(self.path)  # noqa: PTH116
        except FileNotFoundError:
            # The writer may still hold the deleted file, so go on reading it too.
            return TailChunk(failure=_failure(self.path, "is not there (any more)"))
        # A rotator may create the new file long before the server writes to it; llama-server never reopens its log.
        if (named.st_dev, named.st_ino) == self._file or named.st_size == 0:
            return TailChunk()
        if (last := self._next(limit)) is not None:
            return last
        self.close()
        failure = self._open()
        return TailChunk(more=failure is None, failure=failure)


def _words(error: OSError) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "is not there yet"
    return f"cannot be read: {(error.strerror or str(error)).lower()}"


def _failure(path: str, why: str) -> Failure:
    return Failure(FailureKind.UNAVAILABLE, f"{path} {why}")
