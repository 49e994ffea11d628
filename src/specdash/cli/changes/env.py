"""`specdash env show|get|set|unset|diff|history|explain`: the env files of the services. Secrets stay masked."""

from __future__ import annotations

import difflib
import os
from dataclasses import asdict, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.cli.options import (
    add_actions,
    add_service,
    add_settings,
    print_answer,
    print_json,
    resolved_settings,
    say,
)
from specdash.core.changes import Role, changes_to, differences, parse_assignments, role_of
from specdash.core.config import SERVICE_SETTINGS
from specdash.core.env_edit import (
    all_keys,
    check_value,
    key_help,
    masked_diff,
    printable,
    remarks,
    shown_text,
    unknown,
    with_changes,
)
from specdash.core.envfile import EnvFileError, decode, encode, parse, quote, traps
from specdash.core.errors import ExitCode, InputError, UnfinishedApplyError, UsageError
from specdash.core.masking import MASK
from specdash.core.parameter_catalogue import REMOVED_KEYS
from specdash.core.paths import backend_env_file, backups_dir, proxy_env_file
from specdash.system.data import dataclass, json_of
from specdash.system.text import shortened, timestamp

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping

    from specdash.control.env_store import Backup, Backups, EnvSnapshot
    from specdash.control.services.services import ManagedService
    from specdash.core.changes import Change, WantedValues
    from specdash.core.env_edit import KeyHelp


# Which env files `specdash env` is about: the one that is named, else those of the services, else specdash's own.

_OWN = {Role.BACKEND: backend_env_file, Role.PROXY: proxy_env_file}
_EITHERS_KEY = "LLAMA_CPP_BASE"
"""The proxy's, though it begins as the backend's do."""


@dataclass(frozen=True, slots=True)
class EnvSubject:
    """One env file, whose it is, and the service that reads it, where one is known."""

    role: Role
    snapshot: EnvSnapshot = field(repr=False)
    service: ManagedService | None = None

    @property
    def path(self) -> Path:
        """The file as it is named."""
        return self.snapshot.path

    @property
    def words(self) -> str:
        """Whose file it is, for a heading."""
        reader = f" ({self.service.name}, {self.service.origin})" if self.service is not None else ""
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
    from specdash.control.env_store import Backups

    return Backups(backups_dir())


def _named(path: Path, wanted: list[Role]) -> EnvSubject:
    from specdash.control.env_store import read_env

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
    from specdash.control.env_store import read_env
    from specdash.control.services.deployment import find_deployment

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


# `specdash env set|unset`: change the env files, each with a backup, and never more than what was asked for.


@dataclass(frozen=True, slots=True)
class Draft:
    """What a change would make of one env file. `diff` and `warnings` are lines without secrets."""

    subject: EnvSubject
    after: str = field(repr=False)
    changes: tuple[Change, ...]
    diff: list[str]
    warnings: list[str]


def change(args: argparse.Namespace) -> int:
    """Set or remove the keys of `args.words`."""
    made = [draft for draft in drafts(args, wanted(args)) if draft.changes or draft.warnings]
    for draft in made:
        for line in draft.warnings:
            say(f"warning: {line}")
    todo = [draft for draft in made if draft.changes]
    numbers = _write(todo) if todo and not args.dry_run else {}
    dry_run = args.dry_run
    print_answer(_as_json(todo, numbers, dry_run=dry_run), _as_text(todo, numbers, dry_run=dry_run), as_json=args.json)
    return ExitCode.OK


def wanted(args: argparse.Namespace) -> WantedValues:
    """The change that the words of the command line mean. Raises `UsageError` naming the word."""
    words: list[str] = args.words
    if args.action == "unset":
        odd = next((word for word in words if "=" in word or not word), None)
        if odd is not None:
            raise UsageError(f"{odd!r}: name the key alone, to remove it")
        words = [f"!{word}" for word in words]
    role = Role(args.service) if args.service is not None else None
    if role is not None:
        return parse_assignments(words, role)
    by_role: dict[Role | None, list[str]] = {}
    for word in words:
        key = _key(word)
        by_role.setdefault(role_of(key) or _holder(args, key), []).append(word)
    parsed = [parse_assignments(some, key) for key, some in by_role.items()]
    return {key: found for some in parsed for key, found in some.items()}


