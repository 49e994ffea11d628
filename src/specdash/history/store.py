"""The record, read: readings, series, alerts and events of every target, while others write it."""

from __future__ import annotations

import math
import os
import sqlite3
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Struct, field

from specdash.core.errors import InputError, SpecdashError
from specdash.core.records import Alert, AlertSeverity, EventKind, TimelineEvent
from specdash.core.sources import SOURCES, UnreadableError, decode
from specdash.history import block
from specdash.history.block import DamagedError
from specdash.history.tiers import TIERS, Tier, TierCell, cells_of, points_of, tier_for
from specdash.system.text import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from specdash.core.readings import Reading, Source
    from specdash.core.target import Target
    from specdash.insight.charts import Metric


# The tables of the record, and how a database is opened. A record of another version is left as it is.

APPLICATION_ID: Final = 0x73706463
"""Says `spdc` in the file's header."""
BUSY_S: Final = 5.0
"""How long a writer waits for another one."""
MODE: Final = 0o600
PAGE_BYTES: Final = 1024
"""A block's last page is half empty on average."""

TABLES: Final = """
CREATE TABLE targets (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE eras (
    id INTEGER PRIMARY KEY, target INTEGER NOT NULL, pid INTEGER NOT NULL, began REAL NOT NULL, ended REAL
);
CREATE TABLE blocks (
    id INTEGER PRIMARY KEY, target INTEGER NOT NULL, era INTEGER NOT NULL,
    first REAL NOT NULL, last REAL NOT NULL, readings INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE INDEX blocks_by_time ON blocks (target, first, last, era);
CREATE TABLE fresh (
    id INTEGER PRIMARY KEY, target INTEGER NOT NULL, era INTEGER NOT NULL,
    first REAL NOT NULL, last REAL NOT NULL, data BLOB NOT NULL
);
CREATE TABLE stills (
    target INTEGER NOT NULL, digest TEXT NOT NULL, last REAL NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (target, digest)
) WITHOUT ROWID;
CREATE TABLE tiers (
    target INTEGER NOT NULL, step INTEGER NOT NULL, start INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (target, step, start)
);
CREATE TABLE alerts (
    target INTEGER NOT NULL, rule TEXT NOT NULL, subject TEXT NOT NULL, raised REAL NOT NULL,
    since REAL NOT NULL, ended REAL, data TEXT NOT NULL,
    PRIMARY KEY (target, rule, subject, raised)
);
CREATE TABLE events (
    target INTEGER NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL, ref TEXT NOT NULL, title TEXT NOT NULL,
    ended REAL, severity TEXT, detail TEXT NOT NULL,
    PRIMARY KEY (target, at, kind, ref, title)
);
"""
VERSION: Final = 3
"""Grows with the tables, and with what is in them (`history.block`). Of 1 and 2 no version was released."""


class NewerSchemaError(SpecdashError):
    """A newer specdash wrote the record."""


class OlderSchemaError(InputError):
    """An older specdash wrote the record, in a form that is read no more."""


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open the record; for writing it is created where need be.

    Raises InputError when there is nothing to read, NewerSchemaError, OlderSchemaError, and sqlite3.Error for what is
    damaged or cannot be opened.
    """
    if not read_only:
        return _for_writing(path)
    if not path.exists():
        raise InputError(f"{path}: no record; one is written while specdash runs (setting record)")
    try:
        connection = _for_reading(path)
        version = _version(connection)
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path}: cannot be read as a record: {error}") from error
    if version == VERSION:
        return connection
    connection.close()
    _refuse(path, version)
    raise InputError(f"{path}: no record of specdash, or nothing is recorded yet")


def _for_reading(path: Path) -> sqlite3.Connection:
    address = path.absolute().as_uri()
    connection = _open(f"{address}?mode=ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        if path.with_name(path.name + "-wal").exists():
            raise
        # A copy in a directory that may not be written to: no one else writes it either.
        connection = _open(f"{address}?immutable=1")
    return connection


def _open(address: str) -> sqlite3.Connection:
    return sqlite3.connect(address, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


def _for_writing(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Made here, and not by SQLite, so that it is private from its first byte; its -wal and -shm get its mode.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, MODE))
    connection = _open(path.absolute().as_uri() + "?mode=rw")
    try:
        version = _version(connection)
        _refuse(path, version)
        if version == 0:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 1024")
        connection.execute("PRAGMA journal_size_limit = 1048576")
        if version == 0:
            _make_tables(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_tables(connection: sqlite3.Connection) -> None:
    """One transaction: a process that dies in it leaves an empty file; of two processes the second finds it done."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _version(connection) == 0:
            for statement in TABLES.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def is_of_an_older_version(connection: sqlite3.Connection) -> bool:
    """Whether a record is in a form that is read no more."""
    return 0 < _version(connection) < VERSION


