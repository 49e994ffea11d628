"""`specdash recover`: roll back, or finish, an apply whose specdash was killed; put back what was left on trial."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from specdash.cli.options import add_own_machine, add_settings, check_own_machine
from specdash.core.config import SERVICE_SETTINGS
from specdash.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse

_NOTHING = '{"outcome": "nothing to recover"}'


def configure(parser: argparse.ArgumentParser) -> None:
    add_own_machine(parser)
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--rollback", action="store_true", help="put the old settings back (the default)")
    way.add_argument("--finish", action="store_true", help="complete it; roll it back if that fails")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    parser.add_argument("--json", action="store_true", help="print the record as one JSON object")
    add_settings(parser, SERVICE_SETTINGS)


def run(args: argparse.Namespace) -> int:
    """Show what was cut short, ask, recover; 0 when it ended as asked, or there was nothing to recover."""
    from specdash.cli.changes.apply_run import StepPrinter, bring_up, deployment_of, recovered_code, report
    from specdash.cli.signals import undisturbed
    from specdash.control.apply.trial import abandoned
    from specdash.control.apply.undo import recover, unfinished

    check_own_machine(args)
    deployment, options = deployment_of(args)
    bring_up(deployment)
    journal, trial = unfinished(os.environ), abandoned(os.environ)
    if journal is None and trial is None:
        print(_NOTHING if args.json else "nothing to recover")
        return ExitCode.OK
    printer = StepPrinter()
    for words in (journal.words if journal is not None else "", trial.words if trial is not None else ""):
        if words:
            printer.say(f"specdash: {words}")
    # What is on trial is never kept: it was not asked for but for measuring.
    finish = args.finish and trial is None
    if not (args.yes or args.finish or args.rollback):
        answer = _ask(may_finish=trial is None)
        if answer == "":
            printer.say("nothing was done; you can still recover it later")
            return ExitCode.UNFINISHED
        finish = answer == "f"
    record, code = None, ExitCode.OK
    with undisturbed():
        if journal is not None:
            record = recover(deployment, journal, finish=finish, on_progress=printer, env=os.environ)
            code = recovered_code(record, finish=finish)
        if trial is not None and code is ExitCode.OK:
            from specdash.control.apply.apply import restore_abandoned

            printer.say("specdash: restoring the settings from before the trial")
            record = restore_abandoned(trial, deployment, options, printer, os.environ) or record
    if record is not None:
        report(record, as_json=args.json)
    else:
        print(_NOTHING if args.json else "the previous settings are in force")
    return code


def _ask(*, may_finish: bool) -> str:
    """`r`, `f`, or "" for neither. Raises `UsageError` where nobody can be asked."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("recover needs --yes, --rollback or --finish when there is no terminal to ask on")
    words = "[r]oll back, [f]inish, or leave it [N]? " if may_finish else "[r]oll back, or leave it [N]? "
    print(words, end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip().lower()[:1]
    return answer if answer == "r" or (answer == "f" and may_finish) else ""
