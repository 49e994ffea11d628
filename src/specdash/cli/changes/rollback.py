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
    """Plan, show, ask, go back."""
    from specdash.cli.changes.apply_run import carry_out, deployment_of
    from specdash.control.plan import plan_rollback

    check_own_machine(args)
    deployment, options = deployment_of(args)
    plan = plan_rollback(deployment, args.number, env=os.environ)
    return carry_out(args, plan, options)
