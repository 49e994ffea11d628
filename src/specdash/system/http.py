"""HTTP for whoever waits for the answer: short questions, answered whole, and streams of events. Raises `OSError`.

Over http.client, by measurement: a streamed event costs 28 us here, 65 over httpcore and 75 over httpx, and on a
machine that runs the server too, that is time which decode might have had. Each question has a connection of its own,
as the server may be closing an old one, and a swap changes who answers. Whoever looks all day has `llama.client`.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import socket
import ssl
import threading
import time
from dataclasses import field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

CONNECT_S = 10.0
MOST_BYTES = 16 * 1024 * 1024
"""Of an answer; what comes after that is not read."""
_MOST_STREAMED = 256 * 1024 * 1024
_BLOCK = 65536
Response = http.client.HTTPResponse
NO_HEADERS: Mapping[str, str] = {}


class NoConnectionError(OSError):
    """Nobody was reached: nothing was sent."""


class LateError(TimeoutError):
    """A stream was not complete within its time."""


class Cancel:
    """Ends questions from another thread: whoever waits for an answer gets an `OSError` at once, and so does whoever
    asks from then on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: set[socket.socket] = set()
        self.cancelled = False

    def __call__(self) -> None:
        with self._lock:
            self.cancelled = True
            for line in self._lines:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def watched(self, line: socket.socket) -> Iterator[None]:
        """End this connection as well, if it comes to that. Raises `OSError` when it has."""
        with self._lock:
            if self.cancelled:
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
            self._lines.add(line)
        try:
            yield
        finally:
            with self._lock:
                self._lines.discard(line)


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An HTTP answer, whole."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name in lower case."""

    @property
    def json(self) -> Any:
        """The body as JSON, None when it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


def ask(url: str, path: str, *, most_bytes: int = MOST_BYTES, **how: Any) -> HttpReply:
    """The answer to GET, or to POST where there is a `body`, whatever its status; see `opened`."""
    with opened(url, path, **how) as answer:
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return HttpReply(answer.status, whole(answer, most_bytes), headers)


def status_of(url: str, path: str, timeout: float) -> int | None:
    """The status that a GET is answered with; None when nobody answers."""
    try:
        return ask(url, path, timeout=timeout).status
    except OSError:
        return None


@contextlib.contextmanager
def opened(
    url: str,
    path: str,
    *,
    body: Any = None,
    headers: Mapping[str, str] = NO_HEADERS,
    timeout: float = 2.0,
    verified: bool = True,
    cancel: Cancel | None = None,
) -> Iterator[Response]:
    """The answer as far as its headers. `url` may have a prefix; `body` goes as JSON.

    `timeout` bounds each silence, in seconds. `verified` is False for services of this machine, which are found by pid:
    their certificates name other hosts. Raises `NoConnectionError`, other `OSError`.
    """
    data = None if body is None else json.dumps(body).encode()
    given = {"Content-Type": "application/json"} if data is not None else {}
    head = {"Connection": "close", "User-Agent": "specdash", **given, **headers}
    try:
        with contextlib.ExitStack() as stack:
            connection = _connected(url, timeout, _context(url, verified=verified))
            stack.callback(connection.close)
            if cancel is not None:
                stack.enter_context(cancel.watched(connection.sock))
            prefix = urlsplit(url).path.rstrip("/")
            try:
                connection.request("GET" if data is None else "POST", prefix + path, data, head)
                answer = connection.getresponse()
            except ValueError as error:
                raise OSError(f"no HTTP answer: {type(error).__name__}") from None
            stack.callback(answer.close)
            yield answer
    except http.client.HTTPException as error:
        if isinstance(error, OSError):
            raise
        raise OSError(f"no HTTP answer: {type(error).__name__}") from None


def whole(answer: Response, most_bytes: int = MOST_BYTES) -> bytes:
    """The body, up to its bound. Raises OSError."""
    data = answer.read(most_bytes)
    if answer.length and len(data) < most_bytes:  # which http.client passes over
        raise OSError("the answer broke off")
    return data


def blocks(answer: Response, until: float = float("inf")) -> Iterator[bytes]:
    """What comes of a stream, as it comes. Raises `LateError` after `until` (monotonic), OSError with EMSGSIZE for a
    stream that does not end."""
    total = 0
    while block := answer.read1(_BLOCK):
        yield block
        total += len(block)
        if total > _MOST_STREAMED:
            raise OSError(errno.EMSGSIZE, f"more than {total / 1e6:.0f} MB, cut off")
        if time.monotonic() > until:
            raise LateError


def events(pieces: Iterable[bytes], longest: int = MOST_BYTES) -> Iterator[bytes]:
    """The data of each server-sent event, wherever the pieces were cut; llama-server's `error:` as an object of that
    name. Raises OSError with EMSGSIZE for a line that is longer than that."""
    held = b""
    for piece in pieces:
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
            elif line.startswith(b"error:"):
                yield b'{"error":' + line[6:].strip() + b"}"
        if len(held) > longest:
            raise OSError(errno.EMSGSIZE, f"more than {len(held) / 1e6:.0f} MB, cut off")


def words(error: OSError) -> str:
    """What went wrong, without numbers."""
    return str(error.strerror or error) or type(error).__name__


_own_certificates: dict[tuple[str, int], str] = {}


def trust(url: str, certificate: str) -> None:
    """Take the certificate in this file for that of the server at `url`, whichever names it holds: a server of this
    machine, known by what it left of itself or by its process, answers at an address that no certificate names."""
    _own_certificates[_place(url)] = certificate


def tls_context(url: str) -> ssl.SSLContext:
    """How the certificate of the server at `url` is checked: against its own file where `trust` has one."""
    own = _own_certificates.get(_place(url))
    if own is None:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # The certificate itself is trusted, also where the file lacks the authority that signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    with contextlib.suppress(OSError, ssl.SSLError):
        context.load_verify_locations(own)
    return context


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    return "localhost" if host == "::1" or host.startswith("127.") else host, parts.port or 443


def _context(url: str, *, verified: bool) -> ssl.SSLContext | None:
    if not url.startswith("https://"):
        return None
    if verified:
        return tls_context(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _connected(url: str, timeout: float, context: ssl.SSLContext | None) -> http.client.HTTPConnection:
    try:
        connection = _connection(url, min(CONNECT_S, timeout), context)
    except ValueError as error:
        raise NoConnectionError(None, str(error)) from None
    try:
        connection.connect()
        connection.sock.settimeout(timeout)
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError | ValueError | http.client.HTTPException):
            # A name that cannot be one is a ValueError of its codec.
            why = words(error) if isinstance(error, OSError) else str(error)
            raise NoConnectionError(getattr(error, "errno", None), why) from error
        raise
    return connection


def _connection(url: str, timeout: float, context: ssl.SSLContext | None) -> http.client.HTTPConnection:
    place = urlsplit(url)
    host = place.hostname or "127.0.0.1"
    if place.scheme == "https":
        return http.client.HTTPSConnection(host, place.port, timeout=timeout, context=context)
    return http.client.HTTPConnection(host, place.port, timeout=timeout)
