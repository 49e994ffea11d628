"""`specdash apply`: change settings, restart what must be, verify it; everything back when that fails."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from specdash.cli.options import REMOVED_KEYS, accept_as_value, add_service, check_own_machine
from specdash.core.changes import Role, parse_assignments
from specdash.core.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from specdash.core.changes import WantedValues


def configure(parser: argparse.ArgumentParser) -> None:
    from specdash.cli.changes.apply_run import add_options

    parser.add_argument(
        "assignments",
        nargs="*",
        metavar="KEY=VALUE",
        help="settings to change; -KEY, !KEY or --unset KEY removes a key",
    )
    parser.add_argument("--unset", action="append", default=[], metavar="KEY", help="remove a key; may be repeated")
    parser.add_argument("--profile", metavar="NAME", help="apply a profile; KEY=VALUE overrides it")
    parser.add_argument(
        "--from-stdin",
        action="store_true",
        help='read settings as a line of JSON, to keep secrets out of the arguments: {"backend": {"KEY": "VALUE"}}',
    )
    add_service(parser, "change this service only")
    add_options(parser)
    accept_as_value(parser, REMOVED_KEYS)


def run(args: argparse.Namespace) -> int:
    """Plan, show, ask, apply; see `configure` and docs/apply.md for the exit codes."""
    from specdash.cli.changes.apply_run import carry_out, deployment_of
    from specdash.control.plan import plan_apply

    check_own_machine(args)
    role = Role(args.service) if args.service is not None else None
    wanted = wanted_values([*args.assignments, *(f"-{key}" for key in args.unset)], role, args.profile)
    if args.from_stdin:
        given = _read_settings()
        foreign = [key for owner in given if role not in {None, owner} for key in given[owner]]
        if foreign:
            raise UsageError(
                f"--from-stdin: {foreign[0]}: belongs to another service than the {role}; leave --service out"
            )
        wanted = {key: {**wanted.get(key, {}), **given.get(key, {})} for key in Role}
    if not any(wanted.values()):
        raise UsageError("nothing to apply; write KEY=VALUE, --unset KEY or --profile NAME")
    deployment, options = deployment_of(args)
    plan = plan_apply(deployment, wanted, profile=args.profile, env=os.environ)
    return carry_out(args, plan, options)


def _read_settings() -> WantedValues:
    import sys

    try:
        return msgspec.json.decode(sys.stdin.readline(), type=dict[Role, dict[str, str | None]])
    except (msgspec.DecodeError, UnicodeError):
        # What was read may be a secret.
        raise UsageError('--from-stdin: must be a line {"backend": {"KEY": "VALUE"}, "proxy": {"KEY": null}}') from None


def wanted_values(words: list[str], role: Role | None, profile: str | None) -> WantedValues:
    """What the words ask for, over what the profile does; of the service of `role` alone where one is named. Raises
    `UsageError` naming the word."""
    given = parse_assignments(words, role)
    if profile is None:
        return given
    from specdash.control.profiles import find_profile

    named = find_profile(profile, os.environ).values
    return {key: {**named.get(key, {}), **given.get(key, {})} for key in (Role if role is None else (role,))}