def _refuse(path: Path, version: int) -> None:
    if version > VERSION:
        raise NewerSchemaError(
            f"{path}: written by a newer specdash (schema {version}, this one knows {VERSION}); "
            "update specdash, or move the file away"
        )
    if 0 < version < VERSION:
        raise OlderSchemaError(
            f"{path}: written by an older specdash (schema {version}, this one reads {VERSION}); "
            "it is set aside when recording begins"
        )


# Series of the record as rows of equal length, for tables; what is in the record, and how much room it takes.


class QueryRow(Struct, frozen=True):
    """The samples of every metric between `at` (Unix time) and the next row; a metric without samples is missing."""

    at: float
    cells: Mapping[Metric, TierCell]

    def as_json(self) -> dict[str, Any]:
        """For a JSON array."""
        fields = {
            metric.value: {"mean": cell.mean, "min": cell.low, "max": cell.high, "count": cell.count}
            for metric, cell in self.cells.items()
        }
        return {"at": self.at, **fields}

    def as_csv(self, metrics: Iterable[Metric]) -> list[str]:
        """Mean, least, most and count per metric; empty where nothing is known."""
        found: list[str] = []
        for metric in metrics:
            cell = self.cells.get(metric)
            found += [f"{cell.mean:.6g}", f"{cell.low:.6g}", f"{cell.high:.6g}", str(cell.count)] if cell else [""] * 4
        return found

    def as_text(self, metrics: Iterable[Metric]) -> list[str]:
        """The mean per metric, `--` where nothing is known."""
        return [f"{self.cells[metric].mean:.4g}" if metric in self.cells else UNKNOWN for metric in metrics]


def table(
    store: Store, target: str, metrics: Sequence[Metric], since: float, until: float, step_s: float
) -> list[QueryRow]:
    """Rows at whole multiples of `step_s`, oldest first; without those in which nothing is known of any metric.

    From the coarsest tier whose cells are no longer than a row. What that no longer has, because it is too old, or does
    not have yet, comes from the next one.
    """
    rows: dict[int, dict[Metric, TierCell]] = {}
    for metric in metrics:
        for tier in tier_for(step_s, 1):
            found = store.cells(target, metric, since - tier.step_s + 1, until, tier)
            if found:
                break
        for at, cell in found:
            number = math.floor(max(at, since) / step_s)
            own = rows.setdefault(number, {})
            before = own.get(metric)
            own[metric] = _together(before, cell) if before is not None else cell
    return [QueryRow(number * step_s, cells) for number, cells in sorted(rows.items())]


def _together(tier_cell: TierCell, other: TierCell) -> TierCell:
    return TierCell(
        min(tier_cell.low, other.low),
        tier_cell.total + other.total,
        max(tier_cell.high, other.high),
        tier_cell.count + other.count,
    )


class TargetStats(Struct, frozen=True):
    """What the record has of one target. Moments are Unix times, sizes bytes."""

    target: str
    first: float | None
    last: float | None
    readings: int
    blocks: int
    block_bytes: int
    tier_bytes: dict[int, int]
    """Per seconds of a cell."""
    alerts: int
    events: int


class Stats(Struct, frozen=True):
    """What is in the record. `file_bytes` are those of the database and its write-ahead log."""

    path: str
    schema: int
    file_bytes: int
    free_bytes: int
    targets: tuple[TargetStats, ...]


def stats_of(path: Path, rows: Callable[..., list[Any]], span: Callable[[str], tuple[float, float] | None]) -> Stats:
    """What is in the record at `path`. `rows` asks it, `span` is `Store.span`."""
    targets = []
    for number, name in rows("SELECT id, name FROM targets ORDER BY id"):
        first, last = span(name) or (None, None)
        blocks, size, readings = rows(
            "SELECT count(*), coalesce(sum(length(data)), 0), coalesce(sum(readings), 0) FROM blocks WHERE target = ?",
            number,
        )[0]
        tiers = dict(rows("SELECT step, sum(length(data)) FROM tiers WHERE target = ? GROUP BY step", number))
        targets.append(
            TargetStats(
                name,
                first,
                last,
                readings,
                blocks,
                size,
                {tier.step_s: tiers.get(tier.step_s, 0) for tier in TIERS},
                rows("SELECT count(*) FROM alerts WHERE target = ?", number)[0][0],
                rows("SELECT count(*) FROM events WHERE target = ?", number)[0][0],
            )
        )
    free = rows("PRAGMA page_size")[0][0] * rows("PRAGMA freelist_count")[0][0]
    return Stats(str(path), VERSION, file_bytes(path), free, tuple(targets))


