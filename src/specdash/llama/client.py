"""HTTP to one llama-server: every question ends in time in a value or a `Failure`, never in an exception."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

from specdash.core.errors import UsageError
from specdash.core.readings import Failure, FailureKind
from specdash.core.target import normalise_url
from specdash.llama.server_answers import (
    ParseError,
    error_message,
    is_loading,
    one_line,
    parse_health,
    parse_metrics,
    parse_models,
    parse_props,
    parse_slots,
)
from specdash.system.data import dataclass

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection, Mapping

    from specdash.core.readings import Counters, Health, Props, RouterModels, Slots
    from specdash.core.target import Target


# HTTP/1.1 over asyncio's own streams: bounded in time and size, with exact reasons when there is no answer.
#
# As much of it as a question needs that is asked every second and answered whole. A library for all of HTTP took,
# imports and first answer, a third of what `specdash snapshot` may take in all.

MAX_BODY_BYTES = 4 * 1024 * 1024
"""A larger answer is not llama-server's and is cut off."""

CONNECT_DEADLINE_S = 1.0

_KEEPALIVE_S = 4.5
"""llama-server closes idle connections after five seconds; ours go first."""
_MAX_IDLE = 4

_HTTP = b"HTTP/"
_BLOCK = 65536
_MOST_HEAD = 65536
"""Bytes of an answer's head."""
_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""What goes into a question's first line as it is."""


class _NotHttpError(Exception):
    """What came is not HTTP/1."""


class _TooLargeError(Exception):
    """The answer is larger than the bound."""


class _Watched(asyncio.StreamReaderProtocol):
    """That of a stream which also says at once when the server closes it."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self.on_closed: Callable[[], None] = lambda: None

    def eof_received(self) -> bool:
        self.on_closed()
        return bool(super().eof_received())

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self.on_closed()
        super().connection_lost(error)


class _Connection:
    """A connection to the server, and what was read of it beyond what was asked for."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._read = b""
        self.start = b""
        """The first bytes of the answer, as many as tell whether it is HTTP."""
        self.is_used = False
        """Whether a question was answered over it before."""
        self.is_closed = False
        """The server closed it."""
        self.may_have_key = True
        """Whether the API key may be sent over it."""
        self.idle_since = 0.0

    @property
    def is_fresh(self) -> bool:
        """Whether the server is still there, as far as can be seen."""
        return not self._reader.at_eof() and time.monotonic() - self.idle_since < _KEEPALIVE_S

    def close(self) -> None:
        """Give it up, without waiting for the other side."""
        self._writer.transport.abort()

    async def ask(self, question: bytes) -> None:
        """Send a question."""
        self.start = b""
        self._writer.write(question)
        await self._writer.drain()

    async def head(self) -> tuple[bytes, int, dict[bytes, bytes]]:
        """The version, the status and the headers of the answer, by name in lower case. Raises `_NotHttpError`, OSError
        and EOFError."""
        lines = (await self._until(b"\r\n\r\n")).split(b"\r\n")
        version, _, rest = lines[0].partition(b" ")
        status = rest[:3]
        if not version.startswith(b"HTTP/1.") or not status.isdigit() or len(status) < 3 or rest[3:4] not in b" ":
            raise _NotHttpError
        headers = {}
        for line in lines[1:]:
            name, colon, value = line.partition(b":")
            if not colon:
                raise _NotHttpError
            headers[name.lower()] = value.strip()
        if int(status) < HTTPStatus.OK:
            return await self.head()
        return version, int(status), headers

    async def body(self, status: int, headers: Mapping[bytes, bytes]) -> tuple[bytes, bool]:
        """The body, and whether the connection can go on after it. Raises `_TooLargeError`, and as `head` does."""
        if status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            return b"", True
        if headers.get(b"transfer-encoding", b"").lower().endswith(b"chunked"):
            return await self._chunks(), True
        length = headers.get(b"content-length")
        if length is None:
            return await self._rest(), False
        if not length.isdigit():
            raise _NotHttpError
        return await self._exactly(int(length)), True

    async def _chunks(self) -> bytes:
        body = b""
        while True:
            digits = (await self._until(b"\r\n")).partition(b";")[0].strip()
            try:
                size = int(digits, 16) if digits.isalnum() else -1
            except ValueError:
                size = -1
            if size < 0:
                raise _NotHttpError
            if not size:
                while await self._until(b"\r\n"):
                    """A trailer, which says nothing that is wanted."""
                return body
            body += await self._exactly(size, MAX_BODY_BYTES - len(body))
            if await self._until(b"\r\n"):
                raise _NotHttpError

    async def _exactly(self, size: int, most: int = MAX_BODY_BYTES) -> bytes:
        if size > most:
            raise _TooLargeError(f"{size / 1e6:.0f} MB, cut off")
        parts, missing = [], size
        while missing:
            if not self._read:
                await self._more()
            parts.append(self._read[:missing])
            self._read = self._read[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)

    async def _rest(self) -> bytes:
        parts, size = [], 0
        while True:
            parts.append(self._read)
            size += len(self._read)
            self._read = b""
            if size > MAX_BODY_BYTES:
                raise _TooLargeError(f"more than {MAX_BODY_BYTES / 1e6:.0f} MB, cut off")
            try:
                await self._more()
            except EOFError:
                return b"".join(parts)

    async def _until(self, end: bytes) -> bytes:
        while (found := self._read.find(end)) < 0:
            if len(self._read) > _MOST_HEAD:
                raise _NotHttpError
            await self._more()
        before, self._read = self._read[:found], self._read[found + len(end) :]
        return before

    async def _more(self) -> None:
        data = await self._reader.read(_BLOCK)
        if not data:
            self.is_closed = True
            raise EOFError
        self._read += data
        self.start += data[: len(_HTTP) - len(self.start)]
        if not _HTTP.startswith(self.start):
            raise _NotHttpError

    @property
    def is_done(self) -> bool:
        """Whether nothing came that was not asked for."""
        return not self._read


