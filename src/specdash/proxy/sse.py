"""The Messages stream, its order correct by construction. Source: docs.anthropic.com, "Streaming Messages"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from specdash.proxy.block_order import TEXT, THINKING, TOOL, BlockOrder, OrderedBlock, Signer

if TYPE_CHECKING:
    from specdash.proxy.blocks import Usage

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

    __slots__ = ("_cursor", "_delta", "_is_open", "_out", "_signer", "_text_delta", "_written", "finished", "started")

    def __init__(self) -> None:
        super().__init__()
        self._out: list[bytes] = []
        self._cursor = 0
        self._written = 0
        self._is_open = False
        self._delta = b""
        self._text_delta = b""
        self._signer = Signer()
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
        """Visible text."""
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

    def tool(self, index: int, call_id: str, name: str) -> None:
        """A tool call begins; its id and name are complete."""
        self._require_open()
        super().tool(index, call_id, name)

    def arguments(self, index: int, fragment: str) -> None:
        """A piece of the JSON text of that call's input."""
        self._require_open()
        super().arguments(index, fragment)

    def _require_open(self) -> None:
        if not self.started:
            raise RuntimeError("the message has not started")
        if self.finished:
            raise RuntimeError("the message is finished")

    def _prose(self, kind: str, text: str) -> None:
        self._require_open()
        super()._prose(kind, text)

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
            self._signer = Signer()
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
                self._signer.add(piece)
        if block.kind == TOOL:
            self._written = len(block.pieces)
        else:
            block.pieces.clear()

    def _close(self, block: OrderedBlock) -> None:
        if block.kind == THINKING:
            delta = {"type": "signature_delta", "signature": self._signer.signature()}
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
