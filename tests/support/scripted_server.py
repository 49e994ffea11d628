"""A server of HTTP on 127.0.0.1 that does with each request what a test says, to the byte and to the moment.

`ScriptedServer` runs on the loop of the test, for behaviours that share its events. `ThreadedServer` has a loop of its
own in a thread, so that plain and asynchronous tests use it alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property, partial
from typing import Any, Self

from support.waiting import until_async

SSE = "text/event-stream"
JSON = "application/json"
DEADLINE_S = 10.0


class Call:
    """One request that came, and the way to answer it. Times are monotonic."""

    def __init__(self, head: str, raw: bytes, wire: _Wire) -> None:
        self.head = head
        self.raw = raw
        """The body as it came."""
        self.path = head.split(" ", 2)[1].partition("?")[0]
        self.connection = wire.connection
        """The number of its connection, from 1."""
        self.ordinal = wire.ordinal
        """How many requests the same connection had before."""
        self.at = time.monotonic()
        self.left: float | None = None
        """When the other side closed before the answer was whole."""
        self.done = False
        self.sent = 0
        """Bytes of the answer so far."""
        self.gone = threading.Event()
        self.started = threading.Event()
        """Set when the answer's first bytes are sent, or will never be."""
        self._wire = wire

    @cached_property
    def headers(self) -> dict[str, str]:
        """By their names in lower case."""
        lines = (line.partition(":") for line in self.head.split("\r\n")[1:])
        return {name.lower(): value.strip() for name, _, value in lines}

    @cached_property
    def body(self) -> Any:
        """The JSON that came; None where it is none."""
        with contextlib.suppress(ValueError):
            return json.loads(self.raw)
        return None

    def wait_left(self, timeout: float = DEADLINE_S) -> float:
        """When the other side closed; fails when it does not in time."""
        assert self.gone.wait(timeout), f"nobody aborted {self.path} within {timeout} s"
        assert self.left is not None, f"{self.path} was answered whole, not aborted"
        return self.left

    async def write(self, data: bytes) -> None:
        """Send bytes as they are, as fast as the other side reads."""
        if self._wire.transport.is_closing():
            raise asyncio.CancelledError
        self._wire.transport.write(data)
        self.sent += len(data)
        self.started.set()
        await self._wire.writable.wait()

    async def answer(self, status: int = 200, body: bytes = b"{}", kind: str = JSON) -> None:
        """A whole answer."""
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        await self.write(head.encode() + body)

    async def json(self, value: Any, status: int = 200) -> None:
        """A whole answer in JSON."""
        await self.answer(status, json.dumps(value).encode())

    async def begin(self, kind: str = SSE) -> None:
        """The head of an answer in chunks."""
        await self.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode())

    async def chunk(self, data: bytes = b"") -> None:
        """A chunk; the empty one is the last."""
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def hang(self) -> None:
        """Say nothing more, until the other side goes away."""
        await asyncio.sleep(3600)

    def hang_up(self, *, reset: bool = False) -> None:
        """Close the connection; with a TCP reset, nothing more is said."""
        if reset:
            linger = struct.pack("ii", 1, 0)
            self._wire.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._wire.transport.abort()
        else:
            self._wire.transport.close()


Behaviour = Callable[[Call], Awaitable[None]]
"""Answers a request. It is cancelled when the other side goes away."""


def tells(value: Any, status: int = 200) -> Behaviour:
    """This JSON, always, of a server that does not call itself llama.cpp."""
    return lambda call: call.json(value, status)


class ScriptedServer:
    """Answers a path by its behaviour in `routes`, any other one by `otherwise`; both may change at any time.

    It listens while it is entered, on a free port by default.
    """

    def __init__(self, otherwise: Behaviour, routes: Mapping[str, Behaviour] | None = None, port: int = 0) -> None:
        self.otherwise = otherwise
        self.routes = dict(routes or {})
        self.calls: list[Call] = []
        self.connections = 0
        self.port = port
        self._wires: set[_Wire] = set()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return len(self._wires)

    def asked(self, path: str) -> list[Call]:
        """The requests for a path."""
        return [call for call in list(self.calls) if call.path == path]

    def count(self, path: str) -> int:
        """How many they are."""
        return len(self.asked(path))

    def answer_for(self, call: Call) -> Behaviour:
        """How to answer."""
        return self.routes.get(call.path, self.otherwise)

    def came(self, call: Call) -> None:
        """Take note of a request."""
        self.calls.append(call)

    def drop_connections(self) -> None:
        """Close every connection now."""
        for wire in list(self._wires):
            wire.transport.abort()

    async def listen(self) -> None:
        """Take connections, on the running loop."""
        make, loop = partial(_Wire, self), asyncio.get_running_loop()
        self._server = await loop.create_server(make, "127.0.0.1", self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.drop_connections()
        await until_async(lambda: self.open == 0)


class ThreadedServer(ScriptedServer):
    """Listens from construction until `close`."""

    def __init__(self, otherwise: Behaviour, routes: Mapping[str, Behaviour] | None = None, port: int = 0) -> None:
        super().__init__(otherwise, routes, port)
        self._arrived = threading.Condition()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self.listen())

    def came(self, call: Call) -> None:
        """Take note of a request, and tell those that wait for it."""
        with self._arrived:
            super().came(call)
            self._arrived.notify_all()

    def wait_asked(self, path: str, count: int, timeout: float = DEADLINE_S) -> list[Call]:
        """The requests for a path, once there are at least `count`."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: self.count(path) >= count, timeout), f"{self.count(path)} of {count}"
        return self.asked(path)

    def drop_connections(self) -> None:
        """Close every connection now, as a server does with idle ones."""
        self._run(self._drop())

    async def _drop(self) -> None:
        super().drop_connections()
        await asyncio.sleep(0)  # they are closed in the loop's next turn

    def close(self) -> None:
        """Stop listening and break every connection; the port is free afterwards."""
        if self._closed:
            return
        self._closed = True
        self._run(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    async def _shut(self) -> None:
        for listener in self._server.sockets:
            self._loop.remove_reader(listener.fileno())
        super().drop_connections()
        # Also the loop's own tasks, which take up a connection that came just now: a closed server would leave it open.
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
        while self._wires:
            super().drop_connections()
            await asyncio.sleep(0)
        self._server.close()


class _Wire(asyncio.Protocol):
    """One connection: reads requests, and hands each to a task that answers it."""

    transport: asyncio.Transport

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.pending = b""
        self.ordinal = 0
        self.current: Call | None = None
        self.task: asyncio.Task[None] | None = None
        self.writable = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.writable.set()
        self.server.connections += 1
        self.connection = self.server.connections
        self.server._wires.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.server._wires.discard(self)
        self.writable.set()
        if self.current is not None:
            if not self.current.done:
                self.current.left = time.monotonic()
            self.current.gone.set()
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self.pending += data
        if self.task is None:
            self._next_request()

    def _next_request(self) -> None:
        head, found, rest = self.pending.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.lower().split(b"\r\n")
        length = next((int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")), 0)
        if len(rest) < length:
            if any(line.startswith(b"expect:") for line in lines):
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        self.pending = rest[length:]
        self.current = call = Call(head.decode("latin-1"), rest[:length], self)
        self.ordinal += 1
        self.server.came(call)
        self.task = asyncio.get_running_loop().create_task(self._answer(call))

    async def _answer(self, call: Call) -> None:
        try:
            await self.server.answer_for(call)(call)
            call.done = not self.transport.is_closing()
        finally:
            call.started.set()
            if not call.done:
                self.transport.close()
        if call.done:
            self.task, self.current = None, None
            self._next_request()
