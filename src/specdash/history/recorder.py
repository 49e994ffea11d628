"""The recorder: readings, points and alerts in, from the collectors' threads; a record that survives out.

One thread writes, once a second. No matter what happens to the file, the callers never wait and never hear of it but by
`problem`: the queue is bounded, its oldest entries are dropped and counted, and the count is noted in the record.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from specdash.core import paths
from specdash.core.errors import SpecdashError
from specdash.core.readings import Reading
from specdash.core.records import AlertEvent, EventKind, TimelineEvent
from specdash.history.store import MODE, target_name
from specdash.history.writer import (
    Batch,
    Bounds,
    Writer,
    fault_words,
    is_damage,
    is_unusable,
    lighter,
    move_aside,
    to_keep,
    unkept,
    weight,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from specdash.core.records import Alert
    from specdash.core.target import Target
    from specdash.insight.charts import Metric


class Leadership:
    """Of one target in one record. The lock's file lies beside the record, and stays."""

    def __init__(self, record: Path, target: str) -> None:
        digest = hashlib.blake2b(target.encode(), digest_size=6).hexdigest()
        self._path = record.with_name(f"{record.name}.{digest}.lock")
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Try to take it; False while another process has it. Raises OSError when the file cannot be made."""
        if self._descriptor is not None:
            if _same_file(self._descriptor, self._path):
                return True
            # Someone removed the lock's file: another process may hold a new one.
            self.give_back()
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def give_back(self) -> None:
        """Let another process take it; may be called again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


_log = logging.getLogger(__name__)

COMMIT_S: Final = 1.0
"""Seconds between two writes: what a kill costs at most, and as much again for what is on its way."""
QUEUE_MOST: Final = 20_000
"""Values of readings (see `keep.weight`), points and alerts that wait to be written; older ones are dropped and
counted."""
WRITTEN_S: Final = 30.0
"""What waited for long is written in pieces of so many seconds, so that blocks stay short."""
RETRY_S: Final = 5.0
"""Seconds until the next try after a failed write."""
FOLLOW_S: Final = 5.0
"""So many of the last seconds does a recorder hold that is not the leader: what a dying one could not write."""
STEP_S: Final = 0.25
"""The clock was set when it differs by so much from what it was expected to be."""
CLOSE_S: Final = 2.0
"""How long `close` waits."""
BEGAN: Final = "began"
"""The `ref` of the event by which a recorder says that it begins: what it reads from files, it reads again."""
WENT_ON, ENDED, LOST, CLOCK, MOVED, FAULT = "went on", "ended", "lost", "clock", "moved", "fault"
FAULTY: Final = "recording has a fault"
_SAME_S: Final = 1e-3
"""Moments of the record are rounded by less."""
_MEGABYTE: Final = 1_000_000

Entry = tuple[float, Any]
"""When it arrived (Unix time minus monotonic time then), and what: a reading, a point or an event."""


