"""The rows of a fleet as JSON and as a table (docs/fleet.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdash.export.snapshot import rate_json
from specdash.system.data import json_of
from specdash.system.stats import mean, median
from specdash.system.text import UNKNOWN, clean, number, percent, rate, table, timestamp, utc_timestamp, window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.export import documents
    from specdash.export.from_prometheus import HistoryRange, ServerHistory
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


def to_json(rows: Sequence[FleetRow], wall: float, window_s: float) -> documents.FleetDocument:
    """The rows in their order; unknown values are null."""
    return {
        "schema": SCHEMA,
        "time": utc_timestamp(wall),
        "window_seconds": window_s,
        "rows": [_row(row) for row in rows],
    }


def _alerts(row: FleetRow) -> documents.FleetAlerts:
    return {"critical": row.critical, "warning": row.warnings, "notice": row.notices}


def _row(row: FleetRow) -> documents.FleetRowDocument:
    document: documents.FleetRowDocument = json_of(
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


HISTORY_SCHEMA: Final = "specdash.fleet-history/1"
_HISTORY_HEADINGS = [
    "SERVER",
    "KNOWN",
    "UP",
    "ACCEPTED",
    "DECODE",
    "PREFILL",
    "GPU",
    "MOST WAIT",
    "ALERTS",
    "NO FIGURES SINCE",
]


def history_json(asked: HistoryRange, histories: Sequence[tuple[str, ServerHistory]]) -> documents.FleetHistoryDocument:
    """The histories by name, in their order; a gap is null."""
    return {
        "schema": HISTORY_SCHEMA,
        "since": utc_timestamp(asked.since - asked.step_s),
        "until": utc_timestamp(asked.until),
        "step_seconds": asked.step_s,
        "times": [utc_timestamp(at) for at in asked.times],
        "servers": [_history(name, history) for name, history in histories],
    }


def _history(name: str, history: ServerHistory) -> documents.ServerHistoryDocument:
    figures = {figure: list(values) for figure, values in history.figures.items()}
    stale = history.stale_since
    return {
        "name": name,
        "url": history.url,
        "stale_since": utc_timestamp(stale) if stale is not None else None,
        "acceptance": figures["acceptance"],
        "decode_tokens_per_second": figures["decode"],
        "prefill_tokens_per_second": figures["prefill"],
        "requests_deferred": figures["queue"],
        "gpu_utilisation": figures["gpu"],
        "up": figures["up"],
        "alerts": [
            {
                "rule": alert.rule,
                "severity": alert.severity,
                "since": utc_timestamp(alert.since),
                "until": utc_timestamp(alert.until) if alert.until is not None else None,
            }
            for alert in history.alerts
        ],
    }


def history_text(asked: HistoryRange, histories: Sequence[tuple[str, ServerHistory]]) -> list[str]:
    """A table: how much of the time is known, and the medians of what is."""
    lines: list[Sequence[str]] = [_HISTORY_HEADINGS]
    for name, history in histories:
        figures = history.figures
        middle = {figure: median(values) for figure, values in figures.items()}
        known = [value for value in figures["up"] if value is not None]
        stale = history.stale_since
        lines.append(
            (
                clean(name, 60),
                percent(len(known) / asked.count),
                percent(mean(known)),
                percent(middle["acceptance"]),
                rate(middle["decode"]),
                rate(middle["prefill"]),
                percent(middle["gpu"]),
                number(max((value for value in figures["queue"] if value is not None), default=None)),
                str(len(history.alerts)),
                "" if stale is None else timestamp(stale, seconds=False) if stale else "the beginning",
            )
        )
    span = f"{timestamp(asked.since - asked.step_s)} to {timestamp(asked.until)}"
    head = f"{span}, steps of {window(asked.step_s)}; medians"
    return [head, *table(lines, right={1, 2, 3, 4, 5, 6, 7, 8})]
