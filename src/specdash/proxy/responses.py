"""Small whole responses, and the request id that every response carries."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from specdash.proxy.errors import ApiError

    Scope = dict[str, Any]
    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]

REQUEST_ID = b"request-id"
CLOSE = (b"connection", b"close")
JSON = "application/json"


def new_request_id() -> str:
    """A fresh id, as `req_` and 24 hexadecimal digits."""
    return f"req_{secrets.token_hex(12)}"


def header(scope: Scope, name: bytes) -> str | None:
    """The first value of a request header; `name` in lower case."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def client_host(scope: Scope) -> str:
    """Address of the peer, "" on a Unix socket."""
    client = scope.get("client")
    return str(client[0]) if client else ""


async def send_bytes(
    send: Send, status: int, body: bytes, content_type: str, headers: Mapping[str, str] | None = None
) -> None:
    """One whole response."""
    named = {"content-type": content_type, "content-length": str(len(body)), **(headers or {})}
    lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
    """One whole JSON response."""
    await send_bytes(send, status, orjson.dumps(value), JSON, headers)


async def send_error(scope: Scope, send: Send, error: ApiError, headers: Mapping[str, str] | None = None) -> None:
    """The error in Anthropic's envelope."""
    await send_json(send, error.envelope(scope["request_id"]), error.status, {**error.headers, **(headers or {})})


class TaggedSend:
    """`send` that puts the request id on the response, and says that the connection ends with it where `closing` says
    so when it begins; `started` is True once the response has begun."""

    __slots__ = ("_closing", "_request_id", "_send", "started")

    def __init__(self, send: Send, request_id: str, closing: Callable[[], bool] = lambda: False) -> None:
        self._send = send
        self._closing = closing
        self._request_id = request_id.encode("latin-1")
        self.started = False

    def __call__(self, message: dict[str, Any]) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self.started = True
            last = (CLOSE,) if self._closing() else ()
            message["headers"] = [*message.get("headers", ()), (REQUEST_ID, self._request_id), *last]
        return self._send(message)
