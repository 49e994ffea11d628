"""The rows of a fleet as JSON and as a table (docs/fleet.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdash.export.snapshot import rate_json
from specdash.insight.fleet import grouped, worst_first
from specdash.system.data import json_of
from specdash.system.text import UNKNOWN, clean, number, percent, rate, table, utc_timestamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.insight.fleet import FleetGrouping, FleetRow

SCHEMA: Final = "specdash.fleet/1"
_HEADINGS = [
    "SERVER",
    "STATE",
    "VERDICT",
    "ACCEPTED",
    "DECODE",
    "PREFILL",
    "CONTEXT",
    "GPU",
    "VRAM",
    "BUSY",
    "WAIT",
    "ALERTS",
    "WHY",
]


def to_json(
    rows: Sequence[FleetRow], wall: float, window_s: float, grouping: FleetGrouping | None = None
) -> dict[str, Any]:
    """The rows in their order, with `grouping` also their groups; unknown values are null."""
    return {
        "schema": SCHEMA,
        "time": utc_timestamp(wall),
        "window_seconds": window_s,
        "rows": [_row(row) for row in rows],
        "groups": [_group(group, members) for group, members in groups(rows, grouping)] if grouping else None,
    }


def groups(rows: Sequence[FleetRow], grouping: FleetGrouping) -> list[tuple[FleetRow, list[FleetRow]]]:
    """The groups with their servers, the worst first."""
    known = grouped(rows, grouping)
    ranks = {row.name: rank for rank, row in enumerate(worst_first([group for group, _ in known]))}
    return sorted(known, key=lambda pair: ranks[pair[0].name])


def _group(group: FleetRow, members: Sequence[FleetRow]) -> dict[str, Any]:
    document: dict[str, Any] = json_of(
        group,
        "key=name state acceptance=acceptance.value decode_tokens_per_second=decode.value "
        "prefill_tokens_per_second=prefill.value slots_busy=busy slots requests_deferred=queue",
        servers=[row.name for row in members],
        away=sum(row.is_away for row in members),
        alerts=_alerts(group),
    )
    return document


def _alerts(row: FleetRow) -> dict[str, Any]:
    return {"critical": row.critical, "warning": row.warnings, "notice": row.notices}


def _row(row: FleetRow) -> dict[str, Any]:
    document: dict[str, Any] = json_of(
        row,
        "name url model router_model state reason? answers acceptance=acceptance.value "
        "acceptance_basis=acceptance.basis? context_used context_size gpu_utilisation=gpu "
        "gpu_memory_used_bytes=vram_used gpu_memory_total_bytes=vram_size slots_busy=busy slots "
        "requests_deferred=queue cause? group?",
        verdict=row.verdict.kind if row.verdict is not None else None,
        headline=row.verdict.headline if row.verdict is not None else None,
        decode=rate_json(row.decode),
        prefill=rate_json(row.prefill),
        alerts=_alerts(row),
    )
    return document


def to_text(rows: Sequence[FleetRow]) -> list[str]:
    """A table, one row a server, or a group."""
    lines: list[Sequence[str]] = [_HEADINGS]
    lines += [
        (
            clean(f"{row.name} ×{row.members}" if row.members else row.name, 60),
            clean(row.state, 20),
            row.verdict.short if row.verdict is not None else UNKNOWN,
            percent(row.acceptance.value),
            rate(row.decode.value),
            rate(row.prefill.value),
            percent(row.context),
            percent(row.gpu),
            percent(row.vram),
            f"{row.busy}/{row.slots}" if row.slots is not None else UNKNOWN,
            number(row.queue),
            str(row.alerts),
            clean(row.cause or row.reason, 100),
        )
        for row in rows
    ]
    return table(lines, right={3, 4, 5, 6, 7, 8, 9, 10, 11})
