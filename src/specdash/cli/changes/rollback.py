"""`specdash rollback [N]`: back to the settings before the last apply that is in force, or before apply N."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from specdash.cli.options import check_own_machine

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    from specdash.cli.changes.apply_run import add_options

    parser.add_argument(
        "number", nargs="?", type=int, metavar="N", help="go back to before apply N (default: undo the last one)"
    )
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Plan, show, ask, go back. An apply that was cut short is rolled back first; without N, that is all then."""
    from specdash.cli.changes.apply_run import StepPrinter, carry_out, deployment_of, report, settle_unfinished
    from specdash.control.apply.apply import plan_rollback
    from specdash.core.changes import ApplyOutcome

    check_own_machine(args)
    deployment, options = deployment_of(args)
    printer = StepPrinter()
    if not args.dry_run:
        settled = settle_unfinished(deployment, allowed=True, printer=printer)
        if settled is not None and args.number is None and settled.outcome is ApplyOutcome.ROLLED_BACK:
            report(settled, as_json=args.json)
            return 0
    plan = plan_rollback(deployment, args.number, env=os.environ)
    return carry_out(args, plan, options, printer)
