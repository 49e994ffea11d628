"""Writes one target's record: what is new every second, and a block of it every minute.

One instance is one connection, used by one thread. Every method is one transaction, which is done or not done; after an
error the instance is to be closed: what it holds of the last minute is in the record, and the next one adopts it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
from contextlib import closing, suppress
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from specdash.core.changes import ApplyRecord
from specdash.core.log_facts import ChildFacts, LogBatch, LogFact, ServerEvent, TaskFailed
from specdash.core.masking import without_secrets
from specdash.core.proxy_events import ActiveView, ProxyEvents, ProxyStatus, RequestEvent, SessionView
from specdash.core.readings import Failure, FailureKind, Health, Reading, Source
from specdash.core.records import Alert, EventKind, TimelineEvent
from specdash.core.sources import SOURCES, encode
from specdash.history import block
from specdash.history.store import MODE, PAGE_BYTES, OlderSchemaError, connect, is_of_an_older_version
from specdash.history.tiers import TIERS, Point, Tier, TierChunk, points_of
from specdash.llama.log.safe import (
    bare,
    recognise,
    safe_error,
    safe_event,
    safe_line,
    safe_text,
)
from specdash.llama.log.server_lines import LIFE_CYCLE_CLASSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path


# Keeps the record within its bounds of age and size, the oldest and finest going first; a record that is damaged, or
# of an older version, is moved aside, never deleted, and a new one begins.

DAY_S: Final = 86400.0
FREED_AT_A_TIME: Final = 500
"""Pages given back to the file system in one go: what is moved goes through the write-ahead log."""
_LONGEST: Final = max(tier.times_longer for tier in TIERS)


class Bounds(Struct, frozen=True):
    """Days for which every second is kept (tiers are kept longer), and bytes of the file with its write-ahead log."""

    days: float
    size_bytes: int

    @property
    def log_pages(self) -> int:
        """Pages after which the write-ahead log is brought back into the file."""
        return max(64, min(1024, self.size_bytes // PAGE_BYTES // 20))

    @property
    def database_bytes(self) -> int:
        """What is left for the database itself."""
        return int(self.size_bytes - 2 * self.log_pages * PAGE_BYTES)


def prune_by_age(connection: sqlite3.Connection, bounds: Bounds, now: float) -> None:
    """Delete what is older than its time. In the caller's transaction."""
    span_s = bounds.days * DAY_S
    connection.execute("DELETE FROM blocks WHERE last < ?", (now - span_s,))
    for tier in TIERS:
        before = now - span_s * tier.times_longer - tier.span_s
        connection.execute("DELETE FROM tiers WHERE step = ? AND start < ?", (tier.step_s, before))
    oldest = now - span_s * _LONGEST
    connection.execute("DELETE FROM alerts WHERE ended < ?", (oldest,))
    connection.execute("DELETE FROM events WHERE at < ?", (oldest,))
    connection.execute("DELETE FROM stills WHERE last < ?", (now - span_s,))
    connection.execute("DELETE FROM eras WHERE ended < ?", (oldest,))


def prune_by_size(connection: sqlite3.Connection, bounds: Bounds) -> None:
    """Delete the oldest until the rest fits. In the caller's transaction; `give_back` then makes the file smaller."""
    while (excess := used_bytes(connection) - bounds.database_bytes) > 0:
        if not any(
            _delete_oldest(connection, *what, excess)
            for what in (
                ("blocks", "last", "TRUE"),
                *(("tiers", "start", f"step = {tier.step_s}") for tier in TIERS),
                ("events", "at", "TRUE"),
                ("alerts", "raised", "ended IS NOT NULL"),
            )
        ):
            return


def give_back(connection: sqlite3.Connection) -> None:
    """Give some free pages back to the file system. Outside a transaction."""
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    if free:
        connection.execute(f"PRAGMA incremental_vacuum({FREED_AT_A_TIME})").fetchall()


