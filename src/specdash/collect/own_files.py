"""Files that specdash itself writes, followed as they grow or change: applies, baselines, the note of a trial, and the
run record of the watched server."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec.structs import replace

from specdash.collect import discover
from specdash.collect.discover import concerns, place
from specdash.collect.tail import LogTail
from specdash.core import paths
from specdash.core.changes import ApplyRecord
from specdash.core.readings import Failure, FailureKind, Reading, Source
from specdash.core.records import Baseline, TrialNote, WrittenTrial, read_note
from specdash.system.processes import same_process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from specdash.core.target import Target


T = TypeVar("T")

PERIOD_S = 1.0
"""Seconds between two looks. A trial is noted before its first restart, and that is to be known before it is seen: who
sees a server that does not answer looks again first (`hub.Hub`)."""

KEPT = 200
"""The newest records are told, so many."""

MAX_LINE_BYTES = 1024 * 1024
"""A longer line is no record, and is lost."""

_WHOLE_BELOW_BYTES = 4 * 1024 * 1024
_SLICE_BYTES = 256 * 1024


class JsonLines(Generic[T]):
    """Publishes all records of a file, as one tuple, whenever there is one more.

    While nothing changes, a `step` costs a look at the file's size.
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

    def step(self) -> None:
        """Publish what is new."""
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

    def close(self) -> None:
        """Let go of the file."""
        self._tail.close()

    def _take(self, data: bytes) -> bool:
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


_LATEST = 1e11
"""No time of a record is later, in seconds; nor is NaN a time."""
NO_APPLIES = "nothing was applied yet"


class ApplyCollector(JsonLines[ApplyRecord]):
    """Follows the records, and publishes all that concern one server whenever there is one more."""

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
        super().__init__(
            paths.applies_file(env), Source.APPLIES, self._concerning, publish, nothing=NO_APPLIES, clock=clock
        )

    def _concerning(self, line: str) -> ApplyRecord | None:
        record = ApplyRecord.from_json(line)
        if record is None:
            return None
        times = (record.at, record.ended_at, *record.step_seconds.values())
        return record if all(0 <= moment < _LATEST for moment in times) and concerns(record.url, self._place) else None


BASELINES_KEPT = 1000
NO_BASELINES = "no baseline was recorded yet; `specdash baseline record` measures one"


class BaselineCollector(JsonLines[Baseline]):
    """Follows the baselines, of all models, and publishes them whenever there is one more or one less."""

    def __init__(
        self,
        publish: Callable[[Reading[Any]], None],
        env: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        path = paths.baselines_file(env)
        super().__init__(
            path, Source.BASELINES, Baseline.from_json, publish, nothing=NO_BASELINES, kept=BASELINES_KEPT, clock=clock
        )


MAX_BYTES = 4 << 20


class TrialCollector:
    """Publishes the trials on one server, none or one, whenever that is something else. A look costs one stat while
    nothing is on trial, and a look at its process while something is."""

    def __init__(
        self,
        url: str,
        publish: Callable[[Reading[Any]], None],
        env: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`url` is the server's base address; a note without an address concerns every server."""
        self._place = place(url)
        self._publish = publish
        self._path = paths.trial_file(env)
        self._clock = clock
        self._seen: object = None
        self._written: WrittenTrial | None = None
        self._told: tuple[TrialNote, ...] | str | None = None
        self._looking = threading.Lock()

    def step(self) -> None:
        """One look, on any thread."""
        with self._looking:
            found = self._look()
            if found != self._told:
                self._told = found
                self._publish(
                    Reading.unknown(Source.TRIAL, self._clock(), FailureKind.UNAVAILABLE, found)
                    if isinstance(found, str)
                    else Reading.known(Source.TRIAL, self._clock(), found)
                )

    def _look(self) -> tuple[TrialNote, ...] | str:
        try:
            state = self._path.stat()
            seen = (state.st_ino, state.st_mtime_ns, state.st_size)
            if seen != self._seen:
                with self._path.open("rb") as file:
                    self._written = read_note(file.read(MAX_BYTES).decode("utf-8", "replace"))
                self._seen = seen
        except FileNotFoundError:
            self._seen = self._written = None
            return ()
        except OSError as error:
            self._seen = None
            return f"{self._path}: {error.strerror or error}"
        written = self._written
        if written is None:
            return f"{self._path} is no note of this version of specdash"
        if not concerns(written.url, self._place):
            return ()
        return (replace(written.note, alive=same_process(written.pid, written.pid_started)),)


class RecordWatch:
    """Tells `on_target` of the target as its newest run record has it. A look costs one stat while nothing changes."""

    def __init__(self, target: Target, on_target: Callable[[Target], None], env: Mapping[str, str]) -> None:
        self._target = target
        self._on_target = on_target
        self._env = env
        self._directory: Path = paths.run_records_dir(env)
        self._seen: int | None = None

    def step(self) -> None:
        """One look."""
        try:
            changed = self._directory.stat().st_mtime_ns
        except OSError:
            return
        check = self._target.start_check
        if changed == self._seen and not (check is not None and check.pending) and not self._target.refused:
            return
        self._seen = changed
        found = discover.recorded_target(self._target.url, self._env)
        if found is None:
            # Between two engines there is none; the next one's comes with another change.
            return
        known = replace(
            self._target,
            pid=found.pid,
            log=self._target.log if self._target.log_named else found.log or self._target.log,
            engine=found.engine,
            parameters=found.parameters,
            start_check=found.start_check,
            refused=found.refused,
        )
        if known != self._target:
            self._target = known
            self._on_target(known)
