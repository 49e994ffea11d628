"""Connections to the llama.cpp server: bounded, one a call, closed at once when its answer is no longer wanted."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from specdash.proxy.http.responses import ApiError, ModelLoadingError, PromptTooLongError, object_of, read_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from specdash.proxy.settings import ProxySettings


# llama.cpp's error answers as errors the client understands.
#
# Source: the error objects of llama.cpp's server (`format_error_response`): a JSON object with an `error` of `code`,
# `message` and `type`, and for a full context `n_prompt_tokens` and `n_ctx`.

LOADING_RETRY_S = 2
LONGEST_QUOTE = 600
"""Characters of an upstream's own words that reach the client."""

_CLIENT_MADE = re.compile(
    r"input is not supported|failed to (?:load|decode|process) (?:image|audio|media)|mmproj"
    r"|template|jinja|failed to parse|grammar|json schema|tool_choice|unsupported content",
    re.IGNORECASE,
)
"""Faults of the request that llama.cpp reports as its own (500)."""


def api_error(status: int, body: bytes) -> ApiError:
    """The error for the client when the upstream answered `status` (anything but 2xx) with `body`."""
    found = (object_of(body.decode("utf-8", "replace")) or {}).get("error")
    return stream_error(found if isinstance(found, dict) else {}, status)


def stream_error(error: dict[str, Any], status: int | None = None) -> ApiError:
    """The error for the client when the upstream reported `error`, inside its stream where it has no `status`."""
    code = error.get("code")
    status = status or (code if isinstance(code, int) and 400 <= code < 600 else 500)
    message = error.get("message")
    message = message[:LONGEST_QUOTE] if isinstance(message, str) else ""
    match error:
        case {"type": "exceed_context_size_error", "n_prompt_tokens": int(tokens), "n_ctx": int(limit)}:
            return PromptTooLongError(tokens, limit)
    detail = f": {message}" if message else ""
    match status:
        case 503 if "oading" in message:
            return ModelLoadingError(529, "the model is loading; try again", retry_after=LOADING_RETRY_S)
        case 503:
            return ApiError(529, f"the upstream is not ready (503){detail}", retry_after=LOADING_RETRY_S)
        case 401 | 403:
            remedy = "set PROXY_UPSTREAM_API_KEY to the key of the llama.cpp server"
            why = f"the upstream refuses the proxy's own key: {remedy}"
            return ApiError(502, why, retry=False)
        case 404:
            why = f"LLAMA_CPP_BASE does not look like a llama.cpp server: it answers 404{detail}"
            return ApiError(502, why, retry=False)
        case 413 | 429:
            return ApiError(status, message or f"the upstream refuses the request ({status})")
    if 400 <= status < 500 or _CLIENT_MADE.search(message):
        return ApiError(400, message or f"the upstream refuses the request ({status})")
    if 300 <= status < 400:
        return ApiError(502, f"the upstream redirects ({status}): LLAMA_CPP_BASE must be its final URL", retry=False)
    return ApiError(500, message or f"the upstream failed ({status})")


_LOG = logging.getLogger("specdash.proxy")
CHAT_PATH = "/v1/chat/completions"
RETRY_S = 2
_LLAMA_CPP = "llama.cpp"
CONNECT_S = 10.0
_LARGEST_ERROR = 1 << 20


class UpstreamBrokenError(ApiError):
    """The upstream closed the connection before its answer was complete."""


class UpstreamReply:
    """The upstream's answer as it arrives."""

    def __init__(self, response: aiohttp.ClientResponse, failure: Callable[..., ApiError]) -> None:
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers
        self.content_type: str = response.content_type
        self._response = response
        self._failure = failure

    async def read(self) -> bytes:
        """What has arrived, waiting for the first byte of it; b"" at the end.

        Raises `ApiError` 504 after `read_timeout` of silence and `UpstreamBrokenError` when the connection breaks.
        """
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise self._failure(error, begun=True) from None

    async def body(self, limit: int) -> bytes:
        """The whole answer, or its first `limit` bytes."""
        pieces, size = [], 0
        while size < limit and (data := await self.read()):
            pieces.append(data)
            size += len(data)
        return b"".join(pieces)[:limit]

    async def error(self) -> ApiError:
        """What an answer that is not 2xx means for the client; reads it."""
        found = api_error(self.status, await self.body(_LARGEST_ERROR))
        if self.status == 429 and (after := self.headers.get("retry-after")):
            found.headers["retry-after"] = after
        return found


