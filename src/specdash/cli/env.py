"""`specdash env show|get|set|unset|diff|history|explain`: the env files of the services. Secrets stay masked."""

from __future__ import annotations

import difflib
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specdash.cli.options import add_settings
from specdash.core.changes import Role, role_of
from specdash.core.config import SERVICE_SETTINGS
from specdash.core.errors import ExitCode, InputError, UsageError
from specdash.core.masking import MASK

if TYPE_CHECKING:
    import argparse

    from specdash.cli.env_files import Subject
    from specdash.core.key_help import KeyHelp

_ACTIONS = {
    "show": "print every assignment, with its line and what is odd about it",
    "get": "print the value of one key",
    "set": "set keys: KEY=VALUE...",
    "unset": "remove keys: KEY...",
    "diff": "compare the file with a backup, or with what KEY=VALUE... would make of it",
    "history": "list the backups, and what was changed after each",
    "explain": "say what a key means",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="{" + ",".join(_ACTIONS) + "}")
    parsers = {name: actions.add_parser(name, help=text, allow_abbrev=False) for name, text in _ACTIONS.items()}
    for name, one in parsers.items():
        one.add_argument("--json", action="store_true", help="print one JSON object")
        if name != "explain":
            one.add_argument("--service", choices=[str(role) for role in Role], help="whose env file (default: by key)")
            one.add_argument("--env-file", metavar="F", help="this file instead of the service's")
            add_settings(one, SERVICE_SETTINGS)
    parsers["get"].add_argument("key", metavar="KEY")
    parsers["get"].add_argument("--reveal", action="store_true", help="print it even if it is a secret")
    parsers["set"].add_argument("words", nargs="+", metavar="KEY=VALUE")
    parsers["unset"].add_argument("words", nargs="+", metavar="KEY")
    for name in ("set", "unset"):
        parsers[name].add_argument("--dry-run", action="store_true", help="print the difference, and change nothing")
    parsers["diff"].add_argument(
        "words",
        nargs="*",
        metavar="N | KEY=VALUE",
        help="a backup's number, or changes; default: the last that differs",
    )
    parsers["explain"].add_argument("key", metavar="KEY")


def run(args: argparse.Namespace) -> int:
    """Do what `args.action` says; see `configure`."""
    match args.action:
        case "show":
            return _show(args)
        case "get":
            return _get(args)
        case "explain":
            return _explain(args)
        case "set" | "unset":
            from specdash.cli.env_change import change

            return change(args)
        case _:
            from specdash.cli.env_versions import diff, history

            return diff(args) if args.action == "diff" else history(args)


def _show(args: argparse.Namespace) -> int:
    from specdash.cli.env_files import subjects

    found = [(one, _rows(one)) for one in subjects(args)]
    if args.json:
        print(json.dumps({"services": [_shown_json(one, rows) for one, rows in found]}, indent=1))
    else:
        print("\n\n".join("\n".join(_shown_lines(one, rows)) for one, rows in found))
    return ExitCode.OK


def _rows(subject: Subject) -> list[dict[str, Any]]:
    """Every assignment, unreadable line and trap of the file, in its order."""
    from specdash.core.env_edit import shown_text
    from specdash.core.env_remarks import remarks
    from specdash.core.envfile import traps

    file = subject.snapshot.file
    said = remarks(subject.role, file)
    rows: list[dict[str, Any]] = []
    for at, entry in enumerate(file.entries):
        notes = list(said.get(at, ()))
        if entry.problem is not None:
            rows.append({"line": entry.line, "key": None, "value": None, "notes": [f"unreadable: {entry.problem}"]})
        elif entry.key is not None:
            rows.append(
                {"line": entry.line, "key": entry.key, "value": shown_text(entry.key, entry.value), "notes": notes}
            )
    rows += [{"line": one.line, "key": None, "value": None, "notes": [one.text]} for one in traps(file)]
    return sorted(rows, key=lambda row: int(row["line"]))


def _shown_json(subject: Subject, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "service": str(subject.role),
        "name": subject.service.name if subject.service is not None else None,
        "env_file": str(subject.path),
        "exists": subject.snapshot.exists,
        "digest": subject.snapshot.digest if subject.snapshot.exists else None,
        "assignments": [row for row in rows if row["key"] is not None],
        "problems": [{"line": row["line"], "text": row["notes"][0]} for row in rows if row["key"] is None],
    }


def _shown_lines(subject: Subject, rows: list[dict[str, Any]]) -> list[str]:
    lines = [subject.words]
    width = max((len(str(row["line"])) for row in rows), default=1)
    for row in rows:
        number = f"  {row['line']:>{width}}  "
        if row["key"] is not None:
            lines.append(f"{number}{row['key']}={_written(row['value'])}")
            lines += [f"{'':{len(number)}}    {note}" for note in row["notes"]]
        else:
            lines.append(f"{number}! {row['notes'][0]}")
    return lines


def _written(value: str) -> str:
    from specdash.core.env_edit import printable
    from specdash.core.envfile import quote

    return value if value == MASK else printable(quote(value), newlines=True)


def _get(args: argparse.Namespace) -> int:
    from specdash.cli.env_files import subjects
    from specdash.core.env_edit import shown_text

    role = role_of(args.key)
    there = subjects(args, () if role is None else (role,))
    for one in there:
        one.snapshot.file.check(str(one.path))
    found = next((one for one in there if args.key in one.snapshot.values), None)
    value = found.snapshot.values[args.key] if found is not None else None
    shown = value if args.reveal else shown_text(args.key, value)
    if args.json:
        line = found.snapshot.file.line_of(args.key) if found is not None else None
        path = str(found.path) if found is not None else None
        print(json.dumps({"key": args.key, "value": shown, "masked": shown != value, "env_file": path, "line": line}))
        return ExitCode.OK if value is not None else ExitCode.FAILED
    if value is None or shown is None:
        places = " or ".join(str(one.path) for one in there)
        print(f"specdash: {args.key} is not set in {places}", file=sys.stderr)
        return ExitCode.FAILED
    if shown != value:
        raise UsageError(f"{args.key} holds a secret; add --reveal to print it")
    print(value)
    return ExitCode.OK


def _explain(args: argparse.Namespace) -> int:
    from specdash.core.key_help import all_keys, key_help
    from specdash.core.parameter_catalogue import REMOVED_KEYS

    found = key_help(args.key)
    if args.key in REMOVED_KEYS:
        raise InputError(f"{args.key}: llama.cpp removed this variable; use {REMOVED_KEYS[args.key]}")
    if found is None:
        known = [one.key for role in Role for one in all_keys(role)]
        close = difflib.get_close_matches(args.key.upper(), known, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(close)}?" if close else "docs/settings.md lists them all"
        raise InputError(f"{args.key}: no such key; {hint}")
    print(json.dumps(asdict(found), indent=1) if args.json else "\n".join(_explained(found)))
    return ExitCode.OK


def _explained(found: KeyHelp) -> list[str]:
    without = "none, or the engine's own" if found.role is Role.BACKEND else "none"
    rows = {
        "service": str(found.role),
        "values": found.values,
        "default": found.default if found.default is not None else without,
        "flags": ", ".join(found.flags),
        "read by": ", ".join(found.readers),
        "applies": "after a restart of the service" if found.restart else "when the proxy reads its file again",
        "secret": "yes: never printed" if found.secret else "",
    }
    lines = [f"{found.key}: {found.meaning}"]
    lines += [f"  {name:<8} {text}" for name, text in rows.items() if text]
    return lines + [f"  note     {note}" for note in found.notes]
