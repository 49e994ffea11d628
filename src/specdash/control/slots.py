"""What the slots of a llama-server hold: list it, save it to a file, restore it, erase it.

Looking changes nothing: a sleeping server is not woken, a router's model is not loaded. Changing has two parts: `plan`
reads and refuses, `carry_out` does it. llama.cpp (b11434) takes a slot number modulo the number of slots, waits for a
busy slot, and aborts on a file that is cut off or, with recurrent memory, of another model; so all of that is refused
here before anything is sent.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from specdash.control import slot_files
from specdash.control.slot_files import SavedSlot
from specdash.control.slot_wire import SlotServer
from specdash.core.errors import NotWrittenError, RefusedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from specdash.core.target import Target

FLAG = "--slot-save-path"
KEY = "LLAMA_SLOT_SAVE_PATH"
MOST_NAME_BYTES = 200
CHANGE_S = 600.0
"""How long the server may take for a change: a long context is gigabytes."""
_FORBIDDEN = '/\\:*?"<>|'


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
    tokens: int | None = None
    """What the slot holds now, where known."""
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
        size = f", {self.bytes / 2**20:.1f} MiB" if self.bytes is not None else ""
        return f"slot {self.slot} {word} {self.path or self.filename}: {self.tokens} tokens{size}, {self.took_s:.2f} s"


def list_slots(target: Target, *, env: Mapping[str, str] = os.environ) -> SlotList:
    """What each slot holds. Neither wakes a sleeping server nor loads a model.

    Raises `UnreachableError`, `InputError` for a refused key, `RefusedError` when /slots is switched off.
    """
    with SlotServer(target) as server:
        props = server.props()
        directory = slot_files.save_directory(target, env)
        files = slot_files.saved_slots(target, directory, env)
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
    with SlotServer(target) as server:
        props = server.props()
        asleep = bool(props.is_sleeping)
        if asleep and action is not SlotAction.RESTORE:
            raise RefusedError(f"{target.url} sleeps, and its slots hold nothing; there is nothing to {action}")
        slots = () if asleep else server.slots().slots
        count = props.total_slots or len(slots)
        if not 0 <= slot < count:
            raise UsageError(f"slot {slot}: {target.url} has {_range(count)}")
        found = next((one for one in slots if one.id == slot), None)
        if found is not None and found.is_processing:
            raise RefusedError(f"slot {slot} is busy; wait until its request has ended, then {action} it")
        held = found.n_prompt_tokens if found is not None else None
        if action is SlotAction.SAVE and held == 0:
            raise RefusedError(f"slot {slot} holds nothing that could be saved")
        model = server.model(props)
        if not asleep:
            server.check_actions()
    directory = slot_files.save_directory(target, env)
    warnings: list[str] = []
    if action is SlotAction.RESTORE and filename is not None:
        context = found.n_ctx if found is not None else None
        warnings += slot_files.check_restorable(target, directory, filename, model, context, env, unchecked=unchecked)
    if asleep:
        warnings.append("the server sleeps and will be woken")
    if directory is None and action is SlotAction.SAVE:
        warnings.append(f"the server's {FLAG} cannot be seen from here: a file of that name would be replaced unseen")
    question = _question(target, action, slot, filename, held, directory)
    return SlotPlan(target, action, slot, filename, held, directory, question, tuple(warnings))


def carry_out(plan: SlotPlan, *, timeout_s: float = CHANGE_S, env: Mapping[str, str] = os.environ) -> SlotChange:
    """Do it. A save is written beside its place and put there whole, where the directory can be seen from here.

    Raises `RefusedError` with what the server said, `NotWrittenError` when it could not save, `UnreachableError` when
    it broke off.
    """
    began = time.monotonic()
    with SlotServer(plan.target, timeout_s=timeout_s) as server:
        if plan.action is SlotAction.ERASE:
            erased = server.change(plan.slot, "erase", None)
            return SlotChange(plan.action, plan.slot, None, erased.tokens, took_s=time.monotonic() - began)
        name = plan.filename or ""
        if plan.action is SlotAction.RESTORE:
            restored = server.change(plan.slot, "restore", name)
            path = str(plan.directory / name) if plan.directory is not None else None
            took = time.monotonic() - began
            return SlotChange(plan.action, plan.slot, name, restored.tokens, restored.bytes, took, path)
        with slot_files.Writing(plan.directory, name) as writing:
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
        model_bytes=slot_files.model_size(model) if plan.directory is not None else None,
        directory=str(plan.directory) if plan.directory is not None else None,
    )  # fmt: skip
    warnings = slot_files.remember(record, env)
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
    if any(not one.isprintable() or one in _FORBIDDEN for one in filename):
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
