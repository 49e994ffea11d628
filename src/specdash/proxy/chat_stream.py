"""Bytes of a chat completion stream to its chunks, whatever the reads were.

Source of the framing: WHATWG HTML, "Server-sent events".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from specdash.proxy.json_text import read_json

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_EVENT_BYTES = 64 * 1024 * 1024
"""An event that grows past this is an upstream gone wrong, not an answer."""

_BOM = b"\xef\xbb\xbf"
_SHOWN = 200


class ChatDecoder:
    """Calls `on_chunk` with each JSON object of the stream, in order; what was read together makes no difference.

    What cannot be understood becomes a chunk `{"error": {"type", "message"}}`, as the upstream's own errors are:
    llama.cpp's old `error: {...}` lines, events named error, data that is not a JSON object.
    """

    __slots__ = ("_after_cr", "_on_chunk", "_parts", "_size", "_stopped", "bytes_seen", "done")

    def __init__(self, on_chunk: Callable[[dict[str, Any]], None]) -> None:
        self._on_chunk = on_chunk
        self._parts: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._stopped = False
        self.done = False
        """`[DONE]` was seen; nothing after it counts."""
        self.bytes_seen = 0

    def feed(self, data: bytes) -> None:
        """The next bytes of the stream, cut anywhere."""
        self.bytes_seen += len(data)
        if self._after_cr or b"\r" in data:
            data = self._line_feeds(data)
        if not data or self._stopped:
            return
        parts = self._parts
        if parts:
            ends = b"\n\n" in data or (data[:1] == b"\n" and parts[-1][-1:] == b"\n")
            parts.append(data)
            if not ends:
                self._grow(len(data))
                return
            data = b"".join(parts)
            parts.clear()
        events = data.split(b"\n\n")
        rest = events.pop()
        self._size = len(rest)
        if rest:
            parts.append(rest)
        for event in events:
            if self._is_last(event):
                return

    def close(self) -> None:
        """The stream has ended; an event without its blank line counts when it is whole."""
        event = b"".join(self._parts)
        self._parts.clear()
        if event and not self._stopped:
            self._lines(event, is_partial=True)
        self._stopped = True

    def stop(self) -> None:
        """Pass no further chunk, not even of bytes already read: for use inside `on_chunk`."""
        self._stopped = True

    def _grow(self, count: int) -> None:
        self._size += count
        if self._size > MAX_EVENT_BYTES:
            self._parts.clear()
            self._stopped = True
            self._failed(f"the upstream sent an event of more than {MAX_EVENT_BYTES} bytes")

    def _line_feeds(self, data: bytes) -> bytes:
        """CRLF and CR as LF; a CR counts at once, and an LF right after it, even in the next read, does not."""
        if self._after_cr and data[:1] == b"\n":
            data = data[1:]
            self._after_cr = False
        if data:
            self._after_cr = data[-1:] == b"\r"
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _is_last(self, event: bytes) -> bool:
        """Take an event; true when no other is wanted."""
        if event[:7] == b"data: {" and b"\n" not in event:
            try:
                chunk = orjson.loads(event[6:])
            except orjson.JSONDecodeError:
                self._data(event[6:], named_error=False, is_partial=False)
            else:
                self._on_chunk(chunk)
        elif event:
            self._lines(event, is_partial=False)
        return self._stopped

    def _lines(self, event: bytes, *, is_partial: bool) -> None:
        data: list[bytes] = []
        named_error = False
        for line in event.removeprefix(_BOM).split(b"\n"):
            if line[:1] == b"{":
                data.append(line)
                continue
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                data.append(value)
            elif name == b"event":
                named_error = value == b"error"
            elif name == b"error":
                named_error = True
                data.append(value)
        if data:
            self._data(b"\n".join(data), named_error=named_error, is_partial=is_partial)

    def _data(self, data: bytes, *, named_error: bool, is_partial: bool) -> None:
        text = data.strip()
        if not text:
            return
        if text == b"[DONE]":
            self.done = True
            self._stopped = True
            return
        try:
            value = read_json(text)
        except ValueError:
            if not is_partial:
                self._failed(_shown("the upstream sent an event that is not JSON", text))
            return
        if not isinstance(value, dict):
            if not is_partial:
                self._failed(_shown("the upstream sent an event that is not a JSON object", text))
        elif named_error and "error" not in value:
            self._on_chunk({"error": value})
        else:
            self._on_chunk(value)

    def _failed(self, message: str) -> None:
        self._on_chunk({"error": {"type": "api_error", "message": message}})


def _shown(problem: str, text: bytes) -> str:
    return f"{problem}: {text[:_SHOWN].decode('utf-8', 'replace')}"
