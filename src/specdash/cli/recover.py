"""`specdash recover`: roll back, or finish, an apply whose specdash was killed."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from specdash.cli.options import add_settings
from specdash.core.config import SERVICE_SETTINGS
from specdash.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--rollback", action="store_true", help="put the old settings back (the default)")
    way.add_argument("--finish", action="store_true", help="take it to its end; rolled back when that fails")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    parser.add_argument("--json", action="store_true", help="print the record as one JSON object")
    add_settings(parser, SERVICE_SETTINGS)


def run(args: argparse.Namespace) -> int:
    """Show what was cut short, ask, recover; 0 when it ended as asked, or there was nothing to recover."""
    from specdash.cli.apply_run import deployment_of
    from specdash.cli.apply_view import StepPrinter, recovered_code, report, undisturbed
    from specdash.control.recover import recover, unfinished

    journal = unfinished(os.environ)
    if journal is None:
        print(json.dumps({"outcome": "nothing to recover"}) if args.json else "nothing to recover")
        return ExitCode.OK
    printer = StepPrinter()
    printer.say(f"specdash: {journal.words}")
    finish = args.finish
    if not (args.yes or args.finish or args.rollback):
        answer = _ask()
        if answer == "":
            printer.say("nothing was done; it can be recovered later")
            return ExitCode.UNFINISHED
        finish = answer == "f"
    deployment, _ = deployment_of(args)
    with undisturbed():
        record = recover(deployment, journal, finish=finish, on_progress=printer, env=os.environ)
    report(record, as_json=args.json)
    return recovered_code(record, finish=finish)


def _ask() -> str:
    """`r`, `f`, or "" for neither. Raises `UsageError` where nobody can be asked."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("recover needs --yes, --rollback or --finish where there is no terminal to ask on")
    print("[r]oll back, [f]inish, or leave it [N]? ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip().lower()[:1]
    return answer if answer in ("r", "f") else ""
