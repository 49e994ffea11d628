"""Writes one target's record: what is new every second, and a block of it every minute.

One instance is one connection, used by one thread. Every method is one transaction, which is done or not done; after an
error the instance is to be closed: what it holds of the last minute is in the record, and the next one adopts it.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from specdash.core.alerts import Alert
from specdash.core.readings import Reading, Source
from specdash.core.timeline import EventKind, TimelineEvent
from specdash.history import block, fresh
from specdash.history.block import Carried
from specdash.history.codec import encode
from specdash.history.columns import DamagedError
from specdash.history.keep import fault_words, unkept, weight
from specdash.history.pruning import Bounds, give_back, prune_by_age, prune_by_size
from specdash.history.schema import PAGE_BYTES, connect
from specdash.history.tiers import TIERS, Chunk, Tier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from specdash.history.fresh import Point

_log = logging.getLogger(__name__)

BLOCK_S: Final = 120.0
"""How much time a block holds."""
BLOCK_VALUES: Final = 12_000
"""Values that a block holds at most (see `keep.weight`): what is held of it in memory, and packed in one go."""
TRUSTED_AFTER_S: Final = 600.0
"""So long must the clock have run evenly before anything is deleted because of its age."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What is to be written at once; moments are Unix times, readings in the order of their time."""

    readings: Sequence[Reading[Any]] = ()
    points: Sequence[Point] = ()
    alerts: Sequence[Alert] = ()
    events: Sequence[TimelineEvent] = ()