def _key(word: str) -> str:
    key, equals, _ = word.partition("=")
    return key if equals else key[1:] if key[:1] in "!-" else key


def _holder(args: argparse.Namespace, key: str) -> Role | None:
    """Whose file holds a key that neither service is known to read; None when that is not just one."""

    found = [
        subject.role for subject in subjects(args) if args.env_file is not None or key in subject.snapshot.file.values
    ]
    return found[0] if len(found) == 1 else None


def drafts(args: argparse.Namespace, wanted: WantedValues) -> list[Draft]:
    """What the change would make of each file that it is about; nothing is written.

    Raises `InputError` for a value that cannot be meant, and for a file with a line that systemd would not read.
    """

    return [
        _draft(subject, wanted.get(subject.role, {}))
        for subject in subjects(args, tuple(role for role in Role if wanted.get(role)))
    ]


def _draft(subject: EnvSubject, wanted: Mapping[str, str | None]) -> Draft:
    role, file = subject.role, subject.snapshot.file.check(str(subject.path))
    for key, value in wanted.items():
        if value is not None:
            check_value(role, key, value, _listed(file.values))
    try:
        after = with_changes(file, wanted)
    except EnvFileError as error:
        raise EnvFileError(f"{subject.path}: {error}") from None
    changes = changes_to(role, file.values, wanted)
    listed = _listed(file.values)
    said = [(given.key, unknown(role, given.key, listed)) for given in changes if given.after is not None]
    warnings = [f"{key} is {text}" for key, text in said if text is not None]
    return Draft(subject, after, changes, masked_diff(file.text, after, str(subject.path)), warnings)


def _listed(values: Mapping[str, str]) -> Callable[[str], bool]:
    """Whether the engine that a backend env chooses has a variable or spec type, by its own help."""

    def is_listed(name: str) -> bool:
        from specdash.backend.capabilities import listed_names

        return name in listed_names(values)

    return is_listed


def _write(made: list[Draft]) -> dict[Role, int]:
    """Write all files after their backups; the backups' numbers. When one cannot be written, none is."""
    from specdash.control.apply.journal import ApplyLock
    from specdash.control.env_store import check_writable, replace_env

    keys = ", ".join(change.key for draft in made for change in draft.changes)
    with ApplyLock(f"env change of {keys}"):
        _refuse_while_unfinished(made)
        for draft in made:
            check_writable(draft.subject.snapshot)
        numbers = {
            draft.subject.role: backups().save(draft.subject.role, draft.subject.snapshot).number for draft in made
        }
        written: list[tuple[EnvSnapshot, bytes]] = []
        try:
            for draft in made:
                now = replace_env(draft.subject.snapshot, encode(draft.after))
                written.append((now, draft.subject.snapshot.data))
        except BaseException:
            for now, before in written:
                replace_env(now, before)
            raise
    return numbers


def _refuse_while_unfinished(made: list[Draft]) -> None:
    """A file that an apply was changing when it was killed is `specdash recover`'s to put right first."""
    from specdash.control.apply.trial import read_trial, refuse_during_trial
    from specdash.control.apply.undo import unfinished

    trial = read_trial(os.environ)
    if trial is not None and any(str(draft.subject.path) == trial.env_file for draft in made):
        refuse_during_trial(os.environ)
    journal = unfinished(os.environ)
    if journal is None:
        return
    pending = {os.path.realpath(edit.env_file) for edit in journal.edits}
    if any(str(draft.subject.snapshot.target) in pending for draft in made):
        raise UnfinishedApplyError(f"{journal.words}; run `specdash recover` first")


