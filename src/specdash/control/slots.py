"""What the slots of a llama-server hold: list it, save it to a file, restore it, erase it.

Looking changes nothing: a sleeping server is not woken, a router's model is not loaded. Changing has two parts: `plan`
reads and refuses, `carry_out` does it. llama.cpp (b11434) takes a slot number modulo the number of slots and waits for
a busy slot; both are refused here before anything is sent. With recurrent memory it ends on a file that is cut off or
of another model, which cannot be seen from here: a restore says so.
"""

from __future__ import annotations

import shlex
import time
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.errors import InputError, NotWrittenError, RefusedError, SpecdashError, UnreachableError, UsageError
from specdash.core.readings import RESIDENT
from specdash.core.speculation import MemoryKind
from specdash.llama.blocking import BlockingClient
from specdash.llama.server_answers import error_message, mapping, natural, router_models
from specdash.system.http import words
from specdash.system.text import size

if TYPE_CHECKING:
    from specdash.core.readings import Props, Slots
    from specdash.core.target import Target
    from specdash.system.http import HttpReply

ANSWER_S, CHANGE_S = 5.0, 600.0
"""How long the server may take to answer, and for a change: a long context is gigabytes."""
_FORBIDDEN = '/\\:*?"<>|'
FIRST_WITH_CHECKPOINTS = 11549
"""The oldest build seen whose slot files carry context checkpoints; b11434 has none."""
_MAY_END = "if the file is cut off or of another model, llama-server may end, or empty the slot"
_NO_SUCH_ACTION = "none"
"""An action that no build has: refused as such where actions are switched on, with 501 where they are not."""


class SlotAction(StrEnum):
    """What can be done to a slot."""

    SAVE = "save"
    RESTORE = "restore"
    ERASE = "erase"


class SlotHolding(Struct, frozen=True):
    """One slot. `tokens` is what it holds, None where the server does not say (a slot that has not served yet)."""

    id: int
    busy: bool
    tokens: int | None = None
    context: int | None = None
    """Tokens that fit."""
    speculative: bool | None = None


class SlotList(Struct, frozen=True):
    """What `list_slots` found."""

    url: str
    asleep: bool = False
    """The server sleeps, and was not woken; its slots hold nothing."""
    slots: tuple[SlotHolding, ...] = ()


class SlotPlan(Struct, frozen=True):
    """A change that nothing speaks against. `carry_out` does it; `question` asks for it in one line."""

    target: Target
    action: SlotAction
    slot: int
    filename: str | None = None
    question: str = ""
    warnings: tuple[str, ...] = ()


class SlotChange(Struct, frozen=True):
    """A change that was made. `tokens` were saved, restored or erased; `bytes` is the size of the file."""

    action: SlotAction
    slot: int
    filename: str | None
    tokens: int
    bytes: int | None = None
    took_s: float = 0.0

    @property
    def sentence(self) -> str:
        """What was done, in one line."""
        if self.action is SlotAction.ERASE:
            return f"slot {self.slot} erased: {self.tokens} tokens"
        word = "saved to" if self.action is SlotAction.SAVE else "restored from"
        amount = f", {size(self.bytes, exact=True)}" if self.bytes is not None else ""
        return f"slot {self.slot} {word} {self.filename}: {self.tokens} tokens{amount}, {self.took_s:.2f} s"


def list_slots(target: Target) -> SlotList:
    """What each slot holds. Neither wakes a sleeping server nor loads a model.

    Raises `UnreachableError`, `InputError` for a refused key, `RefusedError` when /slots is switched off.
    """
    _, slots = _look(target)
    if slots is None:
        return SlotList(target.url, asleep=True)
    rows = (SlotHolding(s.id, s.is_processing, s.n_prompt_tokens, s.n_ctx, s.speculative) for s in slots.slots)
    return SlotList(target.url, slots=tuple(rows))


