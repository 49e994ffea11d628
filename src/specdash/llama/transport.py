"""GET with httpcore: bounded in time and size, with exact reasons when there is no answer.

httpcore is the engine of httpx, which itself would take, imports and first answer, half of what `specdash snapshot` may
take in all (`benchmarks/collect_cost.py` measures both). It is imported at the first question.
"""

from __future__ import annotations

import asyncio
import string
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from specdash.core.readings import Failure, FailureKind
from specdash.llama.bodies import one_line

if TYPE_CHECKING:
    import httpcore

    from specdash.llama.network import Progress

MAX_BODY_BYTES = 4 * 1024 * 1024
"""A larger answer is not llama-server's and is cut off."""

CONNECT_DEADLINE_S = 1.0

_KEEPALIVE_S = 4.5
"""llama-server closes idle connections after five seconds; ours go first."""
_MAX_IDLE = 4


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, whole. `latency_s` is the time from the question to its last byte in seconds."""

    status: int
    body: bytes
    latency_s: float
    server: str = ""
    """The Server header: `llama.cpp` for llama-server itself."""
    media_type: str = ""
    """What the answer says it is, in lower case without parameters: `text/plain`; empty where it does not say."""


class Transport:
    """Asks one server. Not shared between event loops; end it with `aclose`."""

    def __init__(self, base: str, api_key: str | None, connect_deadline_s: float = CONNECT_DEADLINE_S) -> None:
        """`base` is a normalised address, `api_key` printable ASCII."""
        parts = urlsplit(base)
        self._scheme = parts.scheme
        self._host = parts.hostname or ""
        self._port = parts.port
        self._prefix = parts.path
        self._connect_deadline_s = connect_deadline_s
        self._headers: dict[bytes | str, bytes | str] = {b"Accept-Encoding": b"identity", b"User-Agent": b"specdash"}
        if api_key:
            self._headers[b"Authorization"] = b"Bearer " + api_key.strip().encode("ascii")
        self._pool: httpcore.AsyncConnectionPool | None = None
        self._name = b""
        """The host as it goes over the wire, known once there is a pool."""

    async def get(self, path: str, deadline_s: float) -> Answer | Failure:
        """The answer whatever its status, or why there is none; within the deadline."""
        from specdash.llama.network import Progress

        started = time.monotonic()
        progress = Progress()
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._ask(path, progress, started)
                if isinstance(answer, Failure) and _is_stale(answer, progress):
                    progress = Progress()
                    answer = await self._ask(path, progress, started)
                return answer
        except TimeoutError:
            if progress.start:
                return Failure(FailureKind.TIMEOUT, f"the answer was not complete within {deadline_s:.1f} s")
            return Failure(FailureKind.TIMEOUT, f"accepts connections, no answer within {deadline_s:.1f} s")

    async def aclose(self) -> None:
        """Close all connections."""
        if self._pool is not None:
            await self._pool.aclose()
            self._pool = None

    async def _ask(self, path: str, progress: Progress, started: float) -> Answer | Failure:
        import httpcore

        from specdash.llama.network import PROGRESS

        token = PROGRESS.set(progress)
        timeouts = {"timeout": {"connect": self._connect_deadline_s}}
        try:
            pool = self._pool or self._open()
            url = self._url(path)
            async with pool.stream("GET", url, headers=self._headers, extensions=timeouts) as response:
                headers = {name.lower(): value for name, value in response.headers}
                body = await _bounded_body(response, headers)
        except UnicodeError:
            return Failure(FailureKind.UNREACHABLE, one_line(f"{self._host}: not a valid name"))
        except httpcore.ConnectTimeout:
            return Failure(FailureKind.UNREACHABLE, f"no connection within {self._connect_deadline_s:.1f} s")
        except httpcore.ConnectError as error:
            return _unconnected(error, self._host)
        except (httpcore.NetworkError, httpcore.RemoteProtocolError, OSError) as error:
            return _broken(error, progress)
        except httpcore.LocalProtocolError:
            # Its words may repeat a header, and with it the key.
            return Failure(FailureKind.ERROR, "this question cannot be put into HTTP")
        finally:
            PROGRESS.reset(token)
        if isinstance(body, Failure):
            return body
        server = headers.get(b"server", b"").decode("latin-1")
        media_type = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        latency_s = time.monotonic() - started
        return Answer(response.status, body, latency_s, one_line(server, 60), one_line(media_type, 60))

    def _open(self) -> httpcore.AsyncConnectionPool:
        """Raises UnicodeError for a host that cannot be a name."""
        import ssl

        import httpcore

        from specdash.llama.network import Network

        host = self._name = self._host.encode("idna")
        # The library leaves the brackets of an IPv6 address off.
        shown_host = b"[%b]" % host if b":" in host else host
        self._headers[b"Host"] = shown_host if self._port is None else b"%b:%d" % (shown_host, self._port)
        self._pool = httpcore.AsyncConnectionPool(
            # Loading the certificate store takes longer than everything else here and plain http needs none.
            ssl_context=ssl.create_default_context() if self._scheme == "https" else None,
            max_connections=None,
            max_keepalive_connections=_MAX_IDLE,
            keepalive_expiry=_KEEPALIVE_S,
            network_backend=Network(),
        )
        return self._pool

    def _url(self, path: str) -> httpcore.URL:
        import httpcore

        target = quote(self._prefix + path, safe=string.punctuation)
        return httpcore.URL(scheme=self._scheme, host=self._name, port=self._port, target=target)


async def _bounded_body(response: httpcore.Response, headers: dict[bytes, bytes]) -> bytes | Failure:
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        return Failure(FailureKind.GARBAGE, "a compressed answer that nobody asked for")
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        return Failure(FailureKind.TOO_LARGE, f"{int(declared) / 1e6:.0f} MB, cut off")
    body = bytearray()
    async for chunk in response.aiter_stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return Failure(FailureKind.TOO_LARGE, f"more than {MAX_BODY_BYTES / 1e6:.0f} MB, cut off")
    return bytes(body)


def _is_stale(failure: Failure, progress: Progress) -> bool:
    """Whether the server had closed the connection while it was idle, which says nothing about the question."""
    return failure.kind is FailureKind.RESET and not progress.is_on_new_connection and not progress.start


def _unconnected(error: httpcore.ConnectError, host: str) -> Failure:
    import socket
    import ssl

    from specdash.llama.network import causes, is_refusal

    if is_refusal(error):
        return Failure(FailureKind.REFUSED, "nothing listens there")
    cause = next((cause for cause in reversed(causes(error)) if isinstance(cause, OSError)), None)
    if isinstance(cause, ssl.SSLError):
        return Failure(FailureKind.ERROR, one_line(f"TLS: {getattr(cause, 'verify_message', '') or cause.reason}"))
    if cause is None or isinstance(cause, ConnectionResetError | BrokenPipeError):
        return Failure(FailureKind.RESET, "connection reset while connecting")
    words = cause.strerror or str(cause)
    named = f"{host}: {words}" if isinstance(cause, socket.gaierror) else words
    return Failure(FailureKind.UNREACHABLE, one_line(named))


def _broken(error: Exception, progress: Progress) -> Failure:
    import httpcore

    is_protocol_error = isinstance(error, httpcore.RemoteProtocolError)
    if is_protocol_error and not progress.is_closed:
        return Failure(FailureKind.GARBAGE, "the answer is not HTTP")
    what = "closed" if is_protocol_error else "reset"
    where = "within the answer" if progress.start else "before an answer"
    return Failure(FailureKind.RESET, f"connection {what} {where}")
