"""The Messages stream, its order correct by construction. Source: docs.anthropic.com, "Streaming Messages"."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

import orjson

from specdash.proxy.http.responses import object_of
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator


# An answer piece by piece, in the order of the model.


@dataclass(frozen=True, slots=True)
class Text:
    """Visible text; two in a row belong to one block."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning text; two in a row belong to one block."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """A tool call begins; its id and name are complete. `index` numbers calls as the upstream does, from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of the JSON text of the input of the call with that index."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing more has been read yet: what came so far may be sent."""


@dataclass(frozen=True, slots=True)
class End:
    """The answer is over."""


Piece = Text | Thinking | ToolStart | Arguments | Pause | End
PAUSE, END = Pause(), End()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete tool call; `arguments` is JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one upstream call, or of several when added up. `prompt` includes `cached`."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def __add__(self, more: Usage) -> Usage:
        return Usage(self.prompt + more.prompt, self.cached + more.cached, self.completion + more.completion)

    @property
    def total(self) -> int:
        """Prompt and answer."""
        return self.prompt + self.completion

    def anthropic(self) -> dict[str, Any]:
        """As the Messages API counts: input without the cached part."""
        return {
            "input_tokens": max(0, self.prompt - self.cached),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached,
            "output_tokens": self.completion,
        }


# Blocks of an answer in the order they began: the one rule that the stream writer and the builder share.

THINKING = "thinking"
TEXT = "text"
TOOL = "tool_use"


class OrderedBlock:
    """One block as it grows. `index`, `call_id` and `name` are of a tool call; `pieces` join to its text or input."""

    __slots__ = ("_torn_at", "call_id", "index", "is_sealed", "kind", "name", "pieces")

    def __init__(self, kind: str, index: int = -1, call_id: str = "", name: str = "") -> None:
        self.kind = kind
        self.index = index
        self.call_id = call_id
        self.name = name
        self.pieces: list[str] = []
        self.is_sealed = False
        self._torn_at = 0

    @property
    def is_complete(self) -> bool:
        """True when nothing can follow once another block has begun: prose, or a whole JSON object."""
        if self.kind != TOOL or self.is_sealed:
            return True
        if len(self.pieces) == self._torn_at:
            return False
        if object_of("".join(self.pieces)) is None:
            self._torn_at = len(self.pieces)
            return False
        return True


class BlockOrder:
    """Takes pieces in any order and lists the blocks by their beginning; a piece goes to its own block.

    Prose joins the last block when it is of its kind. What follows the whole JSON object of a call, after another
    block has begun, is no part of it and is left out. A piece of an unknown call, or a call begun twice, is an error
    of the program.
    """

    __slots__ = ("_calls", "blocks")

    def __init__(self) -> None:
        self.blocks: list[OrderedBlock] = []
        self._calls: dict[int, OrderedBlock] = {}

    def add(self, piece: Piece) -> None:
        """The next piece."""
        if isinstance(piece, Text):
            self.text(piece.text)
        elif isinstance(piece, Thinking):
            if piece.text:
                self._prose(THINKING, piece.text)
        elif isinstance(piece, ToolStart):
            if piece.index in self._calls:
                raise ValueError(f"tool call {piece.index} begun twice")
            block = self._calls[piece.index] = OrderedBlock(TOOL, piece.index, piece.id, piece.name)
            self.blocks.append(block)
            self._grown()
        elif isinstance(piece, Arguments):
            begun = self._calls.get(piece.index)
            if begun is None:
                raise ValueError(f"arguments of tool call {piece.index}, which has not begun")
            if piece.text and not (begun is not self.blocks[-1] and begun.is_complete):
                begun.pieces.append(piece.text)
                self._grown()

    def text(self, text: str) -> None:
        """A piece of visible text."""
        if text:
            self._prose(TEXT, text)

    def _prose(self, kind: str, text: str) -> None:
        if not self.blocks or self.blocks[-1].kind != kind:
            self.blocks.append(OrderedBlock(kind))
        self.blocks[-1].pieces.append(text)
        self._grown()

    def _grown(self) -> None:
        """A block began or has another piece."""


_SEED = hashlib.sha256(b"specdash")


def signature_of(thinking: str) -> str:
    """The signature of a thinking block: opaque to clients, which hand it back as it is, and a function of its text."""
    digest = _SEED.copy()
    digest.update(thinking.encode("utf-8", "replace"))
    return base64.b64encode(digest.digest()).decode("ascii")


# A whole answer, kept: for clients that do not stream, and for guardrails that look before the client sees.


class MessageBuilder(BlockOrder):
    """Collects an answer; its blocks are those that `SseWriter` would stream."""

    __slots__ = ()

    def content(self) -> list[dict[str, Any]]:
        """Blocks of the Messages API. A tool input that is not a JSON object is `{}`."""
        return [_block(block) for block in self.blocks]

    def pieces(self) -> Iterator[Piece]:
        """The answer again, each block in one piece."""
        for block in self.blocks:
            joined = "".join(block.pieces)
            if block.kind == TEXT:
                yield Text(joined)
            elif block.kind == THINKING:
                yield Thinking(joined)
            else:
                yield ToolStart(block.index, block.call_id, block.name)
                yield Arguments(block.index, joined)

    @property
    def has_calls(self) -> bool:
        """A tool call is among the blocks."""
        return bool(self._calls)


