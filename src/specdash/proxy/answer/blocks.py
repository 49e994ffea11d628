"""The Messages stream, its order correct by construction. Source: docs.anthropic.com, "Streaming Messages"."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from specdash.proxy.http.responses import ApiError, object_of

if TYPE_CHECKING:
    from collections.abc import Iterator


# An answer piece by piece, in the order of the model.


class Text(Struct, frozen=True):
    """Visible text; two in a row belong to one block."""

    text: str


class Thinking(Struct, frozen=True):
    """Reasoning text; two in a row belong to one block."""

    text: str


class ToolStart(Struct, frozen=True):
    """A tool call begins; its id and name are complete. `index` numbers calls as the upstream does, from 0."""

    index: int
    id: str
    name: str


class Arguments(Struct, frozen=True):
    """A piece of the JSON text of the input of the call with that index."""

    index: int
    text: str


class Pause(Struct, frozen=True):
    """Nothing more has been read yet: what came so far may be sent."""


class End(Struct, frozen=True):
    """The answer is over."""


Piece = Text | Thinking | ToolStart | Arguments | Pause | End
PAUSE, END = Pause(), End()


class ToolCall(Struct, frozen=True):
    """A complete tool call; `arguments` is JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


class Usage(Struct, frozen=True):
    """Tokens of one upstream call, or of several when added up. `prompt` includes `cached`."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def __add__(self, more: Usage) -> Usage:
        return Usage(self.prompt + more.prompt, self.cached + more.cached, self.completion + more.completion)

    def anthropic(self) -> dict[str, Any]:
        """As the Messages API counts: input without the cached part."""
        return {
            "input_tokens": max(0, self.prompt - self.cached),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached,
            "output_tokens": self.completion,
        }


def message_head(message_id: str, model: str, usage: Usage) -> dict[str, Any]:
    """A message of which nothing has come yet."""
    head = {"id": message_id, "type": "message", "role": "assistant", "model": model, "content": []}
    return {**head, "stop_reason": None, "stop_sequence": None, "usage": usage.anthropic()}


# Blocks of an answer in the order they began: the one rule that the stream writer and the builder share.

THINKING = "thinking"
TEXT = "text"
TOOL = "tool_use"


class BlockOrder:
    """Passes on the pieces of an answer whose blocks come one after another, as llama.cpp sends them.

    A piece of another block ends the one before.
    """

    def __init__(self) -> None:
        self.calls: dict[int, ToolStart] = {}
        """Those begun so far, by their index."""
        self.has_text = False
        """Visible text; blanks alone do not count."""
        self.has_thinking = False
        self._call: int | None = None
        """The call that is open."""

    def add(self, piece: Piece) -> None:
        """The next piece. Raises `ApiError` for arguments of a call that has ended: no client can take them."""
        if isinstance(piece, Pause | End) or (not isinstance(piece, ToolStart) and not piece.text):
            return
        if isinstance(piece, Arguments):
            if piece.index != self._call:
                raise ApiError(502, "the upstream sends arguments of a call after another has begun")
            self._take(piece)
            return
        self._call = None
        if isinstance(piece, Text):
            self.has_text = self.has_text or not piece.text.isspace()
        elif isinstance(piece, Thinking):
            self.has_thinking = True
        else:
            self.calls[piece.index] = piece
            self._call = piece.index
        self._take(piece)

    def _take(self, piece: Piece) -> None:
        """The next piece that counts."""
        raise NotImplementedError


def signature_of(thinking: str) -> str:
    """The signature of a thinking block: opaque to clients, which hand it back as it is, and a function of its text."""
    digest = hashlib.sha256(b"specdash" + thinking.encode("utf-8", "replace"))
    return base64.b64encode(digest.digest()).decode("ascii")


# A whole answer, kept: for clients that do not stream, and for guardrails that look before the client sees.


class MessageBuilder(BlockOrder):
    """Collects an answer; its blocks are those that `SseWriter` would stream."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: list[tuple[Piece, list[str]]] = []
        """The piece that begins each, and its texts: they join to its text or to the JSON of its call's input."""

    def content(self) -> list[dict[str, Any]]:
        """Blocks of the Messages API. A tool input that is not a JSON object is `{}`."""
        found: list[dict[str, Any]] = []
        for piece in self.pieces():
            if isinstance(piece, Text):
                found.append({"type": TEXT, "text": piece.text})
            elif isinstance(piece, Thinking):
                found.append({"type": THINKING, "thinking": piece.text, "signature": signature_of(piece.text)})
            elif isinstance(piece, ToolStart):
                found.append({"type": TOOL, "id": piece.id, "name": piece.name})
            elif isinstance(piece, Arguments):
                found[-1]["input"] = object_of(piece.text) or {}
        return found

    def pieces(self) -> Iterator[Piece]:
        """The answer again, each block in one piece."""
        for first, texts in self._blocks:
            text = "".join(texts)
            if isinstance(first, ToolStart):
                yield first
                yield Arguments(first.index, text)
            else:
                yield Text(text) if isinstance(first, Text) else Thinking(text)

    def _take(self, piece: Piece) -> None:
        blocks = self._blocks
        is_more = blocks and type(blocks[-1][0]) is type(piece) and not isinstance(piece, ToolStart)
        if not is_more and not isinstance(piece, Arguments):
            blocks.append((piece, []))
        if isinstance(piece, Text | Thinking | Arguments):
            blocks[-1][1].append(piece.text)


