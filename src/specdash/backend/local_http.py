"""One bounded question to a server on this machine, without a connection pool: a swap changes who answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_BODY = 4 * 1024 * 1024
NO_HEADERS: Mapping[str, str] = {}


class Cancel:
    """Ends a question from another thread: whoever waits for its answer gets an `OSError` at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self.cancelled = False

    def __call__(self) -> None:
        with self._lock:
            self.cancelled = True
            line = self._connection.sock if self._connection is not None else None
            if line is not None:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)

    def watch(self, connection: http.client.HTTPConnection | None) -> None:
        """Remember what is asked now. Raises `OSError` when it was cancelled before."""
        with self._lock:
            self._connection = connection
            if self.cancelled and connection is not None:
                raise OSError("cancelled")


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer, whole."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON, None when it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def ask(
    url: str,
    path: str,
    *,
    headers: Mapping[str, str] = NO_HEADERS,
    body: Any = None,
    timeout: float = 2.0,
    cancel: Cancel | None = None,
) -> Reply:
    """GET, or POST when there is a JSON body. Raises `OSError` when no HTTP answer comes; `timeout` bounds silences."""
    connection = _connection(url, timeout)
    data = None if body is None else json.dumps(body).encode()
    try:
        with contextlib.closing(connection):
            if cancel is not None:
                connection.connect()
                cancel.watch(connection)
            head = {"connection": "close", **({"content-type": "application/json"} if data else {}), **headers}
            connection.request("GET" if data is None else "POST", path, data, head)
            answer = connection.getresponse()
            return Reply(answer.status, answer.read(_MAX_BODY))
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"no HTTP answer: {type(error).__name__}") from None
    finally:
        if cancel is not None:
            cancel.watch(None)


def _connection(url: str, timeout: float) -> http.client.HTTPConnection:
    place = urlsplit(url)
    if ".sock" in url:
        path = url.partition("://")[2]
        return _UnixConnection(path[: path.index(".sock") + len(".sock")], timeout)
    host = place.hostname or "127.0.0.1"
    if place.scheme == "https":
        return http.client.HTTPSConnection(host, place.port, timeout=timeout, context=_context())
    return http.client.HTTPConnection(host, place.port, timeout=timeout)


def _context() -> ssl.SSLContext:
    """For services of this machine, which are found by pid: their certificate names other hosts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path
        self._limit = timeout

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self._limit)
        self.sock.connect(self._path)
