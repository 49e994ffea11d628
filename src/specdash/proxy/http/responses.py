"""Small whole responses, and the request id that every response carries."""

from __future__ import annotations

import asyncio
import re
import secrets
import zlib
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    Scope = dict[str, Any]
    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]


# Errors as the Anthropic API sends them: status, type, envelope. Source: docs.anthropic.com, "Errors".

TYPES: dict[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""The error type of each status the proxy uses."""


class ApiError(Exception):
    """An answer to the client: HTTP `status` with the envelope of `type` and `message`.

    `retry_after` is in seconds; `retry` False tells the SDKs not to try again (`x-should-retry: false`), None leaves
    it to them.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type_: str | None = None,
        retry_after: int | None = None,
        retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type_ or TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        self.retry_after = retry_after
        self.retry = retry

    @property
    def headers(self) -> dict[str, str]:
        """Response headers besides content type and request id."""
        found: dict[str, str] = {}
        if self.retry_after is not None:
            found["retry-after"] = str(self.retry_after)
        if self.retry is not None:
            found["x-should-retry"] = "true" if self.retry else "false"
        return found

    def envelope(self, request_id: str) -> dict[str, Any]:
        """The JSON body; the same object is the data of a stream's `event: error`."""
        return {"type": "error", "error": {"type": self.type, "message": self.message}, "request_id": request_id}

    def openai(self) -> dict[str, Any]:
        """The JSON body as OpenAI's API has it."""
        return {"error": {"message": self.message, "type": self.type, "param": None, "code": self.status}}


class InvalidRequestError(ApiError):
    """The body is not a Messages request; `where` is the path of the wrong value, as `messages.0.content`."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(400, f"{where}: {problem}" if where else problem)


class PromptTooLongError(ApiError):
    """The prompt does not fit the context window; clients compact on this very wording."""

    def __init__(self, tokens: int, maximum: int) -> None:
        super().__init__(400, f"prompt is too long: {tokens} tokens > {maximum} maximum")
        self.tokens = tokens
        self.maximum = maximum


class ModelLoadingError(ApiError):
    """The upstream is there, and its model is not in memory yet."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(529, "the model is loading; try again", retry_after=retry_after)


class ProxyStoppingError(ApiError):
    """The proxy is being stopped, and its time to finish is over."""

    def __init__(self) -> None:
        super().__init__(529, "the proxy is stopping; try again", retry_after=2)


# JSON from the outside, read as leniently as is safe.

_ESCAPE = re.compile(
    r"\\(?:u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)


def read_json(data: bytes | str) -> Any:
    """The value of a JSON text; bytes that are not UTF-8 and halves of a surrogate pair become U+FFFD.

    Raises ValueError when it is not JSON even so.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
        if text is data and "\\ud" not in text.lower():
            raise
        return orjson.loads(_ESCAPE.sub(lambda match: "\\ufffd" if match["lone"] else match[0], text))


def object_of(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` is, whole and alone; None when it is anything else."""
    if not text.rstrip().endswith("}"):
        return None
    try:
        value = read_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


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


def header_map(scope: Scope) -> dict[str, str]:
    """The request's headers, the last of each name."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


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


# Reading a request body without letting it grow past its limit, unpacked when it comes packed.


_GZIP = frozenset({"gzip", "x-gzip"})
_UNPACKED_AT_ONCE = 1 << 20
_MOST_MEMBERS = 16


async def read_body(scope: dict[str, Any], receive: Callable[[], Awaitable[dict[str, Any]]], limit: int) -> bytearray:
    """The whole body. Raises `ApiError` 413 as soon as it is known to be longer than `limit` bytes, packed or not; 415
    for a packing other than gzip, 400 for one that is damaged."""
    coding = (header(scope, b"content-encoding") or "identity").strip().lower()
    if coding != "identity" and coding not in _GZIP:
        raise ApiError(415, f"Content-Encoding {coding[:40]!r} is not read here; send gzip, or nothing packed")
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise _too_large(limit)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(400, "the client closed the connection before the whole body had arrived")
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return await _unpacked(bytes(body), limit) if coding in _GZIP and body else body


async def _unpacked(packed: bytes, limit: int) -> bytearray:
    """The members of a gzip file, one after the other (RFC 1952, 2.2). Lets others run in between."""
    body = bytearray()
    for _ in range(_MOST_MEMBERS):
        member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        while not member.eof:
            try:
                part = member.decompress(packed, _UNPACKED_AT_ONCE)
            except zlib.error as error:
                raise ApiError(400, f"the body is not gzip: {error}") from None
            if not (part or member.eof):
                raise ApiError(400, "the body is not whole gzip: it ends too early")
            packed = member.unconsumed_tail
            body += part
            if len(body) > limit:
                raise _too_large(limit)
            await asyncio.sleep(0)
        packed = member.unused_data
        if not packed:
            return body
    raise ApiError(400, f"the body is gzip of more than {_MOST_MEMBERS} members; pack it as one")


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"request body is larger than {limit} bytes (PROXY_MAX_BODY_MIB)")
