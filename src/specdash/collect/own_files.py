"""Files that specdash itself writes, looked at as they change: applies, baselines, and the note of a trial."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from specdash.collect.discover import concerns, place
from specdash.core import paths
from specdash.core.changes import ApplyRecord
from specdash.core.readings import Failure, FailureKind, Reading, Source
from specdash.core.records import Baseline, TrialNote
from specdash.system.processes import same_process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Publish = Callable[[Reading[Any]], None]

PERIOD_S = 1.0
"""Seconds between two looks. A trial is noted before its first restart, and that is to be known before it is seen: who
sees a server that does not answer looks again first (`hub.Hub`)."""
KEPT, BASELINES_KEPT = 200, 1000
"""So many of the newest records are given."""
MAX_LINE_BYTES = 1024 * 1024
"""A longer line is no record."""
MAX_BYTES = 4 << 20
"""Of the end of a file; what came before it is old."""
_LATEST = 1e11
"""No time of a record is later, in seconds; nor is NaN a time."""
NO_APPLIES = "nothing was applied yet"
NO_BASELINES = "no baseline was recorded yet; `specdash baseline record` measures one"


class OwnFile:
    """Publishes what a file says whenever that is something else. While nothing changes, a `step` costs one stat."""

    def __init__(
        self,
        path: Path,
        source: Source,
        publish: Publish,
        read: Callable[[bytes], Any],
        *,
        missing: Any,
        now: Callable[[Any], Any] = lambda content: content,
    ) -> None:
        """`read` makes of the file what `now` makes a value or a `Failure` of at every look; `missing` stands for a
        file that is not there."""
        self._path, self._source, self._publish = path, source, publish
        self._read, self._missing, self._now = read, missing, now
        self._seen: object = None
        self._content: Any = None
        self._told: Any = self
        self._looking = threading.Lock()

    def step(self) -> None:
        """One look, on any thread."""
        with self._looking:
            found = self._look()
            if found == self._told:
                return
            self._told, at = found, time.monotonic()
            if isinstance(found, Failure):
                self._publish(Reading.unknown(self._source, at, found.kind, found.detail))
            else:
                self._publish(Reading.known(self._source, at, found))

    def _look(self) -> Any:
        try:
            status = self._path.stat()
            seen = status.st_ino, status.st_mtime_ns, status.st_size
            if seen != self._seen:
                with self._path.open("rb") as file:
                    file.seek(max(0, status.st_size - MAX_BYTES))
                    self._content = self._read(file.read(MAX_BYTES))
                self._seen = seen
            return self._now(self._content)
        except (FileNotFoundError, NotADirectoryError):
            self._seen = None
            return self._missing
        except OSError as error:
            self._seen = None
            return Failure(FailureKind.UNAVAILABLE, f"{self._path}: {error.strerror or error}")


def _records(data: bytes, record: Callable[[str], Any], kept: int) -> tuple[Any, ...]:
    """The newest records of a file of JSON lines; lines that are none are passed over."""
    found = []
    for line in data.split(b"\n")[:-1]:
        with contextlib.suppress(OverflowError, RecursionError):
            if line.strip() and len(line) <= MAX_LINE_BYTES:
                known = record(line.decode("utf-8", "replace"))
                found += [known] if known is not None else []
    return tuple(found[-kept:])


def applies(url: str, publish: Publish, env: Mapping[str, str]) -> OwnFile:
    """The applies to the server at `url`; records without an address concern every server."""
    here = place(url)

    def concerning(line: str) -> ApplyRecord | None:
        record = ApplyRecord.from_json(line)
        if record is None:
            return None
        times = (record.at, record.ended_at, *record.step_seconds.values())
        return record if all(0 <= moment < _LATEST for moment in times) and concerns(record.url, here) else None

    return OwnFile(
        paths.applies_file(env),
        Source.APPLIES,
        publish,
        lambda data: _records(data, concerning, KEPT),
        missing=Failure(FailureKind.NOT_CONFIGURED, NO_APPLIES),
    )


def baselines(publish: Publish, env: Mapping[str, str]) -> OwnFile:
    """The baselines of all models."""
    return OwnFile(
        paths.baselines_file(env),
        Source.BASELINES,
        publish,
        lambda data: _records(data, Baseline.from_json, BASELINES_KEPT),
        missing=Failure(FailureKind.NOT_CONFIGURED, NO_BASELINES),
    )


def trials(url: str, publish: Publish, env: Mapping[str, str]) -> OwnFile:
    """The trials on the server at `url`, none or one; a note without an address concerns every server."""
    here, path = place(url), paths.trial_file(env)

    def now(written: TrialNote | None) -> tuple[TrialNote, ...] | Failure:
        if written is None:
            return Failure(FailureKind.UNAVAILABLE, f"{path} is no note of this version of specdash")
        if not concerns(written.url or None, here):
            return ()
        alive = same_process(written.pid, written.pid_started)
        return (replace(written, alive=alive, pid=0, pid_started=0.0, url=None),)

    return OwnFile(path, Source.TRIAL, publish, TrialNote.from_json, missing=(), now=now)