def _block(ordered_block: OrderedBlock) -> dict[str, Any]:
    joined = "".join(ordered_block.pieces)
    if ordered_block.kind == TEXT:
        return {"type": TEXT, "text": joined}
    if ordered_block.kind == THINKING:
        return {"type": THINKING, "thinking": joined, "signature": signature_of(joined)}
    return {"type": TOOL, "id": ordered_block.call_id, "name": ordered_block.name, "input": object_of(joined) or {}}


_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_MESSAGE_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_DELTA_END = b"}}\n\n"
_DELTAS = {
    TEXT: ("text_delta", "text"),
    THINKING: ("thinking_delta", "thinking"),
    TOOL: ("input_json_delta", "partial_json"),
}


class SseWriter(BlockOrder):
    """Writes an answer as the bytes of a Messages stream, one frame per piece; `take` them as often as you like.

    Blocks are written one after another. Pieces of a call that is not the open one wait until the open call has its
    whole input or the answer is finished. Calls in a wrong state are errors of the program and raise RuntimeError.
    """

    __slots__ = ("_cursor", "_delta", "_is_open", "_out", "_text_delta", "_thought", "_written", "finished", "started")

    def __init__(self) -> None:
        super().__init__()
        self._out: list[bytes] = []
        self._cursor = 0
        self._written = 0
        self._is_open = False
        self._delta = b""
        self._text_delta = b""
        self._thought: list[str] = []
        self.started = False
        self.finished = False

    @property
    def has_content(self) -> bool:
        """A block has begun."""
        return bool(self.blocks)

    def start(self, message_id: str, model: str, usage: Usage) -> None:
        """The one message_start; `usage` is what is known of the prompt, its completion counts as given."""
        if self.started or self.finished:
            raise RuntimeError("the message has already started")
        self.started = True
        message: dict[str, Any] = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage.anthropic(),
        }
        self._out.append(_frame("message_start", {"type": "message_start", "message": message}))

    def ping(self) -> None:
        """A sign of life, any time between start and finish."""
        self._require_open()
        self._out.append(_PING)

    def text(self, text: str) -> None:
        if self._text_delta and text:
            self._out.append(self._text_delta + orjson.dumps(text) + _DELTA_END)
        else:
            super().text(text)

    def finish(self, stop_reason: str, stop_sequence: str | None, usage: Usage) -> None:
        """Write what waits, close the last block and end the message; `usage` is that of the whole answer."""
        self._require_open()
        self._text_delta = b""
        self._write(is_last=True)
        end = {
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason, "stop_sequence": stop_sequence},
            "usage": usage.anthropic(),
        }
        self._out += (_frame("message_delta", end), _MESSAGE_STOP)
        self.finished = True

    def error(self, envelope: dict[str, Any]) -> None:
        """End the stream with an error event; `envelope` is that of `ApiError`. Nothing may follow."""
        if self.finished:
            raise RuntimeError("the message is already finished")
        self._text_delta = b""
        self._out.append(_frame("error", envelope))
        self.finished = True

    def take(self) -> bytes:
        """The bytes written since the last call."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def add(self, piece: Piece) -> None:
        self._require_open()
        super().add(piece)

    def _require_open(self) -> None:
        if not self.started:
            raise RuntimeError("the message has not started")
        if self.finished:
            raise RuntimeError("the message is finished")

    def _grown(self) -> None:
        self._write(is_last=False)

    def _write(self, *, is_last: bool) -> None:
        """Write the open block as far as it goes, and those after it once it is complete, or all of them at the end."""
        blocks = self.blocks
        self._text_delta = b""
        while self._cursor < len(blocks):
            block = blocks[self._cursor]
            if not self._is_open:
                self._open(block)
            self._pieces(block)
            if not is_last and (self._cursor == len(blocks) - 1 or not block.is_complete):
                break
            self._close(block)
        else:
            return
        if block.kind == TEXT:
            self._text_delta = self._delta

    def _open(self, block: OrderedBlock) -> None:
        if block.kind == TOOL:
            content: dict[str, Any] = {"type": TOOL, "id": block.call_id, "name": block.name, "input": {}}
        elif block.kind == THINKING:
            content = {"type": THINKING, "thinking": "", "signature": ""}
            self._thought.clear()
        else:
            content = {"type": TEXT, "text": ""}
        start = {"type": "content_block_start", "index": self._cursor, "content_block": content}
        self._out.append(_frame("content_block_start", start))
        name, field = _DELTAS[block.kind]
        self._delta = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
            % (self._cursor, name.encode(), field.encode())
        )
        self._is_open = True
        self._written = 0

    def _pieces(self, block: OrderedBlock) -> None:
        for piece in block.pieces[self._written :]:
            self._out.append(self._delta + orjson.dumps(piece) + _DELTA_END)
            if block.kind == THINKING:
                self._thought.append(piece)
        if block.kind == TOOL:
            self._written = len(block.pieces)
        else:
            block.pieces.clear()

    def _close(self, block: OrderedBlock) -> None:
        if block.kind == THINKING:
            delta = {"type": "signature_delta", "signature": signature_of("".join(self._thought))}
            self._out.append(
                _frame("content_block_delta", {"type": "content_block_delta", "index": self._cursor, "delta": delta})
            )
        stop = {"type": "content_block_stop", "index": self._cursor}
        self._out.append(_frame("content_block_stop", stop))
        block.is_sealed = True
        block.pieces.clear()
        self._is_open = False
        self._cursor += 1


def _frame(name: str, data: dict[str, Any]) -> bytes:
    return b"event: " + name.encode("ascii") + b"\ndata: " + orjson.dumps(data) + b"\n\n"
