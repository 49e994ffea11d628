"""HTTP/1.1 to one server, over connections that are kept: what the proxy needs of it, read as it arrives.

A general client takes half of the CPU time between a request's arrival and its first token, and a millisecond for each
new connection. Sources: RFC 9110 and 9112.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from enum import StrEnum
from typing import TYPE_CHECKING, cast
from urllib.parse import quote, unquote_to_bytes, urlsplit

import httptools

if TYPE_CHECKING:
    from collections.abc import Callable

_KEEP_ALIVE_S = 4.0
"""Shorter than the 5 s after which llama.cpp's server closes an idle connection."""
_READ_AHEAD = 1 << 19
"""Bytes of an answer that may wait to be read before its server has to."""
_JOINED_BELOW = 1 << 16
"""A smaller body goes out in one piece with its head."""
_JSON = "application/json"
_IN_A_PATH = "/%:@!$&'()*+,;=~-._"


class Fault(StrEnum):
    """How an exchange with the server failed."""

    UNREACHABLE = "unreachable"
    """There is no connection: the error's cause says why, a `TimeoutError` that none came about in time."""
    UNANSWERED = "unanswered"
    """The connection ended before the first byte of the answer."""
    BROKEN = "broken"
    """It ended before the answer was complete."""
    SILENT = "silent"
    """Nothing came for the whole read time-out."""
    NOT_HTTP = "not_http"
    """What came is no answer of HTTP/1.1."""


