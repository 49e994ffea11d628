"""Connections to the llama.cpp server: bounded, kept alive, closed at once when an answer is no longer wanted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import ssl
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit, urlunsplit

import orjson

from specdash.proxy.http.responses import ApiError, ModelLoadingError, PromptTooLongError
from specdash.proxy.upstream.connections import Connections, ExchangeError, Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.proxy.settings import ProxySettings
    from specdash.proxy.upstream.connections import UpstreamConnection


# llama.cpp's error answers, and those of servers and gateways like it, as errors the client understands.
#
# Source: the error objects of llama.cpp's server (`format_error_response`), builds b4000 to b11549: a JSON object
# with an `error` of `code`, `message` and `type`, and for a full context `n_prompt_tokens` and `n_ctx`.

LOADING_RETRY_S = 2
LONGEST_QUOTE = 600
"""Characters of an upstream's own words that reach the client."""

_OVERFLOW = (
    re.compile(r"exceeds? the available context size", re.IGNORECASE),
    re.compile(r"larger than the max(?:imum)? context size", re.IGNORECASE),
    re.compile(r"exceeds? (?:the )?(?:model's )?(?:maximum )?context (?:window|length|size)", re.IGNORECASE),
    re.compile(r"maximum context length", re.IGNORECASE),
    re.compile(r"prompt is too long", re.IGNORECASE),
)
_LIMIT = (
    re.compile(r"context (?:size|window|length) *\(?(?:of |is )?\(?(\d+)", re.IGNORECASE),
    re.compile(r"> *(\d+) maximum", re.IGNORECASE),
)
_TOKENS = (
    re.compile(r"(?:request|input|prompt|requested tokens) *\((\d+)", re.IGNORECASE),
    re.compile(r"requested (?:about )?(\d+) tokens", re.IGNORECASE),
    re.compile(r"(\d+) tokens *>", re.IGNORECASE),
)
_CLIENT_MADE = re.compile(
    r"input is not supported|failed to (?:load|decode|process) (?:image|audio|media)|mmproj"
    r"|template|jinja|failed to parse|grammar|json schema|tool_choice|unsupported content",
    re.IGNORECASE,
)
"""Faults of the request that llama.cpp reports as its own (500)."""
_MARKUP = re.compile(rb"^\s*<(?:!doctype|html|\?xml|head|body)", re.IGNORECASE)
_TAGS = re.compile(r"<[^>]*>")


def error_parts(body: bytes) -> tuple[str, dict[str, Any]]:
    """The message of an error body, "" when it has none, and its error object. Never fails."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return _plain_text(body), {}
    error = value.get("error", value) if isinstance(value, dict) else value
    if isinstance(error, dict):
        message = error.get("message") or error.get("detail") or ""
        return _bounded(message if isinstance(message, str) else ""), error
    return _bounded(error) if isinstance(error, str) else "", {}


def api_error(status: int, body: bytes) -> ApiError:
    """The error for the client when the upstream answered `status` (anything but 2xx) with `body`."""
    message, error = error_parts(body)
    return error_for(status, message, error)


def error_for(status: int, message: str, error: dict[str, Any]) -> ApiError:
    """The same from a message and its error object, as a stream's error chunk carries them."""
    if (found := _overflow(status, message, error)) is not None:
        return found
    said = f": {message}" if message else ""
    if status == 503:
        if "oading" in message:
            return ModelLoadingError(LOADING_RETRY_S)
        return ApiError(529, f"the upstream is not ready (503){said}", retry_after=LOADING_RETRY_S)
    if status in {401, 403}:
        return ApiError(
            502,
            "the upstream refuses the proxy's own key: set PROXY_UPSTREAM_API_KEY to the key of the llama.cpp server",
            retry=False,
        )
    if status == 404:
        return ApiError(502, f"LLAMA_CPP_BASE does not look like a llama.cpp server: it answers 404{said}", retry=False)
    if status == 429:
        return ApiError(429, message or "the upstream has too many requests", retry_after=LOADING_RETRY_S)
    if status == 413:
        return ApiError(413, message or "the upstream finds the request too large")
    if 400 <= status < 500 or (status >= 500 and _CLIENT_MADE.search(message)):
        return ApiError(400, message or f"the upstream refuses the request ({status})")
    if 300 <= status < 400:
        return ApiError(502, f"the upstream redirects ({status}): LLAMA_CPP_BASE must be its final URL", retry=False)
    return ApiError(500, message or f"the upstream failed ({status})")


