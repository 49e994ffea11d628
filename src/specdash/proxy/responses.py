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
OPENAI_PATHS = ("/v1/chat/completions", "/chat/completions")
"""Endpoints that speak OpenAI's language, also in their errors."""


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


def error_answer(path: str, error: ApiError, request_id: str) -> tuple[int, dict[str, Any]]:
    """Status and JSON body of an error, in the words of the endpoint at `path`: Anthropic's or OpenAI's."""
    if path in OPENAI_PATHS:
        # 529 is Anthropic's own: clients of this endpoint know 503.
        return 503 if error.status == 529 else error.status, error.openai()
    return error.status, error.envelope(request_id)


async def send_error(scope: Scope, send: Send, error: ApiError, headers: Mapping[str, str] | None = None) -> None:
    """The error in the envelope of its endpoint."""
    status, value = error_answer(scope["path"], error, scope["request_id"])
    await send_json(send, value, status, {**error.headers, **(headers or {})})


class TaggedSend:
    """`send` that puts the request id on the response, and says that the connection ends with it where `closing` says
    so when it begins.

    `started` is True once the response has begun; `origin` is that of a web page that may read it.
    """

    __slots__ = ("_closing", "_request_id", "_send", "origin", "started")

    def __init__(self, send: Send, request_id: str, closing: Callable[[], bool] = lambda: False) -> None:
        self._send = send
        self._closing = closing
        self._request_id = request_id.encode("latin-1")
        self.started = False
        self.origin: bytes | None = None

    def __call__(self, message: dict[str, Any]) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self.started = True
            last: tuple[tuple[bytes, bytes], ...] = (CLOSE,) if self._closing() else ()
            if self.origin is not None:
                last += ((b"access-control-allow-origin", self.origin), (b"vary", b"origin"))
            message["headers"] = [*message.get("headers", ()), (REQUEST_ID, self._request_id), *last]
        return self._send(message)
