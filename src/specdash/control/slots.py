"""What the slots of a llama-server hold: list it, save it to a file, restore it, erase it.

Looking changes nothing: a sleeping server is not woken, a router's model is not loaded. Changing has two parts: `plan`
reads and refuses, `carry_out` does it. llama.cpp (b11434) takes a slot number modulo the number of slots, waits for a
busy slot, and aborts on a file that is cut off or, with recurrent memory, of another model; so all of that is refused
here before anything is sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from specdash.core import paths
from specdash.core.errors import InputError, NotWrittenError, RefusedError, SpecdashError, UnreachableError, UsageError
from specdash.core.parameter_catalogue import BY_NAME
from specdash.core.records import JsonRecord
from specdash.llama.blocking import BlockingClient
from specdash.llama.server_answers import (
    ParseError,
    error_message,
    is_loading,
    load_object,
    natural,
    parse_props,
    parse_slots,
)
from specdash.system import files
from specdash.system.data import dataclass
from specdash.system.http import HttpReply, NoConnectionError, words
from specdash.system.text import size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import psutil

    from specdash.core.readings import Props, Slots
    from specdash.core.target import Target


# The files of saved slots: where the server keeps them, what was saved from here, and whether one can be restored.

MOST_RECORDS = 500
_MAGIC = (b"qsgg", b"ggsq")
_PART = ".specdash-part"
_FLAG = BY_NAME["slot-save-path"]
_LATER_S = 2.0
_DANGER = "llama.cpp can end on a file that is cut off or of another model"
_ONLY_EMPTIED = "if it is not, the slot ends up empty"


@dataclass(frozen=True, slots=True)
class SavedSlot(JsonRecord):
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


def save_directory(target: Target) -> Path | None:
    """The `--slot-save-path` of a server on this machine, None where it cannot be seen or is not set.

    Read from the process's arguments, which is what it was really started with; in a container of its own, its paths
    are not ours.
    """
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
    known = {saved_slot.key: saved_slot for saved_slot in read_saved(env)}
    if directory is None:
        mine = [saved_slot for saved_slot in known.values() if saved_slot.url == target.url]
        return tuple(sorted(mine, key=lambda saved_slot: -saved_slot.at))
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
    return tuple(sorted(found, key=lambda saved_slot: -saved_slot.at))


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
    record = next((slot for slot in reversed(read_saved(env)) if slot.key == key), None)
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
    from specdash.core.speculation import MemoryKind
    from specdash.llama.gguf import GgufError, cached_facts
    from specdash.llama.model_facts import shape_of

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


class SlotSave:
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
            free = f", where {size(shutil.disk_usage(self._directory).free, exact=True)} are free"
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
            files.put(part, place)
            files.sync_directory(self._directory)
        except FileNotFoundError:
            words = f"the server says that it was saved, and there is no such file in {self._directory}"
            raise NotWrittenError(f"{place} was not written, and is as it was: {words}") from None
        except OSError as error:
            raise NotWrittenError(files.not_written(place, error)) from None
        return str(place)


def read_saved(env: Mapping[str, str] = os.environ) -> tuple[SavedSlot, ...]:
    """What was saved from here, oldest first; lines that are none are passed over."""
    try:
        lines = paths.saved_slots_file(env).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    found = (SavedSlot.from_json(line) for line in lines)
    return tuple(saved_slot for saved_slot in found if saved_slot is not None)


def remember(saved: SavedSlot, env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Keep what was saved, so that a restore can be checked; what to say when that fails."""
    path = paths.saved_slots_file(env)
    try:
        files.make_directories(path.parent)
        with files.locked(path.parent, path.name):
            kept = [slot for slot in read_saved(env) if slot.key != saved.key][-MOST_RECORDS + 1 :]
            text = "".join(f"{saved_slot.to_json()}\n" for saved_slot in (*kept, saved))
            files.replace(path, text.encode())
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
    from specdash.core.target import local_port
    from specdash.system.processes import listening_pid

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
    from specdash.collect.discover import EMBEDDED_MODULE

    if EMBEDDED_MODULE not in process.cmdline():
        return None
    try:
        found = json.loads(process.environ().get(ASSIGNMENTS_VARIABLE, "[]"))
    except ValueError:
        return None
    written = (
        next((entry[-1] for entry in found if entry[:1] == [_FLAG.name]), None) if isinstance(found, list) else None
    )
    return written if isinstance(written, str) and written else None


