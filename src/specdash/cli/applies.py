"""`specdash applies`: the changes that were applied or tried, and how each ended."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from specdash.core.errors import ExitCode

if TYPE_CHECKING:
    import argparse

    from specdash.core.applies import ApplyRecord

_DEFAULT_LINES = 20
_HEADER = ("number", "when", "kind", "outcome", "down", "changes and reason")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("-n", type=int, default=_DEFAULT_LINES, metavar="N", help=f"last N (default: {_DEFAULT_LINES})")
    parser.add_argument("--json", action="store_true", help="print a JSON array of records, oldest first")


def run(args: argparse.Namespace) -> int:
    """Print the last records, oldest first."""
    from specdash.control.records import read_records
    from specdash.core.paths import applies_file

    records = read_records(applies_file(os.environ))
    shown = records[-args.n :] if args.n > 0 else ()
    if args.json:
        print(json.dumps([asdict(one) for one in shown], indent=1, sort_keys=True))
    else:
        print("\n".join(table(shown)) if shown else "nothing was applied yet")
        _tell_unfinished()
    return ExitCode.OK


def table(records: tuple[ApplyRecord, ...]) -> list[str]:
    """The records as aligned lines."""
    rows = [_HEADER, *(_row(one) for one in records)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]


def _row(record: ApplyRecord) -> tuple[str, ...]:
    from specdash.control.journal import describe

    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.at))
    down = "--" if record.downtime_s is None else f"{record.downtime_s:.2f} s"
    profile = f"profile {record.profile}: " if record.profile is not None else ""
    failed = f" [{record.failed_step}: {record.reason}]" if record.failed_step is not None else ""
    words = f"{profile}{describe(record.changes)}{failed}"
    return (str(record.number), when, str(record.kind), str(record.outcome), down, words)


def _tell_unfinished() -> None:
    from specdash.control.recover import unfinished
    from specdash.control.trial import abandoned

    journal = unfinished(os.environ)
    if journal is not None:
        print(f"\n{journal.words}; `specdash recover` rolls it back, `specdash recover --finish` completes it")
    trial = abandoned(os.environ)
    if trial is not None:
        print(f"\n{trial.words}; `specdash recover` puts its settings from before back")