_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_MESSAGE_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_DELTA_END = b"}}\n\n"
_DELTAS = {
    TEXT: ("text_delta", "text"),
    THINKING: ("thinking_delta", "thinking"),
    TOOL: ("input_json_delta", "partial_json"),
}


class SseWriter(BlockOrder):
    """Writes an answer as the bytes of a Messages stream, one frame per piece; `take` them as often as you like."""

    def __init__(self) -> None:
        super().__init__()
        self._out: list[bytes] = []
        self.index = -1
        """Of the latest block."""
        self._kind = ""
        """Of the open block."""
        self._delta = b""
        self._thought: list[str] = []
        self.started = False
        self.finished = False

    def start(self, message_id: str, model: str, usage: Usage) -> None:
        """The one message_start; `usage` is what is known of the prompt, its completion counts as given."""
        self.started = True
        self._write("message_start", message=message_head(message_id, model, usage))

    def ping(self) -> None:
        """A sign of life, any time between start and finish."""
        self._out.append(_PING)

    def finish(self, stop_reason: str, stop_sequence: str | None, usage: Usage) -> None:
        """Close the last block and end the message; `usage` is that of the whole answer."""
        self._close()
        delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        self._write("message_delta", delta=delta, usage=usage.anthropic())
        self._out.append(_MESSAGE_STOP)
        self.finished = True

    def error(self, envelope: dict[str, Any]) -> None:
        """End the stream with an error event; `envelope` is that of `ApiError`. Nothing may follow."""
        self._out.append(b"event: error\ndata: " + msgspec.json.encode(envelope) + b"\n\n")
        self.finished = True

    def take(self) -> bytes:
        """The bytes written since the last call."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def _take(self, piece: Piece) -> None:
        if isinstance(piece, Text):
            if self._kind != TEXT:
                self._open(TEXT, {"type": TEXT, "text": ""})
        elif isinstance(piece, ToolStart):
            self._open(TOOL, {"type": TOOL, "id": piece.id, "name": piece.name, "input": {}})
            return
        elif isinstance(piece, Thinking):
            if self._kind != THINKING:
                self._open(THINKING, {"type": THINKING, "thinking": "", "signature": ""})
            self._thought.append(piece.text)
        elif not isinstance(piece, Arguments):
            return
        self._out.append(self._delta + msgspec.json.encode(piece.text) + _DELTA_END)

    def _open(self, kind: str, content: dict[str, Any]) -> None:
        self._close()
        self._kind = kind
        self.index += 1
        self._write("content_block_start", index=self.index, content_block=content)
        name, field = _DELTAS[kind]
        self._delta = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
            % (self.index, name.encode(), field.encode())
        )

    def _close(self) -> None:
        if self._kind == THINKING:
            signature = {"type": "signature_delta", "signature": signature_of("".join(self._thought))}
            self._write("content_block_delta", index=self.index, delta=signature)
            self._thought.clear()
        if self._kind:
            self._write("content_block_stop", index=self.index)
        self._kind = ""

    def _write(self, name: str, **data: Any) -> None:
        frame = msgspec.json.encode({"type": name, **data})
        self._out.append(b"event: " + name.encode("ascii") + b"\ndata: " + frame + b"\n\n")
