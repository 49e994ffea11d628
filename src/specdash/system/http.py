"""HTTP over httpx: a question ends in time in a whole answer, or in an `HttpError` that says why there is none.

`Http` keeps the connections to one server for a loop that asks again and again; `ask` is for code that waits. Of httpx
only the transport is used, so that no answer is followed, unpacked or remembered; it is imported with the first
question.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from httpx import AsyncHTTPTransport

CONNECT_S = 10.0
MOST_BYTES = 16 * 1024 * 1024
"""Of a whole answer, and of an event; a larger one is refused."""
MOST_STREAMED = 256 * 1024 * 1024
KEEPALIVE_S = 4.5
"""llama-server closes idle connections after five seconds; ours go first."""
REFUSED, UNREACHABLE, TIMEOUT = "connection refused", "cannot be reached", "no answer in time"
RESET, GARBAGE, TOO_LARGE = "connection broken", "not understood", "too large"
ERROR, CANCELLED = "error", "cancelled"


class HttpError(OSError):
    """Why there is no whole answer; `kind` is the value of a `core.readings.FailureKind`."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class NoConnectionError(HttpError):
    """There is no connection: nothing was sent."""


class LateError(HttpError, TimeoutError):
    """There was no whole answer in time."""


class HttpReply(Struct):
    """An HTTP answer: whole, or, where it is heard as it comes, with a body that is still to be read, once."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case."""
    pieces: AsyncIterable[bytes]
    asked_at: float
    body: bytes = b""
    latency_s: float = 0.0
    """From the question to the last byte, in seconds."""

    @property
    def json(self) -> Any:
        """The body as JSON, None when it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    async def whole(self, most_bytes: int = MOST_BYTES) -> HttpReply:
        """With its body. Raises `HttpError` for one that is larger, or compressed although it should not be."""
        length = self.headers.get("content-length", "")
        if length.isdecimal() and int(length) > most_bytes:
            raise HttpError(TOO_LARGE, f"{int(length) / 1e6:.0f} MB, cut off")
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise HttpError(GARBAGE, "a compressed answer that was not asked for")
        body = bytearray()
        async for piece in self.pieces:
            body += piece
            if len(body) > most_bytes:
                raise HttpError(TOO_LARGE, f"more than {most_bytes / 1e6:.0f} MB, cut off")
        self.body, self.latency_s = bytes(body), time.monotonic() - self.asked_at
        return self

    async def events(self, longest: int = MOST_BYTES) -> AsyncIterator[bytes]:
        """The data of each server-sent event, as it comes; llama-server's `error:` as an object of that name. Raises
        `HttpError`, also for a line or a stream without an end."""
        held, total = b"", 0
        async for piece in self.pieces:
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

    Not shared between event loops; end it with `aclose`. `headers` go with every question; `to_own_user_only`: only
    where what listens on this machine runs as this user. `verified` is False for services of this machine that are
    found by pid: their certificates name other hosts.
    """

    def __init__(
        self,
        base: str,
        headers: Mapping[str, str] | None = None,
        *,
        connect_s: float = CONNECT_S,
        to_own_user_only: bool = False,
        verified: bool = True,
    ) -> None:
        self._base, self._connect_s, self._verified = base, connect_s, verified
        self._headers, self._checks_listener = headers or {}, to_own_user_only
        self._transports: dict[object, AsyncHTTPTransport] = {}
        """One for each certificate that the server has had."""

    async def ask(
        self,
        path: str,
        limit_s: float,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        most_bytes: int = MOST_BYTES,
        silence_s: float | None = None,
        hear: Callable[[HttpReply], Awaitable[None]] | None = None,
    ) -> HttpReply:
        """The answer of any status to GET, or to POST where there is a `body`, which goes as JSON; whole, unless `hear`
        takes it as it comes. `limit_s` bounds all of it, `silence_s` each wait for data. Raises `HttpError`."""
        import httpx

        connect_s, asked_at, is_begun = min(self._connect_s, limit_s), time.monotonic(), False
        # A connection that is being made is closed by its own limit alone, which counts for TCP and TLS each.
        own_s = min(connect_s, limit_s * (0.45 if self._base.startswith("https:") else 0.9))
        timeout = {"connect": own_s, "read": silence_s, "write": silence_s, "pool": None}
        kind = {} if body is None else {"Content-Type": "application/json"}
        sent = {"Accept-Encoding": "identity", "User-Agent": "specdash", **kind, **self._headers, **(headers or {})}
        try:
            request = httpx.Request(
                "GET" if body is None else "POST",
                self._base.rstrip("/") + path,
                headers=sent,
                content=None if body is None else json.dumps(body).encode(),
                extensions={"timeout": timeout, "trace": self._check_listener},
            )
            # Authorities are read outside of the limit: the one of a connection being made must run out before it.
            transport = self._transport()
            async with asyncio.timeout(limit_s):
                response = await transport.handle_async_request(request)
                is_begun = True
                try:
                    answer = HttpReply(response.status_code, dict(response.headers), response.aiter_raw(), asked_at)
                    await (answer.whole(most_bytes) if hear is None else hear(answer))
                    return answer
                finally:
                    await response.aclose()
        except HttpError:
            raise
        except httpx.ConnectTimeout:
            raise NoConnectionError(UNREACHABLE, f"no connection within {connect_s:.1f} s") from None
        except httpx.TimeoutException:
            raise LateError(TIMEOUT, f"nothing came for {silence_s or 0:.0f} s") from None
        except TimeoutError:
            why = "the answer was not complete" if is_begun else "accepts connections, no answer"
            raise LateError(TIMEOUT, f"{why} within {limit_s:.1f} s") from None
        except (httpx.TransportError, httpx.InvalidURL, OSError, ValueError) as error:
            raise _fault(error, self._base, "within the answer" if is_begun else "before an answer") from error

    async def _check_listener(self, event: str, _: Mapping[str, Any]) -> None:
        """Raises `NoConnectionError` before a key would go to another user's program, once there is a connection."""
        if self._checks_listener and event == "http11.send_request_headers.started":
            from specdash.system.processes import listener_owners  # psutil, which a client without a key does not need

            if listener_owners(_host_and_port(self._base)[1]) != {os.geteuid()}:
                raise NoConnectionError(UNREACHABLE, "another user's program listens there, and gets no key")

    async def aclose(self) -> None:
        """Close all connections."""
        while self._transports:
            await self._transports.popitem()[1].aclose()

    def _transport(self) -> AsyncHTTPTransport:
        import httpx

        certificate = _own_certificates.get(_host_and_port(self._base))
        if certificate not in self._transports:
            # Without TLS no authorities are read, which takes 20 ms.
            verify = tls_context(self._base, verified=self._verified) if self._base.startswith("https:") else False
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=4, keepalive_expiry=KEEPALIVE_S)
            self._transports[certificate] = httpx.AsyncHTTPTransport(verify=verify, limits=limits, trust_env=False)
        return self._transports[certificate]


