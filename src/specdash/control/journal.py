"""What a running apply has done so far, on the disk before it is done: enough to finish it, or to undo it.

One JSON file, mode 0600, replaced whole and synced at every transition. It holds both versions of each env file, so
that recovery needs nothing else; it is gone once the apply is recorded.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from specdash.collect.processes import same_process
from specdash.control import safe_file
from specdash.core.applies import ApplyKind, Step, StoredChange
from specdash.core.changes import KeyChange, Role
from specdash.core.envfile import parse
from specdash.core.errors import InputError, NotWrittenError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

Note = TypeVar("Note")


class Phase(StrEnum):
    """Which way an apply is going."""

    APPLYING = "applying"
    ROLLING_BACK = "rolling back"


@dataclass(frozen=True, slots=True)
class Before:
    """A service as it was before the apply. `speculative` is None where that could not be told."""

    running: bool
    healthy: bool = False
    speculative: bool | None = None
    main_pid: int | None = None
    engine_pid: int | None = None
    digest: str | None = None
    """The version of the env file that it ran, where its run record tells."""


@dataclass(frozen=True, slots=True)
class JournalEdit:
    """One env file: what it held, what it shall hold, and whose it is."""

    role: Role
    service: str
    manager: str
    env_file: str
    old: bytes = field(repr=False)
    new: bytes = field(repr=False)
    existed: bool
    backup: int
    changes: tuple[StoredChange, ...]
    needs_restart: bool
    before: Before

    @property
    def old_digest(self) -> str:
        """SHA-256 of the old bytes."""
        return hashlib.sha256(self.old).hexdigest()

    @property
    def new_digest(self) -> str:
        """SHA-256 of the new bytes."""
        return hashlib.sha256(self.new).hexdigest()

    @property
    def key_changes(self) -> tuple[KeyChange, ...]:
        """The changes with their values. Holds secrets."""
        old, new = self.values(new=False), self.values(new=True)
        return tuple(KeyChange(self.role, one.key, old.get(one.key), new.get(one.key)) for one in self.changes)

    def values(self, *, new: bool) -> dict[str, str]:
        """Key to value of one of the versions. Holds secrets."""
        return parse((self.new if new else self.old).decode("utf-8", "replace")).values


@dataclass(frozen=True, slots=True)
class HeldProxy:
    """A proxy that is, or is about to be, held."""

    pid: int
    pid_started: float
    url: str


@dataclass(frozen=True, slots=True)
class Journal:
    """One apply that has not ended. `pid` is the process that works on it."""

    number: int
    kind: ApplyKind
    at: float
    pid: int
    pid_started: float
    step: Step
    edits: tuple[JournalEdit, ...]
    phase: Phase = Phase.APPLYING
    profile: str | None = None
    url: str | None = None
    drain_timeout_s: float = 120.0
    health_timeout_s: float = 600.0
    settle_s: float = 15.0
    trial: bool = False
    """Whether it is a step of a trial, which is measured next and goes back in the end."""
    force: bool = False
    held: tuple[HeldProxy, ...] = ()
    touched: tuple[Role, ...] = ()
    """Services that may run another version than the old one: they were asked to restart or reload."""
    failed_step: Step | None = None
    reason: str = ""
    log_lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What was cut short, in a line without secrets."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at))
        where = f"while it was rolling back from {self.failed_step}" if self.phase is Phase.ROLLING_BACK else ""
        return f"{self.kind} {self.number} of {when} ({self.what}) was cut short {where or f'at step {self.step}'}"

    @property
    def what(self) -> str:
        """The changes in a line, secrets masked."""
        return describe(tuple(change for edit in self.edits for change in edit.changes))

    def edit(self, role: Role) -> JournalEdit | None:
        """The edit of one service."""
        return next((one for one in self.edits if one.role is role), None)

    def to_json(self) -> str:
        """One JSON object."""
        data = asdict(self)
        for edit in data["edits"]:
            edit |= {name: base64.b64encode(edit[name]).decode() for name in ("old", "new")}
        return json.dumps(data, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Journal:
        """The journal. Raises ValueError, KeyError or TypeError when the text is none."""
        data: dict[str, Any] = json.loads(text)
        failed = data["failed_step"]
        data |= {
            "kind": ApplyKind(data["kind"]),
            "step": Step(data["step"]),
            "phase": Phase(data["phase"]),
            "failed_step": Step(failed) if failed else None,
            "edits": tuple(_edit(one) for one in data["edits"]),
            "held": tuple(HeldProxy(**one) for one in data["held"]),
            "touched": tuple(Role(one) for one in data["touched"]),
            "log_lines": tuple(data["log_lines"]),
            "warnings": tuple(data["warnings"]),
        }
        return cls(**data)


def _edit(data: dict[str, Any]) -> JournalEdit:
    decoded = {name: base64.b64decode(data[name], validate=True) for name in ("old", "new")}
    return JournalEdit(
        **data
        | decoded
        | {
            "role": Role(data["role"]),
            "changes": tuple(StoredChange(**one) for one in data["changes"]),
            "before": Before(**data["before"]),
        }
    )


def describe(changes: tuple[StoredChange, ...], most: int = 4) -> str:
    """Changes in a line: `LLAMA_DRAFT_MAX 4 -> 8, LLAMA_DRAFT_MIN unset -> 2`."""

    def side(value: str | None) -> str:
        return "unset" if value is None else value or "''"

    shown = [f"{one.key} {side(one.before)} -> {side(one.after)}" for one in changes[:most]]
    rest = [f"{len(changes) - most} more"] if len(changes) > most else []
    return ", ".join(shown + rest) or "no change"


class JournalFile:
    """The file of the one apply that may be under way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Journal | None:
        """The journal that is there. Raises `InputError` for one that cannot be read."""
        return read_note(self.path, Journal.from_json, "journal")

    def write(self, journal: Journal) -> None:
        """Replace it; on the disk when we return. Raises `NotWrittenError`, with the last one still there."""
        try:
            safe_file.make_directories(self.path.parent)
            safe_file.replace(self.path, journal.to_json().encode())
            safe_file.sync_directory(self.path.parent)
        except OSError as error:
            raise NotWrittenError(f"{self.path}: {error.strerror or error}; the apply cannot go on safely") from None

    def remove(self) -> None:
        """The apply is over."""
        self.path.unlink(missing_ok=True)
        safe_file.sweep(self.path.parent, self.path.name)
        with contextlib.suppress(OSError):
            safe_file.sync_directory(self.path.parent)


def read_note(path: Path, read: Callable[[str], Note], what: str) -> Note | None:
    """What is noted in a file of ours, None where there is none. Raises `InputError` for what cannot be read; `what`
    says for what it should be one."""
    try:
        return read(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is no {what} of this version of specdash ({error}); compare the env files with "
            "`specdash env history`, then move it away"
        ) from None


def journal_file(env: Mapping[str, str] = os.environ) -> JournalFile:
    """Where the journal of this user's applies is."""
    from specdash.core.paths import apply_journal_file

    return JournalFile(apply_journal_file(env))


def unfinished(env: Mapping[str, str] = os.environ) -> Journal | None:
    """The apply that was cut short; None when there is none, or the one there is still runs. Raises `InputError`."""
    journal = journal_file(env).read()
    if journal is None or same_process(journal.pid, journal.pid_started):
        return None
    return journal
