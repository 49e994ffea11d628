"""The records of applies to readings: whatever process applied, the dashboard hears of it."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from specdash.collect.discover import place
from specdash.collect.tail import LogTail
from specdash.core import paths
from specdash.core.applies import ApplyRecord
from specdash.core.readings import Failure, FailureKind, Reading, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PERIOD_S = 1.0
"""Seconds between two looks at the file."""

KEPT = 200
"""The newest records are told, so many."""

MAX_LINE_BYTES = 1024 * 1024
"""A longer line is no record, and is lost."""

_WHOLE_BELOW_BYTES = 4 * 1024 * 1024
_SLICE_BYTES = 256 * 1024
_LATEST = 1e11
"""No time of a record is later, in seconds; nor is NaN a time."""
NOTHING = "nothing was applied yet"


class ApplyCollector:
    """Follows the records, and publishes all that concern one server whenever there is one more.

    `step` is to be called again after the seconds it returns. While nothing changes it costs a look at the file's size.
    """

    def __init__(
        self,
        url: str,
        publish: Callable[[Reading[Any]], None],
        env: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`url` is the server's base address; records without an address concern every server."""
        self._place = place(url)
        self._publish = publish
        self._clock = clock
        self._path = paths.applies_file(env)
        self._tail = LogTail(str(self._path), whole_below=_WHOLE_BELOW_BYTES, backfill=_WHOLE_BELOW_BYTES // 2)
        self._records: deque[ApplyRecord] = deque(maxlen=KEPT)
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
        """Take in bytes of the file; whether a record that concerns the server was among them."""
        *lines, rest = (self._rest + data).split(b"\n")
        is_new = False
        for line in lines:
            record = None if self._is_overlong else _record(line)
            self._is_overlong = False
            if record is not None and self._concerns(record):
                self._records.append(record)
                is_new = True
        self._is_overlong = self._is_overlong or len(rest) > MAX_LINE_BYTES
        self._rest = b"" if self._is_overlong else rest
        return is_new

    def _concerns(self, record: ApplyRecord) -> bool:
        if record.url is None:
            return True
        try:
            return place(record.url) == self._place
        except ValueError:
            return False

    def _tell(self, failure: Failure | None, *, is_new: bool) -> None:
        now = self._clock()
        if failure is not None:
            if failure != self._failure:
                kind, detail = failure.kind, failure.detail
                if self._is_missing():
                    kind, detail = FailureKind.NOT_CONFIGURED, NOTHING
                self._publish(Reading.unknown(Source.APPLIES, now, kind, detail))
        elif is_new or not self._told or self._failure is not None:
            self._publish(Reading.known(Source.APPLIES, now, tuple(self._records)))
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


def _record(line: bytes) -> ApplyRecord | None:
    try:
        record = ApplyRecord.from_json(line.decode("utf-8", "replace")) if line.strip() else None
    except (OverflowError, RecursionError):
        return None
    if record is None:
        return None
    times = (record.at, record.ended_at, *record.step_seconds.values())
    return record if all(0 <= one < _LATEST for one in times) else None
