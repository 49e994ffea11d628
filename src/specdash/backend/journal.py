"""What a running apply has done so far, on the disk before it is done: enough to finish it, or to undo it; the lock
that lets one apply run at a time, and the list of those that are finished.

The journal holds both versions of each env file, so that undoing it needs nothing else; it is gone once the apply is
recorded.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from specdash.backend.env_store import read_env, replace_env, writing
from specdash.backend.rules import scrubbed
from specdash.core.changes import ApplyKind, ApplyRecord, ApplyStep, Change, Role
from specdash.core.envfile import decode, parse
from specdash.core.errors import ConflictError, InputError, NotWrittenError
from specdash.core.paths import apply_journal_file, apply_lock_file
from specdash.core.records import JsonRecord, read
from specdash.core.structs import Masked
from specdash.system import files
from specdash.system.processes import same_process
from specdash.system.text import clock, timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Note = TypeVar("Note", bound=JsonRecord)
_LONGEST_NOTE = 64 * 1024


class Edit(Masked, Struct, frozen=True):
    """One env file: whose it is, what it held, and what it shall hold. Planned, then noted in the journal with the
    number of the `backup`. Holds secrets."""

    hidden = ("old", "new")

    role: Role
    env_file: str
    old: bytes
    new: bytes
    existed: bool
    changes: tuple[Change, ...]
    """Masked where it was noted by 0.1."""
    needs_restart: bool
    """Whether the process has to end for the change: always for the engine, for some keys of the proxy."""
    backup: int = 0

    @property
    def old_digest(self) -> str:
        """SHA-256 of the old bytes."""
        return hashlib.sha256(self.old).hexdigest()

    @property
    def new_digest(self) -> str:
        """SHA-256 of the new bytes."""
        return hashlib.sha256(self.new).hexdigest()

    def values(self, *, new: bool) -> dict[str, str]:
        """Key to value of one of the versions."""
        return parse(decode(self.new if new else self.old)).values

    def write(self) -> None:
        """Put the new version in the place of the old; nothing where it is there already.

        Raises `ConflictError` when the file holds neither: it was edited. Raises `NotWrittenError`.
        """
        now = read_env(Path(self.env_file))
        if now.data not in (self.old, self.new):
            raise ConflictError(f"{self.env_file} was edited meanwhile; that version was left as it is")
        if now.data != self.new or not now.exists:
            replace_env(now, self.new)

    def put_back(self) -> bool:
        """The old version back; False when it was there. Raises as `write`."""
        now = read_env(Path(self.env_file))
        with contextlib.suppress(OSError), files.locked(now.target.parent):
            pass  # the draft that a killed write left goes with the lock
        if now.data not in (self.old, self.new):
            raise ConflictError(
                f"{self.env_file} was edited meanwhile; that version was left as it is, and the one from before is "
                f"backup {self.backup} of `specdash env history`"
            )
        if now.data == self.old and now.exists is self.existed:
            return False
        if self.existed:
            replace_env(now, self.old)
        else:
            now.target.unlink(missing_ok=True)
        return True


class HeldProxy(Struct, frozen=True):
    """A proxy that is, or is about to be, held."""

    pid: int
    pid_started: float
    url: str


class Journal(JsonRecord, Struct, frozen=True):
    """One apply that has not ended. `pid` is the process that works on it."""

    number: int
    kind: ApplyKind
    at: float
    pid: int
    pid_started: float
    step: ApplyStep
    edits: tuple[Edit, ...]
    profile: str | None = None
    url: str | None = None
    drain_timeout_s: float = 120.0
    health_timeout_s: float = 600.0
    settle_s: float = 15.0
    trial: bool = False
    """Whether it is a step of a trial, which is measured next and goes back in the end."""
    force: bool = False
    held: tuple[HeldProxy, ...] = ()
    written: tuple[Role, ...] = ()
    """Env files that may hold the new version."""
    touched: tuple[Role, ...] = ()
    """Services that may run another version than the old one: they were asked to restart or reload."""
    failed_step: ApplyStep | None = None
    """The step that it rolls back from; None while it goes forward."""
    reason: str = ""
    log_lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What was cut short, in a line without secrets."""
        where = (
            f"at step {self.step}" if self.failed_step is None else f"while it was rolling back from {self.failed_step}"
        )
        return f"{self.kind} {self.number} of {timestamp(self.at)} ({self.what}) was cut short {where}"

    @property
    def changes(self) -> tuple[Change, ...]:
        """Those of all edits."""
        return tuple(change for edit in self.edits for change in edit.changes)

    @property
    def what(self) -> str:
        """The changes in a line, secrets masked."""
        return describe(self.changes)

    def edit(self, role: Role) -> Edit | None:
        """The edit of one service."""
        return next((edit for edit in self.edits if edit.role is role), None)

    def scrub(self, text: str) -> str:
        """The text without a secret of any version of the env files."""
        return scrubbed(text, *(edit.values(new=new) for edit in self.edits for new in (True, False)))


