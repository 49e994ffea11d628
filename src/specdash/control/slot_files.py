"""The files of saved slots: where the server keeps them, what was saved from here, and whether one can be restored."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from specdash.control import safe_file
from specdash.core import paths
from specdash.core.errors import InputError, NotWrittenError, RefusedError, SpecdashError
from specdash.core.field_types import is_sound
from specdash.core.parameter_catalogue import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psutil

    from specdash.core.target import Target

MOST_RECORDS = 500
_MAGIC = (b"qsgg", b"ggsq")
_PART = ".specdash-part"
_FLAG = BY_NAME["slot-save-path"]
_LATER_S = 2.0
_DANGER = "llama.cpp can end on a file that is cut off or of another model"
_ONLY_EMPTIED = "if it is not, the slot ends up empty"


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """One saved slot: as it was saved from here, or, with fewer facts, as the directory shows it."""

    filename: str
    at: float
    """Unix time."""
    url: str = ""
    tokens: int | None = None
    bytes: int | None = None
    model: str | None = None
    """Path or name of the model that it is of."""
    model_bytes: int | None = None
    """Size of the model's file, where it can be seen from here: another file of the same name is another model."""
    directory: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Where it is: a newer one of the same key takes its place."""
        return (self.directory or self.url, self.filename)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> SavedSlot | None:
        """What `to_json` wrote, None for anything else. Fields of newer versions are ignored."""
        try:
            values: dict[str, Any] = json.loads(text)
            known = {one.name for one in fields(cls)}
            saved = cls(**{name: value for name, value in values.items() if name in known})
        except (ValueError, TypeError, AttributeError):
            return None
        return saved if is_sound(saved) else None


def save_directory(target: Target, env: Mapping[str, str] = os.environ) -> Path | None:
    """The `--slot-save-path` of a server on this machine, None where it cannot be seen or is not set.

    Read from the process's arguments, which is what it was really started with; in a container of its own, its paths
    are not ours.
    """
    del env
    pid = target.pid if target.pid is not None else _listener(target)
    if pid is None:
        return None
    import psutil

    try:
        process = psutil.Process(pid)
        written = _argument(process.cmdline()) or _embedded_assignment(process)
        for child in process.children(recursive=True) if written is None else ():
            written = written or _argument(child.cmdline()) or _embedded_assignment(child)
        if written is None or not _same_files(pid):
            return None
        directory = Path(process.cwd() if not written.startswith("/") else "/", written)
    except (psutil.Error, OSError, ValueError):
        return None
    return directory if directory.is_dir() else None


def saved_slots(target: Target, directory: Path | None, env: Mapping[str, str] = os.environ) -> tuple[SavedSlot, ...]:
    """What can be restored, the newest first: of the directory where it can be seen, else what was saved from here."""
    known = {one.key: one for one in read_saved(env)}
    if directory is None:
        mine = [one for one in known.values() if one.url == target.url]
        return tuple(sorted(mine, key=lambda one: -one.at))
    found = []
    with contextlib.suppress(OSError):
        for file in directory.iterdir():
            if _PART in file.name or not _is_saved_slot(file):
                continue
            with contextlib.suppress(OSError):
                stat = file.stat()
                record = known.get((str(directory), file.name))
                plain = SavedSlot(file.name, stat.st_mtime, bytes=stat.st_size, directory=str(directory))
                found.append(record if record is not None and record.bytes == stat.st_size else plain)
    return tuple(sorted(found, key=lambda one: -one.at))


def check_restorable(
    target: Target,
    directory: Path | None,
    filename: str,
    model: str | None,
    context: int | None,
    env: Mapping[str, str] = os.environ,
    *,
    unchecked: bool = False,
) -> tuple[str, ...]:
    """What is to be said before the file is restored. Raises `InputError` or `RefusedError` when it must not be: also
    when nothing is known of the file and the server may end on it, unless it may be `unchecked`."""
    key = (str(directory) if directory is not None else target.url, filename)
    record = next((one for one in reversed(read_saved(env)) if one.key == key), None)
    if directory is not None:
        record = _still_so(record, directory / filename)
    if record is None:
        words = f"{filename} was not saved by specdash, so nothing tells whether it is whole and of this model"
        if directory is not None and _only_attention(model):
            return (f"{words}; {_ONLY_EMPTIED}",)
        if not unchecked:
            raise RefusedError(f"{words}; {_DANGER}; `specdash slots restore --unchecked` restores it all the same")
        return (f"{words}; {_DANGER}",)
    if record.model is not None and model is not None and record.model != model:
        raise RefusedError(
            f"{filename} was saved of the model {record.model}, and {target.url} runs {model}; {_DANGER}"
        )
    size = model_size(model) if directory is not None else None
    if size is not None and record.model_bytes not in (None, size):
        raise RefusedError(f"{filename} was saved of another file than {model} is now; {_DANGER}")
    if record.tokens is not None and context is not None and record.tokens > context:
        raise RefusedError(f"{filename} holds {record.tokens} tokens, and a slot has room for {context}")
    return ()


def _only_attention(model: str | None) -> bool:
    """Whether the model's file can be seen from here and says that it has a plain KV cache: then the server refuses a
    file that does not fit. With recurrent states it ends; what it does with a sliding window was not tried."""
    from specdash.control.preflight.models import cached_facts
    from specdash.core.speculation import MemoryKind
    from specdash.llama.gguf import GgufError
    from specdash.llama.model_shape import shape_of

    if model is None or not model.startswith("/"):
        return False
    try:
        shape = shape_of(cached_facts(model))
    except GgufError:
        return False
    return shape is not None and shape.memory is MemoryKind.ATTENTION


def model_size(model: str | None) -> int | None:
    """Size of a model's file in bytes, None where it is not a file that can be seen."""
    try:
        return Path(model).stat().st_size if model is not None and model.startswith("/") else None
    except (OSError, ValueError):
        return None


