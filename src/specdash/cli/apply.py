"""`specdash apply`: change settings, restart what must be, verify it; everything back when that fails."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from specdash.core.changes import ChangeSet, Role, parse_assignments
from specdash.core.errors import UsageError

if TYPE_CHECKING:
    import argparse

_REMOVAL = re.compile(r"-[A-Z][A-Z0-9_]*\Z")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    from specdash.cli.apply_run import add_options

    parser.add_argument(
        "assignments", nargs="*", metavar="KEY=VALUE", help="what to set; -KEY, !KEY or --unset KEY removes a key"
    )
    parser.add_argument("--unset", action="append", default=[], metavar="KEY", help="remove a key; may be repeated")
    parser.add_argument("--profile", metavar="NAME", help="the changes of a profile; KEY=VALUE wins over it")
    parser.add_argument("--service", choices=[str(role) for role in Role], help="change this service only")
    parser.add_argument("--list-fault-points", action="store_true", help="print the points of docs/apply.md and end")
    add_options(parser)
    # argparse takes a word like -KEY for an option, unless it looks like what it holds to be a negative number.
    parser._negative_number_matcher = _REMOVAL  # noqa: SLF001


def run(args: argparse.Namespace) -> int:
    """Plan, show, ask, apply; see `configure` and docs/apply.md for the exit codes."""
    from specdash.cli.apply_run import carry_out, deployment_of, settle_unfinished
    from specdash.cli.apply_view import StepPrinter
    from specdash.control.apply import plan_apply

    if args.list_fault_points:
        from specdash.control.faults import POINTS

        print("\n".join(POINTS))
        return 0
    changes = changes_of(args)
    deployment, options = deployment_of(args)
    printer = StepPrinter()
    if not args.dry_run:
        settle_unfinished(deployment, allowed=args.yes, printer=printer)
    plan = plan_apply(deployment, changes, profile=args.profile, env=os.environ)
    return carry_out(args, plan, options, printer)


def changes_of(args: argparse.Namespace) -> ChangeSet:
    """What the words, `--unset` and the profile ask for. Raises `UsageError` when that is nothing."""
    role = Role(args.service) if args.service is not None else None
    given = parse_assignments([*args.assignments, *(f"-{key}" for key in args.unset)], role)
    if args.profile is not None:
        from specdash.control.profiles import find_profile

        profile = find_profile(args.profile, os.environ).changes
        wanted = (role,) if role is not None else tuple(Role)
        given = ChangeSet({one: {**profile.of(one), **given.of(one)} for one in wanted})
    if not given.roles:
        raise UsageError("nothing to apply; write KEY=VALUE, --unset KEY or --profile NAME")
    return given