class Backlog:
    """Entries that wait to be written, oldest first; beyond `QUEUE_MOST` the oldest are dropped. Thread-safe."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._values = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __getitem__(self, index: int) -> Entry:
        return self._entries[index]

    def append(self, entry: Entry) -> int:
        """Add an entry; how many were dropped for it."""
        dropped = 0
        with self._lock:
            self._entries.append(entry)
            self._values += _values(entry)
            while self._values > QUEUE_MOST and len(self._entries) > 1:
                self._values -= _values(self._entries.popleft())
                dropped += 1
        return dropped

    def popleft(self) -> Entry:
        """Take the oldest. Raises IndexError when there is none."""
        with self._lock:
            entry = self._entries.popleft()
            self._values -= _values(entry)
            return entry

    def take(self) -> deque[Entry]:
        """Take all."""
        with self._lock:
            taken, self._entries, self._values = self._entries, deque(), 0
            return taken


def _values(entry: Entry) -> int:
    return weight(entry[1]) if isinstance(entry[1], Reading) else 1


class Recorder:
    """Records one target, unless another process does; then it waits to take over. An `insight.charts.TargetObserver`.

    `on_reading`, `on_alert`, `on_point` and `on_event` may be called from any thread.
    """

    def __init__(
        self,
        target: Target,
        *,
        days: float = 7.0,
        megabytes: float = 500.0,
        env: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`days` is how long every second is kept, `megabytes` how large the record may become."""
        self.path: Path = paths.history_file(env)
        self.problem = ""
        """Why nothing is recorded at the moment, "" when all is well."""
        self.fault = ""
        """What of the last minutes was not recorded as it should be though recording goes on, "" when all was."""
        self.lost = 0
        """Readings that could not be recorded so far."""
        self.is_waiting = False
        """Whether another process records the target."""
        self._target = target_name(target)
        self._bounds = Bounds(days, int(megabytes * _MEGABYTE))
        self._clock, self._wall = clock, wall
        self._queue = Backlog()
        self._pending = Backlog()
        self._lost_noted = 0
        self._leadership = Leadership(self.path, self._target)
        self._writer: Writer | None = None
        self._offset: float | None = None
        self._has_begun = False
        self._active: dict[tuple[str, str], Alert] = {}
        self._going_on: dict[tuple[str, str], Alert] = {}
        """Alerts that another recorder stored already, as it did: here they were raised at another moment."""
        self._retry_at = 0.0
        self._notes: list[TimelineEvent] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="specdash-recorder", daemon=True)

    @property
    def is_recording(self) -> bool:
        """Whether this process records the target; False too while another one does."""
        return self._writer is not None

    @property
    def trouble(self) -> str:
        """What is wrong with the recording, "" when nothing is."""
        if self.problem:
            return f"not recording: {self.problem}"
        return f"{FAULTY}: {self.fault}" if self.fault else ""

    def on_reading(self, reading: Reading[Any]) -> None:
        """Take a reading, of monotonic time."""
        self._put(lighter(reading))

    def on_alert(self, event: AlertEvent) -> None:
        """An alert was raised, changed or is over."""
        self._put(event)

    def on_point(self, metric: Metric, at: float, value: float | None) -> None:
        """A series got a sample at monotonic time `at`."""
        if value is not None:
            self._put((at, metric.value, value))

    def on_event(self, event: TimelineEvent) -> None:
        """The server restarted, or its state is another one."""
        self._put(event)

    def start(self) -> None:
        """Begin, without waiting."""
        self._thread.start()

    def close(self) -> None:
        """Write what is left and end, within `CLOSE_S`."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)

    def _put(self, what: Any) -> None:
        self.lost += self._queue.append((self._wall() - self._clock(), what))

    def _run(self) -> None:
        due = self._clock()
        while not self._stopping.wait(max(0.0, min(COMMIT_S, due - self._clock()))):
            due = max(due + COMMIT_S, self._clock())
            self._guarded(self._work)
        self._retry_at = 0.0
        self._guarded(self._work)
        self._guarded(self._end)
        self._discard()
        self._leadership.give_back()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do it; a failure becomes the problem."""
        try:
            work()
        except (sqlite3.Error, OSError, SpecdashError) as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001 - a bug here must not end the recording of what follows
            _log.exception("recording failed")
            self.lost += len(self._pending.take())
            self._failed(error)

    def _work(self) -> None:
        for entry in self._queue.take():
            self.lost += self._pending.append(entry)
        if self._clock() < self._retry_at:
            return
        if self._writer is not None and self._writer.is_moved:
            self._discard()
        if self._writer is None and not self._lead():
            return
        self._write()
        self.problem = ""

    def _lead(self) -> bool:
        """Open the record if this process is to write it; else hold but the last seconds."""
        self.is_waiting = not self._leadership.take()
        if self.is_waiting:
            self._hold_last_seconds()
            self.problem = ""
            return False
        try:
            writer = Writer(self.path, self._target, self._bounds)
        except (sqlite3.DatabaseError, SpecdashError) as error:
            if not is_unusable(error):
                raise
            self._move_aside(error)
            writer = Writer(self.path, self._target, self._bounds)
        try:
            self._begin(writer)
        except BaseException:
            writer.close()
            raise
        self._writer = writer
        return True

    def _begin(self, writer: Writer) -> None:
        if self._has_begun:
            # After another recorder, or an error: what is recorded already is not recorded twice.
            last = writer.last_reading()
            while last is not None and self._pending and self._moment(self._pending[0]) <= last + _SAME_S:
                self._note_alert(self._pending.popleft()[1])
            for _, what in self._pending:
                self._note_alert(what)
        # What came while the file was opened is of this recorder too.
        first = self._pending[0] if self._pending else self._queue[0] if self._queue else None
        at = self._moment(first) if first is not None else self._wall()
        title, ref = ("recording goes on", WENT_ON) if self._has_begun else ("recording began", BEGAN)
        event = TimelineEvent(at, EventKind.RECORDER, title, detail=self.problem, ref=ref)
        self._going_on |= writer.begin(event, self._active.keys())
        self._has_begun = True
        for alert in self._active.values():
            if alert.key not in self._going_on:
                self._pending.append((0.0, alert))

    def _hold_last_seconds(self) -> None:
        self._has_begun = True
        horizon = self._wall() - FOLLOW_S
        while self._pending and self._moment(self._pending[0]) < horizon:
            self._note_alert(self._pending.popleft()[1])

    def _moment(self, entry: Entry) -> float:
        """The Unix time of an entry."""
        offset, what = entry
        if isinstance(what, Reading):
            return what.at + offset
        if isinstance(what, tuple):
            return float(what[0]) + offset
        return float(what.at) if isinstance(what, AlertEvent | TimelineEvent) else float(what.last)

    def _write(self) -> None:
        """Write what is pending; what was written is pending no more."""
        writer = self._writer
        if writer is None:
            return
        if self.lost > self._lost_noted:
            count = self.lost - self._lost_noted
            text = f"{count} readings were not recorded"
            self._notes.append(TimelineEvent(self._wall(), EventKind.RECORDER, text, detail=self.problem, ref=LOST))
        while self._pending or self._notes:
            count, offset = self._run_of_one_clock()
            entries = list(islice(self._pending, count))
            became_block = writer.write(self._batch(entries, offset))
            if became_block:
                self._offset = next((own for own, _ in reversed(entries) if own), offset)
            self._lost_noted = self.lost
            self._notes.clear()
            for _ in range(count):
                self._pending.popleft()
            if writer.fault:
                self._note_fault(writer.fault)
            elif became_block:
                self.fault = ""

    def _note_fault(self, fault: str) -> None:
        """It is shown until a further block was packed well, and is in the record once."""
        if fault != self.fault:
            self.fault = fault
            self._notes.append(TimelineEvent(self._wall(), EventKind.RECORDER, FAULTY, detail=fault, ref=FAULT))

    def _run_of_one_clock(self) -> tuple[int, float]:
        """How many pending entries to write at once, and what makes their times Unix times: those of one run of the
        clock, and of no longer than `WRITTEN_S`.

        A clock that is corrected bit by bit is followed when a block ends anyway; one that was set, or that went on
        while the machine slept, begins a new era.
        """
        offset = self._offset
        latest = self._moment(self._pending[0]) + WRITTEN_S if self._pending else 0.0
        for count, (own, what) in enumerate(self._pending):
            if count and isinstance(what, Reading) and self._moment((own, what)) > latest:
                return count, offset or 0.0
            if offset is None:
                offset = self._offset = own
            if own and abs(own - offset) > STEP_S:
                if count:
                    return count, offset
                self._clock_was_set(own - offset, own)
                offset = own
        return len(self._pending), offset or 0.0

    def _clock_was_set(self, by: float, offset: float) -> None:
        self._offset = offset
        if self._writer is None:
            return
        at = self._moment(self._pending[0])
        words = f"the clock went {by:.1f} s ahead" if by > 0 else f"the clock was set back by {-by:.1f} s"
        detail = "it was set, or the machine slept" if by > 0 else "of what was seen twice, the later record counts"
        self._writer.new_era(TimelineEvent(at, EventKind.RECORDER, words, detail=detail, ref=CLOCK))

    def _batch(self, entries: list[Entry], offset: float) -> Batch:
        readings: list[Reading[Any]] = []
        points: list[tuple[float, str, float]] = []
        alerts: list[Alert] = []
        events: list[TimelineEvent] = []
        for _, what in entries:
            if isinstance(what, Reading):
                readings.append(self._kept(replace(what, at=what.at + offset)))
            elif isinstance(what, tuple):
                points.append((what[0] + offset, what[1], what[2]))
            elif isinstance(what, TimelineEvent):
                events.append(what)
            else:
                alerts.append(self._as_stored(self._note_alert(what) or what))
        return Batch(sorted(readings, key=lambda reading: reading.at), points, alerts, (*self._notes, *events))

    def _kept(self, reading: Reading[Any]) -> Reading[Any]:
        try:
            return to_keep(reading)
        except Exception as error:  # noqa: BLE001 - a bug may cost a reading, never the record
            self._note_fault(f"a reading of {reading.source} was left out: {fault_words(error)}")
            return unkept(reading, error)

    def _note_alert(self, what: Any) -> Alert | None:
        """Know which alerts are active, also of those that another recorder records."""
        if not isinstance(what, AlertEvent):
            return None
        alert = what.alert
        if alert.is_active:
            self._active[alert.key] = alert
        else:
            self._active.pop(alert.key, None)
        return alert

    def _as_stored(self, alert: Alert) -> Alert:
        stored = self._going_on.get(alert.key)
        if stored is None:
            return alert
        if not alert.is_active:
            del self._going_on[alert.key]
        return replace(alert, raised=stored.raised, since=min(stored.since, alert.since))

    def _end(self) -> None:
        if self._writer is not None:
            self._writer.end(TimelineEvent(self._wall(), EventKind.RECORDER, "recording ended", ref=ENDED))

    def _failed(self, error: Exception) -> None:
        self.problem = _words(error, self.path)
        self._discard()
        self._retry_at = self._clock() + RETRY_S
        if is_unusable(error):
            self._retry_at = 0.0
            self._guarded(partial(self._move_aside, error))

    def _move_aside(self, error: Exception) -> None:
        moved = move_aside(self.path, error)
        if moved is not None:
            was = "damaged" if is_damage(error) else "of an older specdash"
            title = f"the record was {was}; it is kept as {moved.name}"
            _log.warning("%s: %s (%s)", self.path, title, error)
            self._notes.append(TimelineEvent(self._wall(), EventKind.RECORDER, title, detail=str(error), ref=MOVED))

    def _discard(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except sqlite3.Error:
                _log.debug("closing the record failed", exc_info=True)


def _words(error: Exception, path: Path) -> str:
    if isinstance(error, SpecdashError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or path}: {error.strerror or error}"
    return f"{path}: {error}"