async def _addresses(host: str) -> list[str]:
    if host == "localhost":
        return ["127.0.0.1", "::1"]
    is_address = ":" in host or host.replace(".", "").isdigit()
    return [host] if is_address else await _resolve(host)


async def _resolve(host: str) -> list[str]:
    """The addresses of a name, at least one. In a daemon thread: the loop's own resolves in its executor, for which it
    waits when it ends, and a hanging resolver must not hold up the program's end.

    Raises OSError, and UnicodeError for what cannot be a name.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def settle(addresses: list[str], failure: Exception | None) -> None:
        if not found.done():
            found.set_exception(failure) if failure is not None else found.set_result(addresses)

    def look_up() -> None:
        addresses: list[str] = []
        failure: Exception | None = None
        try:
            infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            addresses = [str(info[4][0]) for info in infos]
        except (OSError, UnicodeError) as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, addresses, failure)
        except RuntimeError:
            # The loop has ended in the meantime; no one waits any more.
            return

    threading.Thread(target=look_up, name="specdash-resolve", daemon=True).start()
    return await found


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An HTTP answer, whole. `latency_s` is the time from the question to its last byte in seconds."""

    status: int
    body: bytes
    latency_s: float
    media_type: str = ""
    """What the answer says it is, in lower case without parameters: `text/plain`; empty where it does not say."""


@dataclass(slots=True)
class _Question:
    text: bytes
    keyless: bytes
    """The same without the API key."""
    can_repeat: bool
    """Whether asking it twice does no harm."""
    connection: _Connection | None = None
    """Over which it went."""

    @property
    def is_begun(self) -> bool:
        """Whether something of the answer has come."""
        return self.connection is not None and bool(self.connection.start)


