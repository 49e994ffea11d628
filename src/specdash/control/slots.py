"""What the slots of a llama-server hold: list it, save it to a file, restore it, erase it.

Looking changes nothing: a sleeping server is not woken, a router's model is not loaded. Changing has two parts: `plan`
reads and refuses, `carry_out` does it. llama.cpp (b11434) takes a slot number modulo the number of slots and waits for
a busy slot; both are refused here before anything is sent. With recurrent memory it ends on a file that is cut off or
of another model, which cannot be seen from here: a restore says so.
"""

from __future__ import annotations

import re
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from specdash.core.errors import InputError, NotWrittenError, RefusedError, UnreachableError, UsageError
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
from specdash.system.data import dataclass
from specdash.system.http import HttpReply, NoConnectionError, words
from specdash.system.text import size

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.core.readings import Props, Slots
    from specdash.core.speculation import MemoryKind
    from specdash.core.target import Target


FLAG = "--slot-save-path"
MOST_NAME_BYTES = 200
CHANGE_S = 600.0
"""How long the server may take for a change: a long context is gigabytes."""
_FORBIDDEN = '/\\:*?"<>|'
FIRST_WITH_CHECKPOINTS = 11549
"""The oldest build seen whose slot files carry context checkpoints; b11434 has none."""
_MAY_END = "if the file is cut off or of another model, llama-server may end, or empty the slot"


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


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """A change that nothing speaks against. `carry_out` does it; `question` asks for it in one line."""

    target: Target
    action: SlotAction
    slot: int
    filename: str | None = None
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
    server = SlotServer(target)
    props = server.props()
    if props.is_sleeping:
        return SlotList(target.url, asleep=True)
    slots = tuple(
        SlotHolding(slot.id, slot.is_processing, slot.n_prompt_tokens, slot.n_ctx, slot.speculative)
        for slot in server.slots().slots
    )
    return SlotList(target.url, slots=slots)


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
    if not asleep:
        server.check_actions()
    warnings: list[str] = []
    if action is SlotAction.RESTORE:
        if not unchecked:
            _check_memory(target, props)
        warnings.append(_MAY_END)
    if asleep:
        warnings.append("the server sleeps and will be woken")
    if action is SlotAction.SAVE:
        warnings.append(f"a file of that name in the server's {FLAG} is replaced")
    question = _question(target, action, slot, filename, held)
    return SlotPlan(target, action, slot, filename, question, tuple(warnings))


def carry_out(plan: SlotPlan, *, timeout_s: float = CHANGE_S) -> SlotChange:
    """Do it. Raises `RefusedError` with what the server said, `NotWrittenError` when it could not save,
    `UnreachableError` when it broke off."""
    began = time.monotonic()
    server = SlotServer(plan.target, timeout_s=timeout_s)
    try:
        done = server.change(plan.slot, plan.action, plan.filename)
    except RefusedError as error:
        if plan.action is not SlotAction.SAVE:
            raise
        part = f"a part of {plan.filename} may be left in the server's directory"
        raise NotWrittenError(f"{error}; {part}") from None
    if plan.action is SlotAction.SAVE and not done.tokens:
        raise RefusedError(
            f"slot {plan.slot} held nothing that could be saved; the server wrote an empty {plan.filename}"
        )
    return SlotChange(plan.action, plan.slot, plan.filename, done.tokens, done.bytes, time.monotonic() - began)


def save(target: Target, slot: int, filename: str) -> SlotChange:
    """Save a slot: `plan` and `carry_out`, and what they raise."""
    return carry_out(plan(target, SlotAction.SAVE, slot, filename))


def restore(target: Target, slot: int, filename: str, *, unchecked: bool = False) -> SlotChange:
    """Restore a slot: `plan` and `carry_out`, and what they raise."""
    return carry_out(plan(target, SlotAction.RESTORE, slot, filename, unchecked=unchecked))


def erase(target: Target, slot: int) -> SlotChange:
    """Erase a slot: `plan` and `carry_out`, and what they raise."""
    return carry_out(plan(target, SlotAction.ERASE, slot))


def _check_memory(target: Target, props: Props) -> None:
    """Raise `RefusedError` for a model with recurrent memory in a build whose slot files carry no checkpoints: the
    restored state cannot be cut back to where a prompt differs, so the whole prompt is read again."""
    from specdash.core.speculation import MemoryKind

    found = re.match(r"b(\d+)", props.build or "")
    # A build that does not know its number counts as current.
    if found is None or int(found[1]) >= FIRST_WITH_CHECKPOINTS:
        return
    memory = _memory_of(props.model_path)
    if memory in (MemoryKind.RECURRENT, MemoryKind.HYBRID):
        raise RefusedError(
            f"{target.url} is b{found[1]}, whose slot files carry no context checkpoints, and its model has {memory} "
            f"memory: a restored state cannot be cut back to where the next prompt differs, and llama-server may end "
            f"on the file; use b{FIRST_WITH_CHECKPOINTS} or later, or `specdash slots restore --unchecked`"
        )


def _memory_of(model: str | None) -> MemoryKind | None:
    """How the model remembers, where its file can be seen from here."""
    from specdash.llama.gguf import GgufError, cached_facts
    from specdash.llama.model_facts import shape_of

    if model is None or not model.startswith("/"):
        return None
    try:
        shape = shape_of(cached_facts(model))
    except GgufError:
        return None
    return shape.memory if shape is not None else None


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


def _question(target: Target, action: SlotAction, slot: int, filename: str | None, held: int | None) -> str:
    of = f"slot {slot} of {target.url}"
    holds = f" ({held} tokens)" if held is not None else ""
    if action is SlotAction.ERASE:
        return f"Erase {of}{holds}?"
    if action is SlotAction.RESTORE:
        return f"Restore {of} from {filename}, in place of what it holds{holds}?"
    return f"Save {of}{holds} to {filename}?"


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
