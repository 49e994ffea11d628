"""HTTP over httpx: a question ends in time in a whole answer, or in an `HttpError` that says why there is none.

`Http` keeps the connections to one server for a loop that asks again and again; `ask` and `hear` are for code that
waits.
httpx is imported with the first question, as it takes longer to import than many a command to run.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct, field

from specdash.system.loops import new_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from httpx import AsyncHTTPTransport
    from httpx import Response as Response  # noqa: PLC0414 - for those who hear

CONNECT_S = 10.0
MOST_BYTES = 16 * 1024 * 1024
"""Of a whole answer, and of an event; a larger one is refused."""
MOST_STREAMED = 256 * 1024 * 1024
KEEPALIVE_S = 4.5
"""llama-server closes idle connections after five seconds; ours go first."""
NO_HEADERS: Mapping[str, str] = {}
REFUSED, UNREACHABLE, TIMEOUT, RESET = (
    "connection refused",
    "cannot be reached",
    "no answer in time",
    "connection broken",
)
GARBAGE, TOO_LARGE, ERROR = "not understood", "too large", "error"

T = TypeVar("T")


class HttpError(OSError):
    """Why there is no whole answer; `kind` is the value of a `core.readings.FailureKind`."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind
        self.is_stale = False
        """The server had closed a kept connection, which says nothing about the question."""


class NoConnectionError(HttpError):
    """There is no connection: nothing was sent."""


class LateError(HttpError, TimeoutError):
    """There was no whole answer in time."""


class _ListenerError(Exception):
    """A program of another user listens there."""