def _same_files(pid: int) -> bool:
    """Whether the process sees the same file system as we."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")  # noqa: PTH115
    except OSError:
        # Without /proc there are no such namespaces; with it, the process is somebody else's.
        return not Path("/proc/self/ns/mnt").exists()


FLAG = "--slot-save-path"
MOST_NAME_BYTES = 200
CHANGE_S = 600.0
"""How long the server may take for a change: a long context is gigabytes."""
_FORBIDDEN = '/\\:*?"<>|'


ANSWER_S = 5.0
_NO_SUCH_ACTION = "none"
"""An action that no build has: refused as such where actions are switched on, with 501 where they are not."""


class SlotAction(StrEnum):
    """What can be done to a slot."""

    SAVE = "save"
    RESTORE = "restore"
    ERASE = "erase"


@dataclass(frozen=True, slots=True)
class SlotHolding:
    """One slot. `tokens` is what it holds, None where the server does not tell (a slot that has not served yet)."""

    id: int
    busy: bool
    tokens: int | None = None
    context: int | None = None
    """Tokens that fit."""
    speculative: bool | None = None


@dataclass(frozen=True, slots=True)
class SlotList:
    """What `list_slots` found."""

    url: str
    asleep: bool = False
    """The server sleeps, and was not woken; its slots hold nothing."""
    slots: tuple[SlotHolding, ...] = ()
    directory: str | None = None
    """Where the server saves slots, where that can be seen from here."""
    files: tuple[SavedSlot, ...] = ()
    """What can be restored there, the newest first: the files in the directory, else what was saved from here."""


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """A change that nothing speaks against. `carry_out` does it; `question` asks for it in one line."""

    target: Target
    action: SlotAction
    slot: int
    filename: str | None = None
    directory: Path | None = None
    question: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotChange:
    """A change that was made. `tokens` were saved, restored or erased; `bytes` is the size of the file."""

    action: SlotAction
    slot: int
    filename: str | None
    tokens: int
    bytes: int | None = None
    took_s: float = 0.0
    path: str | None = None
    """Where the file is, where that can be seen from here."""
    warnings: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """What was done, in one line."""
        if self.action is SlotAction.ERASE:
            return f"slot {self.slot} erased: {self.tokens} tokens"
        word = "saved to" if self.action is SlotAction.SAVE else "restored from"
        amount = f", {size(self.bytes, exact=True)}" if self.bytes is not None else ""
        return (
            f"slot {self.slot} {word} {self.path or self.filename}: {self.tokens} tokens{amount}, {self.took_s:.2f} s"
        )


def list_slots(target: Target, *, env: Mapping[str, str] = os.environ) -> SlotList:
    """What each slot holds. Neither wakes a sleeping server nor loads a model.

    Raises `UnreachableError`, `InputError` for a refused key, `RefusedError` when /slots is switched off.
    """
    server = SlotServer(target)
    props = server.props()
    directory = save_directory(target)
    files = saved_slots(target, directory, env)
    shown = str(directory) if directory is not None else None
    if props.is_sleeping:
        return SlotList(target.url, asleep=True, directory=shown, files=files)
    slots = tuple(
        SlotHolding(slot.id, slot.is_processing, slot.n_prompt_tokens, slot.n_ctx, slot.speculative)
        for slot in server.slots().slots
    )
    return SlotList(target.url, slots=slots, directory=shown, files=files)


def plan(
    target: Target,
    action: SlotAction,
    slot: int,
    filename: str | None = None,
    *,
    unchecked: bool = False,
    env: Mapping[str, str] = os.environ,
) -> SlotPlan:
    """Look whether that can be done; nothing is changed. `unchecked`: restore also a file of which nothing is known,
    on which the server may end.

    Raises `UsageError` for a slot or file name that cannot be meant, `RefusedError` for what would fail or do harm,
    `InputError` for a file that is not there, `UnreachableError`.
    """
    if action is SlotAction.ERASE:
        filename = None
    else:
        check_name(filename)
    server = SlotServer(target)
    props = server.props()
    asleep = bool(props.is_sleeping)
    if asleep and action is not SlotAction.RESTORE:
        raise RefusedError(f"{target.url} sleeps, and its slots hold nothing; there is nothing to {action}")
    slots = () if asleep else server.slots().slots
    count = props.total_slots or len(slots)
    if not 0 <= slot < count:
        raise UsageError(f"slot {slot}: {target.url} has {_range(count)}")
    found = next((item for item in slots if item.id == slot), None)
    if found is not None and found.is_processing:
        raise RefusedError(f"slot {slot} is busy; wait until its request has ended, then {action} it")
    held = found.n_prompt_tokens if found is not None else None
    if action is SlotAction.SAVE and held == 0:
        raise RefusedError(f"slot {slot} holds nothing that could be saved")
    model = server.model(props)
    if not asleep:
        server.check_actions()
    directory = save_directory(target)
    warnings: list[str] = []
    if action is SlotAction.RESTORE and filename is not None:
        context = found.n_ctx if found is not None else None
        warnings += check_restorable(target, directory, filename, model, context, env, unchecked=unchecked)
    if asleep:
        warnings.append("the server sleeps and will be woken")
    if directory is None and action is SlotAction.SAVE:
        warnings.append(f"the server's {FLAG} cannot be seen from here: a file of that name would be replaced unseen")
    question = _question(target, action, slot, filename, held, directory)
    return SlotPlan(target, action, slot, filename, directory, question, tuple(warnings))


def carry_out(plan: SlotPlan, *, timeout_s: float = CHANGE_S, env: Mapping[str, str] = os.environ) -> SlotChange:
    """Do it. A save is written beside its place and put there whole, where the directory can be seen from here.

    Raises `RefusedError` with what the server said, `NotWrittenError` when it could not save, `UnreachableError` when
    it broke off.
    """
    began = time.monotonic()
    server = SlotServer(plan.target, timeout_s=timeout_s)
    if plan.action is SlotAction.ERASE:
        erased = server.change(plan.slot, "erase", None)
        return SlotChange(plan.action, plan.slot, None, erased.tokens, took_s=time.monotonic() - began)
    name = plan.filename or ""
    if plan.action is SlotAction.RESTORE:
        restored = server.change(plan.slot, "restore", name)
        path = str(plan.directory / name) if plan.directory is not None else None
        took = time.monotonic() - began
        return SlotChange(plan.action, plan.slot, name, restored.tokens, restored.bytes, took, path)
    with SlotSave(plan.directory, name) as writing:
        try:
            saved = server.change(plan.slot, "save", writing.name)
        except RefusedError as error:
            raise NotWrittenError(f"{error}; {writing.aftermath}") from None
        if not saved.tokens:
            left = "" if writing.is_beside else f"; the server wrote an empty {name}"
            raise RefusedError(f"slot {plan.slot} held nothing that could be saved{left}")
        path = writing.finish(saved.bytes)
    # The model may have been swapped since the plan was made.
    model = server.model(server.props())
    record = SavedSlot(
        filename=name, at=time.time(), url=plan.target.url, tokens=saved.tokens, bytes=saved.bytes, model=model,
        model_bytes=model_size(model) if plan.directory is not None else None,
        directory=str(plan.directory) if plan.directory is not None else None,
    )  # fmt: skip
    warnings = remember(record, env)
    took = time.monotonic() - began
    return SlotChange(plan.action, plan.slot, name, saved.tokens, saved.bytes, took, path, warnings)


def save(target: Target, slot: int, filename: str, *, env: Mapping[str, str] = os.environ) -> SlotChange:
    """Save a slot: `plan` and `carry_out`, and what they raise."""
    return carry_out(plan(target, SlotAction.SAVE, slot, filename, env=env), env=env)


def restore(target: Target, slot: int, filename: str, *, env: Mapping[str, str] = os.environ) -> SlotChange:
    """Restore a slot: `plan` and `carry_out`, and what they raise."""
    return carry_out(plan(target, SlotAction.RESTORE, slot, filename, env=env), env=env)


def erase(target: Target, slot: int, *, env: Mapping[str, str] = os.environ) -> SlotChange:
    """Erase a slot: `plan` and `carry_out`, and what they raise."""
    return carry_out(plan(target, SlotAction.ERASE, slot, env=env), env=env)


def check_name(filename: str | None) -> str:
    """A name that can be that of a saved slot: no path. Raises `UsageError`."""
    if not filename:
        raise UsageError("a file name is missing; name the file without a directory")
    if "/" in filename or "\\" in filename:
        raise UsageError(f"{filename!r} is a path; name a file only: the server keeps it in its {FLAG} directory")
    if filename in (".", "..") or ".." in filename or filename != filename.strip() or filename.endswith("."):
        raise UsageError(f"{filename!r} is no file name that llama-server takes")
    if len(filename.encode("utf-8", "replace")) > MOST_NAME_BYTES:
        raise UsageError(f"the file name is longer than {MOST_NAME_BYTES} bytes")
    if any(not name.isprintable() or name in _FORBIDDEN for name in filename):
        raise UsageError(f"{filename!r} holds characters that llama-server does not take in a file name")
    return filename


def _range(count: int) -> str:
    if count <= 1:
        return "one slot, 0" if count else "no slots"
    return f"{count} slots, 0 to {count - 1}"


def _question(
    target: Target, action: SlotAction, slot: int, filename: str | None, held: int | None, directory: Path | None
) -> str:
    of = f"slot {slot} of {target.url}"
    holds = f" ({held} tokens)" if held is not None else ""
    if action is SlotAction.ERASE:
        return f"Erase {of}{holds}?"
    where = str(directory / (filename or "")) if directory is not None else filename
    if action is SlotAction.RESTORE:
        return f"Restore {of} from {where}, in place of what it holds{holds}?"
    replaced = directory is not None and (directory / (filename or "")).exists()
    return f"Save {of}{holds} to {where}{', replacing that file' if replaced else ''}?"


@dataclass(frozen=True, slots=True)
class SlotResult:
    """What the server says that it did: tokens, and the bytes of the file where there is one."""

    tokens: int
    bytes: int | None = None


class SlotServer:
    """Asks one server about its slots."""

    def __init__(self, target: Target, *, timeout_s: float = ANSWER_S) -> None:
        """`timeout_s` is for changes; looking has a deadline of its own."""
        self._target = target
        self._timeout_s = timeout_s
        self._client = BlockingClient(target.url, target.api_key, target.model, ANSWER_S)

    def props(self) -> Props:
        """GET /props. Raises `RefusedError` for a router of which no model is named."""
        try:
            props = parse_props(self._answer("/props").body)
        except ParseError as error:
            raise UnreachableError(f"{self._target.url}/props: {error}; is this llama-server?") from None
        if props.role == "router":
            raise RefusedError(f"{self._target.url} is a router, which has no slots; name one of its models by --model")
        return props

    def slots(self) -> Slots:
        """GET /slots, which wakes a server that sleeps: look at /props first."""
        try:
            return parse_slots(self._answer("/slots").body)
        except ParseError as error:
            raise UnreachableError(f"{self._target.url}/slots: {error}; is this llama-server?") from None

    def model(self, props: Props) -> str | None:
        """What tells its model from others: the path of its file, else its name."""
        return props.model_path or props.model_alias or self._target.model

    def check_actions(self) -> None:
        """Raise `RefusedError` when the server was started without a place for saved slots."""
        answer = self._post(0, _NO_SUCH_ACTION, {}, ANSWER_S)
        if answer.status == 501:
            raise RefusedError(_without_flag(self._target.url))

    def change(self, slot: int, action: str, filename: str | None) -> SlotResult:
        """Do it. Raises `RefusedError` with what the server says, `UnreachableError` when it breaks off."""
        answer = self._post(slot, action, {"filename": filename} if filename is not None else {}, self._timeout_s)
        if answer.status != 200:
            self._refuse(answer, f"/slots/{slot}?action={action}")
        try:
            told = load_object(answer.body)
        except ParseError as error:
            raise RefusedError(f"{self._target.url}: {error} after {action} of slot {slot}") from None
        number = {"save": "n_saved", "restore": "n_restored", "erase": "n_erased"}[action]
        size = {"save": "n_written", "restore": "n_read"}.get(action, "")
        return SlotResult(natural(told.get(number)) or 0, natural(told.get(size)))

    def _post(self, slot: int, action: str, body: dict[str, Any], timeout_s: float) -> HttpReply:
        # A router reads the model of a POST in its body, that of a GET in its query.
        return self._told(lambda: self._client.post(f"/slots/{slot}?action={action}", body, timeout_s), timeout_s, slot)

    def _answer(self, path: str) -> HttpReply:
        answer = self._told(lambda: self._client.get(path), ANSWER_S)
        if answer.status != 200:
            self._refuse(answer, path)
        return answer

    def _told(self, ask: Callable[[], HttpReply], timeout_s: float, slot: int | None = None) -> HttpReply:
        where = f"{self._target.url}{'/slots/' + str(slot) if slot is not None else ''}"
        try:
            return ask()
        except NoConnectionError:
            raise UnreachableError(f"{self._target.url}: nothing listens there; name a server with --url") from None
        except TimeoutError:
            raise UnreachableError(f"{where}: no answer within {timeout_s:.0f} s") from None
        except OSError as error:
            why = "it broke the connection off without an answer; it may have crashed: see its log"
            raise UnreachableError(f"{where}: {why if slot is not None else words(error)}") from None

    def _refuse(self, answer: HttpReply, path: str) -> None:
        url, status, said = self._target.url, answer.status, error_message(answer.body)
        if self._target.api_key:
            said = said.replace(self._target.api_key, "***")
        if is_loading(status, answer.body):
            raise RefusedError(f"{url} loads its model; try again when it is done")
        if status in (401, 403):
            raise InputError(f"{url} refuses this API key; name another with --api-key-env or --api-key-file")
        if status == 501:
            raise RefusedError(
                _without_flag(url) if "action" in path else f"{url}: start the server without --no-slots"
            )
        if "action=restore" in path:
            said = f"{said}; the slot is empty now"
        raise RefusedError(f"{url}{path}: HTTP {status}{': ' if said else ''}{said}")


def _without_flag(url: str) -> str:
    return (
        f"{url} answers HTTP 501: it was started without --slot-save-path DIRECTORY; set LLAMA_SLOT_SAVE_PATH in its "
        "env file (`specdash apply LLAMA_SLOT_SAVE_PATH=DIRECTORY`), or give it that flag"
    )
