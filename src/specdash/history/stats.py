"""What is in the record, and how much room it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdash.history.schema import VERSION
from specdash.history.tiers import TIERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class TargetStats:
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


@dataclass(frozen=True, slots=True)
class Stats:
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
    return sum(one.stat().st_size for one in sizes if one.exists())