def used_bytes(connection: sqlite3.Connection) -> int:
    """Bytes of the database's pages that hold something."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _delete_oldest(connection: sqlite3.Connection, table: str, key: str, where: str, excess: int) -> bool:
    """Delete rows of at least `excess` bytes, as far as there are so many; False when there are none."""
    length = "length(data)" if table != "events" else "200"
    rows = connection.execute(
        f"SELECT {key}, {length} FROM {table} WHERE {where} ORDER BY {key} LIMIT 500"  # noqa: S608 - our own words
    ).fetchall()
    if not rows:
        return False
    freed = accumulate(size for _, size in rows)
    moment = next((moment for (moment, _), so_far in zip(rows, freed, strict=True) if so_far >= excess), rows[-1][0])
    connection.execute(f"DELETE FROM {table} WHERE {where} AND {key} <= ?", (moment,))  # noqa: S608 - our own words
    if table == "blocks":
        connection.execute("DELETE FROM tiers WHERE step = 1 AND start < ?", (moment - TIERS[0].span_s,))
    return True


_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PRIMARY: Final = 0xFF
"""The part of an extended error code that names its kind."""


def is_damage(error: BaseException) -> bool:
    """Whether the error says that the file's content is not a sound database."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, sqlite3.DatabaseError) and code is not None and code & _PRIMARY in _DAMAGE


def is_unusable(error: BaseException) -> bool:
    """Whether the error says that no record of this version can be written to the file."""
    return is_damage(error) or isinstance(error, OlderSchemaError)


def move_aside(path: Path, error: BaseException) -> Path | None:
    """Rename a damaged record to `NAME.corrupt-N`, one of an older version to `NAME.old-N`, with its write-ahead log;
    None when it is neither (any more). `error` is what was met.

    Of several processes that meet it, one moves it: the others find the new one. Raises OSError.
    """
    ending = "old" if isinstance(error, OlderSchemaError) else "corrupt"
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists() or _is_usable(path):
            return None
        number = 1
        while (aside := path.with_name(f"{path.name}.{ending}-{number}")).exists():
            number += 1
        path.replace(aside)
        for ending in ("-wal", "-shm"):
            beside = path.with_name(path.name + ending)
            if beside.exists():
                beside.replace(aside.with_name(aside.name + ending))
        return aside
    finally:
        os.close(lock)


def _is_usable(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(path.absolute().as_uri() + "?mode=rw", uri=True)) as connection:
            if is_of_an_older_version(connection):
                return False
            found = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        return not is_damage(error)
    return bool(found and found[0] == "ok")


# What of a reading may be kept: nothing that a prompt, an answer or a tool call could be in, and no secret.
#
# Log lines are kept of the warning and life-cycle classes alone, a few per batch, made again (see `llama.log.safe`);
# what other lines say is in the facts. Lines that no table knows are not kept at all.

LINES_KEPT: Final = 8
"""Log lines of one batch."""
LINES_LOOKED_AT: Final = 200
"""So many of a batch's last lines are looked at: a storm may bring thousands a second."""
TEXT_KEPT: Final = 300
"""Characters of a message."""
ROUNDED: Final[Mapping[type, tuple[str, ...]]] = MappingProxyType(
    {
        SessionView: ("last_seen",),
        ActiveView: ("started", "ttft_s", "prefill_rate", "decode_rate"),
        RequestEvent: (
            "at", "duration_s", "held_s", "ttft_s", "prefill_s", "decode_s", "prefill_rate", "decode_rate"
        ),
    }
)  # fmt: skip
"""Fields whose digits beyond the third place are not kept."""
_ROUNDED_FACT: Final = ("at_s", "first_s")
T = TypeVar("T")


def lighter(reading: Reading[Any]) -> Reading[Any]:
    """The reading without what will not be looked at: cheap, for the way into the queue."""
    value = reading.value
    if isinstance(value, LogBatch) and (len(value.tail) > LINES_LOOKED_AT or value.unrecognised_samples):
        return replace(
            reading, value=replace(value, tail=value.tail[-LINES_LOOKED_AT:], tail_kinds="", unrecognised_samples=())
        )
    return reading


def weight(reading: Reading[Any]) -> int:
    """How many values it holds, itself and what it lists: what it costs to keep and to pack."""
    value = reading.value
    if isinstance(value, LogBatch):
        return 1 + len(value.every_fact)
    if isinstance(value, ProxyStatus):
        return 1 + len(value.sessions) + len(value.active)
    return 1 + len(value.events) if isinstance(value, ProxyEvents) else 1