def _look(target: Target) -> tuple[Props, Slots | None]:
    """What /props and /slots say; no slots of a server that sleeps, which looking would wake."""
    client = BlockingClient(target.url, target.api_key, target.model, ANSWER_S)
    try:
        props = client.props()
        is_router = props.role == "router"
        slots = None if props.is_sleeping or is_router else client.slots()
    except (InputError, UnreachableError, RefusedError):
        raise
    except SpecdashError as error:
        why = str(error).replace(target.api_key or "\0", "***")
        raise RefusedError(why if target.model is None else f"{why}; {_in_memory(target)}") from None
    if is_router:
        raise RefusedError(f"{target.url} is a router, which has no slots; {_in_memory(target)}")
    return props, slots


def _in_memory(target: Target) -> str:
    """Which models of a router have slots."""
    try:
        listed = router_models(BlockingClient(target.url, target.api_key, timeout=ANSWER_S).get("/models").json)
    except OSError:
        listed = router_models(None)
    names = ", ".join(model.id for model in listed.models if model.status in RESIDENT)
    if not names:
        return "none of its models is in memory: a request to one loads it"
    return f"name one of its models in memory by --model: {names}"


def plan(
    target: Target, action: SlotAction, slot: int, filename: str | None = None, *, unchecked: bool = False
) -> SlotPlan:
    """Look whether that can be done; nothing is changed. `unchecked`: restore also with recurrent memory in a build
    whose slot files carry no context checkpoints.

    Raises `UsageError` for a slot or file name that cannot be meant, `RefusedError` for what would fail or do harm,
    `UnreachableError`.
    """
    filename = None if action is SlotAction.ERASE else _checked_name(filename)
    props, seen = _look(target)
    if seen is None and action is not SlotAction.RESTORE:
        raise RefusedError(f"{target.url} sleeps, and its slots hold nothing; there is nothing to {action}")
    count = props.total_slots or (len(seen.slots) if seen is not None else 0)
    if not 0 <= slot < count:
        there = f"{count} slots, 0 to {count - 1}" if count > 1 else "one slot, 0" if count else "no slots"
        raise UsageError(f"slot {slot}: {target.url} has {there}")
    found = next((item for item in seen.slots if item.id == slot), None) if seen is not None else None
    if found is not None and found.is_processing:
        raise RefusedError(f"slot {slot} is busy; wait until its request has ended, then {action} it")
    held = found.n_prompt_tokens if found is not None else None
    if action is SlotAction.SAVE and held == 0:
        raise RefusedError(f"slot {slot} holds nothing that could be saved")
    if seen is not None and _post(target, 0, _NO_SUCH_ACTION, None, ANSWER_S).status == 501:
        raise _without_flag(target)
    warnings: list[str] = []
    of, holds = f"slot {slot} of {target.url}", f" ({held} tokens)" if held is not None else ""
    if action is SlotAction.RESTORE:
        if not unchecked:
            _check_memory(target, props, slot, shlex.quote(filename or ""))
        warnings.append(_MAY_END)
        question = f"Restore {of} from {filename}, in place of what it holds{holds}?"
    elif action is SlotAction.SAVE:
        warnings.append("a file of that name in the server's --slot-save-path is replaced")
        question = f"Save {of}{holds} to {filename}?"
    else:
        question = f"Erase {of}{holds}?"
    if seen is None:
        warnings.append("the server sleeps and will be woken")
    return SlotPlan(target, action, slot, filename, question, tuple(warnings))


def _checked_name(filename: str | None) -> str:
    """A name that can be that of a saved slot: no path. Raises `UsageError`."""
    if not filename:
        raise UsageError("a file name is missing; name the file without a directory")
    if "/" in filename or "\\" in filename:
        raise UsageError(f"{filename!r} is a path; name a file only: the server keeps it in its --slot-save-path")
    strange = any(not letter.isprintable() or letter in _FORBIDDEN for letter in filename)
    long = len(filename.encode("utf-8", "replace")) > 200
    if strange or long or ".." in filename or filename != filename.strip() or filename.endswith("."):
        raise UsageError(f"{filename!r} is no file name that llama-server takes")
    return filename


