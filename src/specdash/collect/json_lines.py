"""Follows a file of JSON lines that any process may append to or replace, and publishes its newest records."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from specdash.collect.tail import LogTail
from specdash.core.readings import Failure, FailureKind, Reading, Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")

PERIOD_S = 1.0
"""Seconds between two looks at the file."""

KEPT = 200
"""The newest records are told, so many."""

MAX_LINE_BYTES = 1024 * 1024
"""A longer line is no record, and is lost."""

_WHOLE_BELOW_BYTES = 4 * 1024 * 1024
_SLICE_BYTES = 256 * 1024


class JsonLines(Generic[T]):
    """Publishes all records of a file, as one tuple, whenever there is one more.

    `step` is to be called again after the seconds it returns. While nothing changes it costs a look at the file's size.
    """

    def __init__(
        self,
        path: Path,
        source: Source,
        record: Callable[[str], T | None],
        publish: Callable[[Reading[Any]], None],
        *,
        nothing: str,
        kept: int = KEPT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`record` makes a record of a line, None of a line to pass over; `nothing` says why there is no file."""
        self._path = path
        self._source = source
        self._record = record
        self._publish = publish
        self._nothing = nothing
        self._clock = clock
        self._tail = LogTail(str(path), whole_below=_WHOLE_BELOW_BYTES, backfill=_WHOLE_BELOW_BYTES // 2)
        self._records: deque[T] = deque(maxlen=kept)
        self._rest = b""
        self._is_overlong = False
        self._failure: Failure | None = None
        self._told = False

    def step(self) -> float:
        """Publish what is new; seconds until the next look."""
        is_new = False
        while True:
            chunk = self._tail.read(_SLICE_BYTES)
            if chunk.replaced:
                self._records.clear()
                self._rest, self._is_overlong, is_new = b"", False, True
            is_new = self._take(chunk.data) or is_new
            if not chunk.more:
                break
        self._tell(chunk.failure, is_new=is_new)
        return PERIOD_S

    def close(self) -> None:
        """Let go of the file."""
        self._tail.close()

    def _take(self, data: bytes) -> bool:
        """Take in bytes of the file; whether a record was among them."""
        *lines, rest = (self._rest + data).split(b"\n")
        is_new = False
        for line in lines:
            record = None if self._is_overlong else self._read(line)
            self._is_overlong = False
            if record is not None:
                self._records.append(record)
                is_new = True
        self._is_overlong = self._is_overlong or len(rest) > MAX_LINE_BYTES
        self._rest = b"" if self._is_overlong else rest
        return is_new

    def _read(self, line: bytes) -> T | None:
        try:
            return self._record(line.decode("utf-8", "replace")) if line.strip() else None
        except (OverflowError, RecursionError):
            return None

    def _tell(self, failure: Failure | None, *, is_new: bool) -> None:
        now = self._clock()
        if failure is not None:
            if failure != self._failure:
                kind, detail = failure.kind, failure.detail
                if self._is_missing():
                    kind, detail = FailureKind.NOT_CONFIGURED, self._nothing
                self._publish(Reading.unknown(self._source, now, kind, detail))
        elif is_new or not self._told or self._failure is not None:
            self._publish(Reading.known(self._source, now, tuple(self._records)))
        self._failure = failure
        self._told = True

    def _is_missing(self) -> bool:
        try:
            self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        return False
