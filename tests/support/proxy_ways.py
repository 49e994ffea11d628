"""The ways a client can ask for one turn, and one form of answer for all of them."""

import contextlib
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from support.anthropic_stream import checked
from support.proxy_process import Answer, ProxyProcess

READ_FILE = {
    "name": "read_file",
    "description": "Read a file.",
    "input_schema": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["path"],
    },
}
GET_WEATHER = {
    "name": "get_weather",
    "description": "Say the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOLS = [READ_FILE, GET_WEATHER]
OPENAI_TOOLS = [
    {
        "type": "function",
        "function": {"name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"]},
    }
    for tool in TOOLS
]


def turn(text: str = "Hi", **fields: Any) -> dict[str, Any]:
    """The body of a Messages request."""
    return {"model": "claude-local", "max_tokens": 512, "messages": [{"role": "user", "content": text}], **fields}


def chat(text: str = "Hi", **fields: Any) -> dict[str, Any]:
    """The body of a chat completion."""
    return {"model": "local", "messages": [{"role": "user", "content": text}], **fields}


@dataclass(frozen=True, slots=True)
class Told:
    """What a client was told: a message, or an error, and never both. A stream's error keeps what came before."""

    status: int
    headers: dict[str, str]
    message: dict[str, Any] | None
    error: dict[str, Any] | None
    names: tuple[str, ...] = ()

    @property
    def content(self) -> list[dict[str, Any]]:
        """The blocks of the message."""
        assert self.message is not None, self.error
        found: list[dict[str, Any]] = self.message["content"]
        return found

    @property
    def text(self) -> str:
        """The visible text of the message."""
        return "".join(block["text"] for block in self.content if block["type"] == "text")

    @property
    def calls(self) -> list[tuple[str, Any]]:
        """Name and input of each tool call."""
        return [(block["name"], block["input"]) for block in self.content if block["type"] == "tool_use"]


def told(answer: Answer) -> Told:
    """What an answer of /v1/messages says; fails when it is not in one of the API's forms."""
    assert answer.headers.get("request-id"), answer
    if answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.status == 200, answer
        seen = checked(answer.body)
        message = seen.message if seen.error is None else None
        return Told(answer.status, answer.headers, message, seen.error, tuple(seen.names))
    assert answer.headers["content-type"].startswith("application/json"), answer
    value = answer.json
    if answer.status == 200:
        assert value["type"] == "message", value
        return Told(answer.status, answer.headers, value, None)
    assert value["type"] == "error", value
    assert value["request_id"] == answer.headers["request-id"], value
    assert set(value["error"]) >= {"type", "message"}, value
    return Told(answer.status, answer.headers, None, value["error"])


@dataclass(frozen=True, slots=True)
class Way:
    """A proxy with certain settings, asked with or without streaming.

    `held_back` streams begin before the upstream has answered, when that takes more than a moment.
    """

    proxy: ProxyProcess
    stream: bool
    held_back: bool = False

    def ask(self, body: dict[str, Any], headers: Mapping[str, str] | None = None) -> Told:
        """One turn."""
        return told(self.proxy.messages({**body, "stream": self.stream}, headers))

    def refused(self, seen: Told, status: int) -> bool:
        """True when the client got this status, or could not any more: then the error is an event."""
        return seen.status == status or (self.held_back and bool(seen.names))


class RawClient:
    """A client that reads as much as it wants, and leaves when it wants."""

    def __init__(self, port: int, path: str, body: Any, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
        lines += [f"Content-Length: {len(data)}", *(f"{name}: {value}" for name, value in (headers or {}).items())]
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.received = b""
        self.socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    def read_until(self, mark: bytes) -> bytes:
        """Read until `mark` has come; fails at the end of the stream."""
        while mark not in self.received:
            data = self.socket.recv(65536)
            assert data, f"the answer ended without {mark!r}: {self.received!r}"
            self.received += data
        return self.received

    def leave(self, *, reset: bool = False) -> None:
        """Close the connection, in an orderly way or with a reset."""
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()
