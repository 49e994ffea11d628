"""The rows of a fleet as JSON and as a table (docs/fleet.md)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from specdash.core.structs import json_of
from specdash.export.snapshot import rate_json
from specdash.system.text import UNKNOWN, clean, number, percent, rate, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.insight.fleet import FleetRow

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


def to_json(rows: Sequence[FleetRow], wall: float, window_s: float) -> dict[str, Any]:
    """The rows in their order; unknown values are null."""
    return {
        "schema": SCHEMA,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall)),
        "window_seconds": window_s,
        "rows": [_row(row) for row in rows],
    }


def _alerts(row: FleetRow) -> dict[str, Any]:
    return {"critical": row.critical, "warning": row.warnings, "notice": row.notices}


def _row(row: FleetRow) -> dict[str, Any]:
    document: dict[str, Any] = {
        **json_of(row, "name url model router_model state answers context_used context_size slots"),
        "reason": row.reason or None,
        "acceptance": row.acceptance.value,
        "acceptance_basis": row.acceptance.basis or None,
        "gpu_utilisation": row.gpu,
        "gpu_memory_used_bytes": row.vram_used,
        "gpu_memory_total_bytes": row.vram_size,
        "slots_busy": row.busy,
        "requests_deferred": row.queue,
        "cause": row.cause or None,
        "group": row.group or None,
        "verdict": row.verdict.kind if row.verdict is not None else None,
        "headline": row.verdict.headline if row.verdict is not None else None,
        "decode": rate_json(row.decode),
        "prefill": rate_json(row.prefill),
        "alerts": _alerts(row),
    }
    return document


def to_text(rows: Sequence[FleetRow]) -> list[str]:
    """A table, one row a server."""
    lines: list[Sequence[str]] = [_HEADINGS]
    lines += [
        (
            clean(row.name, 60),
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
