"""What the slots of a llama-server hold: list it, save it to a file, restore it, erase it.

Looking changes nothing: a sleeping server is not woken, a router's model is not loaded. Changing has two parts: `plan`
reads and refuses, `carry_out` does it. llama.cpp (b11434) takes a slot number modulo the number of slots and waits for
a busy slot; both are refused here before anything is sent. With recurrent memory it ends on a file that is cut off or
of another model, which cannot be seen from here: a restore says so.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.errors import InputError, NotWrittenError, RefusedError, SpecdashError, UnreachableError, UsageError
from specdash.core.readings import RESIDENT
from specdash.core.speculation import MemoryKind
from specdash.llama.client import BlockingClient
from specdash.llama.server_answers import error_message, mapping, natural, router_models
from specdash.system.text import size

if TYPE_CHECKING:
    from specdash.core.readings import Props, Slots
    from specdash.core.target import Target
    from specdash.system.http import HttpReply

ANSWER_S, CHANGE_S = 5.0, 600.0
"""How long the server may take to answer, and for a change: a long context is gigabytes."""
_NAME = re.compile(r"""(?!\s)(?!.*\.\.)[^/\\:*?"<>|\x00-\x1f\x7f]{1,200}(?<![\s.])""")
"""A file name that llama-server takes; it looks itself, too."""
FIRST_WITH_CHECKPOINTS = 11549
"""The oldest build seen whose slot files carry context checkpoints; b11434 has none."""
_REPLACES = "a file of that name in the server's --slot-save-path is replaced"
_MAY_END = "if the file is cut off or of another model, llama-server may end, or empty the slot"
_WITHOUT_FLAG = (
    "answers HTTP 501: it was started without --slot-save-path DIRECTORY; set LLAMA_SLOT_SAVE_PATH in its env file "
    "(`specdash apply LLAMA_SLOT_SAVE_PATH=DIRECTORY`), or give it that flag"
)
_NO_SUCH_ACTION = "none"
"""An action that no build has: refused as such where actions are switched on, with 501 where they are not."""


class SlotAction(StrEnum):
    """What can be done to a slot."""

    SAVE = "save"
    RESTORE = "restore"
    ERASE = "erase"


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


def look(target: Target) -> tuple[Props, Slots | None]:
    """What /props and /slots say; no slots of a server that sleeps, which looking would wake. A router loads no model.

    Raises `UnreachableError`, `InputError` for a refused key, `RefusedError` when /slots is switched off.
    """
    client = _client(target)
    try:
        props = client.props()
        slots = None if props.is_sleeping or props.role == "router" else client.slots()
    except (InputError, UnreachableError, RefusedError):
        raise
    except SpecdashError as error:
        why = str(error).replace(target.api_key or "\0", "***")
        raise RefusedError(why if target.model is None else f"{why}; {_in_memory(target)}") from None
    if props.role == "router":
        raise RefusedError(f"{target.url} is a router, which has no slots; {_in_memory(target)}")
    return props, slots


def _client(target: Target, timeout_s: float = ANSWER_S) -> BlockingClient:
    return BlockingClient(target.url, target.api_key, target.model, timeout_s)


def _in_memory(target: Target) -> str:
    """Which models of a router have slots."""
    names = ""
    with contextlib.suppress(OSError):
        listed = router_models(BlockingClient(target.url, target.api_key, timeout=ANSWER_S).get("/models").json)
        names = ", ".join(model.id for model in listed.models if model.status in RESIDENT)
    none = "none of its models is in memory: a request to one loads it"
    return f"name one of its models in memory by --model: {names}" if names else none


def plan(
    target: Target, action: SlotAction, slot: int, filename: str | None = None, *, unchecked: bool = False
) -> SlotPlan:
    """Look whether that can be done; nothing is changed. `unchecked`: restore also with recurrent memory in a build
    whose slot files carry no context checkpoints.

    Raises `UsageError` for a slot or file name that cannot be meant, `RefusedError` for what would fail or do harm,
    `UnreachableError`.
    """
    if action is SlotAction.ERASE:
        filename = None
    elif filename is None or _NAME.fullmatch(filename) is None:
        raise UsageError(f"{filename!r}: name a file only, without a path; the server keeps it in --slot-save-path")
    props, seen = look(target)
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
        raise RefusedError(f"{target.url} {_WITHOUT_FLAG}")
    if action is SlotAction.RESTORE and not unchecked:
        _check_memory(target, props, slot, shlex.quote(filename or ""))
    of, holds = f"slot {slot} of {target.url}", f" ({held} tokens)" if held is not None else ""
    question, warning = {
        SlotAction.SAVE: (f"Save {of}{holds} to {filename}?", _REPLACES),
        SlotAction.RESTORE: (f"Restore {of} from {filename}, in place of what it holds{holds}?", _MAY_END),
        SlotAction.ERASE: (f"Erase {of}{holds}?", None),
    }[action]
    warnings = filter(None, (warning, "the server sleeps and will be woken" if seen is None else None))
    return SlotPlan(target, action, slot, filename, question, tuple(warnings))


def _check_memory(target: Target, props: Props, slot: int, file: str) -> None:
    """Raise `RefusedError` for a model with recurrent memory in a build whose slot files carry no checkpoints: the
    restored state cannot be cut back to where a prompt differs, so the whole prompt is read again."""
    from specdash.llama.gguf import GgufError, read_facts
    from specdash.llama.model_shape import shape_of

    # A build that does not know its number counts as current, and a file that is not here as an ordinary model.
    build, path = props.build_number or FIRST_WITH_CHECKPOINTS, props.model_path or ""
    if build >= FIRST_WITH_CHECKPOINTS or not path.startswith("/"):
        return
    try:
        shape = shape_of(read_facts(path))
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
    """Do it. Raises `RefusedError` with the server's own words, `NotWrittenError` when it could not save,
    `UnreachableError` when it broke off."""
    began = time.monotonic()
    target, action, slot, saves = plan.target, plan.action, plan.slot, plan.action is SlotAction.SAVE
    answer = _post(target, slot, action, plan.filename, CHANGE_S)
    if answer.status == 501:
        raise RefusedError(f"{target.url} {_WITHOUT_FLAG}")
    _client(target).check_key(answer)
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
    try:
        return _client(target, timeout_s).post(
            f"/slots/{slot}?action={action}", {"filename": filename} if filename is not None else {}
        )
    except TimeoutError:
        raise UnreachableError(f"{target.url}/slots/{slot}: no answer within {timeout_s:.0f} s") from None
    except OSError as error:
        why = f"it broke the connection off without an answer ({error}); it may have crashed: see its log"
        raise UnreachableError(f"{target.url}/slots/{slot}: {why}") from None
