"""`specdash profile list|show`: named sets of settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdash.cli.options import add_actions, print_answer, print_json
from specdash.core.errors import ExitCode
from specdash.core.structs import json_of
from specdash.system.text import table

if TYPE_CHECKING:
    import argparse

    from specdash.control.profiles import Profile

_ACTIONS = {
    "list": "list the profiles, the built-in ones and your own",
    "show": "print what a profile sets, and why",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parsers = add_actions(parser, _ACTIONS)
    for name, argument_parser in parsers.items():
        argument_parser.add_argument("--json", action="store_true", help="print one JSON object")
        if name != "list":
            argument_parser.add_argument("name", metavar="NAME", help="the profile")


def run(args: argparse.Namespace) -> int:
    return _list(args) if args.action == "list" else _show(args)


def _list(args: argparse.Namespace) -> int:
    from specdash.control.profiles import all_profiles

    every = all_profiles()
    profiles, broken = [one for one in every if not one.broken], [one for one in every if one.broken]
    document = {
        "profiles": [_as_json(profile) for profile in profiles],
        "broken": [{"name": profile.name, "path": profile.origin, "reason": profile.broken} for profile in broken],
    }
    rows = [(profile.name, _whose(profile), profile.summary) for profile in profiles]
    rows += [(profile.name, "broken", profile.broken) for profile in broken]
    print_answer(document, table(rows), as_json=args.json)
    return ExitCode.OK


def _show(args: argparse.Namespace) -> int:
    from specdash.control.profiles import find_profile
    from specdash.core.env_edit import key_help

    profile = find_profile(args.name)
    if args.json:
        print_json(_as_json(profile))
        return ExitCode.OK
    lines = [f"{profile.name}  {_whose(profile)}", *([profile.summary] if profile.summary else [])]
    lines += [f"source: {profile.source}"] if profile.source else []
    for role, values in profile.values.items():
        lines += ["", f"{role}"]
        width = max((len(f"{key}={value}") for key, value in values.items()), default=0)
        for key, value in values.items():
            found = key_help(key)
            lines.append(f"  {f'{key}={value}':<{width}}  {found.meaning if found is not None else ''}".rstrip())
    lines += ["", *(f"* {note}" for note in profile.notes)] if profile.notes else []
    print("\n".join(lines))
    return ExitCode.OK


def _whose(profile: Profile) -> str:
    if not profile.own:
        return profile.origin
    return "yours, in place of the built-in one" if profile.replaces else "yours"


def _as_json(profile: Profile) -> dict[str, Any]:
    return {**json_of(profile, "name summary source origin own values notes"), "replaces_built_in": profile.replaces}