class Upstream:
    """The llama.cpp server at `LLAMA_CPP_BASE`. Belongs to the event loop that first uses it.

    Each call has a connection of its own: one that was kept could be closed by the server in the moment it is used.
    """

    def __init__(self, settings: ProxySettings) -> None:
        self.settings = settings
        parts = urlsplit(settings.upstream)
        self.shown_url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
        """Without user, password and query."""
        self.on_lost: Callable[[], None] | None = None
        """Called whenever the server could not be reached or broke off: it may have restarted."""
        self._slots = asyncio.Semaphore(settings.max_connections)
        self.in_flight = 0
        """Calls for clients whose answer has not ended, those waiting for a connection included."""
        self.is_llama_cpp = False
        """Whether the latest answer, of any endpoint, called its server llama.cpp."""
        self._idle = asyncio.Event()
        self._trouble: str | None = None
        """The trouble logged last, until the server answers again."""
        self._session: aiohttp.ClientSession | None = None

    @contextlib.asynccontextmanager
    async def open(self, body: bytes, path: str = CHAT_PATH) -> AsyncIterator[UpstreamReply]:
        """POST a JSON body; the answer once its head is there, of any status.

        The connection is closed behind it, at once, so that the upstream stops generating.
        Raises `ApiError`: 529 when the server cannot be reached, 504 after `read_timeout` without an answer, 502 when
        it breaks off.
        """
        with self._working():
            async with self._slots:
                try:
                    response = await self._send("POST", body, path)
                except (aiohttp.ClientError, OSError) as error:
                    raise self.failure(error) from None
                with contextlib.closing(response):
                    yield UpstreamReply(response, self.failure)

    async def drained(self, limit_s: float) -> bool:
        """Wait until nothing is in flight, at most `limit_s` seconds; True when nothing is."""
        if self.in_flight:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), limit_s)
        return not self.in_flight

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def get_json(self, path: str, limit_s: float) -> Any:
        """The JSON that GET `path` answers. Raises `ApiError` as `open`, and for an answer that is not 2xx."""
        status, data = await self.exchange(path, None, limit_s)
        if status // 100 != 2:
            raise api_error(status, data)
        try:
            return read_json(data)
        except ValueError:
            raise ApiError(502, f"LLAMA_CPP_BASE: {path} there does not answer in JSON", retry=False) from None

    async def exchange(self, path: str, body: bytes | None, limit_s: float) -> tuple[int, bytes]:
        """Status and body of a small question, answered within `limit_s`. Does not wait for `max_connections`.

        One with a body is a POST, and counts as in flight: it does a client's work.
        """
        with self._working() if body is not None else contextlib.nullcontext():
            try:
                async with asyncio.timeout(limit_s):
                    async with await self._send("GET" if body is None else "POST", body, path) as response:
                        return response.status, await response.read()
            except (aiohttp.ClientError, OSError) as error:
                raise self.failure(error) from None

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    def failure(self, error: BaseException, *, begun: bool = False) -> ApiError:
        """The error for the client when a connection fails; `begun` once an answer had started.

        Where the upstream is stands in the log only.
        """
        unreachable = "the upstream cannot be reached: {}"
        match error:
            case aiohttp.ConnectionTimeoutError():
                found = ApiError(529, unreachable.format("no connection in time"), retry_after=RETRY_S)
            case aiohttp.ServerTimeoutError():
                found = ApiError(504, f"the upstream was silent for {self.settings.read_timeout:g} s")
            case TimeoutError():
                found = ApiError(504, "the upstream did not answer in time")
            case _ if begun:
                found = UpstreamBrokenError(502, "the upstream broke off its answer")
            case aiohttp.ClientSSLError():
                found = ApiError(502, "the upstream has no TLS certificate we can trust", retry=False)
            case aiohttp.ClientResponseError():
                found = ApiError(502, "LLAMA_CPP_BASE: what is there does not answer in HTTP", retry=False)
            case aiohttp.ClientConnectorError():
                # Not its own words: asyncio puts the address in them.
                number = error.os_error.errno or 0
                why = os.strerror(number).lower() if number > 0 else "no connection"
                found = ApiError(529, unreachable.format(why), retry_after=RETRY_S)
            case _:
                found = UpstreamBrokenError(502, "the upstream closed the connection without an answer")
        if found.status != 504 and self.on_lost is not None:
            self.on_lost()
        if found.message != self._trouble:
            self._trouble = found.message
            _LOG.warning("%s: %s", self.shown_url, found.message)
        return found

    async def _send(self, method: str, body: bytes | None, path: str) -> aiohttp.ClientResponse:
        settings = self.settings
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=1 << 18,
            )
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if settings.upstream_api_key:
            headers["authorization"] = f"Bearer {settings.upstream_api_key}"
        base = self.shown_url if settings.upstream_api_key else settings.upstream
        response = await self._session.request(
            method,
            base + path,
            data=None if body is None else io.BytesIO(body),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=settings.read_timeout),
            allow_redirects=False,
        )
        self.is_llama_cpp = response.headers.get("server") == _LLAMA_CPP
        self._trouble = None
        return response
