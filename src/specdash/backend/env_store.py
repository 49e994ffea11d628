"""Env files on the disk: read with what is needed to tell whether they changed, replaced whole or not at all, and every
version kept."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from specdash.core.envfile import EnvFile, decode, parse, read_values
from specdash.core.errors import ConflictError, InputError, NotWrittenError
from specdash.core.structs import Masked
from specdash.system import files
from specdash.system.files import user_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdash.core.changes import Role

_LARGEST = 4 * 1024 * 1024
_SLACK = 4096
"""Room for a few more lines, in bytes, when a write is rehearsed."""


class EnvSnapshot(Masked, Struct, frozen=True):
    """An env file at one moment. `target` is the file that `path` leads to, through its symlinks."""

    hidden = ("data",)

    path: Path
    target: Path
    data: bytes
    exists: bool
    mode: int
    uid: int
    gid: int

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes, as run records name a version."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def file(self) -> EnvFile:
        """The entries; unreadable lines are among them."""
        return parse(decode(self.data))

    @property
    def model(self) -> Path | None:
        """The file whose mode, owner and attributes a new version keeps; None where there is none. Raises
        `NotWrittenError` where this user cannot keep its owner."""
        me, groups = os.geteuid(), (os.getegid(), *os.getgroups())
        if self.exists and me and (self.uid != me or self.gid not in groups):
            mine, owner = user_name(me), f"{user_name(self.uid)}:{self.gid}"
            raise NotWrittenError(
                f"{self.path} was not written, and is as it was: it belongs to {owner}, which user {mine} cannot keep; "
                f"run the command as its owner, or take it over with `sudo chown {mine}: {self.target}`"
            )
        return self.target if self.exists else None

    @property
    def values(self) -> dict[str, str]:
        """Key to value, secrets included. Raises `EnvFileError` for a line that cannot be read."""
        return read_values(self.data, str(self.path))


def read_env(path: Path) -> EnvSnapshot:
    """The file as it is now; one that is missing is empty and does not exist. Raises `InputError`."""
    target = Path(os.path.realpath(path))
    try:
        facts = target.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise InputError(f"env file {path}: is not a regular file")
        data = files.read_bounded(target, _LARGEST)
    except FileNotFoundError:
        return EnvSnapshot(path, target, b"", False, 0o600, os.geteuid(), os.getegid())
    except OSError as error:
        raise InputError(f"env file {path}: {error.strerror or error}") from None
    return EnvSnapshot(path, target, data, True, stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid)


@contextlib.contextmanager
def writing(path: Path, failed: str = "{} was not written, and is as it was") -> Iterator[None]:
    """Errors of the disk in words: `ConflictError` where others write there for long, else `NotWrittenError`."""
    try:
        yield
    except files.BusyError as error:
        raise ConflictError(str(error)) from None
    except OSError as error:
        why, fix = files.reason(path, error)
        raise NotWrittenError(f"{failed.format(path)}: {why}", fix) from None


def check_writable(snapshot: EnvSnapshot) -> None:
    """Raise `NotWrittenError` if `replace_env` would, as far as a draft that is removed at once shows it: directory and
    file system writable, owner kept, space for the file and a few more lines."""
    directory = snapshot.target.parent
    while not directory.exists():
        directory = directory.parent
    with writing(snapshot.path):
        files.temporary(directory / "check", bytes(len(snapshot.data) + _SLACK), snapshot.model).unlink()
        if snapshot.exists and os.geteuid() == 0 and not os.access(snapshot.target, os.W_OK):
            raise PermissionError(errno.EPERM, "immutable")


def replace_env(snapshot: EnvSnapshot, data: bytes) -> EnvSnapshot:
    """Put `data` in place of the file, whole or not at all, and on the disk when we return; the new snapshot.

    Mode, owner and extended attributes stay; a new file gets mode 0600, and missing directories 0700. Raises
    `ConflictError` when the file is not as the snapshot has it, and `NotWrittenError`.
    """
    directory = snapshot.target.parent
    with writing(snapshot.path):
        files.make_directories(directory)
        with files.locked(directory):
            now = _unchanged(snapshot)
            draft = files.temporary(snapshot.target, data, now.model)
            with files.gone_on_failure(draft):
                _unchanged(snapshot)
                draft.replace(snapshot.target)
    try:
        files.sync_directory(directory)
    except OSError as error:
        raise NotWrittenError(
            f"{snapshot.path} has its new content, but the disk did not confirm it ({error.strerror}); check the disk"
        ) from None
    return replace(now, data=data, exists=True)


def _unchanged(snapshot: EnvSnapshot) -> EnvSnapshot:
    try:
        now = read_env(snapshot.path)
    except InputError as error:
        raise ConflictError(f"{error}: it was changed since it was read; run the command again") from None
    if (now.target, now.exists, now.data) != (snapshot.target, snapshot.exists, snapshot.data):
        raise ConflictError(f"{snapshot.path} was changed since it was read; run the command again")
    return now


class Backup(Struct, frozen=True):
    """One kept version of an env file, in the file `path`. `at` is when it was saved, in Unix time, `original` the env
    file; `existed` False stands for no file at all."""

    number: int
    at: float
    digest: str
    path: Path
    original: Path
    existed: bool


class Backups:
    """Versions of env files, numbered by role. Numbers only grow; nothing is ever overwritten or deleted.

    `<role>/<NNNN>.env` holds the version, `<NNNN>.json` whose it is. The latter takes the number and is written first,
    so that a version whose `.env` is there is whole.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, role: Role, snapshot: EnvSnapshot) -> Backup:
        """Keep the snapshot; on the disk when we return. Raises `NotWrittenError`."""
        folder = self._directory / role
        file, at = os.fsdecode(snapshot.path.absolute()), time.time()
        about = {"file": file, "existed": snapshot.exists, "at": at, "digest": snapshot.digest}
        with writing(folder / "backup", f"no backup of {snapshot.path} could be kept in {folder}"):
            files.make_directories(folder)
            with files.locked(folder):
                number = max((int(path.stem) for path in folder.iterdir() if path.stem.isdecimal()), default=0) + 1
                path = folder / f"{number:04d}.env"
                files.create(path.with_suffix(".json"), json.dumps(about).encode())
                files.replace(path, snapshot.data)
        return Backup(number, at, snapshot.digest, path, Path(file), snapshot.exists)

    def list(self, role: Role) -> tuple[Backup, ...]:
        """All versions of a role whose note can be read, oldest first."""
        found = []
        for path in sorted((self._directory / role).glob("*.env"), key=lambda path: int(path.stem)):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                about = json.loads(path.with_suffix(".json").read_bytes())
                rest = float(about["at"]), about["digest"], path, Path(about["file"]), bool(about["existed"])
                found.append(Backup(int(path.stem), *rest))
        return tuple(found)

    def read(self, role: Role, number: int) -> bytes:
        """The bytes of one version. Raises `InputError` when there is none, or it is not as it was saved."""
        backup = next((backup for backup in self.list(role) if backup.number == number), None)
        if backup is None:
            raise InputError(f"the {role} has no backup {number}; `specdash env history` lists them")
        try:
            data = backup.path.read_bytes()
        except OSError as error:
            raise InputError(f"backup {backup.path}: {error.strerror or error}") from None
        if backup.digest != hashlib.sha256(data).hexdigest():
            raise InputError(f"backup {backup.path} is damaged: it is not what was saved; use another one")
        return data

    def keep_good(self, role: Role, file: Path, data: bytes) -> None:
        """Keep the version of this env file that serves, in place of the one before. Raises `NotWrittenError`."""
        if self.good(role, file) != data:
            with writing(self._good(role, file)):
                files.replace(self._good(role, file), data)

    def good(self, role: Role, file: Path) -> bytes | None:
        """The version of this env file that served last; None where none is kept."""
        with contextlib.suppress(OSError):
            return self._good(role, file).read_bytes()
        return None

    def _good(self, role: Role, file: Path) -> Path:
        name = hashlib.sha256(os.fsencode(os.path.realpath(file))).hexdigest()[:16]
        return self._directory / role / f"good-{name}"