class Transport:
    """Asks one server. Not shared between event loops; end it with `aclose`."""

    def __init__(
        self,
        base: str,
        api_key: str | None,
        connect_deadline_s: float = CONNECT_DEADLINE_S,
        *,
        to_own_user_only: bool = False,
    ) -> None:
        """`base` is a normalised address, `api_key` printable ASCII.

        With `to_own_user_only` the key is sent only where what listens on this machine runs as our own user.
        """
        parts = urlsplit(base)
        self._base = base
        self._is_tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port
        self._prefix = parts.path
        self._connect_deadline_s = connect_deadline_s
        self._key = api_key
        self._to_own_user_only = to_own_user_only
        self._context: ssl.SSLContext | None = None
        self._idle: list[_Connection] = []
        self.on_closed: Callable[[], None] = lambda: None
        """Called when the server closes a connection on which nothing is asked: it may have ended."""

    async def get(self, path: str, deadline_s: float) -> HttpAnswer | Failure:
        """The answer whatever its status, or why there is none; within the deadline."""
        return await self._timed("GET", path, deadline_s, {})

    async def post(
        self, path: str, body: Mapping[str, Any], deadline_s: float, headers: Mapping[str, str] | None = None
    ) -> HttpAnswer | Failure:
        """The answer to this body as JSON; see `get`. Asked once: the server may have begun."""
        return await self._timed("POST", path, deadline_s, headers or {}, json.dumps(body).encode())

    async def aclose(self) -> None:
        """Close all connections."""
        while self._idle:
            self._idle.pop().close()
        # They are closed in the loop's next round.
        await asyncio.sleep(0)

    async def _timed(
        self, method: str, path: str, deadline_s: float, headers: Mapping[str, str], body: bytes | None = None
    ) -> HttpAnswer | Failure:
        started = time.monotonic()
        try:
            text = self._text(method, path, headers, body, self._key)
            keyless = self._text(method, path, headers, body, None)
        except UnicodeError:
            return Failure(FailureKind.UNREACHABLE, one_line(f"{self._host}: not a valid name"))
        if text is None or keyless is None:
            # Its words may repeat a header, and with it the key.
            return Failure(FailureKind.ERROR, "this question cannot be put into HTTP")
        question = _Question(text, keyless, can_repeat=body is None)
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._ask(question, started)
                if isinstance(answer, Failure) and _is_stale(answer, question):
                    answer = await self._ask(question, started)
                return answer
        except TimeoutError:
            if question.is_begun:
                return Failure(FailureKind.TIMEOUT, f"the answer was not complete within {deadline_s:.1f} s")
            return Failure(FailureKind.TIMEOUT, f"accepts connections, no answer within {deadline_s:.1f} s")

    async def _ask(self, question: _Question, started: float) -> HttpAnswer | Failure:
        question.connection = None
        try:
            connection = question.connection = await self._connection()
        except TimeoutError:
            return Failure(FailureKind.UNREACHABLE, f"no connection within {self._connect_deadline_s:.1f} s")
        except UnicodeError:
            return Failure(FailureKind.UNREACHABLE, one_line(f"{self._host}: not a valid name"))
        except OSError as error:
            return _unconnected(error, self._host)
        is_kept = False
        try:
            await connection.ask(question.text if connection.may_have_key else question.keyless)
            version, status, headers = await connection.head()
            if headers.get(b"content-encoding", b"identity").lower() != b"identity":
                return Failure(FailureKind.GARBAGE, "a compressed answer that nobody asked for")
            body, is_whole = await connection.body(status, headers)
            is_kept = is_whole and version == b"HTTP/1.1" and headers.get(b"connection", b"").lower() != b"close"
        except _TooLargeError as error:
            return Failure(FailureKind.TOO_LARGE, str(error))
        except _NotHttpError:
            return Failure(FailureKind.GARBAGE, "the answer is not HTTP")
        except (OSError, EOFError):
            what = "closed" if connection.is_closed else "reset"
            where = "within the answer" if connection.start else "before an answer"
            return Failure(FailureKind.RESET, f"connection {what} {where}")
        finally:
            self._keep(connection, is_kept=is_kept)
        media_type = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        return HttpAnswer(status, body, time.monotonic() - started, one_line(media_type, 60))

    def _keep(self, connection: _Connection, *, is_kept: bool) -> None:
        if is_kept and connection.is_done and len(self._idle) < _MAX_IDLE:
            connection.is_used, connection.idle_since = True, time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()

    async def _connection(self) -> _Connection:
        """One that is kept and fresh, else a new one. Raises TimeoutError, UnicodeError and OSError."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fresh:
                return connection
            connection.close()
        if self._is_tls and self._context is None:
            from specdash.system.http import tls_context

            self._context = tls_context(self._base)
        errors: list[OSError] = []
        async with asyncio.timeout(self._connect_deadline_s):
            for address in await _addresses(self._host):
                try:
                    return await self._connect(address)
                except TimeoutError as error:
                    errors.append(OSError(error.errno, error.strerror))
                except OSError as error:
                    errors.append(error)
        # The server's certificate may have been renewed.
        self._context = None
        # An address that refuses says more than one which this machine has no way to.
        raise next((error for error in errors if isinstance(error, ConnectionRefusedError)), errors[0])

    async def _connect(self, address: str) -> _Connection:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        transport, protocol = await loop.create_connection(
            lambda: _Watched(reader),
            address,
            self._port or (443 if self._is_tls else 80),
            ssl=self._context,
            server_hostname=self._host if self._is_tls else None,
        )
        connection = _Connection(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        protocol.on_closed = lambda: self._closed(connection)
        if self._to_own_user_only and self._key is not None:
            from specdash.system.processes import is_own_listener  # psutil, which a client without a key does not need

            connection.may_have_key = is_own_listener(self._port or (443 if self._is_tls else 80))
        return connection

    def _closed(self, connection: _Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
            connection.close()
            self.on_closed()

    def _text(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, key: str | None
    ) -> bytes | None:
        """The question as it goes over the wire; None where a header is not plain text. Raises UnicodeError."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        if not host.isascii():
            host = host.encode("idna").decode()
        lines = [
            f"{method} {quote(self._prefix + path, safe=_PUNCTUATION)} HTTP/1.1",
            f"Host: {host}" if self._port is None else f"Host: {host}:{self._port}",
            "Accept-Encoding: identity",
            "User-Agent: specdash",
            *([f"Authorization: Bearer {key.strip()}"] if key else []),
            *(["Content-Type: application/json", f"Content-Length: {len(body)}"] if body is not None else []),
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        if not all(line.isascii() and line.isprintable() for line in lines):
            return None
        return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def _is_stale(failure: Failure, question: _Question) -> bool:
    """Whether the server had closed the connection while it was idle, which says nothing about the question."""
    connection = question.connection
    was_used = connection is not None and connection.is_used
    return question.can_repeat and was_used and failure.kind is FailureKind.RESET and not question.is_begun


def _unconnected(error: OSError, host: str) -> Failure:
    import ssl

    if isinstance(error, ConnectionRefusedError):
        return Failure(FailureKind.REFUSED, "nothing listens there")
    if isinstance(error, ssl.SSLError):
        return Failure(FailureKind.ERROR, one_line(f"TLS: {getattr(error, 'verify_message', '') or error.reason}"))
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return Failure(FailureKind.RESET, "connection reset while connecting")
    if isinstance(error, socket.gaierror):
        return Failure(FailureKind.UNREACHABLE, one_line(f"{host}: {error.strerror}"))
    # The loop's own words repeat the address.
    return Failure(FailureKind.UNREACHABLE, one_line(os.strerror(error.errno) if error.errno else str(error)))


T = TypeVar("T")

DEFAULT_DEADLINE_S = 3.0

METRICS_TYPES = ("text/plain", "application/openmetrics-text")
"""What metrics are written in; a server that does not say is believed."""

KIND_OF_STATUS: dict[int, FailureKind] = {
    HTTPStatus.UNAUTHORIZED: FailureKind.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN: FailureKind.UNAUTHORIZED,
    HTTPStatus.NOT_FOUND: FailureKind.NOT_FOUND,
    HTTPStatus.NOT_IMPLEMENTED: FailureKind.DISABLED,
}

NO_MODEL_MESSAGES = ("model name is missing", "model is not loaded")
"""How a router's answer begins to a question that only a model's own server can answer: where no model is named, and
where the named one is not in memory."""


class LlamaClient:
    """Asks one llama-server. Not shared between event loops; close it with `aclose`."""

    def __init__(self, target: Target, *, connect_deadline_s: float = CONNECT_DEADLINE_S) -> None:
        """Raises UsageError when the target's url cannot be meant or its key cannot be sent."""
        self._key = target.api_key
        if self._key is not None and not (self._key.isascii() and self._key.isprintable()):
            raise UsageError("the API key holds characters that cannot be part of one")
        self._transport = Transport(
            normalise_url(target.url), self._key, connect_deadline_s, to_own_user_only=target.key_is_recorded
        )
        # An idle server answers the same again and again; a body equal to the last one is not parsed twice.
        self._last: dict[str, tuple[bytes, object]] = {}
        self._query = ""
        self.look_at(target.model)

    @property
    def on_closed(self) -> Callable[[], None]:
        """Called when the server closes a connection on which nothing is asked: it may have ended."""
        return self._transport.on_closed

    @on_closed.setter
    def on_closed(self, call: Callable[[], None]) -> None:
        self._transport.on_closed = call

    def look_at(self, model: str | None) -> None:
        """Ask about this model of a router from now on; None: about the server itself."""
        # Without autoload=false a router loads the model because someone looked.
        self._query = "?" + urlencode({"model": model, "autoload": "false"}) if model else ""

    async def health(self, deadline_s: float = DEFAULT_DEADLINE_S) -> Health | Failure:
        """GET /health. A loading server is a value here."""
        answer = await self.get("/health", deadline_s)
        if isinstance(answer, Failure):
            return answer
        failure = self._refusal(answer)
        if failure is not None and failure.kind not in (FailureKind.LOADING, FailureKind.ERROR):
            return failure
        health = self._parsed(lambda body: parse_health(answer.status, body, answer.latency_s), answer)
        return replace(health, detail=self._scrubbed(health.detail)) if health.detail else health

    async def props(self, deadline_s: float = DEFAULT_DEADLINE_S) -> Props | Failure:
        """GET /props."""
        return await self._ask("/props" + self._query, parse_props, deadline_s)

    async def metrics(self, deadline_s: float = DEFAULT_DEADLINE_S) -> Counters | Failure:
        """GET /metrics. It resets the server's throughput gauges, the only thing that looking changes."""
        return await self._ask("/metrics" + self._query, parse_metrics, deadline_s, METRICS_TYPES)

    async def slots(self, deadline_s: float = DEFAULT_DEADLINE_S) -> Slots | Failure:
        """GET /slots. It wakes a sleeping server and keeps it awake: see that it is not asleep first."""
        return await self._ask("/slots" + self._query, parse_slots, deadline_s)

    async def models(self, deadline_s: float = DEFAULT_DEADLINE_S) -> RouterModels | Failure:
        """GET /models: those of a router, with their states. It loads and wakes none."""
        return await self._ask("/models", parse_models, deadline_s)

    async def get(self, path: str, deadline_s: float = DEFAULT_DEADLINE_S) -> HttpAnswer | Failure:
        """GET any path: the answer whatever its status, or why there is none."""
        return await self._transport.get(path, deadline_s)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    async def _ask(
        self, path: str, parse: Callable[[bytes], T], deadline_s: float, types: Collection[str] = ()
    ) -> T | Failure:
        answer = await self.get(path, deadline_s)
        if isinstance(answer, Failure):
            return answer
        if (refusal := self._refusal(answer)) is not None:
            return refusal
        if types and answer.media_type and answer.media_type not in types:
            return Failure(FailureKind.GARBAGE, f"it is {answer.media_type}, not {' or '.join(types)}")
        last = self._last.get(path)
        if last is None or last[0] != answer.body:
            last = self._last[path] = (answer.body, self._parsed(parse, answer))
        return cast("T | Failure", last[1])

    def _parsed(self, parse: Callable[[bytes], T], answer: HttpAnswer) -> T | Failure:
        try:
            return parse(answer.body)
        except ParseError as error:
            return Failure(FailureKind.GARBAGE, f"{error}; is this llama-server?")

    def _refusal(self, answer: HttpAnswer) -> Failure | None:
        """Why an answer holds no value, None when it is a success."""
        status = answer.status
        if status == HTTPStatus.OK:
            return None
        message = self._scrubbed(error_message(answer.body))
        if is_loading(status, answer.body):
            return Failure(FailureKind.LOADING, message)
        if status == HTTPStatus.BAD_REQUEST and message.lower().startswith(NO_MODEL_MESSAGES):
            return Failure(FailureKind.NO_MODEL, message)
        if (kind := KIND_OF_STATUS.get(status)) is not None:
            return Failure(kind, message or f"HTTP {status}")
        return Failure(FailureKind.ERROR, f"HTTP {status}{': ' if message else ''}{message}")

    def _scrubbed(self, words: str) -> str:
        return one_line(words.replace(self._key, "***") if self._key else words)
