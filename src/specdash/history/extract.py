"""A span of the record as a database of its own, every value changed on its way: what an incident bundle carries."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from specdash.core.timeline import EventKind
from specdash.history import block, fresh
from specdash.history.schema import connect
from specdash.history.tiers import TIERS, Chunk, Tier
from specdash.history.writer import BLOCK_S
from specdash.insight.charts import Metric

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from specdash.core.alerts import Alert
    from specdash.core.readings import Reading, Source
    from specdash.core.timeline import TimelineEvent
    from specdash.history.store import Store

RUN_UP_S: Final = 90.0
"""Readings of so long before the span come with it: a replay needs them to show its beginning."""


def copy_span(
    store: Store,
    target: str,
    since: float,
    until: float,
    path: Path,
    *,
    name: str,
    change: Callable[[Any], Any],
    readings_since: float | None = None,
) -> int:
    """Write what the record has of `target` from `since` to `until` to a new file at `path`; how many readings.

    `change` is given every reading, alert and event, and returns what is written of it, of the same type. `name` is
    what the target is called there. Series, alerts and events are of the whole span, readings from `readings_since`.
    The file stands alone: no -wal belongs to it.
    """
    begin = max(since, readings_since if readings_since is not None else since) - RUN_UP_S
    connection = connect(path, read_only=False)
    try:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO targets (id, name) VALUES (1, ?)", (name,))
        writer = _Writer(connection)
        writer.carry(change(reading) for _, reading in store.latest(target, begin))
        for _, group in groupby(
            (change(reading) for _, reading in store.readings(target, begin, until)),
            key=lambda one: math.floor(one.at / BLOCK_S),
        ):
            writer.block(list(group))
        connection.execute(
            "INSERT INTO eras (id, target, pid, began, ended) VALUES (1, 1, ?, ?, ?)", (os.getpid(), begin, until)
        )
        for tier in TIERS:
            _copy_tier(connection, store, target, since, until, tier)
        _copy_alerts(connection, (change(alert) for alert in store.alerts(target, since, until)))
        events = store.events(target, since, until)
        _copy_events(connection, (change(event) for event in events if event.kind is not EventKind.ALERT))
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    finally:
        connection.close()
    return writer.count


@dataclass(slots=True)
class _Writer:
    """Packs readings into blocks, and values that seldom change beside them."""

    connection: sqlite3.Connection
    count: int = 0
    known: dict[Source, block.Carried] = field(default_factory=dict)
    """What is carried into the next block."""

    def carry(self, readings: Iterable[Reading[Any]]) -> None:
        """What was known before the first block."""
        for reading in readings:
            still = reading.source in block.STILL_SOURCES and reading.value is not None
            if still or reading.failure is not None:
                digest = self._still(reading) if still else None
                self.known[reading.source] = block.Carried(reading.at, digest, reading.failure)

    def block(self, readings: Sequence[Reading[Any]]) -> None:
        """Write readings of at most `BLOCK_S`, in the order of their time."""
        before = dict(self.known)
        stills: dict[int, str] = {}
        for index, reading in enumerate(readings):
            digest = None
            if reading.source in block.STILL_SOURCES and reading.value is not None:
                digest = stills[index] = self._still(reading)
            if digest is not None or reading.failure is not None:
                self.known[reading.source] = block.Carried(reading.at, digest, reading.failure)
            else:
                self.known.pop(reading.source, None)
        data = block.pack(readings, stills, before)
        self.connection.execute(
            "INSERT INTO blocks (target, era, first, last, readings, data) VALUES (1, 1, ?, ?, ?, ?)",
            (readings[0].at, readings[-1].at, len(readings), data),
        )
        self.count += len(readings)

    def _still(self, reading: Reading[Any]) -> str:
        still = block.still_of(reading.source, reading.value)
        self.connection.execute(
            "INSERT INTO stills (target, digest, last, data) VALUES (1, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET last = max(last, excluded.last)",
            (still.digest, reading.at, fresh.deflate(still.data)),
        )
        return still.digest


def _copy_tier(
    connection: sqlite3.Connection, store: Store, target: str, since: float, until: float, tier: Tier
) -> None:
    chunks: dict[int, Chunk] = {}
    for metric in Metric:
        for at, cell in store.cells(target, metric, since, until, tier):
            start = math.floor(at / tier.span_s) * tier.span_s
            chunk = chunks.setdefault(start, Chunk(tier.step_s))
            chunk.metrics.setdefault(metric.value, {})[math.floor(at / tier.step_s)] = cell
    for start, chunk in chunks.items():
        row = (1, tier.step_s, start, chunk.pack())
        connection.execute("INSERT INTO tiers (target, step, start, data) VALUES (?, ?, ?, ?)", row)


def _copy_alerts(connection: sqlite3.Connection, alerts: Iterable[Alert]) -> None:
    for alert in alerts:
        connection.execute(
            "INSERT OR REPLACE INTO alerts (target, rule, subject, raised, since, ended, data) "
            "VALUES (1, ?, ?, ?, ?, ?, ?)",
            (alert.rule, alert.subject, alert.raised, alert.since, alert.ended, alert.to_json()),
        )


def _copy_events(connection: sqlite3.Connection, events: Iterable[TimelineEvent]) -> None:
    for event in events:
        values = asdict(event)
        values["kind"], values["severity"] = str(event.kind), str(event.severity) if event.severity else None
        connection.execute(
            "INSERT OR REPLACE INTO events (target, at, kind, ref, title, ended, severity, detail) "
            "VALUES (1, :at, :kind, :ref, :title, :ended, :severity, :detail)",
            values,
        )
