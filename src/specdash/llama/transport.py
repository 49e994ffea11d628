"""GET over HTTP/1.1 on asyncio streams: bounded in time and size, with exact reasons when there is no answer.

Written here rather than taken from httpx for the price, measured by `benchmarks/collect_cost.py`: importing httpx and
asking for the first time takes half of what `specdash snapshot` may take in all. Only what a poller needs is spoken:
GET, no redirects, no compression, no proxies.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from specdash.core.readings import Failure, FailureKind
from specdash.llama.bodies import one_line

if TYPE_CHECKING:
    import ssl

MAX_BODY_BYTES = 4 * 1024 * 1024
"""A larger answer is not llama-server's and is cut off."""

CONNECT_DEADLINE_S = 1.0

_MAX_HEAD_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
_KEEPALIVE_S = 4.5
"""llama-server closes idle connections after five seconds; ours go first."""
_MAX_IDLE = 4

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: [^\r\n]*)?\r\n")


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, whole. `latency_s` is the time from the question to its last byte in seconds."""

    status: int
    body: bytes
    latency_s: float
    server: str = ""
    """The Server header: `llama.cpp` for llama-server itself."""


class _Ended(Exception):  # noqa: N818 - not an error of ours but the end of one question
    """No answer, and why."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(detail)
        self.failure = Failure(kind, detail)


@dataclass(slots=True)
class _Head:
    status: int
    headers: dict[bytes, bytes]
    keeps: bool
    """Whether the connection may serve another question."""