def file_bytes(path: Path) -> int:
    """Bytes of the database and its write-ahead log."""
    sizes = (path.with_name(path.name + ending) for ending in ("", "-wal"))
    return sum(size.stat().st_size for size in sizes if size.exists())


LOOK_BACK_S: Final = 300.0
"""A block is no longer than this, so one that begins earlier than this before a moment cannot hold it."""
_STILLS_KEPT: Final = 64
_BLOCKS_KEPT: Final = 4
"""Blocks that stay unpacked: a seek looks at the same ones several times."""


def target_name(target: Target) -> str:
    """What the record calls a target: its address, and the model where a router has several."""
    return f"{target.url} {target.model}" if target.model else target.url


class _Piece(Struct, frozen=True):
    """Where a run of readings is: a block's id, or readings that are in no block yet."""

    era: int
    first: float
    block: int | None
    readings: Sequence[Reading[Any]] = ()


class _Block(Struct, frozen=True):
    """A block, unpacked."""

    carried: Mapping[Source, block.Row] = field(default_factory=dict)
    readings: Sequence[Reading[Any]] = ()


class Store:
    """Reads the record. Thread-safe; no method holds a transaction when it returns, so writers are never in its way.

    Every method raises InputError where the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        """Raises InputError when there is no record at `path`, or it cannot be read."""
        self.path = path
        self._lock = threading.RLock()
        self._connection = connect(path, read_only=True)
        self._stills: dict[str, Any] = {}
        self._blocks: dict[int, _Block] = {}
        self.damaged = 0
        """Blocks that could not be read so far; they are left out."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._connection.close()

    def targets(self) -> tuple[str, ...]:
        """All targets (see `target_name`), the one that was recorded last first."""
        rows = self._rows("SELECT name FROM targets")
        spans = [(self.span(name), name) for (name,) in rows]
        return tuple(name for _, name in sorted(spans, key=lambda pair: pair[0][1] if pair[0] else 0.0, reverse=True))

    def span(self, target: str) -> tuple[float, float] | None:
        """Unix times of the first and last reading, None when there is none."""
        number = self._number(target)
        found = self._rows(
            "SELECT min(first), max(last) FROM (SELECT first, last FROM blocks WHERE target = ?1 "
            "UNION ALL SELECT first, last FROM fresh WHERE target = ?1)",
            number,
        )
        first, last = found[0]
        return (float(first), float(last)) if first is not None else None

    def spans(self, target: str, gap_s: float = 60.0) -> tuple[tuple[float, float], ...]:
        """The stretches of time that are recorded, with gaps of more than `gap_s` seconds between them."""
        rows = self._rows(
            "SELECT first, last FROM blocks WHERE target = ?1 UNION ALL SELECT first, last FROM fresh "
            "WHERE target = ?1 ORDER BY first",
            self._number(target),
        )
        found: list[list[float]] = []
        for first, last in rows:
            if found and first - found[-1][1] <= gap_s:
                found[-1][1] = max(found[-1][1], last)
            else:
                found.append([first, last])
        return tuple((first, last) for first, last in found)

    def readings(self, target: str, since: float, until: float) -> Iterator[tuple[float, Reading[Any]]]:
        """Readings with since <= Unix time <= until, in the order of their times; `Reading.at` is that time.

        Where a clock was set back, the same time was seen twice: the later record of it counts.
        """
        number = self._number(target)
        pieces = self._pieces(number, since, until)
        eras = self._eras(number, since, until)
        waiting: list[Reading[Any]] = []
        for index, piece in enumerate(pieces):
            later = [span for era, span in eras.items() if era > piece.era]
            waiting += (
                reading
                for reading in self._of_piece(number, piece)
                if since <= reading.at <= until and not any(first <= reading.at <= last for first, last in later)
            )
            waiting.sort(key=lambda reading: reading.at)
            following = pieces[index + 1].first if index + 1 < len(pieces) else math.inf
            ready = next((place for place, reading in enumerate(waiting) if reading.at >= following), len(waiting))
            for reading in waiting[:ready]:
                yield reading.at, reading
            del waiting[:ready]

    def latest(self, target: str, wall: float) -> tuple[tuple[float, Reading[Any]], ...]:
        """The last reading of each source before `wall`, in the order of their times: to begin a replay with.

        Of sources that speak every few seconds, only their readings of the last minute that was recorded.
        """
        number = self._number(target)
        rows = self._rows(
            "SELECT first, id FROM blocks WHERE target = ? AND first < ? ORDER BY first DESC LIMIT 1", number, wall
        )
        found: dict[Source, Reading[Any]] = {}
        since = wall - LOOK_BACK_S
        for first, identity in rows:
            since = first
            for source, row in self._block(number, identity).carried.items():
                with suppress(UnreadableError):
                    found[source] = decode(row, partial(self._still, number))
        for at, reading in self.readings(target, since, wall):
            if at < wall:
                found[reading.source] = reading
        return tuple(sorted(((reading.at, reading) for reading in found.values()), key=lambda pair: pair[0]))

    def stills(self, target: str, at: float) -> tuple[tuple[float, Reading[Any]], ...]:
        """Those of `latest` that may be older than a replay begins: of sources that speak seldom, and failures."""
        latest = self.latest(target, math.nextafter(at, math.inf))
        return tuple(
            (wall, reading)
            for wall, reading in latest
            if SOURCES[reading.source].is_still or reading.failure is not None
        )

    def points(self, target: str, metric: Metric, since: float, until: float, count: int) -> list[float | None]:
        """Means of a series in `count` columns of equal width; None where nothing is known.

        From the coarsest tier whose cells are no wider than a column; where that has nothing, from another one.
        """
        if count < 1 or until <= since:
            return [None] * max(0, count)
        for tier in tier_for(until - since, count):
            columns = self._columns(target, metric, since, until, count, tier)
            if any(column is not None for column in columns):
                return columns
        return [None] * count

    def cells(
        self, target: str, metric: Metric, since: float, until: float, tier: Tier
    ) -> list[tuple[float, TierCell]]:
        """The cells of one tier, with the Unix time of each one's beginning, oldest first."""
        rows = self._rows(
            "SELECT data FROM tiers WHERE target = ? AND step = ? AND start > ? AND start <= ? ORDER BY start",
            self._number(target),
            tier.step_s,
            since - tier.span_s,
            until,
        )
        found: dict[int, TierCell] = {}
        for (data,) in rows:
            try:
                found.update(cells_of(data, metric))
            except DamagedError:
                self.damaged += 1
        for at, name, value in self._fresh_points(target, since, until, tier):
            if name == metric:
                number = math.floor(at / tier.step_s)
                if number in found:
                    found[number].add(value)
                else:
                    found[number] = TierCell(value, value, value, 1)
        step = tier.step_s
        return [(number * step, cell) for number, cell in sorted(found.items()) if since <= number * step <= until]

    def alerts(self, target: str, since: float, until: float) -> tuple[Alert, ...]:
        """Alerts that held at any time in between, by their beginning."""
        rows = self._rows(
            "SELECT data FROM alerts WHERE target = ? AND since <= ? AND (ended IS NULL OR ended >= ?) ORDER BY since",
            self._number(target),
            until,
            since,
        )
        found = (Alert.from_json(data) for (data,) in rows)
        return tuple(alert for alert in found if alert is not None)

    def events(self, target: str, since: float, until: float) -> tuple[TimelineEvent, ...]:
        """Everything that happened in between, alerts included, in order."""
        from specdash.insight.derive import of_alert

        rows = self._rows(
            "SELECT at, kind, title, severity, ended, detail, ref FROM events "
            "WHERE target = ? AND at BETWEEN ? AND ? ORDER BY at",
            self._number(target),
            since,
            until,
        )
        found = [
            TimelineEvent(at, EventKind(kind), title, AlertSeverity(severity) if severity else None, ended, detail, ref)
            for at, kind, title, severity, ended, detail, ref in rows
            if kind in set(EventKind) and (not severity or severity in set(AlertSeverity))
        ]
        found += map(of_alert, self.alerts(target, since, until))
        return tuple(sorted(found, key=lambda timeline_event: timeline_event.at))

    def stats(self) -> Stats:
        """What is in the record."""
        return stats_of(self.path, self._rows, self.span)

    def check(self) -> str:
        """What is wrong with the file, "" when it is sound. Reads all of it."""
        try:
            found = self._rows("PRAGMA quick_check(3)")
        except InputError as error:
            return str(error.__cause__)
        text = "; ".join(str(entry) for (entry,) in found)
        return "" if text == "ok" else text

    def _rows(self, statement: str, *values: object) -> list[Any]:
        try:
            with self._lock:
                return self._connection.execute(statement, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise InputError(f"{self.path}: cannot be read: {error}") from error

    def _number(self, target: str) -> int:
        rows = self._rows("SELECT id FROM targets WHERE name = ?", target)
        return int(rows[0][0]) if rows else -1

    def _pieces(self, number: int, since: float, until: float) -> list[_Piece]:
        """What may hold readings of the span, in order. One transaction: a piece is in a block or fresh, never both."""
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                blocks = self._rows(
                    "SELECT era, first, id FROM blocks WHERE target = ? AND first BETWEEN ? AND ? AND last >= ?",
                    number,
                    since - LOOK_BACK_S,
                    until,
                    since,
                )
                rows = self._rows(
                    "SELECT era, first, data FROM fresh WHERE target = ? AND first <= ? AND last >= ? ORDER BY id",
                    number,
                    until,
                    since,
                )
            finally:
                self._connection.execute("COMMIT")
        pieces = [_Piece(era, first, identity) for era, first, identity in blocks]
        for era, first, data in rows:
            try:
                pieces.append(_Piece(era, first, None, block.readings_of(block.unpack(data))))
            except DamagedError:
                self.damaged += 1
        return sorted(pieces, key=lambda piece: piece.first)

    def _eras(self, number: int, since: float, until: float) -> dict[int, tuple[float, float]]:
        rows = self._rows(
            "SELECT era, min(first), max(last) FROM (SELECT era, first, last FROM blocks WHERE target = ?1 "
            "AND first BETWEEN ?2 AND ?3 UNION ALL SELECT era, first, last FROM fresh WHERE target = ?1) GROUP BY era",
            number,
            since - LOOK_BACK_S,
            until,
        )
        return {era: (first, last) for era, first, last in rows}

    def _of_piece(self, number: int, piece: _Piece) -> Sequence[Reading[Any]]:
        return piece.readings if piece.block is None else self._block(number, piece.block).readings

    def _block(self, number: int, identity: int) -> _Block:
        """The block; one without readings where it is damaged, or was deleted meanwhile."""
        if identity in self._blocks:
            return self._blocks[identity]
        rows = self._rows("SELECT data FROM blocks WHERE id = ?", identity)
        if not rows:
            return _Block()
        try:
            content = block.unpack(rows[0][0])
            found = _Block(block.carried_of(content), block.readings_of(content, partial(self._still, number)))
        except DamagedError:
            self.damaged += 1
            return _Block()
        with self._lock:
            while len(self._blocks) >= _BLOCKS_KEPT:
                self._blocks.pop(next(iter(self._blocks)))
            self._blocks[identity] = found
        return found

    def _still(self, number: int, source: Source, digest: str) -> Any:
        if digest not in self._stills:
            rows = self._rows("SELECT data FROM stills WHERE target = ? AND digest = ?", number, digest)
            if not rows:
                raise UnreadableError(f"no value {digest}")
            while len(self._stills) >= _STILLS_KEPT:
                self._stills.pop(next(iter(self._stills)))
            self._stills[digest] = block.still_value(source, rows[0][0])
        return self._stills[digest]

    def _fresh_points(self, target: str, since: float, until: float, tier: Tier) -> Iterator[tuple[float, str, float]]:
        rows = self._rows(
            "SELECT data FROM fresh WHERE target = ? AND first <= ? AND last >= ? ORDER BY id",
            self._number(target),
            until + tier.step_s,
            since - tier.step_s,
        )
        for (data,) in rows:
            try:
                yield from points_of(block.unpack(data))
            except DamagedError:
                self.damaged += 1

    def _columns(
        self, target: str, metric: Metric, since: float, until: float, count: int, tier: Tier
    ) -> list[float | None]:
        width = (until - since) / count
        totals, counts = [0.0] * count, [0] * count
        for at, cell in self.cells(target, metric, since - tier.step_s, until, tier):
            column = math.floor((at + tier.step_s / 2 - since) / width)
            if 0 <= column < count:
                totals[column] += cell.total
                counts[column] += cell.count
        return [total / n if n else None for total, n in zip(totals, counts, strict=True)]