class HttpReply(Struct, frozen=True):
    """An HTTP answer, whole. `latency_s` is the time from the question to its last byte in seconds."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name in lower case."""
    latency_s: float = 0.0

    @property
    def json(self) -> Any:
        """The body as JSON, None when it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def media_type(self) -> str:
        """`text/plain`, in lower case without parameters; empty where the answer does not say."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class Http:
    """The connections to the server at `base`, which may have a prefix.

    Not shared between event loops; end it with `aclose`. `key` is sent as a bearer token; with `to_own_user_only` only
    where what listens on this machine runs as this user. `verified` is False for services of this machine that are
    found by pid: their certificates name other hosts.
    """

    def __init__(
        self,
        base: str,
        key: str | None = None,
        *,
        connect_s: float = CONNECT_S,
        to_own_user_only: bool = False,
        verified: bool = True,
    ) -> None:
        self._base, self._key, self._connect_s = base, key, connect_s
        with contextlib.suppress(ValueError):
            self._host = urlsplit(base).hostname or ""
        self._to_own_user_only, self._verified = to_own_user_only, verified
        self._transport: AsyncHTTPTransport | None = None
        self._open = 0
        self._renews = False
        """The server's certificate may be another by now."""

    _host = ""

    async def ask(
        self,
        path: str,
        limit_s: float,
        *,
        body: Any = None,
        headers: Mapping[str, str] = NO_HEADERS,
        most_bytes: int = MOST_BYTES,
    ) -> HttpReply:
        """The answer to GET, or to POST where there is a `body`, which goes as JSON, whatever the answer's status.

        Raises `HttpError`. A GET is asked once more where the server had just closed the connection.
        """
        started = time.monotonic()

        async def once() -> HttpReply:
            left = limit_s - (time.monotonic() - started)
            async with self.opened(path, left, body=body, headers=headers) as response:
                return await _reply(response, most_bytes, started)

        try:
            return await once()
        except HttpError as error:
            if not error.is_stale or body is not None:
                raise
        return await once()

    @contextlib.asynccontextmanager
    async def opened(
        self,
        path: str,
        limit_s: float | None,
        *,
        silence_s: float | None = None,
        body: Any = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> AsyncIterator[Response]:
        """The answer as far as its headers. `limit_s` bounds all that is done with it, `silence_s` each wait for data.
        Raises `HttpError`, also for what goes wrong while its body is read."""
        import httpx

        address = _place(self._base)
        is_new = is_connected = is_begun = False
        key = self._key
        if self._renews and not self._open:
            # Not beside another question: a connection that is being made would be lost, and never closed.
            self._renews = False
            await self.aclose()
        self._open += 1

        async def trace(event: str, told: Mapping[str, Any]) -> None:
            nonlocal is_new, is_connected, is_begun
            is_new = is_new or event.startswith("connection.connect_")
            is_connected = is_connected or event.startswith("http11.")
            is_begun = is_begun or event == "http11.receive_response_headers.complete"
            if event == "connection.connect_tcp.complete" and key and self._to_own_user_only and not self._is_own():
                await told["return_value"].aclose()
                raise _ListenerError

        async def sent(given: dict[str, str]) -> Response:
            """The answer to the question with these headers."""
            data = None if body is None else json.dumps(body).encode()
            timeout = {"connect": self._connect_s, "read": silence_s, "write": silence_s, "pool": None}
            request = httpx.Request(
                "GET" if data is None else "POST",
                address + path,
                headers={"Accept-Encoding": "identity", "User-Agent": "specdash", **given, **headers},
                content=data,
                extensions={"timeout": timeout, "trace": trace},
            )
            if self._transport is None:
                limits = httpx.Limits(max_keepalive_connections=4, keepalive_expiry=KEEPALIVE_S)
                self._transport = httpx.AsyncHTTPTransport(
                    verify=_context(self._base, verified=self._verified), limits=limits, retries=0
                )
            response: Response = await self._transport.handle_async_request(request)
            return response

        try:
            async with asyncio.timeout(limit_s):
                given = {} if body is None else {"Content-Type": "application/json"}
                try:
                    response = await sent(given | ({"Authorization": f"Bearer {key.strip()}"} if key else {}))
                except _ListenerError:
                    key = None
                    # Not kept: the next question looks again at who listens.
                    response = await sent({**given, "Connection": "close"})
                try:
                    yield response
                finally:
                    await response.aclose()
        except HttpError:
            raise
        except TimeoutError:
            if not is_connected:
                raise NoConnectionError(UNREACHABLE, f"no connection within {limit_s:.1f} s") from None
            why = "the answer was not complete" if is_begun else "accepts connections, no answer"
            raise LateError(TIMEOUT, f"{why} within {limit_s:.1f} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError) as error:
            fault = self._fault(error, silence_s, is_begun=is_begun)
            fault.is_stale = fault.kind == RESET and not is_new and not is_begun
            self._renews = isinstance(fault, NoConnectionError) and self._base.startswith("https:")
            raise fault from error
        finally:
            self._open -= 1

    async def aclose(self) -> None:
        """Close all connections."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    def _is_own(self) -> bool:
        from specdash.system.processes import is_own_listener  # psutil, which a client without a key does not need

        parts = urlsplit(self._base)
        return is_own_listener(parts.port or (443 if parts.scheme == "https" else 80))

    def _fault(self, error: Exception, silence_s: float | None, *, is_begun: bool) -> HttpError:
        """What an error of the library, or of an address that cannot be one, means."""
        import httpx

        where = "within the answer" if is_begun else "before an answer"
        if isinstance(error, httpx.ConnectTimeout):
            return NoConnectionError(UNREACHABLE, f"no connection within {self._connect_s:.1f} s")
        if isinstance(error, httpx.ConnectError):
            return _unconnected(error, self._host)
        if isinstance(error, httpx.TimeoutException):
            return LateError(TIMEOUT, f"nothing came for {silence_s or 0:.0f} s")
        if isinstance(error, httpx.RemoteProtocolError):
            # The library has one class for both; the fault table of the tests holds its words.
            if "disconnected" in str(error) or "closed connection" in str(error):
                return HttpError(RESET, f"connection closed {where}")
            return HttpError(GARBAGE, "the answer is not HTTP")
        if isinstance(error, httpx.NetworkError | ConnectionError):
            return HttpError(RESET, f"connection reset {where}")
        if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
            return NoConnectionError(UNREACHABLE, f"{self._host}: not a valid name")
        # A header that cannot be one: its words may repeat it, and with it a key.
        return HttpError(ERROR, "this question cannot be put into HTTP")


def _unconnected(error: Exception, host: str) -> NoConnectionError:
    causes = list(_causes(error))

    def first(*kinds: type[BaseException]) -> Any:
        return next((cause for cause in causes if isinstance(cause, kinds)), None)

    # An address that refuses says more than one which this machine has no way to.
    if first(ConnectionRefusedError):
        return NoConnectionError(REFUSED, "nothing listens there")
    if (tls := first(ssl.SSLError)) is not None:
        return NoConnectionError(ERROR, f"TLS: {getattr(tls, 'verify_message', '') or tls.reason}")
    if (unknown := first(socket.gaierror)) is not None:
        return NoConnectionError(UNREACHABLE, f"{host}: {unknown.strerror}")
    if first(ConnectionResetError, BrokenPipeError):
        return NoConnectionError(RESET, "connection reset while connecting")
    system = next((cause for cause in causes if isinstance(cause, OSError) and cause.errno), None)
    return NoConnectionError(UNREACHABLE, os.strerror(system.errno or 0) if system is not None else str(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        for part in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
            yield from _causes(part)
        error = error.__cause__ or error.__context__


async def whole(response: Response, most_bytes: int = MOST_BYTES) -> bytes:
    """The body. Raises `HttpError` for one that is larger, or compressed although it should not be."""
    length = response.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most_bytes:
        raise HttpError(TOO_LARGE, f"{int(length) / 1e6:.0f} MB, cut off")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(GARBAGE, "a compressed answer that was not asked for")
    parts, size = [], 0
    async for part in response.aiter_raw():
        parts.append(part)
        size += len(part)
        if size > most_bytes:
            raise HttpError(TOO_LARGE, f"more than {most_bytes / 1e6:.0f} MB, cut off")
    return b"".join(parts)


async def _reply(response: Response, most_bytes: int, started: float) -> HttpReply:
    data = await whole(response, most_bytes)
    return HttpReply(response.status_code, data, dict(response.headers), time.monotonic() - started)


class EventLines:
    """Takes a stream of server-sent events apart, wherever its pieces were cut."""

    def __init__(self, longest: int = MOST_BYTES) -> None:
        self._held, self._longest = b"", longest

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of each event that is whole by now; llama-server's `error:` as an object of that name. Raises
        `HttpError` for a line without an end."""
        *lines, self._held = (self._held + piece).split(b"\n")
        if len(self._held) > self._longest:
            raise HttpError(TOO_LARGE, f"more than {len(self._held) / 1e6:.0f} MB, cut off")
        found = []
        for line in lines:
            if line.startswith(b"data:"):
                found.append(line[5:].strip())
            elif line.startswith(b"error:"):
                found.append(b'{"error":' + line[6:].strip() + b"}")
        return found


async def events(response: Response) -> AsyncIterator[bytes]:
    """The data of each event of a stream, as it comes. Raises `HttpError`, also for a stream that does not end."""
    lines, total = EventLines(), 0
    async for piece in response.aiter_raw():
        for event in lines.feed(piece):
            yield event
        total += len(piece)
        if total > MOST_STREAMED:
            raise HttpError(TOO_LARGE, f"more than {total / 1e6:.0f} MB, cut off")


class Cancel:
    """Ends questions from another thread: each of them, and each that is asked later, raises `OSError` at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: list[Callable[[], object]] = []
        self.cancelled = False

    def __call__(self) -> None:
        with self._lock:
            self.cancelled = True
            for end in self._ends:
                end()

    @contextlib.contextmanager
    def watching(self, end: Callable[[], object]) -> Iterator[None]:
        """Call `end` if it comes to that. Raises CancelledError when it has."""
        with self._lock:
            if self.cancelled:
                raise asyncio.CancelledError
            self._ends.append(end)
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)


def ask(
    url: str,
    path: str,
    *,
    body: Any = None,
    headers: Mapping[str, str] = NO_HEADERS,
    timeout: float = 2.0,
    verified: bool = True,
    cancel: Cancel | None = None,
    most_bytes: int = MOST_BYTES,
) -> HttpReply:
    """One question over a connection of its own, as `Http.ask`; `timeout` bounds it in all. Raises OSError."""
    started = time.monotonic()

    async def take(response: Response) -> HttpReply:
        return await _reply(response, most_bytes, started)

    return hear(url, path, take, body=body, headers=headers, limit_s=timeout, verified=verified, cancel=cancel)


def hear(
    url: str,
    path: str,
    take: Callable[[Response], Awaitable[T]],
    *,
    body: Any,
    headers: Mapping[str, str],
    limit_s: float,
    silence_s: float | None = None,
    verified: bool = True,
    cancel: Cancel | None = None,
) -> T:
    """What `take` makes of the answer to a question, heard as it comes; see `Http.opened`. Raises OSError."""
    client = Http(url, connect_s=min(CONNECT_S, silence_s or limit_s), verified=verified)

    async def heard() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None  # noqa: S101 - for the type checker
        with cancel.watching(lambda: loop.call_soon_threadsafe(task.cancel)) if cancel else contextlib.nullcontext():
            try:
                async with client.opened(
                    path, limit_s, silence_s=silence_s, body=body, headers={"Connection": "close", **headers}
                ) as response:
                    return await take(response)
            finally:
                await client.aclose()

    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(heard())
    except asyncio.CancelledError:
        raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED)) from None


def status_of(url: str, path: str, timeout: float) -> int | None:
    """The status that a GET is answered with; None where there is no answer."""
    try:
        return ask(url, path, timeout=timeout).status
    except OSError:
        return None


def words(error: OSError) -> str:
    """What went wrong, without numbers."""
    return str(error.strerror or error) or type(error).__name__


def _place(url: str) -> str:
    """The address that a path follows. Raises `NoConnectionError`."""
    try:
        parts = urlsplit(url)
        is_host = bool(parts.netloc) and (parts.port or 0) >= 0
    except ValueError as error:
        raise NoConnectionError(UNREACHABLE, f"not a valid address: {error}") from None
    if not is_host:
        raise NoConnectionError(UNREACHABLE, "an address without a host")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


_own_certificates: dict[tuple[str, int], str] = {}


def trust(url: str, certificate: str) -> None:
    """Take the certificate in this file for that of the server at `url`, whichever names it holds: a server of this
    machine, known by what it left of itself or by its process, answers at an address that no certificate names."""
    _own_certificates[_host_and_port(url)] = certificate


def tls_context(url: str) -> ssl.SSLContext:
    """How the certificate of the server at `url` is checked: against its own file where `trust` has one."""
    own = _own_certificates.get(_host_and_port(url))
    if own is None:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # The certificate itself is trusted, also where the file lacks the authority that signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    with contextlib.suppress(OSError, ssl.SSLError):
        context.load_verify_locations(own)
    return context


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    return "localhost" if host == "::1" or host.startswith("127.") else host, parts.port or 443


def _context(url: str, *, verified: bool) -> ssl.SSLContext | bool:
    return tls_context(url) if verified and url.startswith("https://") else False