def _as_text(todo: list[Draft], numbers: dict[Role, int], *, dry_run: bool) -> list[str]:
    if not todo:
        return ["nothing to change: already set"]
    lines = [line for draft in todo for line in draft.diff]
    if dry_run:
        return [*lines, "dry run: nothing was written"]
    lines += [
        f"{draft.subject.path} is written; the version before is backup {numbers[draft.subject.role]}" for draft in todo
    ]
    roles = " and the ".join(str(draft.subject.role) for draft in todo)
    verb = "keeps" if len(todo) == 1 else "keep"
    return [*lines, f"the {roles} {verb} the old settings until `specdash apply` or a restart"]


def _as_json(todo: list[Draft], numbers: dict[Role, int], *, dry_run: bool) -> dict[str, Any]:
    return {
        "changed": bool(todo) and not dry_run,
        "dry_run": dry_run,
        "in_force": "after specdash apply, or a restart" if todo and not dry_run else None,
        "services": [
            {
                "service": str(draft.subject.role),
                "env_file": str(draft.subject.path),
                "backup": numbers.get(draft.subject.role),
                "changes": changes_json(draft.changes),
                "warnings": draft.warnings,
                "diff": draft.diff,
            }
            for draft in todo
        ],
    }


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


# `specdash env diff|history`: the env files against their backups.


_LONGEST_VALUE = 40


