"""Keeps the record within its bounds of age and size: what is oldest and finest goes first."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from specdash.history.schema import PAGE_BYTES
from specdash.history.tiers import TIERS

if TYPE_CHECKING:
    import sqlite3

DAY_S: Final = 86400.0
FREED_AT_A_TIME: Final = 500
"""Pages given back to the file system in one go: what is moved goes through the write-ahead log."""
_LONGEST: Final = max(tier.times_longer for tier in TIERS)


@dataclass(frozen=True, slots=True)
class Bounds:
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
