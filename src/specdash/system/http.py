"""HTTP over httpx: a question ends in time in a whole answer, or in an `HttpError` that says why there is none.

`Http` keeps the connections to one server for a loop that asks again and again; `ask` and `hear` are for code that
waits. Of httpx only the transport is used, so that no answer is followed, unpacked or remembered; it is imported with
the first question.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

from msgspec import Struct, field

from specdash.system.loops import new_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from httpx import AsyncHTTPTransport

CONNECT_S = 10.0
MOST_BYTES = 16 * 1024 * 1024
"""Of a whole answer, and of an event; a larger one is refused."""
MOST_STREAMED = 256 * 1024 * 1024
KEEPALIVE_S = 4.5
"""llama-server closes idle connections after five seconds; ours go first."""
CANCEL_S = 0.1
"""Seconds between two looks whether a question was cancelled."""
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


class NoConnectionError(HttpError):
    """There is no connection: nothing was sent."""


class LateError(HttpError, TimeoutError):
    """There was no whole answer in time."""


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


class Response:
    """An answer as far as its headers; the body is read once, whole or event by event."""

    def __init__(self, status: int, headers: Mapping[str, str], pieces: AsyncIterable[bytes], asked_at: float) -> None:
        self.status, self.headers, self._pieces, self._asked_at = status, headers, pieces, asked_at

    async def whole(self, most_bytes: int = MOST_BYTES) -> HttpReply:
        """With its body. Raises `HttpError` for one that is larger, or compressed although it should not be."""
        length = self.headers.get("content-length", "")
        if length.isdecimal() and int(length) > most_bytes:
            raise HttpError(TOO_LARGE, f"{int(length) / 1e6:.0f} MB, cut off")
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise HttpError(GARBAGE, "a compressed answer that was not asked for")
        parts, size = [], 0
        async for part in self._pieces:
            parts.append(part)
            size += len(part)
            if size > most_bytes:
                raise HttpError(TOO_LARGE, f"more than {most_bytes / 1e6:.0f} MB, cut off")
        return HttpReply(self.status, b"".join(parts), self.headers, time.monotonic() - self._asked_at)

    async def events(self, longest: int = MOST_BYTES) -> AsyncIterator[bytes]:
        """The data of each server-sent event, as it comes; llama-server's `error:` as an object of that name. Raises
        `HttpError`, also for a line or a stream without an end."""
        held, total = b"", 0
        async for piece in self._pieces:
            *lines, held = (held + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    yield line[5:].strip()
                elif line.startswith(b"error:"):
                    yield b'{"error":' + line[6:].strip() + b"}"
            total += len(piece)
            if len(held) > longest or total > MOST_STREAMED:
                raise HttpError(TOO_LARGE, f"more than {max(len(held), total) / 1e6:.0f} MB, cut off")


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
        self._base, self._connect_s, self._verified = base, connect_s, verified
        self._key = {"Authorization": f"Bearer {key.strip()}"} if key else {}
        self._checks_listener = to_own_user_only and key is not None
        self._transports: list[AsyncHTTPTransport] = []
        """The last one is asked; the others are of certificates that have changed since."""
        self._certificate: object = None

    async def ask(
        self,
        path: str,
        limit_s: float,
        *,
        body: Any = None,
        headers: Mapping[str, str] = NO_HEADERS,
        most_bytes: int = MOST_BYTES,
    ) -> HttpReply:
        """The answer to GET, or to POST where there is a `body`, which goes as JSON, of any status.

        Raises `HttpError`.
        """
        async with self.opened(path, limit_s, body=body, headers=headers) as response:
            return await response.whole(most_bytes)

    @contextlib.asynccontextmanager
    async def opened(
        self,
        path: str,
        limit_s: float,
        *,
        silence_s: float | None = None,
        body: Any = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> AsyncIterator[Response]:
        """The answer as far as its headers. `limit_s` bounds all that is done with it, `silence_s` each wait for data.
        Raises `HttpError`, also for what goes wrong while its body is read."""
        import httpx

        url = _place(self._base)
        is_new = is_connected = is_begun = False
        asked_at = time.monotonic()
        # A connection that is being made is closed by its own limit alone, which counts for TCP and TLS each.
        connect_s = min(self._connect_s, limit_s * (0.45 if url.startswith("https:") else 0.9))

        async def trace(event: str, _: Mapping[str, Any]) -> None:
            nonlocal is_new, is_connected, is_begun
            is_new = is_new or event == "connection.connect_tcp.complete"
            is_begun = is_begun or event == "http11.receive_response_headers.complete"
            if event == "http11.send_request_headers.started":
                is_connected = True
                if is_new and self._checks_listener and not _is_own_listener(self._base):
                    raise NoConnectionError(UNREACHABLE, "another user's program listens there, and gets no key")

        kind = {} if body is None else {"Content-Type": "application/json"}
        sent = {"Accept-Encoding": "identity", "User-Agent": "specdash", **kind, **self._key, **headers}
        timeout = httpx.Timeout(connect=connect_s, read=silence_s, write=silence_s, pool=None)
        try:
            async with asyncio.timeout(limit_s):
                request = httpx.Request(
                    "GET" if body is None else "POST",
                    url + path,
                    headers=sent,
                    content=None if body is None else json.dumps(body).encode(),
                    extensions={"timeout": timeout.as_dict(), "trace": trace},
                )
                response = await self._transport().handle_async_request(request)
                try:
                    yield Response(response.status_code, dict(response.headers), response.aiter_raw(), asked_at)
                finally:
                    await response.aclose()
        except HttpError:
            raise
        except (TimeoutError, httpx.TimeoutException) as error:
            if isinstance(error, httpx.ConnectTimeout) or not is_connected:
                within_s = min(self._connect_s, limit_s) if isinstance(error, httpx.ConnectTimeout) else limit_s
                raise NoConnectionError(UNREACHABLE, f"no connection within {within_s:.1f} s") from None
            if isinstance(error, httpx.TimeoutException):
                raise LateError(TIMEOUT, f"nothing came for {silence_s or 0:.0f} s") from None
            why = "the answer was not complete" if is_begun else "accepts connections, no answer"
            raise LateError(TIMEOUT, f"{why} within {limit_s:.1f} s") from None
        except (httpx.TransportError, httpx.InvalidURL, OSError, ValueError) as error:
            raise _fault(error, url, is_begun=is_begun) from error

    async def aclose(self) -> None:
        """Close all connections."""
        while self._transports:
            await self._transports.pop().aclose()

    def _transport(self) -> AsyncHTTPTransport:
        import httpx

        certificate = _certificate_of(self._base)
        if not self._transports or certificate != self._certificate:
            self._certificate = certificate
            # Without TLS no authorities are read, which takes 20 ms.
            verify = tls_context(self._base, verified=self._verified) if self._base.startswith("https:") else False
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=4, keepalive_expiry=KEEPALIVE_S)
            self._transports.append(httpx.AsyncHTTPTransport(verify=verify, limits=limits, trust_env=False))
        return self._transports[-1]


def _is_own_listener(url: str) -> bool:
    from specdash.system.processes import is_own_listener  # psutil, which a client without a key does not need

    return is_own_listener(_host_and_port(url)[1])


def _fault(error: Exception, url: str, *, is_begun: bool) -> HttpError:
    """What an error of the library means."""
    import httpx

    where = "within the answer" if is_begun else "before an answer"
    if isinstance(error, httpx.ConnectError):
        return _unconnected(error, urlsplit(url).hostname or "")
    if isinstance(error, httpx.RemoteProtocolError):
        # The library has one class for both; the fault table of the tests holds its words.
        if "disconnected" in str(error) or "closed connection" in str(error):
            return HttpError(RESET, f"connection closed {where}")
        return HttpError(GARBAGE, "the answer is not HTTP")
    if isinstance(error, httpx.NetworkError | OSError):
        return HttpError(RESET, f"connection reset {where}")
    # A header that cannot be one: its words may repeat it, and with it a key.
    return HttpError(ERROR, "this question cannot be put into HTTP")


def _unconnected(error: BaseException, host: str) -> NoConnectionError:
    causes = [cause for cause in _causes(error) if isinstance(cause, OSError)]
    # An address that refuses says more than one which this machine has no way to.
    for kind in (ConnectionRefusedError, ssl.SSLError, socket.gaierror, ConnectionResetError, BrokenPipeError):
        for cause in causes:
            if not isinstance(cause, kind):
                continue
            if isinstance(cause, ConnectionRefusedError):
                return NoConnectionError(REFUSED, "nothing listens there")
            if isinstance(cause, ssl.SSLError):
                return NoConnectionError(ERROR, f"TLS: {getattr(cause, 'verify_message', '') or cause.reason}")
            if isinstance(cause, socket.gaierror):
                return NoConnectionError(UNREACHABLE, f"{host}: {cause.strerror}")
            return NoConnectionError(RESET, "connection reset while connecting")
    why = next((os.strerror(cause.errno) for cause in causes if cause.errno), str(error))
    return NoConnectionError(UNREACHABLE, why)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        for part in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
            yield from _causes(part)
        error = error.__cause__ or error.__context__


class Cancel:
    """Ends questions from another thread: each of them, and each that is asked later, raises `OSError`."""

    cancelled = False

    def __call__(self) -> None:
        self.cancelled = True


def ask(url: str, path: str, *, timeout: float = 2.0, most_bytes: int = MOST_BYTES, **more: Any) -> HttpReply:
    """One question over a connection of its own, as `Http.ask`; `timeout` bounds it in all, `more` is as of `hear`.
    Raises OSError."""
    return hear(url, path, lambda response: response.whole(most_bytes), limit_s=timeout, **more)


def hear(
    url: str,
    path: str,
    take: Callable[[Response], Awaitable[T]],
    *,
    body: Any = None,
    headers: Mapping[str, str] = NO_HEADERS,
    limit_s: float,
    silence_s: float | None = None,
    verified: bool = True,
    cancel: Cancel | None = None,
) -> T:
    """What `take` makes of the answer to a question, heard as it comes; see `Http.opened`. Raises OSError."""

    async def heard() -> T:
        once = {"Connection": "close", **headers}
        async with (
            contextlib.aclosing(Http(url, connect_s=min(CONNECT_S, silence_s or limit_s), verified=verified)) as http,
            http.opened(path, limit_s, silence_s=silence_s, body=body, headers=once) as response,
        ):
            return await take(response)

    async def unless_cancelled() -> T:
        asking = asyncio.ensure_future(heard())
        while cancel is not None and not asking.done():
            if cancel.cancelled:
                asking.cancel()
            await asyncio.wait({asking}, timeout=CANCEL_S)
        return await asking

    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(unless_cancelled())
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
        host, port = parts.hostname, parts.port
        if not host or parts.scheme not in {"http", "https"}:
            raise NoConnectionError(UNREACHABLE, "an address without a host")
        named = f"[{host}]" if ":" in host else host.encode("idna").decode()
    except ValueError as error:
        raise NoConnectionError(UNREACHABLE, f"not a valid address: {error}") from None
    return f"{parts.scheme}://{named}{'' if port is None else f':{port}'}{quote(parts.path.rstrip('/'), safe='/%')}"


_own_certificates: dict[tuple[str, int], str] = {}


def trust(url: str, certificate: str) -> None:
    """Take the certificate in this file for that of the server at `url`, whichever names it holds: a server of this
    machine, known by what it left of itself or by its process, answers at an address that no certificate names."""
    _own_certificates[_host_and_port(url)] = certificate


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    local = host == "::1" or host.startswith("127.")
    return "localhost" if local else host, parts.port or (443 if parts.scheme == "https" else 80)


def _certificate_of(url: str) -> tuple[str, int] | None:
    """The file with the certificate of the server at `url` and the time of its last change; None for any other."""
    own = _own_certificates.get(_host_and_port(url)) if url.startswith("https:") else None
    changed = 0
    with contextlib.suppress(OSError):
        changed = Path(own or "").stat().st_mtime_ns
    return None if own is None else (own, changed)


def tls_context(url: str, *, verified: bool = True) -> ssl.SSLContext:
    """What a connection to this address is secured with."""
    own = _certificate_of(url)
    if verified and own is None:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if not verified or own is None:
        context.verify_mode = ssl.CERT_NONE
        return context
    # The certificate itself is trusted, also where the file lacks the authority that signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    with contextlib.suppress(OSError, ssl.SSLError):
        context.load_verify_locations(own[0])
    return context