class ExchangeError(Exception):
    """A request that got no answer, or no whole one."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


class UpstreamConnection(asyncio.Protocol):
    """One connection, for one exchange after the other: `ask`, `read` to the end, then `let_go`; or `abort`.

    `status` and `headers`, by lower-case name, are those of the current answer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_free: Callable[[UpstreamConnection], None]) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = True
        """The answer is here to its end, or there is none under way."""
        self.idle_since = 0.0
        self._loop = loop
        self._on_free = on_free
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # there before anybody has the connection
        self._parser = httptools.HttpResponseParser(self)
        self._can_be_kept = True
        self._has_head = self._has_begun = self._is_let_go = self._is_paused = False
        self._pieces: list[bytes] = []
        self._waiting = 0
        self._error: ExchangeError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._silence_s = 0.0
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def ask(self, head: bytes, body: bytes, silence_s: float) -> None:
        """Send a request and return once the head of its answer is there. Raises `ExchangeError`, also where nothing
        comes for `silence_s` seconds, now or while the answer is read."""
        self.is_complete = self._has_head = self._has_begun = self._is_let_go = False
        self._silence_s, self._heard_at = silence_s, self._loop.time()
        self._watch(silence_s)
        if len(body) < _JOINED_BELOW:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        while not self._has_head:
            await self._news()

    async def read(self) -> bytes:
        """What has arrived of the answer's body, waiting for its first byte; b"" at the end. Raises `ExchangeError`."""
        while not self._pieces:
            if self.is_complete:
                return b""
            await self._news()
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._waiting = 0
        if self._is_paused:
            self._is_paused = False
            self._heard_at = self._loop.time()
            self._transport.resume_reading()
        return data

    def let_go(self, limit_s: float) -> None:
        """Nobody reads on: keep the connection once the answer is complete, if that takes at most `limit_s` seconds."""
        self._is_let_go = True
        if self.is_complete:
            self._free()
        else:
            self._stop_timer()
            self._timer = self._loop.call_later(limit_s, self.abort)

    def abort(self) -> None:
        """Close the connection now, without sending what still waits to be sent."""
        self._can_be_kept = False
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_usable(self) -> bool:
        """It may be asked."""
        return self._can_be_kept and not self._transport.is_closing()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._has_begun = True
        if self.is_complete:
            # Nobody has asked anything.
            self.abort()
        else:
            self._parse(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._can_be_kept = False
        if not self.is_complete:
            if exc is None and self._has_head and not {"content-length", "transfer-encoding"} & self.headers.keys():
                # RFC 9112, 6.3: an answer of unknown length ends with its connection.
                self.is_complete = True
            else:
                self._error = self._error or ExchangeError(Fault.BROKEN if self._has_begun else Fault.UNANSWERED)
        self._stop_timer()
        self._wake()

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self.is_complete:
            # A second answer to one question.
            self._can_be_kept = False
        else:
            self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:
            self.headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        if self.is_complete:
            return
        self.status = self._parser.get_status_code()
        self._has_head = self.status >= 200

    def on_body(self, data: bytes) -> None:
        if self._is_let_go or self.is_complete:
            return
        self._pieces.append(data)
        self._waiting += len(data)
        if self._waiting > _READ_AHEAD and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        # One of 100 to 199 comes before the answer.
        if self._has_head:
            self.is_complete = True
            self._can_be_kept &= self._parser.should_keep_alive()
            self._stop_timer()

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._can_be_kept = False
            if not self.is_complete:
                self._error = ExchangeError(Fault.NOT_HTTP)
                self.abort()
        self._wake()
        if self.is_complete and self._is_let_go:
            self._free()

    async def _news(self) -> None:
        if self._error is not None:
            raise self._error
        self._reader = self._loop.create_future()
        try:
            await self._reader
        except BaseException:
            self.abort()
            raise
        finally:
            self._reader = None
        if self._error is not None:
            raise self._error

    def _wake(self) -> None:
        reader = self._reader
        if reader is not None and not reader.done():
            reader.set_result(None)

    def _free(self) -> None:
        self._stop_timer()
        self._pieces.clear()
        # With a rest of the request unsent the answer came early.
        if self._is_paused or not self.is_usable or self._transport.get_write_buffer_size():
            self.abort()
        else:
            self._on_free(self)

    def _watch(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._listen)

    def _listen(self) -> None:
        """The read time-out, looked after now and then: a timer for every read would cost more than the read."""
        quiet_s = self._loop.time() - self._heard_at
        if self._is_paused or quiet_s < self._silence_s:
            self._watch(self._silence_s if self._is_paused else self._silence_s - quiet_s)
            return
        self._error = ExchangeError(Fault.SILENT)
        self.abort()
        self._wake()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Connections:
    """Connections to the server at `url` (scheme, user, host and port of it), the one used last first.

    Belongs to the event loop that first uses it. `key` is sent as a bearer token, in place of the URL's own user.
    """

    def __init__(self, url: str, key: str | None) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._is_tls = parts.scheme == "https"
        self._port = parts.port or (443 if self._is_tls else 80)
        self._base = quote(parts.path, safe=_IN_A_PATH)
        self._tls: ssl.SSLContext | None = None
        host = f"[{self._host}]" if ":" in self._host else _ascii(self._host)
        if parts.port is not None:
            host += f":{parts.port}"
        lines = [f"Host: {host}", "Accept: */*", "Accept-Encoding: identity", "User-Agent: specdash"]
        if key:
            lines.append(f"Authorization: Bearer {key}")
        elif parts.username is not None:
            user = b"%b:%b" % (unquote_to_bytes(parts.username), unquote_to_bytes(parts.password or ""))
            lines.append(f"Authorization: Basic {base64.b64encode(user).decode()}")
        self._lines = "".join(f"{line}\r\n" for line in lines)
        self._idle: list[UpstreamConnection] = []
        self._sweeping: asyncio.TimerHandle | None = None

    async def ask(
        self, method: str, path: str, body: bytes | None, *, connect_s: float, silence_s: float, fresh: bool = False
    ) -> UpstreamConnection:
        """The connection on which the answer has begun; a new one where none is idle, or where it must be `fresh`.

        Raises `ExchangeError`.
        """
        head = f"{method} {self._base}{path} HTTP/1.1\r\n{self._lines}"
        if body is not None:
            head += f"Content-Type: {_JSON}\r\nContent-Length: {len(body)}\r\n"
        connection = (None if fresh else self._kept()) or await self._connected(connect_s)
        try:
            await connection.ask(f"{head}\r\n".encode(), body or b"", silence_s)
        except ExchangeError:
            connection.abort()
            raise
        return connection

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None

    def _kept(self) -> UpstreamConnection | None:
        oldest_s = asyncio.get_running_loop().time() - _KEEP_ALIVE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable and connection.idle_since > oldest_s:
                return connection
            connection.abort()
        return None

    async def _connected(self, limit_s: float) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        if self._is_tls and self._tls is None:
            self._tls = ssl.create_default_context()
        try:
            async with asyncio.timeout(limit_s):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(loop, self._free), self._host, self._port, ssl=self._tls
                )
        except (OSError, UnicodeError) as error:
            raise ExchangeError(Fault.UNREACHABLE) from error
        return connection

    def _free(self, connection: UpstreamConnection) -> None:
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._sweeping is None:
            self._sweeping = loop.call_later(_KEEP_ALIVE_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        loop = asyncio.get_running_loop()
        oldest_s = loop.time() - _KEEP_ALIVE_S
        while self._idle and self._idle[0].idle_since <= oldest_s:
            self._idle.pop(0).abort()
        if self._idle:
            self._sweeping = loop.call_later(self._idle[0].idle_since - oldest_s, self._sweep)


def _ascii(host: str) -> str:
    """A host's name as it is written on the wire."""
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        # It is no name, as the resolver will say.
        return quote(host)
