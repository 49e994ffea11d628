"""`specdash env diff|history`: the env files against their backups."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specdash.cli.env_change import changes_json, drafts, wanted
from specdash.cli.env_files import backups, subjects
from specdash.core.changes import KeyChange
from specdash.core.env_edit import masked_diff, printable, shown_text
from specdash.core.envfile import decode, parse
from specdash.core.errors import ExitCode, InputError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from specdash.cli.env_files import Subject
    from specdash.control.env_store import Backup
    from specdash.core.changes import Role

_LONGEST_VALUE = 40


@dataclass(frozen=True, slots=True)
class Difference:
    """One file against one of its backups, or against a wanted change (`backup` None)."""

    subject: Subject
    backup: Backup | None
    lines: list[str]
    changes: tuple[KeyChange, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Version:
    """A backup with the changes from it to the next version, None where one of the two is damaged. `differs` says
    whether anything was changed at all."""

    backup: Backup
    changes: tuple[KeyChange, ...] | None
    differs: bool


def diff(args: argparse.Namespace) -> int:
    """Compare each file with a backup, or with what the words would make of it."""
    words: list[str] = args.words
    if any("=" in word or word[:1] in ("!", "-") for word in words):
        found = [Difference(one.subject, None, one.diff, one.changes) for one in drafts(args, wanted(args))]
        text = [line for one in found for line in one.lines] or ["no difference: it is so already"]
    else:
        found = _against_backups(args, _number(words))
        text = [line for one in found for line in _lines(one)]
    if args.json:
        print(json.dumps({"services": [_diff_json(one) for one in found]}, indent=1))
    else:
        print("\n".join(text))
    return ExitCode.OK


def history(args: argparse.Namespace) -> int:
    """List the backups of each file, oldest first, with what changed after each."""
    found = [(one, _versions(one)) for one in subjects(args)]
    if args.json:
        print(json.dumps({"services": [_history_json(one, rows) for one, rows in found]}, indent=1))
    else:
        print("\n\n".join("\n".join(_history_lines(one, rows)) for one, rows in found))
    return ExitCode.OK


def _number(words: list[str]) -> int | None:
    if not words:
        return None
    if len(words) > 1 or not words[0].isdecimal():
        raise UsageError(f"{' '.join(words)!r}: name one backup by its number, or changes as KEY=VALUE")
    return int(words[0])


def _against_backups(args: argparse.Namespace, number: int | None) -> list[Difference]:
    files = subjects(args)
    if number is None:
        return [_against(one, _last_that_differs(one)) for one in files]
    found = [(one, kept) for one in files for kept in _of(one) if kept.number == number]
    if not found:
        raise InputError(f"there is no backup {number} of {_places(files)}; `specdash env history` lists them")
    if len(found) > 1:
        raise UsageError(f"both services have a backup {number}; add --service backend or proxy")
    return [_against(*found[0])]


def _places(files: list[Subject]) -> str:
    return " or ".join(str(one.path) for one in files)


def _of(subject: Subject) -> list[Backup]:
    return [one for one in backups().list(subject.role) if subject.is_of(one)]


def _last_that_differs(subject: Subject) -> Backup | None:
    now = (subject.snapshot.exists, subject.snapshot.digest)
    return next((one for one in reversed(_of(subject)) if (one.existed, one.digest) != now), None)


def _against(subject: Subject, backup: Backup | None) -> Difference:
    if backup is None:
        return Difference(subject, None, [], ())
    before, now = decode(backups().read(subject.role, backup.number)), subject.snapshot.file
    lines = masked_diff(before, now.text, str(subject.path))
    return Difference(subject, backup, lines, _changes(subject.role, parse(before).values, now.values))


def _lines(one: Difference) -> list[str]:
    if one.backup is None:
        return [f"{one.subject.role}  {one.subject.path}: no backup differs from it"]
    head = f"{one.subject.role}  backup {one.backup.number} of {_when(one.backup.at)}, and the file now"
    return [head, *(one.lines or ["no difference"])]


def _changes(role: Role, before: Mapping[str, str], after: Mapping[str, str]) -> tuple[KeyChange, ...]:
    keys = dict.fromkeys((*before, *after))
    pairs = ((key, before.get(key), after.get(key)) for key in keys)
    return tuple(KeyChange(role, key, old, new) for key, old, new in pairs if old != new)


def _versions(subject: Subject) -> list[Version]:
    kept = _of(subject)
    data = [_read(subject.role, one) for one in kept]
    rows: list[Version] = []
    for backup, old, new in zip(kept, data, [*data, subject.snapshot.data][1:], strict=True):
        if old is None or new is None:
            rows.append(Version(backup, None, True))
        else:
            changes = _changes(subject.role, parse(decode(old)).values, parse(decode(new)).values)
            rows.append(Version(backup, changes, old != new))
    return rows


def _read(role: Role, backup: Backup) -> bytes | None:
    try:
        return backups().read(role, backup.number)
    except InputError:
        return None


def _history_lines(subject: Subject, rows: list[Version]) -> list[str]:
    if not rows:
        return [subject.words, "  no backups yet: `specdash env set` and `specdash apply` make one before each change"]
    return [
        subject.words,
        *(f"  {one.backup.number:>4}  {_when(one.backup.at)}  {_words(one)}" for one in rows),
    ]


def _words(one: Version) -> str:
    if one.changes is None:
        return "damaged, or followed by a damaged one"
    there = "" if one.backup.existed else "no file yet; "
    if one.changes:
        return there + ", ".join(_change_words(change) for change in one.changes)
    return there + ("comments or layout" if one.differs else "nothing")


def _change_words(one: KeyChange) -> str:
    old, new = (_short(shown_text(one.key, value)) for value in (one.before, one.after))
    return f"{one.key} {old} -> {new}"


def _short(value: str | None) -> str:
    if value is None:
        return "unset"
    shown = printable(value) or "''"
    return shown if len(shown) <= _LONGEST_VALUE else shown[: _LONGEST_VALUE - 3] + "..."


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _diff_json(one: Difference) -> dict[str, Any]:
    return {
        "service": str(one.subject.role),
        "env_file": str(one.subject.path),
        "backup": one.backup.number if one.backup is not None else None,
        "changes": changes_json(one.changes),
        "diff": one.lines,
    }


def _history_json(subject: Subject, rows: list[Version]) -> dict[str, Any]:
    return {
        "service": str(subject.role),
        "env_file": str(subject.path),
        "backups": [
            {
                "number": one.backup.number,
                "at": one.backup.at,
                "digest": one.backup.digest,
                "file": str(one.backup.path),
                "existed": one.backup.existed,
                "damaged": one.changes is None,
                "changes_after": changes_json(one.changes or ()),
            }
            for one in rows
        ],
    }
