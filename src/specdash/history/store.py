"""The record, read: readings, series, alerts and events of every target, while others write it."""

from __future__ import annotations

import math
import sqlite3
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from specdash.core.alerts import Alert, AlertSeverity
from specdash.core.errors import InputError
from specdash.core.readings import Reading, Source, Status
from specdash.core.timeline import EventKind, TimelineEvent
from specdash.history import block, fresh
from specdash.history.columns import DamagedError
from specdash.history.schema import connect
from specdash.history.shapes import UnreadableError
from specdash.history.stats import Stats, file_bytes, stats_of
from specdash.history.tiers import Cell, Tier, cells_of, tier_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from specdash.core.target import Target
    from specdash.insight.charts import Metric

LOOK_BACK_S: Final = 300.0
"""A block is no longer than this, so one that begins earlier than this before a moment cannot hold it."""
_STILLS_KEPT: Final = 64
_BLOCKS_KEPT: Final = 4
"""Blocks that stay unpacked: a seek looks at the same ones several times."""


def target_name(target: Target) -> str:
    """What the record calls a target: its address, and the model where a router has several."""
    return f"{target.url} {target.model}" if target.model else target.url


@dataclass(frozen=True, slots=True)
class _Piece:
    """Where a run of readings is: a block's id, or readings that are in no block yet."""

    era: int
    first: float
    last: float
    block: int | None
    readings: tuple[Reading[Any], ...] = ()