class _Connection:
    """One connection and what of its input has not been consumed yet."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.pending = bytearray()
        self.idle_since: float | None = None
        self.answered = False
        """A byte of the current answer has come."""

    @property
    def is_fresh(self) -> bool:
        """False when it idled too long or the server has closed it."""
        idle = 0.0 if self.idle_since is None else time.monotonic() - self.idle_since
        return idle < _KEEPALIVE_S and not self.reader.at_eof() and not self.writer.is_closing()

    def abort(self) -> None:
        self.writer.transport.abort()

    async def more(self) -> bool:
        """Wait for more input; False at its end."""
        data = await self.reader.read(_READ_BYTES)
        self.answered = self.answered or bool(data)
        self.pending += data
        return bool(data)

    async def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        while len(self.pending) < count:
            if not await self.more():
                raise _Ended(FailureKind.RESET, "connection closed within the answer")
        taken = bytes(self.pending[:count])
        del self.pending[:count]
        return taken

    async def take_line(self) -> bytes:
        """The next line without its end."""
        while (end := self.pending.find(b"\r\n")) < 0:
            if len(self.pending) > _MAX_HEAD_BYTES:
                raise _Ended(FailureKind.GARBAGE, "the answer is not HTTP")
            if not await self.more():
                raise _Ended(FailureKind.RESET, "connection closed within the answer")
        line = bytes(self.pending[:end])
        del self.pending[: end + 2]
        return line

    async def take_head(self) -> _Head:
        """Status and headers of the next answer, past interim ones."""
        while True:
            head = await self._take_head()
            if head.status >= 200:
                return head

    async def _take_head(self) -> _Head:
        while (end := self.pending.find(b"\r\n\r\n")) < 0:
            if self.pending[:5] != b"HTTP/"[: len(self.pending)] or len(self.pending) > _MAX_HEAD_BYTES:
                raise _Ended(FailureKind.GARBAGE, "the answer is not HTTP")
            if not await self.more():
                where = "within the answer" if self.answered else "before an answer"
                raise _Ended(FailureKind.RESET, f"connection closed {where}")
        raw = bytes(self.pending[: end + 2])
        del self.pending[: end + 4]
        status = _STATUS_LINE.match(raw)
        if status is None:
            raise _Ended(FailureKind.GARBAGE, "the answer is not HTTP")
        pairs = (line.partition(b":") for line in raw[status.end() :].split(b"\r\n"))
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        keeps = status[1] == b"1" and headers.get(b"connection", b"").lower() != b"close"
        return _Head(int(status[2]), headers, keeps)


class Transport:
    """Asks one server. Not shared between event loops; end it with `close`."""

    def __init__(self, base: str, api_key: str | None, connect_deadline_s: float = CONNECT_DEADLINE_S) -> None:
        """`base` is a normalised address."""
        parts = urlsplit(base)
        self._tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path
        self._connect_deadline_s = connect_deadline_s
        headers = [f"Host: {parts.netloc}", "Accept-Encoding: identity", "User-Agent: specdash"]
        if api_key:
            headers.append(f"Authorization: Bearer {api_key}")
        self._headers = "\r\n".join(headers)
        self._idle: list[_Connection] = []
        self._context: ssl.SSLContext | None = None

    async def get(self, path: str, deadline_s: float) -> Answer | Failure:
        """The answer whatever its status, or why there is none; within the deadline."""
        started = time.monotonic()
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(deadline_s):
                connection, reused = self._take_idle(), True
                while True:
                    if connection is None:
                        connection, reused = await self._connect(), False
                    try:
                        return await self._exchange(connection, path, started)
                    except (_Ended, OSError) as error:
                        if not reused or connection.answered or not _is_close(error):
                            raise
                        # The server closed it while it was idle; that says nothing about the question.
                        connection.abort()
                        connection = None
        except TimeoutError:
            if connection is not None and connection.answered:
                return Failure(FailureKind.TIMEOUT, f"the answer was not complete within {deadline_s:.1f} s")
            return Failure(FailureKind.TIMEOUT, f"accepts connections, no answer within {deadline_s:.1f} s")
        except _Ended as ended:
            return ended.failure
        except OSError:
            where = "within the answer" if connection is not None and connection.answered else "before an answer"
            return Failure(FailureKind.RESET, f"connection reset {where}")
        finally:
            if connection is not None and connection not in self._idle:
                connection.abort()

    def close(self) -> None:
        """Close all idle connections."""
        while self._idle:
            self._idle.pop().abort()

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fresh:
                return connection
            connection.abort()
        return None

    async def _exchange(self, connection: _Connection, path: str, started: float) -> Answer:
        connection.answered = False
        request = f"GET {self._prefix}{path} HTTP/1.1\r\n{self._headers}\r\n\r\n"
        connection.writer.write(request.encode("latin-1"))
        head = await connection.take_head()
        if head.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise _Ended(FailureKind.GARBAGE, "a compressed answer that nobody asked for")
        body, framed = await _body(connection, head)
        if head.keeps and framed and not connection.pending and len(self._idle) < _MAX_IDLE:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        server = head.headers.get(b"server", b"").decode("latin-1")
        return Answer(head.status, body, time.monotonic() - started, one_line(server, 60))

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(self._connect_deadline_s):
                return await self._connect_to_any(await self._addresses())
        except TimeoutError:
            detail = f"no connection within {self._connect_deadline_s:.1f} s"
            raise _Ended(FailureKind.UNREACHABLE, detail) from None

    async def _connect_to_any(self, addresses: list[str]) -> _Connection:
        refused: Failure | None = None
        for address in addresses:
            try:
                reader, writer = await asyncio.open_connection(
                    address,
                    self._port,
                    ssl=self._tls_context() if self._tls else None,
                    server_hostname=self._host if self._tls else None,
                )
                return _Connection(reader, writer)
            except OSError as error:
                failure = _connect_failure(error)
                refused = failure if refused is None or failure.kind is not FailureKind.REFUSED else refused
        assert refused is not None  # noqa: S101 - there is at least one address
        raise _Ended(refused.kind, refused.detail)

    def _tls_context(self) -> ssl.SSLContext:
        if self._context is None:
            import ssl

            self._context = ssl.create_default_context()
        return self._context

    async def _addresses(self) -> list[str]:
        if self._host == "localhost":
            return ["127.0.0.1", "::1"]
        try:
            ipaddress.ip_address(self._host)
        except ValueError:
            return await _resolve(self._host)
        return [self._host]


async def _body(connection: _Connection, head: _Head) -> tuple[bytes, bool]:
    """The body, and whether its end was marked so that the connection can go on."""
    if head.headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        return await _chunked_body(connection), True
    declared = head.headers.get(b"content-length")
    if declared is not None:
        if not declared.isdigit() or len(declared) > 18:
            raise _Ended(FailureKind.GARBAGE, "the answer is not HTTP")
        if int(declared) > MAX_BODY_BYTES:
            raise _Ended(FailureKind.TOO_LARGE, f"{int(declared) / 1e6:.0f} MB, cut off")
        return await connection.take(int(declared)), True
    if head.status in (204, 304):
        return b"", True
    while await connection.more():
        _check_size(len(connection.pending))
    return bytes(connection.pending), False


async def _chunked_body(connection: _Connection) -> bytes:
    body = bytearray()
    while True:
        size_line = (await connection.take_line()).partition(b";")[0].strip()
        if not size_line or len(size_line) > 12 or re.search(rb"[^0-9A-Fa-f]", size_line):
            raise _Ended(FailureKind.GARBAGE, "the answer is not HTTP")
        size = int(size_line, 16)
        _check_size(len(body) + size)
        if size == 0:
            while await connection.take_line():
                pass
            return bytes(body)
        body += await connection.take(size)
        await connection.take(2)


def _check_size(size: int) -> None:
    if size > MAX_BODY_BYTES:
        raise _Ended(FailureKind.TOO_LARGE, f"more than {MAX_BODY_BYTES / 1e6:.0f} MB, cut off")


def _is_close(error: Exception) -> bool:
    return not isinstance(error, _Ended) or error.failure.kind is FailureKind.RESET


def _connect_failure(error: OSError) -> Failure:
    import ssl

    if isinstance(error, ConnectionRefusedError):
        return Failure(FailureKind.REFUSED, "nothing listens there")
    if isinstance(error, ssl.SSLError):
        return Failure(FailureKind.ERROR, one_line(f"TLS: {getattr(error, 'verify_message', '') or error.reason}"))
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return Failure(FailureKind.RESET, "connection reset while connecting")
    return Failure(FailureKind.UNREACHABLE, one_line(error.strerror or str(error)))


async def _resolve(host: str) -> list[str]:
    """The addresses of a name. In a daemon thread: a resolver that hangs must not hold up the program's end."""
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
            why = error.strerror if isinstance(error, OSError) and error.strerror else "not a valid name"
            failure = _Ended(FailureKind.UNREACHABLE, one_line(f"{host}: {why}"))
        try:
            loop.call_soon_threadsafe(settle, addresses, failure)
        except RuntimeError:
            # The loop has ended in the meantime; nobody waits any more.
            return

    threading.Thread(target=look_up, name="specdash-resolve", daemon=True).start()
    return await found