class Writing:
    """A save under way: the server writes beside the file's place, and `finish` puts it there whole.

    Where the directory cannot be seen or written, the server writes the file itself. A context manager: what is left of
    an interrupted save is removed.
    """

    def __init__(self, directory: Path | None, filename: str) -> None:
        self._directory = directory if directory is not None and os.access(directory, os.W_OK | os.X_OK) else None
        self._filename = filename
        self.name = filename
        """What to call it in the request."""
        if self._directory is not None:
            self.name = f".{secrets.token_hex(6)}{_PART}"

    @property
    def is_beside(self) -> bool:
        """Whether the server does not write the file in its place."""
        return self._directory is not None

    @property
    def aftermath(self) -> str:
        """What a save that failed leaves, in words."""
        if self._directory is None:
            return f"a part of {self._filename} may be left in the server's directory"
        free = ""
        with contextlib.suppress(OSError):
            free = f", where {shutil.disk_usage(self._directory).free / 2**20:.1f} MiB are free"
        return f"nothing was left in {self._directory}{free}"

    def __enter__(self) -> Self:
        if self._directory is not None:
            _sweep(self._directory)
        return self

    def __exit__(self, *_: object) -> None:
        if self._directory is not None:
            with contextlib.suppress(OSError):
                (self._directory / self.name).unlink()

    def finish(self, size: int | None) -> str | None:
        """Put the file in its place; its path, None where it cannot be seen. Raises `NotWrittenError`."""
        if self._directory is None:
            return None
        part, place = self._directory / self.name, self._directory / self._filename
        try:
            with part.open("rb") as file:
                # It holds a prompt; and only a file that belongs to us can be closed to others.
                with contextlib.suppress(OSError):
                    os.fchmod(file.fileno(), 0o600)
                os.fsync(file.fileno())
                written = os.fstat(file.fileno()).st_size
            if size is not None and written != size:
                raise NotWrittenError(f"{place}: {written} of {size} bytes were written; the old file is as it was")
            part.replace(place)
            safe_file.sync_directory(self._directory)
        except FileNotFoundError:
            words = f"the server says that it was saved, and there is no such file in {self._directory}"
            raise NotWrittenError(f"{place} was not written, and is as it was: {words}") from None
        except OSError as error:
            raise safe_file.not_written(place, error) from None
        return str(place)


