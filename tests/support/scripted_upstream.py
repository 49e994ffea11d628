"""Small upstreams on real sockets, on the loop of the test, and settings that point at them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import orjson

from specdash.proxy.settings import ProxySettings, settings_from_env
from support.waiting import until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Behaviour = Callable[["Call"], Awaitable[None]]

SSE = "text/event-stream"


def settings_for(url: str, **texts: str) -> ProxySettings:
    """Settings with `url` as the upstream; other keys by their env name."""
    return settings_from_env({"LLAMA_CPP_BASE": f"{url}/v1", "PROXY_EVENTS_FILE": "off", **texts})


class Call:
    """One request the upstream got, and the way to answer it."""

    def __init__(self, head: str, body: bytes, writer: asyncio.StreamWriter, number: int, reader: Any) -> None:
        self.head = head
        self.body = body
        self.number = number
        """How many requests came on this connection before."""
        self.writer = writer
        self.reader = reader

    @property
    def path(self) -> str:
        return self.head.split(" ", 2)[1]

    def header(self, name: str) -> str | None:
        lines = (line.partition(":") for line in self.head.split("\r\n")[1:])
        return next((value.strip() for key, _, value in lines if key.lower() == name), None)

    async def answer(self, status: int = 200, body: bytes = b"{}", kind: str = "application/json") -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        await self.writer.drain()

    async def json(self, value: Any, status: int = 200) -> None:
        await self.answer(status, orjson.dumps(value))

    async def begin(self, kind: str = SSE) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"
        self.writer.write(head.encode())
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self.writer.drain()

    async def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    def hang_up(self) -> None:
        self.writer.close()

    async def gone(self) -> None:
        """Wait until the other side has closed."""
        with contextlib.suppress(OSError):
            while await self.reader.read(65536):
                pass


def answers(value: Any, status: int = 200) -> Behaviour:
    """Always this JSON."""

    async def behave(call: Call) -> None:
        await call.json(value, status)

    return behave


class ScriptedUpstream:
    """Answers every request by `behave`, a coroutine of the `Call`; a path of `routes` comes first."""

    def __init__(self, behave: Behaviour) -> None:
        self.behave = behave
        self.routes: dict[str, Behaviour] = {}
        self.calls: list[Call] = []
        self.connections = 0
        self.open = 0
        self.url = ""
        self._writers: set[asyncio.StreamWriter] = set()

    def count(self, path: str) -> int:
        return sum(call.path == path for call in self.calls)

    def drop_connections(self) -> None:
        for writer in list(self._writers):
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self._writers.add(writer)
        number = 0
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = next(
                    (int(x.split(":")[1]) for x in head.split("\r\n") if x.lower().startswith("content-length:")), 0
                )
                call = Call(head, await reader.readexactly(length), writer, number, reader)
                self.calls.append(call)
                await self.routes.get(call.path, self.behave)(call)
                if writer.is_closing():
                    return
                number += 1
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            self._writers.discard(writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self.open -= 1


@contextlib.asynccontextmanager
async def scripted(behave: Behaviour) -> AsyncIterator[ScriptedUpstream]:
    """A `ScriptedUpstream` that listens on 127.0.0.1."""
    upstream = ScriptedUpstream(behave)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield upstream
    finally:
        server.close()
        upstream.drop_connections()
        await until_async(lambda: upstream.open == 0)