def fault_words(error: Exception) -> str:
    """A fault of our own in words that may be shown."""
    return f"{type(error).__name__}: {_text(str(error))}"


def unkept(reading: Reading[Any], error: Exception) -> Reading[Any]:
    """What is kept of a reading that could not be: that there was one, and the kind of the fault."""
    return Reading.unknown(reading.source, reading.at, FailureKind.ERROR, f"not recorded: {type(error).__name__}")


def to_keep(reading: Reading[Any]) -> Reading[Any]:
    """The reading as it may be stored."""
    value, failure = reading.value, reading.failure
    if isinstance(value, LogBatch):
        value = _batch(value)
    elif isinstance(value, ProxyStatus):
        value = replace(value, sessions=tuple(map(rounded, value.sessions)), active=tuple(map(rounded, value.active)))
    elif isinstance(value, ProxyEvents):
        value = replace(value, events=tuple(map(rounded, value.events)))
    elif isinstance(value, Health) and value.detail:
        value = replace(value, detail=_text(value.detail))
    elif isinstance(value, tuple) and value and isinstance(value[0], ApplyRecord):
        value = tuple(replace(entry, log_lines=tuple(map(safe_text, entry.log_lines))) for entry in value)
    if failure is not None and failure.detail:
        failure = Failure(failure.kind, _text(failure.detail))
    return Reading(reading.source, reading.at, reading.status, value, failure)


def _text(text: str) -> str:
    return without_secrets(text[:TEXT_KEPT])


def _batch(batch: LogBatch) -> LogBatch:
    return replace(
        batch,
        facts=_facts(batch.facts),
        children=tuple(ChildFacts(child.port, _facts(child.facts)) for child in batch.children),
        warnings=tuple(replace(tally, sample=safe_text(tally.sample)) for tally in batch.warnings),
        tail=_lines(reversed(batch.tail[-LINES_LOOKED_AT:])) if _has_lines(batch) else (),
        tail_kinds="",
        unrecognised_samples=(),
        age_s=_to_places(batch.age_s),
    )


def _facts(facts: Iterable[LogFact]) -> tuple[LogFact, ...]:
    return tuple(rounded(_fact(fact)) for fact in facts)


def rounded(value: T) -> T:
    """The value with its times and rates to the millisecond, and to a thousandth of a token per second: the digits
    beyond are noise, and most of what a day would weigh."""
    kind: type[Struct] = type(value)  # type: ignore[assignment]  # T is a struct
    changed = {
        name: after
        for name in ROUNDED.get(kind, _ROUNDED_FACT)
        if type(before := getattr(value, name, None)) is float and (after := round(before, 3)) != before
    }
    return replace(value, **changed) if changed else value  # type: ignore[type-var]  # likewise


def _to_places(value: float | None) -> float | None:
    return round(value, 3) if value is not None else None


def _has_lines(batch: LogBatch) -> bool:
    """Whether there is a line to keep among those of the batch."""
    events = (fact.name for fact in batch.every_fact if isinstance(fact, ServerEvent))
    return bool(batch.warnings) or not LIFE_CYCLE_CLASSES.isdisjoint(events)


def _fact(fact: LogFact) -> LogFact:
    if isinstance(fact, ServerEvent):
        return replace(fact, fields=safe_event(fact) if fact.name in LIFE_CYCLE_CLASSES else ())
    if isinstance(fact, TaskFailed):
        return replace(fact, error=safe_error(fact.error))
    return fact


def _lines(newest_first: Iterable[str]) -> tuple[str, ...]:
    kept: list[str] = []
    for line in newest_first:
        raw = bare(line.encode("utf-8", "replace"))
        known = recognise(raw)
        if known.pattern is None or (
            known.line_class.severity is None and known.line_class.id not in LIFE_CYCLE_CLASSES
        ):
            continue
        kept.append(safe_line(raw))
        if len(kept) == LINES_KEPT:
            break
    return tuple(reversed(kept))


_log = logging.getLogger(__name__)

BLOCK_S: Final = 120.0
"""How much time a block holds."""
BLOCK_VALUES: Final = 4_000
"""Values that a block holds at most (see `keep.weight`): what is held of it in memory, and packed in one go. Three
times as many make no smaller a block of each, and the dashboard a third larger on 5,000 traced lines a second."""
TRUSTED_AFTER_S: Final = 600.0
"""So long must the clock have run evenly before anything is deleted because of its age."""