def describe(changes: tuple[Change, ...], most: int = 4) -> str:
    """Changes in a line without secrets: `LLAMA_DRAFT_MAX 4 -> 8, LLAMA_DRAFT_MIN unset -> 2`."""

    def side(value: str | None) -> str:
        return "unset" if value is None else value or "''"

    masked = (change.masked for change in changes[:most])
    shown = [f"{change.key} {side(change.before)} -> {side(change.after)}" for change in masked]
    rest = [f"{len(changes) - most} more"] if len(changes) > most else []
    return ", ".join(shown + rest) or "no change"


def read_note(path: Path, kind: type[Note], what: str) -> Note | None:
    """The note that a file holds, if there is one; `what` names its kind. Raises `InputError` for one that cannot be
    read."""
    try:
        return read(kind, json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(
            f"{path} is not a {what} of this version of specdash ({error}); compare the env files with "
            "`specdash env history`, then move it away"
        ) from None


def write_note(path: Path, note: JsonRecord) -> None:
    """Replace the note, mode 0600; on the disk when we return. Raises `NotWrittenError`, with the last one still
    there."""
    with writing(path):
        files.replace(path, note.to_json().encode())


def remove_note(path: Path) -> None:
    """Nothing is left to be done by it."""
    path.unlink(missing_ok=True)
    files.sweep(path.parent, path.name)
    with contextlib.suppress(OSError):
        files.sync_directory(path.parent)


def unfinished(env: Mapping[str, str] = os.environ) -> Journal | None:
    """The apply that was cut short; None when there is none, or the one there is still runs. Raises `InputError`."""
    journal = read_note(apply_journal_file(env), Journal, "journal")
    return None if journal is None or same_process(journal.pid, journal.pid_started) else journal


@contextlib.contextmanager
def apply_lock(what: str, env: Mapping[str, str] = os.environ) -> Iterator[None]:
    """One apply at a time, across processes: a lock that the kernel gives back, however its holder ends. The file
    stays; it says who holds the lock, since when, and what for.

    Raises `ConflictError` naming the holder, `NotWrittenError` when the file cannot be made.
    """
    path = apply_lock_file(env)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise NotWrittenError(f"{path}: {error.strerror or error}; nothing was changed") from None
    with contextlib.closing(os.fdopen(descriptor, "rb", buffering=0)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = file.read(_LONGEST_NOTE).decode("utf-8", "replace")
            raise ConflictError(
                f"another apply is running{f' ({holder})' if holder else ''}; wait for its end"
            ) from None

        def note(text: str) -> None:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, text.encode(), 0)

        note(f"pid {os.getpid()}, since {clock(time.time())}: {what}")
        try:
            yield
        finally:
            note("")


def read_records(path: Path) -> tuple[ApplyRecord, ...]:
    """All finished applies, oldest first; lines that are none are passed over. Raises `InputError`."""
    return tuple(record for line in read_lines(path) if (record := ApplyRecord.from_json(line)))


def read_lines(path: Path) -> list[bytes]:
    """The lines of a file of records, none where there is no such file. Raises `InputError`."""
    try:
        return path.read_bytes().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; it cannot be read") from None


def next_number(records: tuple[ApplyRecord, ...]) -> int:
    """The number of the apply that comes next."""
    return max((record.number for record in records), default=0) + 1


def append_record(path: Path, record: ApplyRecord) -> None:
    """Add one line, mode 0600, synced. Raises `NotWrittenError`."""
    with writing(path, f"{{}}: apply {record.number} is not in the list of applies"):
        files.make_directories(path.parent)
        files.append_line(path, record.to_json().encode())
