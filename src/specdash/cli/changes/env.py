"""`specdash env show|history|explain`: the env files of the services. Secrets stay masked."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.cli.options import (
    add_actions,
    add_service,
    add_settings,
    print_answer,
    resolved_settings,
)
from specdash.core.changes import Role, differences, role_of
from specdash.core.config import SERVICE_SETTINGS
from specdash.core.env_edit import (
    all_keys,
    key_help,
    printable,
    remarks,
    shown_text,
)
from specdash.core.envfile import decode, parse, quote, traps
from specdash.core.errors import ExitCode, InputError, UsageError
from specdash.core.masking import MASK
from specdash.core.parameter_catalogue import REMOVED_KEYS
from specdash.core.paths import backend_env_file, backups_dir, proxy_env_file
from specdash.core.structs import Masked, json_of
from specdash.system.text import shortened, timestamp

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping

    from specdash.backend.env_store import Backup, Backups, EnvSnapshot
    from specdash.control.deployment import Service
    from specdash.core.changes import Change
    from specdash.core.env_edit import KeyHelp


# Which env files `specdash env` is about: the one that is named, else those of the services, else specdash's own.

_OWN = {Role.BACKEND: backend_env_file, Role.PROXY: proxy_env_file}
_EITHERS_KEY = "LLAMA_CPP_BASE"
"""The proxy's, though it begins as the backend's do."""


class EnvSubject(Masked, Struct, frozen=True):
    """One env file, whose it is, and the service that reads it, where one is known."""

    hidden = ("snapshot",)

    role: Role
    snapshot: EnvSnapshot
    service: Service | None = None

    @property
    def path(self) -> Path:
        """The file as it is named."""
        return self.snapshot.path

    @property
    def words(self) -> str:
        """Whose file it is, for a heading."""
        manager = self.service.manager() if self.service is not None else ""
        reader = f" (it runs: {manager})" if manager else ""
        missing = "" if self.snapshot.exists else ": there is no such file yet"
        return f"{self.role}  {self.path}{reader}{missing}"

    @property
    def is_known(self) -> bool:
        """Whether there is the file, or a service that would read it."""
        return self.snapshot.exists or self.service is not None

    def is_of(self, backup: Backup) -> bool:
        """Whether a backup is a version of this file."""
        return backup.original in (None, self.path.absolute(), self.snapshot.target)


def subjects(args: argparse.Namespace, roles: Iterable[Role] = ()) -> list[EnvSubject]:
    """The files, the backend's first: of `--service`, else of `roles`, else of both.

    Raises `InputError` for a file that cannot be read, and where both are asked for and neither is there.
    """
    role = Role(args.service) if args.service is not None else None
    wanted = [role] if role is not None else [role for role in Role if role in tuple(roles)]
    if args.env_file is not None:
        return [_named(Path(args.env_file).expanduser(), wanted)]
    found = subjects_of_services(args, wanted or list(Role))
    if wanted:
        return found
    known = [subject for subject in found if subject.is_known]
    if not known:
        raise no_env_file(found)
    return known


def no_env_file(subjects: Iterable[EnvSubject]) -> InputError:
    """That there is neither a service nor any of these files."""
    places = " or ".join(str(subject.path) for subject in subjects)
    return InputError(f"no service and no env file found; name one with --env-file, or write {places}")


def backups() -> Backups:
    """The versions that are kept."""
    from specdash.backend.env_store import Backups

    return Backups(backups_dir())


def _named(path: Path, wanted: list[Role]) -> EnvSubject:
    from specdash.backend.env_store import read_env

    snapshot = read_env(path)
    if len(wanted) > 1:
        raise UsageError(f"the keys belong to both services, and {path} to one; leave --env-file out")
    return EnvSubject(wanted[0] if wanted else _role_by_keys(snapshot), snapshot)


def _role_by_keys(snapshot: EnvSnapshot) -> Role:
    if not snapshot.exists:
        raise InputError(f"env file {snapshot.path}: no such file; name another one with --env-file")
    values = snapshot.file.values
    roles = [role_of(key) for key in values if key != _EITHERS_KEY]
    counts = {role: roles.count(role) for role in Role}
    if counts[Role.BACKEND] == counts[Role.PROXY]:
        if _EITHERS_KEY in values:
            return Role.PROXY
        raise UsageError(f"{snapshot.path}: its keys do not tell whose it is; add --service backend or proxy")
    return max(counts, key=lambda role: counts[role])


def subjects_of_services(args: argparse.Namespace, roles: list[Role]) -> list[EnvSubject]:
    """The files that the services read or would read, whether they are there or not."""
    from specdash.backend.env_store import read_env
    from specdash.control.deployment import find_deployment

    settings = resolved_settings(args)
    deployment = find_deployment(settings)
    found = []
    for role in roles:
        service, named = deployment.service(role), settings[f"{role}_env_file"].value
        if service is not None:
            path = service.env_file
        else:
            path = Path(named).expanduser() if named is not None else _OWN[role](os.environ)
        found.append(EnvSubject(role, read_env(path), service))
    return found


def changes_json(changes: tuple[Change, ...]) -> list[dict[str, Any]]:
    """Changes as JSON, secrets masked."""
    return [
        {
            "key": change.key,
            "before": shown_text(change.key, change.before),
            "after": shown_text(change.key, change.after),
        }
        for change in changes
    ]


_LONGEST_VALUE = 40


class Version(Struct, frozen=True):
    """A backup with the changes from it to the next version, None where one of the two is damaged. `differs` says
    whether anything was changed at all."""

    backup: Backup
    changes: tuple[Change, ...] | None
    differs: bool


def history(args: argparse.Namespace) -> int:
    """List the backups of each file, oldest first, with what changed after each."""
    found = [(subject, _versions(subject)) for subject in subjects(args)]
    text = "\n\n".join("\n".join(_history_lines(subject, rows)) for subject, rows in found)
    print_answer({"services": [_history_json(subject, rows) for subject, rows in found]}, text, as_json=args.json)
    return ExitCode.OK


def _of(subject: EnvSubject) -> list[Backup]:
    return [backup for backup in backups().list(subject.role) if subject.is_of(backup)]


def _versions(subject: EnvSubject) -> list[Version]:
    kept = _of(subject)
    data = [_read(subject.role, backup) for backup in kept]
    rows: list[Version] = []
    for backup, old, new in zip(kept, data, [*data, subject.snapshot.data][1:], strict=True):
        if old is None or new is None:
            rows.append(Version(backup, None, True))
        else:
            changes = differences(subject.role, parse(decode(old)).values, parse(decode(new)).values)
            rows.append(Version(backup, changes, old != new))
    return rows


def _read(role: Role, backup: Backup) -> bytes | None:
    try:
        return backups().read(role, backup.number)
    except InputError:
        return None


def _history_lines(subject: EnvSubject, rows: list[Version]) -> list[str]:
    if not rows:
        return [subject.words, "  no backups yet: `specdash apply` makes one before each change"]
    return [
        subject.words,
        *(f"  {row.backup.number:>4}  {timestamp(row.backup.at)}  {_words(row)}" for row in rows),
    ]


def _words(version: Version) -> str:
    if version.changes is None:
        return "damaged, or followed by a damaged one"
    there = "" if version.backup.existed else "no file yet; "
    if version.changes:
        return there + ", ".join(_change_words(change) for change in version.changes)
    return there + ("comments or layout" if version.differs else "nothing")


def _change_words(key_change: Change) -> str:
    old, new = (_short(shown_text(key_change.key, value)) for value in (key_change.before, key_change.after))
    return f"{key_change.key} {old} -> {new}"


def _short(value: str | None) -> str:
    if value is None:
        return "unset"
    shown = printable(value) or "''"
    return shortened(shown, _LONGEST_VALUE)


def _history_json(subject: EnvSubject, rows: list[Version]) -> dict[str, Any]:
    return {
        **json_of(subject, "service=role env_file=path"),
        "backups": [
            {
                **json_of(row.backup, "number at digest file=path existed"),
                "damaged": row.changes is None,
                "changes_after": changes_json(row.changes or ()),
            }
            for row in rows
        ],
    }


_ACTIONS = {
    "show": "print every setting with its line number and any remarks",
    "history": "list the backups, and what was changed after each",
    "explain": "explain what a key means",
}


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
    return {"show": _show, "history": history, "explain": _explain}[args.action](args)


def _show(args: argparse.Namespace) -> int:
    found = [(subject, _rows(subject)) for subject in subjects(args)]
    text = "\n\n".join("\n".join(_shown_lines(subject, rows)) for subject, rows in found)
    print_answer({"services": [_shown_json(subject, rows) for subject, rows in found]}, text, as_json=args.json)
    return ExitCode.OK


def _listed(values: Mapping[str, str]) -> Callable[[str], bool]:
    """Whether the engine that a backend env chooses has a variable or spec type, by its own help."""

    def is_listed(name: str) -> bool:
        from specdash.backend.engines import listed_names

        return name in listed_names(values)

    return is_listed


def _rows(subject: EnvSubject) -> list[dict[str, Any]]:
    """Every assignment, unreadable line and trap of the file, in its order."""
    file = subject.snapshot.file
    said = remarks(subject.role, file, _listed(file.values))
    rows: list[dict[str, Any]] = []
    for at, entry in enumerate(file.entries):
        notes = list(said.get(at, ()))
        if entry.problem is not None:
            rows.append({"line": entry.line, "key": None, "value": None, "notes": [f"unreadable: {entry.problem}"]})
        elif entry.key is not None:
            value = shown_text(entry.key, entry.value)
            rows.append({"line": entry.line, "key": entry.key, "value": value, "notes": notes})
    rows += [{"line": trap.line, "key": None, "value": None, "notes": [str(trap.problem)]} for trap in traps(file)]
    return sorted(rows, key=lambda row: int(row["line"]))


def _shown_json(subject: EnvSubject, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "service": str(subject.role),
        "name": subject.service.name if subject.service is not None else None,
        "env_file": str(subject.path),
        "exists": subject.snapshot.exists,
        "digest": subject.snapshot.digest if subject.snapshot.exists else None,
        "assignments": [row for row in rows if row["key"] is not None],
        "problems": [{"line": row["line"], "text": row["notes"][0]} for row in rows if row["key"] is None],
    }


def _shown_lines(subject: EnvSubject, rows: list[dict[str, Any]]) -> list[str]:
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
    return value if value == MASK else printable(quote(value), newlines=True)


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