class Batch(Struct, frozen=True):
    """What is to be written at once; moments are Unix times, readings in the order of their time."""

    readings: Sequence[Reading[Any]] = ()
    points: Sequence[Point] = ()
    alerts: Sequence[Alert] = ()
    events: Sequence[TimelineEvent] = ()


class Writer:
    """The record of one target, open for writing.

    Raises sqlite3.Error and OSError, and `schema.NewerSchemaError` and `OlderSchemaError`.
    """

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
        self._rows: dict[int, block.Row] = {}
        """What `_readings` are in JSON, by their `id`, but for those that a block refers to by a digest."""
        self._values = 0
        self._points: list[Point] = []
        self._blocks = block.BlockWriter(self._connection, self._target)
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
            readings, rows = self._encoded(batch.readings)
            if readings or batch.points:
                moments = [reading.at for reading in readings] or [at for at, _, _ in batch.points]
                content = block.pack_rows({"readings": rows, "points": batch.points})
                self._execute(
                    "INSERT INTO fresh (target, era, first, last, data) VALUES (?, ?, ?, ?, ?)",
                    self._target, self._era, min(moments), max(moments), content,
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
        self._rows |= {
            id(reading): row
            for reading, row in zip(readings, rows, strict=True)
            if not SOURCES[reading.source].is_still
        }
        self._values += values
        self._points += batch.points
        return is_full

    def _encoded(self, readings: Sequence[Reading[Any]]) -> tuple[list[Reading[Any]], list[block.Row]]:
        """The readings as far as they can be recorded, and each as JSON."""
        kept: list[Reading[Any]] = []
        rows: list[block.Row] = []
        for reading in readings:
            try:
                row = encode(reading)
            except Exception as error:  # noqa: BLE001 - a bug may cost a reading, never the record
                self._found_fault(f"a reading of {reading.source} was left out", error)
                reading = unkept(reading, error)
                row = encode(reading)
            kept.append(reading)
            rows.append(row)
        return kept, rows

    def _found_fault(self, what: str, error: Exception) -> None:
        """The first of a block is kept: what follows has its cause, more often than not."""
        if not self.fault:
            self.fault = f"{what}: {fault_words(error)}"
            _log.error("%s", self.fault, exc_info=error)

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
            self._blocks.add(self._era, _by_time(self._readings), self._kept_plain, self._rows)
        self._try_cells(self._points)
        self._execute("DELETE FROM fresh WHERE target = ? AND era = ?", self._target, self._era)

    def _forget(self) -> None:
        """What was held is in a block by now."""
        self._readings.clear()
        self._rows.clear()
        self._values = 0
        self._points.clear()
        with suppress(sqlite3.Error):
            give_back(self._connection)

    def _kept_plain(self, error: Exception) -> None:
        self._found_fault("readings were kept plain", error)

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
        by_era: dict[int, tuple[list[Reading[Any]], list[Point]]] = {}
        for era, data in rows:
            with suppress(block.DamagedError):
                content = block.unpack(data)
                readings, points = by_era.setdefault(era, ([], []))
                readings += block.readings_of(content)
                points += points_of(content)
        row = self._execute(
            "SELECT data FROM blocks WHERE target = ? ORDER BY id DESC LIMIT 1", self._target
        ).fetchone()
        if row is not None:
            with suppress(block.DamagedError):
                self._blocks.carried = block.carried_on(block.unpack(row[0]))
        for era, (readings, points) in by_era.items():
            if readings:
                self._blocks.add(era, _by_time(readings), self._kept_plain)
            self._try_cells(points)
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

    def _chunk(self, tier: Tier, start: int) -> TierChunk:
        row = self._execute(
            "SELECT data FROM tiers WHERE target = ? AND step = ? AND start = ?", self._target, tier.step_s, start
        ).fetchone()
        with suppress(block.DamagedError):
            if row is not None:
                return TierChunk.unpack(tier.step_s, row[0])
        return TierChunk(tier.step_s)

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


def _by_time(readings: Iterable[Reading[Any]]) -> list[Reading[Any]]:
    return sorted(readings, key=lambda reading: reading.at)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
