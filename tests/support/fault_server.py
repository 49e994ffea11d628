"""A server of raw sockets that answers HTTP as it is told, and injects the faults of real servers and networks."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Behaviour = Callable[[socket.socket, "FaultServer"], bool]
    """Answers one request on a connection; False when the connection is to be closed."""


def answer(status: int, body: bytes, *headers: str) -> bytes:
    """One whole HTTP answer."""
    lines = [f"HTTP/1.1 {status} X", "Server: llama.cpp", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def says(status: int, body: bytes | str, *headers: str) -> Behaviour:
    """Answer at once and keep the connection."""
    whole = answer(status, body.encode() if isinstance(body, str) else body, *headers)

    def behave(connection: socket.socket, _: FaultServer) -> bool:
        connection.sendall(whole)
        return True

    return behave


def writes(data: bytes) -> Behaviour:
    """Send exactly these bytes, then close."""

    def behave(connection: socket.socket, _: FaultServer) -> bool:
        connection.sendall(data)
        return False

    return behave


def hangs(after: bytes = b"") -> Behaviour:
    """Send these bytes and then nothing, with the connection open."""

    def behave(connection: socket.socket, server: FaultServer) -> bool:
        connection.sendall(after)
        server.closing.wait(30)
        return False

    return behave


def drips(data: bytes, pause_s: float = 1.0) -> Behaviour:
    """Send one byte, wait, send the next."""

    def behave(connection: socket.socket, server: FaultServer) -> bool:
        for index in range(len(data)):
            connection.sendall(data[index : index + 1])
            if server.closing.wait(pause_s):
                break
        return False

    return behave


def floods(head: bytes, piece: bytes, pieces: int) -> Behaviour:
    """Send the head and then many pieces, as long as the other side reads."""

    def behave(connection: socket.socket, server: FaultServer) -> bool:
        connection.sendall(head)
        for _ in range(pieces):
            connection.sendall(piece)
            server.sent += len(piece)
        return False

    return behave


def resets(after: bytes = b"") -> Behaviour:
    """Send these bytes and then a TCP reset."""

    def behave(connection: socket.socket, _: FaultServer) -> bool:
        connection.sendall(after)
        if after:
            # A reset overtakes data that the reader has not seen yet.
            time.sleep(0.05)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    return behave


class FaultServer:
    """Listens on 127.0.0.1; `routes` maps a path without its query to a behaviour, and may change at any time.

    `requests` keeps the head of every request with the monotonic time it came, by path.
    """

    def __init__(self, routes: dict[str, Behaviour] | None = None, port: int = 0) -> None:
        self.routes: dict[str, Behaviour] = dict(routes or {})
        self.otherwise: Behaviour = says(404, '{"error":{"code":404,"message":"File Not Found"}}')
        self.requests: dict[str, list[tuple[float, str]]] = defaultdict(list)
        self.connections = 0
        self.sent = 0
        self.closing = threading.Event()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", port), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._start(self._accept)

    def count(self, path: str) -> int:
        """How many requests came for a path."""
        return len(self.requests[path])

    def close(self) -> None:
        """Stop listening and break every connection."""
        self.closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()
        for thread in self._threads:
            thread.join(5)

    def drop_connections(self) -> None:
        """Close all open connections, as a server does with idle ones."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self.closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(connection)
            self._start(lambda connection=connection: self._serve(connection))  # type: ignore[misc]

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                for head in _requests(connection):
                    path = head.split(" ", 2)[1].partition("?")[0]
                    self.requests[path].append((time.monotonic(), head))
                    if not self.routes.get(path, self.otherwise)(connection, self):
                        return
        except OSError:
            return
        finally:
            self._open.discard(connection)


def _requests(connection: socket.socket) -> Iterator[str]:
    pending = b""
    while True:
        while b"\r\n\r\n" not in pending:
            data = connection.recv(65536)
            if not data:
                return
            pending += data
        head, _, pending = pending.partition(b"\r\n\r\n")
        yield head.decode("latin-1")


@contextlib.contextmanager
def full_backlog() -> Iterator[str]:
    """The address of a listener whose queue is full, so that further connections are never established."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        time.sleep(0.05)
        yield f"http://127.0.0.1:{address[1]}"


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
