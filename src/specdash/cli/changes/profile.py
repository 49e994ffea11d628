"""`specdash profile list|show|save|diff`: named sets of settings."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from specdash.cli.options import add_actions, add_service, add_settings, print_answer, print_json
from specdash.core.changes import Role, role_of
from specdash.core.config import SERVICE_SETTINGS
from specdash.core.errors import ExitCode, InputError, UsageError
from specdash.system.data import json_of
from specdash.system.text import counted, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.control.profiles import Profile

_ACTIONS = {
    "list": "list the profiles, the built-in ones and your own",
    "show": "print what a profile sets, and why",
    "save": "save the current settings as a profile of your own",
    "diff": "compare the current settings with a profile",
}
_UNSET = "--"


def configure(parser: argparse.ArgumentParser) -> None:
    parsers = add_actions(parser, _ACTIONS)
    for name, argument_parser in parsers.items():
        argument_parser.add_argument("--json", action="store_true", help="print one JSON object")
        if name != "list":
            argument_parser.add_argument("name", metavar="NAME", help="the profile")
    for name in ("save", "diff"):
        argument_parser = parsers[name]
        add_service(argument_parser, "only this service's settings")
        argument_parser.add_argument(
            "--from-file", dest="env_file", metavar="ENVFILE", help="read this env file instead of the services'"
        )
        add_settings(argument_parser, SERVICE_SETTINGS)
    save = parsers["save"]
    save.add_argument(
        "keys",
        nargs="*",
        metavar="KEY",
        help="only these keys (default: all except secrets and what belongs to this machine)",
    )
    save.add_argument("--summary", metavar="TEXT", default="", help="one line that says what it is for")
    save.add_argument("--force", action="store_true", help="replace a profile of your own with that name")
    _take_words_anywhere(save)


def run(args: argparse.Namespace) -> int:
    return {"list": _list, "show": _show, "save": _save, "diff": _diff}[args.action](args)


def _take_words_anywhere(parser: argparse.ArgumentParser) -> None:
    """Let keys stand before, between and after options: argparse by itself takes them only in one row."""
    # argparse reads the options first, and the words are unknown until then: no complaint before the end.
    plain = partial(argparse.ArgumentParser.parse_known_args, parser)

    def parse(args: Any = None, namespace: Any = None) -> Any:
        parser.parse_known_args = plain  # type: ignore[method-assign, assignment]
        try:
            given, unknown = parser.parse_known_intermixed_args(args, namespace)
        finally:
            parser.parse_known_args = parse  # type: ignore[method-assign]
        if unknown:
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        return given, unknown

    parser.parse_known_args = parse  # type: ignore[method-assign]


def _list(args: argparse.Namespace) -> int:
    from specdash.control.profiles import all_profiles, broken_profiles

    profiles, broken = all_profiles(), broken_profiles()
    document = {
        "profiles": [_as_json(profile) for profile in profiles],
        "broken": [json_of(profile, "name path reason") for profile in broken],
    }
    rows = [(profile.name, _whose(profile), profile.summary) for profile in profiles]
    rows += [(profile.name, "broken", profile.reason) for profile in broken]
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


def _save(args: argparse.Namespace) -> int:
    from specdash.control.profiles import Profile, all_profiles, save_profile

    values, left_out, files = _present_values(args)
    profile = Profile(args.name, args.summary, f"saved from {', '.join(files)}", values)
    replaces = any(profile.name == args.name and not profile.own for profile in all_profiles())
    path = save_profile(profile, replace=args.force)
    if args.json:
        print_json(
            {"path": str(path), "replaces_built_in": replaces, "left_out": left_out, "profile": _as_json(profile)}
        )
        return ExitCode.OK
    print(f"{path}: {counted(sum(map(len, values.values())), 'key')}")
    if replaces:
        print("it stands in for the built-in profile of that name now")
    if left_out:
        print(f"left out (secrets, and what belongs to this machine): {', '.join(left_out)}; name a key to have it")
    return ExitCode.OK


def _present_values(args: argparse.Namespace) -> tuple[dict[Role, dict[str, str]], list[str], list[str]]:
    """The values to save, the keys that are not among them, and the files they are in."""
    from specdash.cli.changes.env import subjects
    from specdash.control.profiles import check_value, is_machine_key
    from specdash.core.changes import is_secret
    from specdash.core.env_edit import key_help

    named = list(dict.fromkeys(args.keys))
    found = subjects(args, _roles_of(named, args.service))
    values: dict[Role, dict[str, str]] = {}
    left_out: list[str] = []
    for env_subject in found:
        there = env_subject.snapshot.values
        wanted = [key for key in named if key in there] if named else list(there)
        for key in wanted:
            if key not in named and (key_help(key) is None or is_secret(key) or is_machine_key(env_subject.role, key)):
                left_out.append(key)
                continue
            check_value(env_subject.role, key, there[key], str(env_subject.path))
            values.setdefault(env_subject.role, {})[key] = there[key]
    missing = [key for key in named if not any(key in table for table in values.values())]
    places = " or ".join(str(env_subject.path) for env_subject in found)
    if missing:
        raise InputError(f"{missing[0]}: is not set in {places}; set it first, or leave it out")
    if not values:
        raise InputError(f"nothing to save in {places}: all of its keys are secrets or belong to this machine")
    return values, left_out, [str(env_subject.path) for env_subject in found if env_subject.role in values]


def _roles_of(keys: list[str], service: str | None) -> list[Role]:
    roles: list[Role] = []
    for key in keys:
        owner = role_of(key) or (Role(service) if service is not None else None)
        if owner is None:
            raise UsageError(f"{key}: neither the backend nor the proxy reads it")
        if service is not None and owner is not Role(service):
            raise UsageError(f"{key}: belongs to the {owner}, not to the {service}; leave --service out")
        roles.append(owner)
    return list(dict.fromkeys(roles))


def _diff(args: argparse.Namespace) -> int:
    from specdash.control.profiles import find_profile

    profile = find_profile(args.name)
    compared = [_compared(entry, profile) for entry in _files_of(args, profile)]
    if args.json:
        print_json({"profile": profile.name, "services": compared})
        return ExitCode.OK
    lines: list[str] = []
    for entry in compared:
        lines += ["", f"{entry['service']}  {entry['env_file']}"]
        rows = entry["keys"]
        widths = [max(len(row[at] or "") for row in rows) for at in ("key", "shown")]
        for row in rows:
            mark = " " if row["same"] else "*"
            lines.append(f"{mark} {row['key']:<{widths[0]}}  {row['shown']:<{widths[1]}} -> {row['profile']}".rstrip())
    changes = sum(not row["same"] for entry in compared for row in entry["keys"])
    lines += [
        "",
        f"{changes} to change; specdash apply --profile {profile.name}"
        if changes
        else "all settings match the profile",
    ]
    print("\n".join(lines[1:]))
    return ExitCode.OK


def _files_of(args: argparse.Namespace, profile: Profile) -> list[Any]:
    from specdash.cli.changes.env import subjects

    roles = [role for role in profile.values if args.service in (None, str(role))]
    if not roles:
        raise UsageError(f"profile {profile.name} sets nothing of the {args.service}")
    if args.env_file is None:
        return subjects(args, roles)
    found = [subject for subject in subjects(args) if subject.role in roles]
    if not found:
        raise UsageError(f"profile {profile.name} sets nothing of the service whose file {args.env_file} is")
    return found


def _compared(entry: Any, profile: Profile) -> dict[str, Any]:
    values: Mapping[str, str] = entry.snapshot.values
    rows = [_row(entry.role, key, values.get(key), wanted) for key, wanted in profile.values[entry.role].items()]
    return {"service": str(entry.role), "env_file": str(entry.path), "exists": entry.snapshot.exists, "keys": rows}


def _row(role: Role, key: str, present: str | None, wanted: str) -> dict[str, Any]:
    from specdash.control.profiles import means_the_same
    from specdash.core.changes import shown_value
    from specdash.core.env_edit import key_help

    found = key_help(key)
    default = found.default if found is not None else None
    shown = shown_value(key, present)
    if shown is None:
        shown = f"{_UNSET} (default {default})" if default is not None else _UNSET
    return {
        "key": key,
        "present": shown_value(key, present),
        "default": default,
        "profile": wanted,
        "same": means_the_same(role, key, present or default, wanted),
        "shown": shown,
    }


def _whose(profile: Profile) -> str:
    if not profile.own:
        return profile.origin
    return "yours, in place of the built-in one" if profile.replaces else "yours"


def _as_json(profile: Profile) -> dict[str, Any]:
    return dict(json_of(profile, "name summary source origin own replaces_built_in=replaces values notes"))
