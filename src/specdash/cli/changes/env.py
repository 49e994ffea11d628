"""`specdash env show|history|explain`: the env files of the services. Secrets stay masked."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.cli.options import add_actions, add_service, add_settings, print_answer, resolved_settings
from specdash.core.changes import Role, differences, role_of, shown_value
from specdash.core.config import SERVICE_SETTINGS
from specdash.core.env_edit import all_keys, key_help, printable
from specdash.core.envfile import decode, parse, quote
from specdash.core.errors import ExitCode, InputError, UsageError
from specdash.core.masking import MASK
from specdash.core.parameter_catalogue import REMOVED_KEYS
from specdash.core.paths import backups_dir
from specdash.core.structs import Masked, json_of
from specdash.system.text import shortened, timestamp

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from specdash.backend.env_store import Backup, EnvSnapshot
    from specdash.control.deployment import Service
    from specdash.core.changes import Change
    from specdash.core.env_edit import KeyHelp

_ACTIONS = {
    "show": "print every setting with its line number",
    "history": "list the backups, and what was changed after each",
    "explain": "explain what a key means",
}
_PROXYS_KEY = "LLAMA_CPP_BASE"
"""It begins as the backend's do."""
_LONGEST_VALUE = 40


class EnvSubject(Masked, Struct, frozen=True):
    """One env file, whose it is, and the service that reads it, where one is known."""

    hidden = ("snapshot",)

    role: Role
    snapshot: EnvSnapshot
    service: Service | None = None

    @property
    def words(self) -> str:
        """Whose file it is, for a heading."""
        manager = self.service.manager() if self.service is not None else ""
        reader = f" (it runs: {manager})" if manager else ""
        missing = "" if self.snapshot.exists else ": there is no such file yet"
        return f"{self.role}  {self.snapshot.path}{reader}{missing}"

    @property
    def is_known(self) -> bool:
        """Whether there is the file, or a service that would read it."""
        return self.snapshot.exists or self.service is not None


def configure(parser: argparse.ArgumentParser) -> None:
    parsers = add_actions(parser, _ACTIONS)
    for name, argument_parser in parsers.items():
        argument_parser.add_argument("--json", action="store_true", help="print one JSON object")
        if name != "explain":
            add_service(argument_parser, "whose env file (default: by key)")
            argument_parser.add_argument("--env-file", metavar="F", help="this file instead of the service's")
            add_settings(argument_parser, SERVICE_SETTINGS)
    parsers["explain"].add_argument("key", metavar="KEY")


def run(args: argparse.Namespace) -> int:
    return {"show": _show, "history": _history, "explain": _explain}[args.action](args)


def subjects(args: argparse.Namespace) -> list[EnvSubject]:
    """The files, the backend's first: of `--service`, else of both.

    Raises `InputError` for a file that cannot be read, and where both are asked for and neither is there.
    """
    from specdash.backend.env_store import read_env

    role = Role(args.service) if args.service is not None else None
    if args.env_file is not None:
        snapshot = read_env(Path(args.env_file).expanduser())
        return [EnvSubject(role or _role_by_keys(snapshot), snapshot)]
    found = subjects_of_services(args, [role] if role is not None else list(Role))
    known = [subject for subject in found if role is not None or subject.is_known]
    if not known:
        raise no_env_file(found)
    return known


def subjects_of_services(args: argparse.Namespace, roles: list[Role]) -> list[EnvSubject]:
    """The files that the services read or would read, whether they are there or not."""
    from specdash.backend.env_store import read_env
    from specdash.control.deployment import default_env_file, find_deployment

    deployment = find_deployment(resolved_settings(args))
    found = []
    for role in roles:
        service = deployment.service(role)
        path = service.env_file if service is not None else default_env_file(role, os.environ)
        found.append(EnvSubject(role, read_env(path), service))
    return found


def no_env_file(subjects: Iterable[EnvSubject]) -> InputError:
    """That there is neither a service nor any of these files."""
    places = " or ".join(str(subject.snapshot.path) for subject in subjects)
    return InputError(f"no service and no env file found; name one with --env-file, or write {places}")


def _role_by_keys(snapshot: EnvSnapshot) -> Role:
    """Whose file it is, by most of its keys."""
    if not snapshot.exists:
        raise InputError(f"env file {snapshot.path}: no such file; name another one with --env-file")
    roles = [Role.PROXY if key == _PROXYS_KEY else role_of(key) for key in snapshot.file.values]
    if roles.count(Role.BACKEND) == roles.count(Role.PROXY):
        raise UsageError(f"{snapshot.path}: its keys do not tell whose it is; add --service backend or proxy")
    return max(Role, key=roles.count)