def _fault(error: Exception, url: str, where: str) -> HttpError:
    """What an error of the library means."""
    import httpx

    causes = [cause for cause in _causes(error) if isinstance(cause, OSError)]
    # An address that refuses says more than one which this machine has no way to.
    known = (ConnectionRefusedError, ssl.SSLError, socket.gaierror, ConnectionError)
    match error, next((cause for kind in known for cause in causes if isinstance(cause, kind)), None):
        case ValueError() | httpx.InvalidURL() | httpx.UnsupportedProtocol(), _ if not isinstance(error, UnicodeError):
            return NoConnectionError(UNREACHABLE, f"not a valid address: {error}")
        case httpx.ConnectError(), ConnectionRefusedError():
            return NoConnectionError(REFUSED, "nothing listens there")
        case httpx.ConnectError(), ssl.SSLError() as cause:
            return NoConnectionError(ERROR, f"TLS: {getattr(cause, 'verify_message', '') or cause.reason}")
        case httpx.ConnectError(), socket.gaierror() as cause:
            return NoConnectionError(UNREACHABLE, f"{urlsplit(url).hostname}: {cause.strerror}")
        case httpx.ConnectError(), ConnectionError():
            return NoConnectionError(RESET, "connection reset while connecting")
        case httpx.ConnectError(), _:
            why = next((os.strerror(cause.errno) for cause in causes if cause.errno), str(error))
            return NoConnectionError(UNREACHABLE, why)
        case httpx.RemoteProtocolError(), _:
            # The library has one class for both; the fault table of the tests holds its words.
            if "disconnected" in str(error) or "closed connection" in str(error):
                return HttpError(RESET, f"connection closed {where}")
            return HttpError(GARBAGE, "the answer is not HTTP")
        case httpx.NetworkError() | OSError(), _:
            return HttpError(RESET, f"connection reset {where}")
    # A header that cannot be one: its words may repeat it, and with it a key.
    return HttpError(ERROR, "this question cannot be put into HTTP")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        for part in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
            yield from _causes(part)
        error = error.__cause__ or error.__context__