class Writer:
    """The record of one target, open for writing. Raises sqlite3.Error and OSError, schema.NewerSchemaError."""

    def __init__(self, path: Path, target: str, bounds: Bounds) -> None:
        self._bounds = bounds
        self._connection = connect(path, read_only=False)
        self._path = path
        try:
            self._file = _identity(path)
            self._connection.execute(f"PRAGMA wal_autocheckpoint = {bounds.log_pages}")
            self._connection.execute(f"PRAGMA journal_size_limit = {bounds.log_pages * PAGE_BYTES}")
            with self._transaction():
                self._connection.execute("INSERT OR IGNORE INTO targets (name) VALUES (?)", (target,))
                rows = self._connection.execute("SELECT id FROM targets WHERE name = ?", (target,))
                self._target = int(rows.fetchone()[0])
        except BaseException:
            self._connection.close()
            raise
        self._era = 0
        self._began = time.monotonic()
        self.fault = ""
        """What of the last block could not be recorded as it should be, "" when all was."""
        self._readings: list[Reading[Any]] = []
        self._values = 0
        self._points: list[Point] = []
        self._carried: dict[Source, Carried] = {}
        self._latest: dict[Source, tuple[Any, block.Still]] = {}
        self._applies: set[int] = set()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    @property
    def is_moved(self) -> bool:
        """Whether another file is in this one's place by now, or none."""
        return _identity(self._path) != self._file

    def begin(self, event: TimelineEvent, holding: AbstractSet[tuple[str, str]]) -> dict[tuple[str, str], Alert]:
        """Begin an era, and note `event` of it; what a dead recorder left behind becomes blocks.

        Alerts that it left open end with its last reading, but those whose keys are in `holding`, because they hold
        still: these are returned as they were stored.
        """
        with self._transaction():
            self._adopt()
            going_on = self._end_alerts(holding)
            self._begin_era(event)
        return going_on

    def end(self, event: TimelineEvent) -> None:
        """End the era: nothing is left for another recorder to bring in order."""
        with self._transaction():
            self._close_block()
            self._execute("UPDATE eras SET ended = ? WHERE id = ?", event.at, self._era)
            self._note(event)
        self._forget()

    def new_era(self, event: TimelineEvent) -> None:
        """The clock was set: what follows is not of the time that the readings so far are of."""
        with self._transaction():
            self._close_block()
            self._begin_era(event)
        self._forget()

    def write(self, batch: Batch) -> bool:
        """Write what is new. True when the readings that were held became a block, and the bounds were kept."""
        held = self._readings
        values = sum(map(weight, batch.readings))
        is_full = bool(held and batch.readings) and (
            self._values + values > BLOCK_VALUES or batch.readings[-1].at - held[0].at > BLOCK_S
        )
        with self._transaction():
            if is_full:
                self.fault = ""
                self._close_block()
            readings, encoded = self._encoded(batch.readings)
            if readings or batch.points:
                moments = [one.at for one in readings] or [at for at, _, _ in batch.points]
                self._execute(
                    "INSERT INTO fresh (target, era, first, last, data) VALUES (?, ?, ?, ?, ?)",
                    self._target, self._era, min(moments), max(moments), fresh.pack(encoded, batch.points),
                )  # fmt: skip
            for alert in batch.alerts:
                self._store_alert(alert)
            for event in (*batch.events, *self._apply_events(readings)):
                self._note(event)
            if is_full:
                self._prune(readings[-1].at)
        if is_full:
            self._forget()
        held += readings
        self._values += values
        self._points += batch.points
        return is_full

    def _encoded(self, readings: Sequence[Reading[Any]]) -> tuple[list[Reading[Any]], list[str]]:
        """The readings as far as they can be recorded, and each as JSON."""
        kept: list[Reading[Any]] = []
        encoded: list[str] = []
        for reading in readings:
            try:
                text = _as_json(reading)
            except Exception as error:  # noqa: BLE001 - a bug may cost a reading, never the record
                self._found_fault(f"a reading of {reading.source} was left out", error)
                reading = unkept(reading, error)
                text = _as_json(reading)
            kept.append(reading)
            encoded.append(text)
        return kept, encoded

    def _found_fault(self, what: str, error: Exception) -> None:
        fault = f"{what}: {fault_words(error)}"
        if fault != self.fault:
            self.fault = fault
            _log.error("%s", fault, exc_info=error)

    def last_reading(self) -> float | None:
        """Unix time of the last reading of any recorder."""
        rows = self._execute(
            "SELECT max(last) FROM (SELECT last FROM blocks WHERE target = ?1 UNION ALL "
            "SELECT last FROM fresh WHERE target = ?1)",
            self._target,
        )
        found: float | None = rows.fetchone()[0]
        return found

    def _transaction(self) -> _Transaction:
        return _Transaction(self._connection)

    def _execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def _begin_era(self, event: TimelineEvent) -> None:
        self._execute("UPDATE eras SET ended = ? WHERE target = ? AND ended IS NULL", event.at, self._target)
        values = (self._target, os.getpid(), event.at)
        self._era = self._execute("INSERT INTO eras (target, pid, began) VALUES (?, ?, ?)", *values).lastrowid or 0
        self._began = time.monotonic()
        self._note(event)

    def _close_block(self) -> None:
        """The readings of this era that are in no block yet become one, and their points cells of the tiers."""
        if self._readings:
            self._store_block(self._era, sorted(self._readings, key=lambda one: one.at))
        self._try_cells(self._points)
        self._execute("DELETE FROM fresh WHERE target = ? AND era = ?", self._target, self._era)

    def _forget(self) -> None:
        """What was held is in a block by now."""
        self._readings.clear()
        self._values = 0
        self._points.clear()
        with suppress(sqlite3.Error):
            give_back(self._connection)

    def _store_block(self, era: int, readings: Sequence[Reading[Any]]) -> None:
        before = dict(self._carried)
        try:
            data = self._packed(readings, before)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 - whatever cannot be packed is kept plain, and not tried again
            self._found_fault("readings were kept plain", error)
            data = block.pack_plain(readings, before)
        last = readings[-1].at
        for one in before.values():
            self._execute("UPDATE stills SET last = ? WHERE target = ? AND digest = ?", last, self._target, one.digest)
        self._execute(
            "INSERT INTO blocks (target, era, first, last, readings, data) VALUES (?, ?, ?, ?, ?, ?)",
            self._target, era, readings[0].at, last, len(readings), data,
        )  # fmt: skip

    def _packed(self, readings: Sequence[Reading[Any]], before: Mapping[Source, Carried]) -> bytes:
        stills: dict[int, str] = {}
        for index, reading in enumerate(readings):
            digest = None
            if reading.source in block.STILL_SOURCES and reading.value is not None:
                digest = stills[index] = self._store_still(reading)
            if digest is not None or reading.failure is not None:
                self._carried[reading.source] = Carried(reading.at, digest, reading.failure)
            else:
                self._carried.pop(reading.source, None)
        return block.pack(readings, stills, before)

    def _store_still(self, reading: Reading[Any]) -> str:
        value, still = self._latest.get(reading.source, (None, None))
        if still is None or value != reading.value:
            still = block.still_of(reading.source, reading.value)
            self._latest[reading.source] = (reading.value, still)
        self._execute(
            "INSERT INTO stills (target, digest, last, data) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (target, digest) DO UPDATE SET last = max(last, excluded.last)",
            self._target, still.digest, reading.at, fresh.deflate(still.data),
        )  # fmt: skip
        return still.digest

    def _store_alert(self, alert: Alert) -> None:
        self._execute(
            "INSERT OR REPLACE INTO alerts (target, rule, subject, raised, since, ended, data) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            self._target, alert.rule, alert.subject, alert.raised, alert.since, alert.ended, alert.to_json(),
        )  # fmt: skip

    def _note(self, event: TimelineEvent) -> None:
        self._execute(
            "INSERT OR REPLACE INTO events (target, at, kind, ref, title, ended, severity, detail) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            self._target, event.at, event.kind.value, event.ref, event.title, event.ended,
            event.severity.value if event.severity else None, event.detail,
        )  # fmt: skip

    def _apply_events(self, readings: Sequence[Reading[Any]]) -> Iterator[TimelineEvent]:
        for reading in readings:
            if reading.source is not Source.APPLIES or not reading.value:
                continue
            from specdash.insight.experiments import short_text

            for record in reading.value:
                if record.number not in self._applies:
                    self._applies.add(record.number)
                    outcome = str(record.outcome)
                    yield TimelineEvent(
                        record.at, EventKind.APPLY, short_text(record), detail=outcome, ref=str(record.number)
                    )

    def _adopt(self) -> None:
        """Make blocks of what recorders that died left behind."""
        rows = self._execute("SELECT era, data FROM fresh WHERE target = ? ORDER BY id", self._target).fetchall()
        by_era: dict[int, list[fresh.Fresh]] = {}
        for era, data in rows:
            try:
                by_era.setdefault(era, []).append(fresh.unpack(data))
            except DamagedError:
                continue
        row = self._execute(
            "SELECT data FROM blocks WHERE target = ? ORDER BY id DESC LIMIT 1", self._target
        ).fetchone()
        if row is not None:
            with suppress(DamagedError):
                self._carried = block.carried_on(row[0])
        for era, found in by_era.items():
            readings = sorted((one for each in found for one in each.readings), key=lambda one: one.at)
            if readings:
                self._store_block(era, readings)
            self._try_cells([point for each in found for point in each.points])
        self._execute("DELETE FROM fresh WHERE target = ?", self._target)

    def _end_alerts(self, holding: AbstractSet[tuple[str, str]]) -> dict[tuple[str, str], Alert]:
        rows = self._execute("SELECT data FROM alerts WHERE target = ? AND ended IS NULL", self._target).fetchall()
        last = self.last_reading()
        going_on: dict[tuple[str, str], Alert] = {}
        for alert in (Alert.from_json(data) for (data,) in rows):
            if alert is None:
                continue
            if alert.key in holding:
                going_on[alert.key] = alert
            else:
                ended = max(alert.last, last or 0.0)
                self._store_alert(replace(alert, ended=ended, last=ended))
        return going_on

    def _try_cells(self, points: Sequence[Point]) -> None:
        try:
            self._store_cells(points)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 - charts of days are not worth the record
            self._found_fault("series were left out", error)

    def _store_cells(self, points: Sequence[Point]) -> None:
        for tier in TIERS:
            by_span: dict[int, list[Point]] = {}
            for point in points:
                by_span.setdefault(int(point[0] // tier.span_s) * tier.span_s, []).append(point)
            for start, own in by_span.items():
                chunk = self._chunk(tier, start)
                for at, metric, value in own:
                    chunk.add(metric, at, value)
                self._execute(
                    "INSERT OR REPLACE INTO tiers (target, step, start, data) VALUES (?, ?, ?, ?)",
                    self._target, tier.step_s, start, chunk.pack(),
                )  # fmt: skip

    def _chunk(self, tier: Tier, start: int) -> Chunk:
        row = self._execute(
            "SELECT data FROM tiers WHERE target = ? AND step = ? AND start = ?", self._target, tier.step_s, start
        ).fetchone()
        with suppress(DamagedError):
            if row is not None:
                return Chunk.unpack(tier.step_s, row[0])
        return Chunk(tier.step_s)

    def _prune(self, now: float) -> None:
        if time.monotonic() - self._began > TRUSTED_AFTER_S:
            prune_by_age(self._connection, self._bounds, now)
        prune_by_size(self._connection, self._bounds)


class _Transaction:
    """A transaction that is done at the end of the block, or undone by an exception."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")


def _as_json(reading: Reading[Any]) -> str:
    return json.dumps(encode(reading), separators=(",", ":"))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
