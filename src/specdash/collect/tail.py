"""Follows one growing file through everything that happens to log files, by asking rather than by being told.

`stat` and `read` at intervals work on every file system; inotify does not on network and overlay ones, and `select`
on a regular file always says ready.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from msgspec import Struct

from specdash.core.readings import Failure, FailureKind

WHOLE_BELOW_BYTES = 8 * 1024 * 1024
"""A file smaller than this is read from its start, so that totals are those of the whole run."""

BACKFILL_BYTES = 256 * 1024
"""How much of the end of a larger file is read."""

MAX_READ_BYTES = 1024 * 1024

_OVERLAP = 64
"""Bytes before the read position that must still be there; else somebody rewrote the file in place."""


class TailChunk(Struct, frozen=True):
    """What one read yielded: `data` is new, `more` tells that there is more to read at once.

    `replaced` marks the first data of another file, or of the same one begun anew; what came before belongs to the old.
    `failure` says why nothing can be read now; it goes away by itself when the file comes back.
    """

    data: bytes = b""
    more: bool = False
    replaced: bool = False
    failure: Failure | None = None


class LogTail:
    """Follows the file at `path`. Each `read` takes what is new, bounded, and never waits.

    Survives a file that is not there yet, rotation (the old file is read to its end first), truncation, a rewrite in
    place, deletion, and a path or symlink that comes to name another file.
    """

    def __init__(
        self,
        path: str,
        *,
        whole_below: int = WHOLE_BELOW_BYTES,
        backfill: int = BACKFILL_BYTES,
    ) -> None:
        self.path = path
        self._whole_below = whole_below
        self._backfill = backfill
        self._fd: int | None = None
        self._inode = 0
        self._suspended: int | None = None
        """The inode of the file in which to go on, where it was let go of because of an error."""
        self._position = 0
        self._overlap = b""
        self._seen_mtime = 0
        self._to_line_start = False
        self._restarted = False
        """The open file was begun anew and nothing has been read of it since."""
        self._replaced = False
        """The next data is the first of another file, or of the same one begun anew."""
        self._followed_before = False
        self._missed_before = False
        self._elsewhere = False
        """The path is another one than that of the open file."""

    def follow(self, path: str) -> None:
        """Another path from now on; what the file before it still holds is read first."""
        self.path, self._elsewhere = path, True

    def read(self, limit: int = MAX_READ_BYTES) -> TailChunk:
        """What is new, at most `limit` bytes."""
        if self._fd is None and (failure := self._open()) is not None:
            self._missed_before = True
            return TailChunk(failure=failure)
        assert self._fd is not None  # noqa: S101 - for the type checker
        try:
            data = self._read(self._fd, limit)
            if data:
                return self._chunk(data, limit)
            return self._at_the_end(self._fd, limit)
        except OSError as error:
            self._suspend()
            return TailChunk(failure=_failure(self.path, error))

    def written_at(self) -> float | None:
        """Unix time of the last write to the file, None while it is not open or not read to its end."""
        if self._fd is None or not self._seen_mtime:
            return None
        return self._seen_mtime / 1e9

    def close(self) -> None:
        """Let go of the file; the next `read` opens it anew, from its start."""
        self._suspended = None
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _suspend(self) -> None:
        """Let go of a file that cannot be read now, as on a network file system; the next `read` goes on in it."""
        inode = self._inode
        self.close()
        self._suspended = inode

    def _chunk(self, data: bytes, limit: int) -> TailChunk:
        more = len(data) == limit
        if self._to_line_start:
            _, newline, data = data.partition(b"\n")
            self._to_line_start = not newline
        replaced, self._replaced = self._replaced, False
        return TailChunk(data, more, replaced)

    def _open(self) -> Failure | None:
        try:
            # Without O_NONBLOCK, opening a FIFO waits for its writer.
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            return _failure(self.path, error)
        except ValueError:
            return Failure(FailureKind.UNAVAILABLE, f"{self.path!r} is no file name")
        try:
            status = os.fstat(fd)
            goes_on = self._suspended == status.st_ino and self._goes_on(fd, status.st_size)
        except OSError as error:
            os.close(fd)
            return _failure(self.path, error)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            return Failure(FailureKind.UNAVAILABLE, f"{self.path} is {_kind_of(status.st_mode)}, not a log file")
        self._fd, self._inode, self._suspended = fd, status.st_ino, None
        if goes_on:
            self._seen_mtime = 0
            return None
        self._begin()
        if self._is_first_look() and status.st_size >= self._whole_below:
            self._position = status.st_size - self._backfill
            self._to_line_start = True
        self._replaced = self._followed_before
        self._followed_before, self._elsewhere = True, False
        return None

    def _is_first_look(self) -> bool:
        """Whether what the file holds may be of long ago; a file that came while it was waited for is new."""
        return self._elsewhere or not (self._followed_before or self._missed_before)

    def _goes_on(self, fd: int, size: int) -> bool:
        """Whether the file is still the one that was read so far."""
        overlap = self._overlap
        return size >= self._position and os.pread(fd, len(overlap), self._position - len(overlap)) == overlap

    def _begin(self) -> None:
        self._position = 0
        self._overlap = b""
        self._seen_mtime = 0
        self._to_line_start = False
        self._restarted = False

    def _read(self, fd: int, limit: int) -> bytes:
        status = os.fstat(fd)
        if status.st_size == self._position and status.st_mtime_ns == self._seen_mtime:
            return b""
        if status.st_size < self._position:
            self._restart()
        overlap = len(self._overlap)
        data = os.pread(fd, overlap + limit, self._position - overlap)
        if not data.startswith(self._overlap):
            self._restart()
            overlap = 0
            data = os.pread(fd, limit, 0)
        fresh = data[overlap:]
        if self._restarted and fresh[:1] == b"\0":
            fresh = data = self._after_hole(fd, limit)
        self._restarted = self._restarted and not fresh
        self._position += len(fresh)
        self._overlap = data[-_OVERLAP:]
        if self._position >= status.st_size:
            self._seen_mtime = status.st_mtime_ns
        return fresh

    def _restart(self) -> None:
        self._begin()
        self._replaced = self._restarted = True

    def _after_hole(self, fd: int, limit: int) -> bytes:
        """The data after a hole at the start: a writer that does not append leaves one when its file is truncated."""
        with contextlib.suppress(OSError):
            self._position = os.lseek(fd, 0, os.SEEK_DATA)
        data = os.pread(fd, limit, self._position)
        text = data.lstrip(b"\0")
        self._position += len(data) - len(text)
        return text

    def _at_the_end(self, fd: int, limit: int) -> TailChunk:
        """Nothing new in the open file: see whether the path still names it."""
        try:
            named = os.stat(self.path)  # noqa: PTH116
        except FileNotFoundError as error:
            if self._elsewhere:
                return TailChunk(failure=_failure(self.path, error))
            # The writer may still hold the deleted file, so go on reading it too.
            return TailChunk(failure=Failure(FailureKind.UNAVAILABLE, f"{self.path} was deleted"))
        except OSError as error:
            # Of a moment, as ESTALE and EIO on a network file system are: the file is open, and nothing was lost.
            return TailChunk(failure=_failure(self.path, error))
        opened = os.fstat(fd)
        same = (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)
        # A rotator may create the new file long before the server writes to it; llama-server never reopens its log.
        if same or named.st_size == 0:
            self._elsewhere = self._elsewhere and not same
            return TailChunk()
        data = self._read(fd, limit)
        if data:
            return self._chunk(data, limit)
        self.close()
        failure = self._open()
        return TailChunk(more=failure is None, failure=failure)


def _failure(path: str, error: OSError) -> Failure:
    words = {
        errno.ENOENT: "is not there yet",
        errno.ENOTDIR: "is not there yet",
        errno.EACCES: "cannot be read: permission denied",
        errno.EPERM: "cannot be read: permission denied",
        errno.ENXIO: "is not a log file",
    }.get(error.errno or 0, f"cannot be read: {error.strerror or error}")
    return Failure(FailureKind.UNAVAILABLE, f"{path} {words}")


def _kind_of(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory"
    return "a FIFO" if stat.S_ISFIFO(mode) else "a device"