def read_saved(env: Mapping[str, str] = os.environ) -> tuple[SavedSlot, ...]:
    """What was saved from here, oldest first; lines that are none are passed over."""
    try:
        lines = paths.saved_slots_file(env).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    found = (SavedSlot.from_json(line) for line in lines)
    return tuple(one for one in found if one is not None)


def remember(saved: SavedSlot, env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Keep what was saved, so that a restore can be checked; what to say when that fails."""
    path = paths.saved_slots_file(env)
    try:
        safe_file.make_directories(path.parent)
        with safe_file.locked(path.parent, path.name):
            kept = [one for one in read_saved(env) if one.key != saved.key][-MOST_RECORDS + 1 :]
            text = "".join(f"{one.to_json()}\n" for one in (*kept, saved))
            safe_file.replace(path, text.encode())
    except (OSError, SpecdashError) as error:
        return (f"{path}: {error}; a restore of {saved.filename} cannot be checked",)
    return ()


def _still_so(record: SavedSlot | None, file: Path) -> SavedSlot | None:
    """The record when the file is what was saved, None when somebody wrote it anew. Raises when it must not be used."""
    try:
        stat = file.stat()
    except FileNotFoundError:
        raise InputError(f"{file}: no such file; `specdash slots` lists what was saved") from None
    except OSError:
        return record
    size = stat.st_size
    if record is not None and record.bytes is not None and size < record.bytes:
        raise RefusedError(f"{file} holds {size} of the {record.bytes} bytes that were saved; {_DANGER}")
    if not _is_saved_slot(file, unreadable=True):
        raise RefusedError(f"{file} is no saved slot; {_DANGER}")
    changed = record is not None and (size != record.bytes or stat.st_mtime > record.at + _LATER_S)
    return None if changed else record


def _is_saved_slot(file: Path, *, unreadable: bool = False) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(4) in _MAGIC
    except OSError:
        return unreadable and not file.is_dir()


def _sweep(directory: Path) -> None:
    """Remove what saves of killed specdashes left; one that runs at the same time has written within the hour."""
    import time

    with contextlib.suppress(OSError):
        for left in directory.glob(f".*{_PART}"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > 3600:
                    left.unlink()


def _listener(target: Target) -> int | None:
    from specdash.collect.processes import listening_pid, local_port

    port = local_port(target.url)
    return listening_pid(port) if port is not None else None


def _argument(command: list[str]) -> str | None:
    found = None
    for position, word in enumerate(command):
        flag, equals, inline = word.partition("=")
        if flag.replace("_", "-") in _FLAG.flags:
            following = command[position + 1] if position + 1 < len(command) else None
            found = inline if equals else following
    return found


def _embedded_assignment(process: psutil.Process) -> str | None:
    """The assignment that `backend.embedded` was started with."""
    from specdash.backend.embedded import ASSIGNMENTS_VARIABLE
    from specdash.collect.command_line import EMBEDDED_MODULE

    if EMBEDDED_MODULE not in process.cmdline():
        return None
    try:
        found = json.loads(process.environ().get(ASSIGNMENTS_VARIABLE, "[]"))
    except ValueError:
        return None
    written = next((one[-1] for one in found if one[:1] == [_FLAG.name]), None) if isinstance(found, list) else None
    return written if isinstance(written, str) and written else None


def _same_files(pid: int) -> bool:
    """Whether the process sees the same file system as we."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")  # noqa: PTH115
    except OSError:
        # Without /proc there are no such namespaces; with it, the process is somebody else's.
        return not Path("/proc/self/ns/mnt").exists()