@dataclass(frozen=True, slots=True)
class FileDifference:
    """One file against one of its backups, or against a wanted change (`backup` None)."""

    subject: EnvSubject
    backup: Backup | None
    lines: list[str]
    changes: tuple[Change, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Version:
    """A backup with the changes from it to the next version, None where one of the two is damaged. `differs` says
    whether anything was changed at all."""

    backup: Backup
    changes: tuple[Change, ...] | None
    differs: bool


def diff(args: argparse.Namespace) -> int:
    """Compare each file with a backup, or with what the words would make of it."""
    words: list[str] = args.words
    if any("=" in word or word[:1] in ("!", "-") for word in words):
        found = [FileDifference(draft.subject, None, draft.diff, draft.changes) for draft in drafts(args, wanted(args))]
        text = [line for difference in found for line in difference.lines] or ["no difference: already set"]
    else:
        found = _against_backups(args, _number(words))
        text = [line for difference in found for line in _lines(difference)]
    print_answer({"services": [_diff_json(difference) for difference in found]}, text, as_json=args.json)
    return ExitCode.OK


def history(args: argparse.Namespace) -> int:
    """List the backups of each file, oldest first, with what changed after each."""
    found = [(subject, _versions(subject)) for subject in subjects(args)]
    text = "\n\n".join("\n".join(_history_lines(subject, rows)) for subject, rows in found)
    print_answer({"services": [_history_json(subject, rows) for subject, rows in found]}, text, as_json=args.json)
    return ExitCode.OK


def _number(words: list[str]) -> int | None:
    if not words:
        return None
    if len(words) > 1 or not words[0].isdecimal():
        raise UsageError(f"{' '.join(words)!r}: name one backup by its number, or changes as KEY=VALUE")
    return int(words[0])


def _against_backups(args: argparse.Namespace, number: int | None) -> list[FileDifference]:
    files = subjects(args)
    if number is None:
        return [_against(file, _last_that_differs(file)) for file in files]
    found = [(file, kept) for file in files for kept in _of(file) if kept.number == number]
    if not found:
        raise InputError(f"there is no backup {number} of {_places(files)}; `specdash env history` lists them")
    if len(found) > 1:
        raise UsageError(f"both services have a backup {number}; add --service backend or proxy")
    return [_against(*found[0])]


def _places(files: list[EnvSubject]) -> str:
    return " or ".join(str(file.path) for file in files)


def _of(subject: EnvSubject) -> list[Backup]:
    return [backup for backup in backups().list(subject.role) if subject.is_of(backup)]


def _last_that_differs(subject: EnvSubject) -> Backup | None:
    now = (subject.snapshot.exists, subject.snapshot.digest)
    return next((backup for backup in reversed(_of(subject)) if (backup.existed, backup.digest) != now), None)


def _against(subject: EnvSubject, backup: Backup | None) -> FileDifference:
    if backup is None:
        return FileDifference(subject, None, [], ())
    before, now = decode(backups().read(subject.role, backup.number)), subject.snapshot.file
    lines = masked_diff(before, now.text, str(subject.path))
    return FileDifference(subject, backup, lines, differences(subject.role, parse(before).values, now.values))


def _lines(difference: FileDifference) -> list[str]:
    if difference.backup is None:
        return [f"{difference.subject.role}  {difference.subject.path}: no backup differs from it"]
    backup = difference.backup
    head = f"{difference.subject.role}  backup {backup.number} of {timestamp(backup.at)}, and the file now"
    return [head, *(difference.lines or ["no difference"])]


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
        return [subject.words, "  no backups yet: `specdash env set` and `specdash apply` make one before each change"]
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


def _diff_json(difference: FileDifference) -> dict[str, Any]:
    return {
        **json_of(difference, "service=subject.role env_file=subject.path diff=lines"),
        "backup": difference.backup.number if difference.backup is not None else None,
        "changes": changes_json(difference.changes),
    }


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
    "get": "print the value of one key",
    "set": "set keys: KEY=VALUE...",
    "unset": "remove keys: KEY...",
    "diff": "compare the file with a backup, or show what KEY=VALUE... would change",
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
    parsers["get"].add_argument("key", metavar="KEY")
    parsers["get"].add_argument("--reveal", action="store_true", help="print it even if it is a secret")
    parsers["set"].add_argument("words", nargs="+", metavar="KEY=VALUE")
    parsers["unset"].add_argument("words", nargs="+", metavar="KEY")
    for name in ("set", "unset"):
        parsers[name].add_argument(
            "--dry-run", action="store_true", help="show the difference without changing anything"
        )
    parsers["diff"].add_argument(
        "words",
        nargs="*",
        metavar="N | KEY=VALUE",
        help="a backup's number, or changes (default: the latest backup that differs)",
    )
    parsers["explain"].add_argument("key", metavar="KEY")


def run(args: argparse.Namespace) -> int:
    actions = {"show": _show, "get": _get, "set": change, "unset": change, "diff": diff, "history": history}
    return {**actions, "explain": _explain}[args.action](args)


def _show(args: argparse.Namespace) -> int:
    found = [(subject, _rows(subject)) for subject in subjects(args)]
    text = "\n\n".join("\n".join(_shown_lines(subject, rows)) for subject, rows in found)
    print_answer({"services": [_shown_json(subject, rows) for subject, rows in found]}, text, as_json=args.json)
    return ExitCode.OK


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


def _get(args: argparse.Namespace) -> int:
    role = role_of(args.key)
    there = subjects(args, () if role is None else (role,))
    for env_subject in there:
        env_subject.snapshot.file.check(str(env_subject.path))
    found = next((env_subject for env_subject in there if args.key in env_subject.snapshot.values), None)
    value = found.snapshot.values[args.key] if found is not None else None
    shown = value if args.reveal else shown_text(args.key, value)
    if args.json:
        line = found.snapshot.file.line_of(args.key) if found is not None else None
        path = str(found.path) if found is not None else None
        print_json({"key": args.key, "value": shown, "masked": shown != value, "env_file": path, "line": line})
        return ExitCode.OK if value is not None else ExitCode.FAILED
    if value is None or shown is None:
        places = " or ".join(str(env_subject.path) for env_subject in there)
        say(f"{args.key} is not set in {places}")
        return ExitCode.FAILED
    if shown != value:
        raise UsageError(f"{args.key} holds a secret; add --reveal to print it")
    print(value)
    return ExitCode.OK


def _explain(args: argparse.Namespace) -> int:
    found = key_help(args.key)
    if args.key in REMOVED_KEYS:
        raise InputError(f"{args.key}: llama.cpp removed this variable; use {REMOVED_KEYS[args.key]}")
    if found is None:
        known = [key.key for role in Role for key in all_keys(role)]
        close = difflib.get_close_matches(args.key.upper(), known, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(close)}?" if close else "docs/settings.md lists them all"
        raise InputError(f"{args.key}: no such key; {hint}")
    print_answer(asdict(found), _explained(found), as_json=args.json)
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