def _history(args: argparse.Namespace) -> int:
    """List the backups of each file, oldest first, with what changed after each."""
    documents, lines = [], []
    for subject in subjects(args):
        lines += ["", subject.words]
        backups = []
        for backup, changes, words in _versions(subject):
            lines.append(f"  {backup.number:>4}  {timestamp(backup.at)}  {words}")
            after = [
                {
                    "key": change.key,
                    "before": shown_value(change.key, change.before),
                    "after": shown_value(change.key, change.after),
                }
                for change in changes or ()
            ]
            known = {**json_of(backup, "number at digest existed"), "file": str(backup.path)}
            backups.append({**known, "damaged": changes is None, "changes_after": after})
        lines += [] if backups else ["  no backups yet: `specdash apply` makes one before each change"]
        file = str(subject.snapshot.path)
        documents.append({"service": str(subject.role), "env_file": file, "backups": backups})
    print_answer({"services": documents}, lines[1:], as_json=args.json)
    return ExitCode.OK


def _versions(subject: EnvSubject) -> list[tuple[Backup, tuple[Change, ...] | None, str]]:
    """Each backup with the changes from it to the next version, None where one of the two is damaged, and in words."""
    from specdash.backend.env_store import Backups

    backups = Backups(backups_dir())
    path, snapshot = subject.snapshot.path.absolute(), subject.snapshot
    kept = [backup for backup in backups.list(subject.role) if backup.original in (None, path, snapshot.target)]
    data: list[bytes | None] = []
    for backup in kept:
        try:
            data.append(backups.read(subject.role, backup.number))
        except InputError:
            data.append(None)
    rows: list[tuple[Backup, tuple[Change, ...] | None, str]] = []
    for backup, old, new in zip(kept, data, [*data, snapshot.data][1:], strict=True):
        if old is None or new is None:
            rows.append((backup, None, "damaged, or followed by a damaged one"))
            continue
        changes = differences(subject.role, parse(decode(old)).values, parse(decode(new)).values)
        words = ", ".join(
            f"{change.key} {_short(shown_value(change.key, change.before))} -> "
            f"{_short(shown_value(change.key, change.after))}"
            for change in changes
        )
        there = "" if backup.existed else "no file yet; "
        rows.append((backup, changes, there + (words or ("comments or layout" if old != new else "nothing"))))
    return rows


def _short(value: str | None) -> str:
    return "unset" if value is None else shortened(printable(value) or "''", _LONGEST_VALUE)


def _show(args: argparse.Namespace) -> int:
    documents, lines = [], []
    for subject in subjects(args):
        snapshot, rows = subject.snapshot, _rows(subject)
        lines += ["", subject.words, *_shown_lines(rows)]
        documents.append(
            {
                "service": str(subject.role),
                "name": subject.service.name if subject.service is not None else None,
                "env_file": str(snapshot.path),
                "exists": snapshot.exists,
                "digest": snapshot.digest if snapshot.exists else None,
                "assignments": [row for row in rows if row["key"] is not None],
                "problems": [{"line": row["line"], "text": row["notes"][0]} for row in rows if row["key"] is None],
            }
        )
    print_answer({"services": documents}, lines[1:], as_json=args.json)
    return ExitCode.OK


def _rows(subject: EnvSubject) -> list[dict[str, Any]]:
    """Every assignment, unreadable line and trap of the file, in its order."""
    entries = subject.snapshot.file.entries
    last = {entry.key: entry.line for entry in entries}
    rows: list[dict[str, Any]] = []
    for entry in entries:
        if entry.problem is not None:
            rows.append({"line": entry.line, "key": None, "value": None, "notes": [f"unreadable: {entry.problem}"]})
        elif entry.key is not None:
            again = last[entry.key]
            notes = [f"ineffective: line {again} sets it again"] if again != entry.line else []
            value = shown_value(entry.key, entry.value)
            rows.append({"line": entry.line, "key": entry.key, "value": value, "notes": notes})
        elif entry.trap is not None:
            rows.append({"line": entry.line, "key": None, "value": None, "notes": [str(entry.trap)]})
    return rows


def _shown_lines(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    width = max((len(str(row["line"])) for row in rows), default=1)
    for row in rows:
        number = f"  {row['line']:>{width}}  "
        if row["key"] is None:
            lines.append(f"{number}! {row['notes'][0]}")
            continue
        value = row["value"]
        lines.append(f"{number}{row['key']}={value if value == MASK else printable(quote(value), newlines=True)}")
        lines += [f"{'':{len(number)}}    {note}" for note in row["notes"]]
    return lines


def _explain(args: argparse.Namespace) -> int:
    found = key_help(args.key)
    if args.key in REMOVED_KEYS:
        raise InputError(f"{args.key}: llama.cpp removed this variable; use {REMOVED_KEYS[args.key]}")
    if found is None:
        known = [key.key for role in Role for key in all_keys(role)]
        close = difflib.get_close_matches(args.key.upper(), known, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(close)}?" if close else "docs/settings.md lists them all"
        raise InputError(f"{args.key}: no such key; {hint}")
    print_answer(json_of(found), _explained(found), as_json=args.json)
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