def _check_memory(target: Target, props: Props, slot: int, file: str) -> None:
    """Raise `RefusedError` for a model with recurrent memory in a build whose slot files carry no checkpoints: the
    restored state cannot be cut back to where a prompt differs, so the whole prompt is read again."""
    from specdash.llama.gguf import GgufError, read_facts
    from specdash.llama.model_shape import shape_of

    build = props.build_number
    # A build that does not know its number counts as current, and a file that is not here as an ordinary model.
    if not build or build >= FIRST_WITH_CHECKPOINTS:
        return
    path = props.model_path or ""
    try:
        shape = shape_of(read_facts(path)) if path.startswith("/") else None
    except GgufError:
        return
    if shape is not None and shape.memory in (MemoryKind.RECURRENT, MemoryKind.HYBRID):
        raise RefusedError(
            f"{target.url} is b{build}, whose slot files carry no context checkpoints, and its model has "
            f"{shape.memory} memory: a restored state cannot be cut back to where the next prompt differs, and "
            f"llama-server may end on the file; use b{FIRST_WITH_CHECKPOINTS} or later, or "
            f"`specdash slots restore {slot} {file} --url {target.url} --unchecked`"
        )


def carry_out(plan: SlotPlan) -> SlotChange:
    """Do it. Raises `RefusedError` with what the server said, `NotWrittenError` when it could not save,
    `UnreachableError` when it broke off."""
    began = time.monotonic()
    target, action, slot, saves = plan.target, plan.action, plan.slot, plan.action is SlotAction.SAVE
    answer = _post(target, slot, action, plan.filename, CHANGE_S)
    if answer.status == 501:
        raise _without_flag(target)
    if answer.status in (401, 403):
        raise InputError(f"{target.url} refuses this API key; name another with --api-key-env or --api-key-file")
    if answer.status != 200:
        text = error_message(answer.body).replace(target.api_key or "\0", "***")
        why = f"{target.url}/slots/{slot}?action={action}: HTTP {answer.status}{': ' if text else ''}{text}"
        if saves:
            raise NotWrittenError(f"{why}; a part of {plan.filename} may be left in the server's directory")
        raise RefusedError(f"{why}; the slot is empty now" if action is SlotAction.RESTORE else why)
    facts = mapping(answer.json)
    tokens = natural(facts.get({"save": "n_saved", "restore": "n_restored", "erase": "n_erased"}[action])) or 0
    if saves and not tokens:
        raise RefusedError(f"slot {slot} held nothing that could be saved; the server wrote an empty {plan.filename}")
    written = natural(facts.get("n_written" if saves else "n_read"))
    return SlotChange(action, slot, plan.filename, tokens, written, time.monotonic() - began)


def _post(target: Target, slot: int, action: str, filename: str | None, timeout_s: float) -> HttpReply:
    """The answer to an action on a slot. Raises `UnreachableError`."""
    client = BlockingClient(target.url, target.api_key, target.model, timeout_s)
    try:
        return client.post(f"/slots/{slot}?action={action}", {"filename": filename} if filename is not None else {})
    except TimeoutError:
        raise UnreachableError(f"{target.url}/slots/{slot}: no answer within {timeout_s:.0f} s") from None
    except OSError as error:
        why = f"it broke the connection off without an answer ({words(error)}); it may have crashed: see its log"
        raise UnreachableError(f"{target.url}/slots/{slot}: {why}") from None


def _without_flag(target: Target) -> RefusedError:
    return RefusedError(
        f"{target.url} answers HTTP 501: it was started without --slot-save-path DIRECTORY; set LLAMA_SLOT_SAVE_PATH "
        "in its env file (`specdash apply LLAMA_SLOT_SAVE_PATH=DIRECTORY`), or give it that flag"
    )