def ask(
    url: str,
    path: str,
    *,
    timeout: float = 2.0,
    verified: bool = True,
    cancel: Event | None = None,
    silence_s: float | None = None,
    **more: Any,
) -> HttpReply:
    """One question over a connection of its own, as `Http.ask`; `timeout` bounds it in all, and another thread ends it
    by `cancel`. Raises `HttpError`."""

    async def asked() -> HttpReply:
        connect_s = min(CONNECT_S, silence_s or timeout)
        async with contextlib.aclosing(Http(url, connect_s=connect_s, verified=verified)) as http:
            asking = asyncio.ensure_future(http.ask(path, timeout, silence_s=silence_s, **more))
            while cancel is not None and not asking.done():
                if cancel.is_set():
                    asking.cancel()
                await asyncio.wait({asking}, timeout=0.1)
            return await asking

    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(asked())
    except asyncio.CancelledError:
        raise HttpError(CANCELLED, "cancelled") from None


def status_of(url: str, path: str, timeout: float) -> int | None:
    """The status that a GET is answered with; None where there is no answer."""
    try:
        return ask(url, path, timeout=timeout).status
    except OSError:
        return None


_own_certificates: dict[tuple[str, int], str] = {}


def trust(url: str, certificate: str) -> None:
    """Take the certificate in this file for that of the server at `url`, whichever names it holds: a server of this
    machine, known by what it left of itself or by its process, answers at an address that no certificate names."""
    with contextlib.suppress(OSError):
        _own_certificates[_host_and_port(url)] = Path(certificate).read_text(encoding="ascii", errors="ignore")


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    local = host == "::1" or host.startswith("127.")
    return "localhost" if local else host, parts.port or (443 if parts.scheme == "https" else 80)


def tls_context(url: str, *, verified: bool = True) -> ssl.SSLContext:
    """What a connection to this address is secured with."""
    own = _own_certificates.get(_host_and_port(url))
    if verified and own is None:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if not verified:
        context.verify_mode = ssl.CERT_NONE
    else:
        # The certificate itself is trusted, also where the file lacks the authority that signed it.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        with contextlib.suppress(ValueError, ssl.SSLError):
            context.load_verify_locations(cadata=own)
    return context


class DaemonThreads(ThreadPoolExecutor):
    """A daemon thread for each call: a resolver or a driver that never returns holds up neither another call nor the
    program's end."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Make the call in a thread of its own."""
        future: Future[Any] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001 - the error belongs to the caller of `result`
                    future.set_exception(error)

        Thread(target=work, name="specdash-blocking", daemon=True).start()
        return future


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop that resolves names, and runs all else that may block, in such threads."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(DaemonThreads())
    return loop
