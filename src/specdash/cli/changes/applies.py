"""`specdash applies`: the changes that were applied or tried, and how each ended."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from specdash.cli.options import add_own_machine, check_own_machine
from specdash.core.errors import ExitCode
from specdash.core.structs import json_of
from specdash.system.text import number, table, timestamp

if TYPE_CHECKING:
    import argparse

    from specdash.core.changes import ApplyRecord

_DEFAULT_LINES = 20
_HEADER = ("number", "when", "kind", "outcome", "down", "changes and reason")


def configure(parser: argparse.ArgumentParser) -> None:
    add_own_machine(parser)
    parser.add_argument("-n", type=int, default=_DEFAULT_LINES, metavar="N", help=f"last N (default: {_DEFAULT_LINES})")
    parser.add_argument("--json", action="store_true", help="print a JSON array of records, oldest first")


def run(args: argparse.Namespace) -> int:
    """Print the last records, oldest first."""
    from specdash.backend.journal import read_records
    from specdash.core.paths import applies_file

    check_own_machine(args)
    records = read_records(applies_file(os.environ))
    shown = records[-args.n :] if args.n > 0 else ()
    if args.json:
        print(json.dumps([json_of(apply_record) for apply_record in shown], indent=1, sort_keys=True))
    else:
        print("\n".join(table([_HEADER, *map(_row, shown)])) if shown else "nothing was applied yet")
    return ExitCode.OK


def _row(record: ApplyRecord) -> tuple[str, ...]:
    from specdash.backend.journal import describe

    down = number(record.downtime_s, 2, "s")
    profile = f"profile {record.profile}: " if record.profile is not None else ""
    failed = f" [{record.failed_step}: {record.reason}]" if record.failed_step is not None else ""
    words = f"{profile}{describe(record.changes)}{failed}"
    return (str(record.number), timestamp(record.at), str(record.kind), str(record.outcome), down, words)
