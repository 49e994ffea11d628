"""`specdash env set|unset`: change the env files, each with a backup, and never more than what was asked for."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specdash.core.changes import ChangeSet, Role, parse_assignments, role_of
from specdash.core.errors import ExitCode, UnfinishedApplyError, UsageError

if TYPE_CHECKING:
    import argparse

    from specdash.cli.env_files import Subject
    from specdash.control.env_store import EnvSnapshot
    from specdash.core.changes import KeyChange


@dataclass(frozen=True, slots=True)
class Draft:
    """What a change would make of one env file. `diff` and `warnings` are lines without secrets."""

    subject: Subject
    after: str = field(repr=False)
    changes: tuple[KeyChange, ...]
    diff: list[str]
    warnings: list[str]


def change(args: argparse.Namespace) -> int:
    """Set or remove the keys of `args.words`."""
    made = [one for one in drafts(args, wanted(args)) if one.changes or one.warnings]
    for one in made:
        for line in one.warnings:
            print(f"specdash: warning: {line}", file=sys.stderr)
    todo = [one for one in made if one.changes]
    numbers = _write(todo) if todo and not args.dry_run else {}
    if args.json:
        print(json.dumps(_as_json(todo, numbers, dry_run=args.dry_run), indent=1))
    else:
        print("\n".join(_as_text(todo, numbers, dry_run=args.dry_run)))
    return ExitCode.OK


def wanted(args: argparse.Namespace) -> ChangeSet:
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
    parsed = [parse_assignments(some, one) for one, some in by_role.items()]
    return ChangeSet({one: found for some in parsed for one, found in some.values.items()})


def _key(word: str) -> str:
    key, equals, _ = word.partition("=")
    return key if equals else key[1:] if key[:1] in "!-" else key


def _holder(args: argparse.Namespace, key: str) -> Role | None:
    """Whose file holds a key that neither service is known to read; None when that is not just one."""
    from specdash.cli.env_files import subjects

    found = [one.role for one in subjects(args) if args.env_file is not None or key in one.snapshot.file.values]
    return found[0] if len(found) == 1 else None


def drafts(args: argparse.Namespace, change_set: ChangeSet) -> list[Draft]:
    """What the change would make of each file that it is about; nothing is written.

    Raises `InputError` for a value that cannot be meant, and for a file with a line that systemd would not read.
    """
    from specdash.cli.env_files import subjects

    return [_draft(one, change_set) for one in subjects(args, change_set.roles)]


def _draft(subject: Subject, change_set: ChangeSet) -> Draft:
    from specdash.core.env_edit import masked_diff, with_changes
    from specdash.core.env_remarks import check_value, unknown
    from specdash.core.envfile import EnvFileError

    role, file = subject.role, subject.snapshot.file.check(str(subject.path))
    asked = change_set.of(role)
    for key, value in asked.items():
        if value is not None:
            check_value(role, key, value)
    try:
        after = with_changes(file, asked)
    except EnvFileError as error:
        raise EnvFileError(f"{subject.path}: {error}") from None
    changes = change_set.changes(role, file.values)
    said = [(one.key, unknown(role, one.key)) for one in changes if one.after is not None]
    warnings = [f"{key} {text}" for key, text in said if text is not None]
    return Draft(subject, after, changes, masked_diff(file.text, after, str(subject.path)), warnings)


def _write(made: list[Draft]) -> dict[Role, int]:
    """Write all files after their backups; the backups' numbers. When one cannot be written, none is."""
    from specdash.cli.env_files import backups
    from specdash.control.apply_lock import ApplyLock
    from specdash.control.env_store import check_writable, replace_env
    from specdash.core.envfile import encode

    keys = ", ".join(change.key for one in made for change in one.changes)
    with ApplyLock(f"env change of {keys}"):
        _refuse_while_unfinished(made)
        for one in made:
            check_writable(one.subject.snapshot)
        numbers = {one.subject.role: backups().save(one.subject.role, one.subject.snapshot).number for one in made}
        written: list[tuple[EnvSnapshot, bytes]] = []
        try:
            for one in made:
                now = replace_env(one.subject.snapshot, encode(one.after))
                written.append((now, one.subject.snapshot.data))
        except BaseException:
            for now, before in written:
                replace_env(now, before)
            raise
    return numbers


def _refuse_while_unfinished(made: list[Draft]) -> None:
    """A file that an apply was changing when it was killed is `specdash recover`'s to put right first."""
    from specdash.control.recover import unfinished
    from specdash.control.trial import read_trial, refuse_during_trial

    trial = read_trial(os.environ)
    if trial is not None and any(str(one.subject.path) == trial.env_file for one in made):
        refuse_during_trial(os.environ)
    journal = unfinished(os.environ)
    if journal is None:
        return
    pending = {os.path.realpath(edit.env_file) for edit in journal.edits}
    if any(str(one.subject.snapshot.target) in pending for one in made):
        raise UnfinishedApplyError(f"{journal.words}; run `specdash recover` first")


def _as_text(todo: list[Draft], numbers: dict[Role, int], *, dry_run: bool) -> list[str]:
    if not todo:
        return ["nothing to change: it is so already"]
    lines = [line for one in todo for line in one.diff]
    if dry_run:
        return [*lines, "dry run: nothing was written"]
    lines += [
        f"{one.subject.path} is written; the version before is backup {numbers[one.subject.role]}" for one in todo
    ]
    roles = " and the ".join(str(one.subject.role) for one in todo)
    verb = "goes" if len(todo) == 1 else "go"
    return [*lines, f"the {roles} {verb} on with the old settings until `specdash apply`, or a restart"]


def _as_json(todo: list[Draft], numbers: dict[Role, int], *, dry_run: bool) -> dict[str, Any]:
    return {
        "changed": bool(todo) and not dry_run,
        "dry_run": dry_run,
        "in_force": "after specdash apply, or a restart" if todo and not dry_run else None,
        "services": [
            {
                "service": str(one.subject.role),
                "env_file": str(one.subject.path),
                "backup": numbers.get(one.subject.role),
                "changes": changes_json(one.changes),
                "warnings": one.warnings,
                "diff": one.diff,
            }
            for one in todo
        ],
    }


def changes_json(changes: tuple[KeyChange, ...]) -> list[dict[str, Any]]:
    """Changes as JSON, secrets masked."""
    from specdash.core.env_edit import shown_text

    return [
        {"key": one.key, "before": shown_text(one.key, one.before), "after": shown_text(one.key, one.after)}
        for one in changes
    ]
