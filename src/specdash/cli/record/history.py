"""`specdash history`: what is in the record, as text, CSV or JSON (docs/history.md)."""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.cli.options import MOMENTS_AGO, accept_as_value, add_actions, print_json
from specdash.core import paths
from specdash.core.errors import ExitCode, InputError, UsageError
from specdash.core.moments import even_step, parse_length, parse_moment
from specdash.core.structs import json_of
from specdash.insight.charts import CHARTS, Metric
from specdash.system.text import duration, timestamp

if TYPE_CHECKING:
    import argparse

    from specdash.history.store import Store, TargetStats

ROWS_MOST = 200_000
DEFAULT_SINCE = "-1h"
DEFAULT_ROWS = 60

_ACTIONS = {
    "query": "print the charted series: mean, minimum and maximum of each step",
    "events": "list alerts, applies, restarts, and interruptions of the recording",
    "stats": "show what is recorded, since when, and how much space it takes",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parsers = add_actions(parser, _ACTIONS)
    query = parsers["query"]
    query.add_argument("metrics", nargs="*", metavar="METRIC", help=f"{', '.join(Metric)} (default: all)")
    query.add_argument(
        "--step", metavar="TIME", help="length of each row: 1s, 10s, 1m, … (default: a sixtieth of the time asked for)"
    )
    form = query.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print CSV")
    for group in (form, parsers["events"], parsers["stats"]):
        group.add_argument("--json", action="store_true", help="print JSON")
    for name in ("query", "events"):
        _span(parsers[name])
    parsers["stats"].add_argument("--check", action="store_true", help="read the whole file to see if it is damaged")
    for action_parser in parsers.values():
        action_parser.add_argument(
            "--file", metavar="FILE", help="the record (default: history.db in the state directory)"
        )


def run(args: argparse.Namespace) -> int:
    from specdash.history.store import Store

    path = Path(args.file) if args.file is not None else paths.history_file(os.environ)
    try:
        with Store(path) as store:
            return {"query": _query, "events": _events, "stats": _stats}[args.action](store, args)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return ExitCode.OK


def _span(parser: argparse.ArgumentParser) -> None:
    accept_as_value(parser, MOMENTS_AGO)
    parser.add_argument(
        "--since", default=DEFAULT_SINCE, metavar="MOMENT", help="02:00, -3h, 2026-03-01T02:00 (default: -1h)"
    )
    parser.add_argument("--until", default="now", metavar="MOMENT", help="up to this moment (default: now)")
    parser.add_argument("--target", metavar="URL", help="whose record (default: the one recorded last)")


def _asked_span(args: argparse.Namespace) -> tuple[float, float]:
    now = time.time()
    since, until = parse_moment(args.since, now), parse_moment(args.until, now)
    if since >= until:
        raise UsageError(f"--since {args.since} is not before --until {args.until}")
    return since, until


def _target(store: Store, named: str | None) -> str:
    known = store.targets()
    if not known:
        raise InputError(f"{store.path}: nothing is recorded yet")
    if named is None:
        return known[0]
    fitting = [name for name in known if name == named.rstrip("/")] or [name for name in known if named in name]
    if len(fitting) != 1:
        what = "is in the record" if not fitting else "fits several"
        verb = f"{named!r}: no such target {what}" if not fitting else f"{named!r} {what}"
        raise InputError(f"--target {verb}; recorded: {', '.join(known)}")
    return fitting[0]


def _query(store: Store, args: argparse.Namespace) -> int:
    from specdash.history.store import table

    since, until = _asked_span(args)
    unknown = [name for name in args.metrics if name not in set(Metric)]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is not a metric; use one of {', '.join(Metric)}")
    metrics = tuple(Metric(name) for name in args.metrics) or tuple(Metric)
    step_s = parse_length(args.step) if args.step is not None else even_step((until - since) / DEFAULT_ROWS)
    if step_s < 1:
        raise UsageError(f"--step {args.step}: the finest is 1s")
    if (until - since) / step_s > ROWS_MOST:
        raise UsageError(f"--step {step_s:g}s makes more than {ROWS_MOST} rows; take a longer one, or a shorter span")
    target = _target(store, args.target)
    rows = table(store, target, metrics, since, until, step_s)
    if args.json:
        document: dict[str, Any] = {
            "target": target,
            "since": since,
            "until": until,
            "step_s": step_s,
            "units": {metric.value: CHARTS[metric].unit for metric in metrics},
            "rows": [row.as_json() for row in rows],
        }
        print_json(document)
    elif args.csv:
        columns = [f"{metric}{part}" for metric in metrics for part in ("", "_min", "_max", "_count")]
        print(",".join(["time", "unix", *columns]))
        for row in rows:
            print(",".join([_iso(row.at), f"{row.at:.0f}", *row.as_csv(metrics)]))
    else:
        print("  ".join(["time".ljust(19), *(f"{metric.value:>17}" for metric in metrics)]))
        for row in rows:
            print("  ".join([timestamp(row.at), *(f"{text:>17}" for text in row.as_text(metrics))]))
    if not rows:
        print(f"nothing is recorded about {target} in this time; {_whole_span(store, target)}", file=sys.stderr)
        return ExitCode.FAILED
    return ExitCode.OK


def _events(store: Store, args: argparse.Namespace) -> int:
    since, until = _asked_span(args)
    target = _target(store, args.target)
    events = store.events(target, since, until)
    if args.json:
        shown = [json_of(event, "at ended kind severity title detail ref") for event in events]
        document: dict[str, Any] = {"target": target, "since": since, "until": until, "events": shown}
        print_json(document)
        return ExitCode.OK
    for event in events:
        what = f"{event.severity}" if event.severity else event.kind.value
        lasted = (
            f" (for {duration(event.ended - event.at)})" if event.ended is not None and event.ended > event.at else ""
        )
        detail = f": {event.detail}" if event.detail else ""
        print(f"{timestamp(event.at)}  {what:<9} {event.title}{detail}{lasted}")
    if not events:
        print("nothing happened in this time", file=sys.stderr)
    return ExitCode.OK


def _stats(store: Store, args: argparse.Namespace) -> int:
    wrong = store.check() if args.check else ""
    if wrong:
        raise InputError(
            f"{store.path}: damaged: {wrong}; specdash will move it aside and start a new one when it next records"
        )
    found = store.stats()
    if args.json:
        print_json(json_of(found))
    else:
        print(
            f"{found.path}: {found.file_bytes / 1e6:.1f} MB, "
            f"{found.free_bytes / 1e6:.1f} MB of it free, schema {found.schema}"
        )
        for target in found.targets:
            print("\n".join(_target_lines(target)))
        if args.check:
            print("sound")
    return ExitCode.OK


def _target_lines(stats: TargetStats) -> list[str]:
    lines = [stats.target]
    if stats.first is None or stats.last is None:
        return [*lines, "  no readings"]
    span = max(1.0, stats.last - stats.first)
    per_day = stats.block_bytes / span * 86400 / 1e6
    sizes = ", ".join(f"{duration(step)}: {size / 1e6:.2f} MB" for step, size in stats.tier_bytes.items())
    return [
        *lines,
        f"  {timestamp(stats.first)} to {timestamp(stats.last)} ({duration(span)})",
        (
            f"  {stats.readings} readings in {stats.blocks} blocks, {stats.block_bytes / 1e6:.2f} MB "
            f"({per_day:.1f} MB a day)"
        ),
        f"  series per {sizes}",
        f"  {stats.alerts} alerts, {stats.events} events",
    ]


def _whole_span(store: Store, target: str) -> str:
    span = store.span(target)
    return f"the record goes from {timestamp(span[0])} to {timestamp(span[1])}" if span else "there are no readings"


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).astimezone().isoformat(timespec="seconds")