def _overflow(status: int, message: str, error: dict[str, Any]) -> ApiError | None:
    tokens, limit = error.get("n_prompt_tokens"), error.get("n_ctx")
    named = error.get("type") == "exceed_context_size_error" or error.get("code") == "context_length_exceeded"
    if not named and (status < 400 or not any(pattern.search(message) for pattern in _OVERFLOW)):
        return None
    if not isinstance(tokens, int):
        tokens = _first_number(_TOKENS, message)
    if not isinstance(limit, int):
        limit = _first_number(_LIMIT, message)
    if tokens is not None and limit is not None:
        return PromptTooLongError(tokens, limit)
    # Clients compact on these very words, whatever follows them.
    return ApiError(400, f"prompt is too long: {message or 'it does not fit the context window'}")


def _first_number(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    found = (pattern.search(text) for pattern in patterns)
    return next((int(match.group(1)) for match in found if match), None)


def _plain_text(body: bytes) -> str:
    text = body[:4096].decode("utf-8", "replace")
    if _MARKUP.match(body):
        text = " ".join(_TAGS.sub(" ", text).split())
    elif "\ufffd" in text or "\x00" in text:
        return ""
    return _bounded(text.strip())


def _bounded(text: str) -> str:
    return text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "..."


_LOG = logging.getLogger("specdash.proxy")
CHAT_PATH = "/v1/chat/completions"
RETRY_S = 2
_LLAMA_CPP = "llama.cpp"
_LAST_CHUNK_S = 0.05
_LARGEST_ERROR = 1 << 20


class UpstreamBrokenError(ApiError):
    """The upstream closed the connection before its answer was complete."""


class UpstreamReply:
    """The upstream's answer as it arrives. Use it as `async with`: its connection is closed unless read to the end."""

    def __init__(self, connection: UpstreamConnection, owner: Upstream) -> None:
        self.status = connection.status
        self.headers: Mapping[str, str] = connection.headers
        self.content_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        self._connection = connection
        self._owner = owner
        self._open = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abort()

    async def read(self) -> bytes:
        """Whatever has arrived, waiting for the first byte of it; b"" at the end.

        Raises `ApiError` 504 after `read_timeout` of silence and `UpstreamBrokenError` when the connection breaks.
        """
        if not self._open:
            return b""
        try:
            data = await self._connection.read()
        except ExchangeError as error:
            self.abort()
            raise self._owner.failure(error, begun=True) from None
        except BaseException:
            self.abort()
            raise
        if not data:
            self.let_go()
        return data

    async def body(self, limit: int) -> bytes:
        """The whole answer, or its first `limit` bytes, after which the connection is closed."""
        pieces, size = [], 0
        while size < limit and (data := await self.read()):
            pieces.append(data)
            size += len(data)
        self.abort()
        return b"".join(pieces)[:limit]

    async def error(self) -> ApiError:
        """What an answer that is not 2xx means for the client; reads it."""
        return api_error(self.status, await self.body(_LARGEST_ERROR))

    def let_go(self) -> None:
        """All that counts is read. The connection is kept where the end of the answer is here, or follows at once."""
        if self._open:
            self._open = False
            self._connection.let_go(_LAST_CHUNK_S)
            self._owner.ended()

    def abort(self) -> None:
        """Close the TCP connection now, so that the upstream stops generating. Does nothing after the end."""
        if self._open:
            self._open = False
            self._connection.abort()
            self._owner.ended()


class Upstream:
    """The llama.cpp server at `LLAMA_CPP_BASE`. Belongs to the event loop that first uses it."""

    def __init__(self, settings: ProxySettings) -> None:
        self.settings = settings
        self.url = settings.upstream
        self.shown_url = without_secrets(settings.upstream)
        self.on_lost: Callable[[], None] | None = None
        """Called whenever the server could not be reached or broke off: it may have restarted."""
        self._slots = asyncio.Semaphore(settings.max_connections)
        self.in_flight = 0
        """Calls for clients whose answer has not ended, those waiting for a connection included."""
        self.is_llama_cpp = False
        """Whether the latest answer, of any endpoint, called its server llama.cpp."""
        self._trouble: str | None = None
        """What the log was told last, until the server answers again."""
        self._idle = asyncio.Event()
        self._connections = Connections(settings.upstream, settings.upstream_api_key)

    async def open(self, body: bytes, path: str = CHAT_PATH) -> UpstreamReply:
        """POST a JSON body and return the answer once its head is there, whatever its status.

        A connection that ends before the first byte of the answer is replaced once. Raises `ApiError`: 529 when the
        server cannot be reached, 504 after `read_timeout` without an answer, 502 when it breaks off.
        """
        self.in_flight += 1
        try:
            await self._slots.acquire()
        except BaseException:
            self._gone()
            raise
        try:
            connection = await self._ask("POST", path, body)
        except BaseException:
            self.ended()
            raise
        return UpstreamReply(connection, self)

    def ended(self) -> None:
        """An answer has ended: its connection is free for the next. Only `UpstreamReply` calls this, once."""
        self._slots.release()
        self._gone()

    async def drained(self, limit_s: float) -> bool:
        """Wait until nothing is in flight, at most `limit_s` seconds; True when nothing is."""
        if self.in_flight:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._idle.wait()
        return not self.in_flight

    def _gone(self) -> None:
        self.in_flight -= 1
        if not self.in_flight:
            self._idle.set()

    async def get_json(self, path: str, limit_s: float) -> Any:
        """The JSON that GET `path` answers. Raises `ApiError` as `open`, and for an answer that is not 2xx."""
        status, data = await self.exchange("GET", path, None, limit_s)
        if status // 100 != 2:
            raise api_error(status, data)
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            raise ApiError(502, f"LLAMA_CPP_BASE: {path} there does not answer in JSON", retry=False) from None

    async def exchange(self, method: str, path: str, body: bytes | None, limit_s: float) -> tuple[int, bytes]:
        """Status and body of a small question, answered within `limit_s`. Does not wait for `max_connections`.

        Only a POST counts as in flight: it does a client's work.
        """
        counted = method == "POST"
        self.in_flight += counted
        try:
            return await self._exchanged(method, path, body, limit_s)
        finally:
            if counted:
                self._gone()

    async def _exchanged(self, method: str, path: str, body: bytes | None, limit_s: float) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(limit_s):
                connection = await self._ask(method, path, body)
                pieces = []
                while data := await connection.read():
                    pieces.append(data)
        except TimeoutError:
            raise self._logged(ApiError(504, "the upstream did not answer in time")) from None
        except ExchangeError as error:
            raise self.failure(error) from None
        connection.let_go(0)
        return connection.status, b"".join(pieces)

    async def close(self) -> None:
        """Close every idle connection."""
        self._connections.close()

    def failure(self, error: ExchangeError, *, begun: bool = False) -> ApiError:
        """The error for the client when a connection fails; `begun` once an answer had started.

        Where the upstream is, only the log is told.
        """
        return self._logged(self._failure(error, begun=begun))

    def _logged(self, found: ApiError) -> ApiError:
        if found.message != self._trouble:
            self._trouble = found.message
            _LOG.warning("%s: %s", self.shown_url, found.message)
        return found

    def _failure(self, error: ExchangeError, *, begun: bool) -> ApiError:
        if error.fault is Fault.SILENT:
            return ApiError(504, f"the upstream was silent for {self.settings.read_timeout:g} s")
        if self.on_lost is not None:
            self.on_lost()
        if begun:
            return UpstreamBrokenError(502, "the upstream broke off its answer")
        if error.fault is Fault.NOT_HTTP:
            return ApiError(502, "LLAMA_CPP_BASE: what is there does not answer in HTTP", retry=False)
        if error.fault is not Fault.UNREACHABLE:
            return UpstreamBrokenError(502, "the upstream closed the connection without an answer")
        if isinstance(error.__cause__, ssl.SSLError):
            return ApiError(502, "the upstream has no TLS certificate we can trust", retry=False)
        return ApiError(529, f"the upstream cannot be reached: {_why(error.__cause__)}", retry_after=RETRY_S)

    async def _ask(self, method: str, path: str, body: bytes | None) -> UpstreamConnection:
        settings, fresh = self.settings, False
        while True:
            try:
                connection = await self._connections.ask(
                    method,
                    path,
                    body,
                    connect_s=settings.connect_timeout,
                    silence_s=settings.read_timeout,
                    fresh=fresh,
                )
            except ExchangeError as error:
                if fresh or error.fault is not Fault.UNANSWERED:
                    raise self.failure(error) from None
                fresh = True
                continue
            self.is_llama_cpp = connection.headers.get("server") == _LLAMA_CPP
            self._trouble = None
            return connection


def _why(error: BaseException | None) -> str:
    if isinstance(error, TimeoutError):
        return "no connection in time"
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return "its name is not known"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    # Not its own words: asyncio puts the address in them.
    number = getattr(error, "errno", None)
    return os.strerror(number).lower() if number else "no connection"


def without_secrets(url: str) -> str:
    """A URL without user, password and query."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