class Store:
    """Reads the record. Thread-safe; no method holds a transaction when it returns, so writers are never in its way.

    Every method raises InputError where the file is damaged.
    """

    def __init__(self, path: Path, *, read_only: bool = True) -> None:
        """Raises InputError when there is no record at `path`, or it cannot be read."""
        self.path = path
        self._lock = threading.RLock()
        self._connection = connect(path, read_only=read_only)
        self._stills: dict[str, Any] = {}
        self._blocks: dict[int, Sequence[Reading[Any]]] = {}
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
        return tuple(name for _, name in sorted(spans, key=lambda one: one[0][1] if one[0] else 0.0, reverse=True))

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
                one
                for one in self._of_piece(number, piece)
                if since <= one.at <= until and not any(first <= one.at <= last for first, last in later)
            )
            waiting.sort(key=lambda one: one.at)
            following = pieces[index + 1].first if index + 1 < len(pieces) else math.inf
            ready = next((place for place, one in enumerate(waiting) if one.at >= following), len(waiting))
            for one in waiting[:ready]:
                yield one.at, one
            del waiting[:ready]

    def latest(self, target: str, wall: float) -> tuple[tuple[float, Reading[Any]], ...]:
        """The last reading of each source before `wall`, in the order of their times: to begin a replay with.

        Of sources that speak every few seconds, only what they said in the last minute that was recorded.
        """
        number = self._number(target)
        rows = self._rows(
            "SELECT first, data FROM blocks WHERE target = ? AND first < ? ORDER BY first DESC LIMIT 1", number, wall
        )
        found: dict[Source, Reading[Any]] = {}
        since = wall - LOOK_BACK_S
        for first, data in rows:
            since = first
            try:
                known = block.carried(data)
            except DamagedError:
                self.damaged += 1
                continue
            for source, one in known.items():
                reading = self._carried(number, source, one)
                if reading is not None:
                    found[source] = reading
        for at, reading in self.readings(target, since, wall):
            if at < wall:
                found[reading.source] = reading
        return tuple(sorted(((one.at, one) for one in found.values()), key=lambda pair: pair[0]))

    def stills(self, target: str, at: float) -> tuple[tuple[float, Reading[Any]], ...]:
        """Those of `latest` that may be older than a replay begins: of sources that speak seldom, and failures."""
        latest = self.latest(target, math.nextafter(at, math.inf))
        return tuple(
            (wall, one) for wall, one in latest if one.source in block.STILL_SOURCES or one.failure is not None
        )

    def points(self, target: str, metric: Metric, since: float, until: float, count: int) -> list[float | None]:
        """Means of a series in `count` columns of equal width; None where nothing is known.

        From the coarsest tier whose cells are no wider than a column; where that has nothing, from another one.
        """
        if count < 1 or until <= since:
            return [None] * max(0, count)
        for tier in tier_for(until - since, count):
            columns = self._columns(target, metric, since, until, count, tier)
            if any(one is not None for one in columns):
                return columns
        return [None] * count

    def cells(self, target: str, metric: Metric, since: float, until: float, tier: Tier) -> list[tuple[float, Cell]]:
        """The cells of one tier, with the Unix time of each one's beginning, oldest first."""
        rows = self._rows(
            "SELECT data FROM tiers WHERE target = ? AND step = ? AND start > ? AND start <= ? ORDER BY start",
            self._number(target),
            tier.step_s,
            since - tier.span_s,
            until,
        )
        found: dict[int, Cell] = {}
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
                    found[number] = Cell(value, value, value, 1)
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
        from specdash.insight.timeline import of_alert

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
        return tuple(sorted(found, key=lambda one: one.at))

    def stats(self) -> Stats:
        """What is in the record."""
        return stats_of(self.path, self._rows, self.span)

    def vacuum(self) -> int:
        """Give free pages back to the file system; the bytes that were gained. Needs a store opened for writing.

        Raises InputError while others hold the record for too long.
        """
        before = file_bytes(self.path)
        with self._lock:
            try:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                self._connection.execute("VACUUM")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.OperationalError as error:
                raise InputError(f"{self.path}: cannot be compacted now: {error}") from error
        return max(0, before - file_bytes(self.path))

    def check(self) -> str:
        """What is wrong with the file, "" when it is sound. Reads all of it."""
        try:
            found = self._rows("PRAGMA quick_check(3)")
        except InputError as error:
            return str(error.__cause__)
        text = "; ".join(str(one) for (one,) in found)
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
                    "SELECT era, first, last, id FROM blocks WHERE target = ? AND first BETWEEN ? AND ? AND last >= ?",
                    number,
                    since - LOOK_BACK_S,
                    until,
                    since,
                )
                rows = self._rows(
                    "SELECT era, first, last, data FROM fresh WHERE target = ? AND first <= ? AND last >= ? "
                    "ORDER BY id",
                    number,
                    until,
                    since,
                )
            finally:
                self._connection.execute("COMMIT")
        pieces = [_Piece(era, first, last, identity) for era, first, last, identity in blocks]
        for era, first, last, data in rows:
            try:
                pieces.append(_Piece(era, first, last, None, fresh.unpack(data).readings))
            except DamagedError:
                self.damaged += 1
        return sorted(pieces, key=lambda one: one.first)

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
        if piece.block is None:
            return piece.readings
        if piece.block in self._blocks:
            return self._blocks[piece.block]
        rows = self._rows("SELECT data FROM blocks WHERE id = ?", piece.block)
        try:
            found = block.unpack(rows[0][0], lambda source, digest: self._still(number, source, digest)) if rows else []
        except DamagedError:
            self.damaged += 1
            return ()
        with self._lock:
            while len(self._blocks) >= _BLOCKS_KEPT:
                self._blocks.pop(next(iter(self._blocks)))
            self._blocks[piece.block] = found
        return found

    def _still(self, number: int, source: Source, digest: str) -> Any:
        if digest not in self._stills:
            rows = self._rows("SELECT data FROM stills WHERE target = ? AND digest = ?", number, digest)
            if not rows:
                raise UnreadableError(f"no value {digest}")
            while len(self._stills) >= _STILLS_KEPT:
                self._stills.pop(next(iter(self._stills)))
            self._stills[digest] = block.still_value(source, fresh.inflate(rows[0][0]))
        return self._stills[digest]

    def _carried(self, number: int, source: Source, one: block.Carried) -> Reading[Any] | None:
        if one.failure is not None:
            return Reading(source, one.at, Status.UNKNOWN, None, one.failure)
        try:
            return Reading.known(source, one.at, self._still(number, source, one.digest or ""))
        except UnreadableError:
            return None

    def _fresh_points(self, target: str, since: float, until: float, tier: Tier) -> Iterator[tuple[float, str, float]]:
        rows = self._rows(
            "SELECT data FROM fresh WHERE target = ? AND first <= ? AND last >= ? ORDER BY id",
            self._number(target),
            until + tier.step_s,
            since - tier.step_s,
        )
        for (data,) in rows:
            try:
                yield from fresh.unpack(data).points
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
