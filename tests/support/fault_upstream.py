"""An upstream that speaks llama.cpp's HTTP and does what a test's script says, faults included.

It runs on an event loop in a thread of its own, so that plain and asynchronous tests use it alike. A chat completion
takes the next `Script` of `scripts`, or what `decide` returns for its body, or `otherwise`; `seen` records what came,
and when the other side went away.

Formats are those of llama.cpp b11549: `prompt_progress` and `timings` on the chunks, a usage chunk, `[DONE]`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from support.upstream_script import Script, answers, error, loading

if TYPE_CHECKING:
    from collections.abc import Callable

CHAT = "/v1/chat/completions"
DEADLINE_S = 10.0


@dataclass(slots=True, eq=False)
class Seen:
    """One request that came. Times are monotonic; `left` is when the other side closed before the answer was whole."""

    path: str
    headers: dict[str, str]
    body: Any
    connection: int
    ordinal: int
    """How many requests the same connection had before."""
    at: float = field(default_factory=time.monotonic)
    left: float | None = None
    done: bool = False
    gone: threading.Event = field(default_factory=threading.Event)
    started: threading.Event = field(default_factory=threading.Event)
    """Set when the answer's first byte is sent, or will never be."""

    def wait_left(self, timeout: float = DEADLINE_S) -> float:
        """When the other side closed; fails when it does not in time."""
        assert self.gone.wait(timeout), f"the proxy did not abort {self.path} within {timeout} s"
        assert self.left is not None, f"{self.path} was answered whole, not aborted"
        return self.left


class FaultUpstream:
    """Listens on 127.0.0.1 from construction until `close`. Settings and scripts may change at any time."""

    def __init__(self, port: int = 0, *, n_ctx: int = 65536) -> None:
        self.n_ctx = n_ctx
        self.model = "scripted"
        self.scripts: list[Script] = []
        self.otherwise: Script = answers("Hello")
        self.decide: Callable[[Any], Script | None] | None = None
        self.tokens: Callable[[Any], int] = lambda body: len(json.dumps(body.get("messages", ""))) // 4
        self.routes: dict[str, Script] = {}
        """Answers of other paths than chat completions, instead of the usual ones."""
        self.is_loading = False
        self.stale_after: int | None = None
        """Connections that had this many requests are closed without a byte when another comes."""
        self.seen: list[Seen] = []
        self.connections = 0
        self._arrived = threading.Condition()
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._wires: set[_Wire] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._run(self._loop.create_server(lambda: _Wire(self), "127.0.0.1", port, backlog=1024))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def chats(self) -> list[Seen]:
        """The chat completions that came, in order."""
        return [item for item in list(self.seen) if item.path == CHAT]

    def wait_chats(self, count: int, timeout: float = DEADLINE_S) -> list[Seen]:
        """The chat completions, once there are at least `count`."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.chats) >= count, timeout), f"{len(self.chats)} of {count}"
        return self.chats

    def forget(self) -> None:
        """Start over: no request seen, no script waiting, every setting as at first."""
        self.seen.clear()
        self.scripts.clear()
        self.routes.clear()
        self.otherwise, self.decide = answers("Hello"), None
        self.is_loading, self.stale_after = False, None

    def break_connections(self) -> None:
        """Close every connection now."""
        self._loop.call_soon_threadsafe(self._abort_all)

    def close(self) -> None:
        """Stop listening and break every connection; the port is free afterwards."""
        if self._closing:
            return
        self._closing = True
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
        for task in list(self._tasks):
            task.cancel()
        # Also the loop's own, which take up a connection that came just now: a closed server would leave it open.
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
        while self._wires:
            self._abort_all()
            await asyncio.sleep(0)
        self._server.close()

    def _abort_all(self) -> None:
        for wire in list(self._wires):
            wire.abort()

    def _record(self, item: Seen) -> None:
        with self._arrived:
            self.seen.append(item)
            self._arrived.notify_all()

    def _script(self, item: Seen) -> Script:
        if item.path in self.routes:
            return self.routes[item.path]
        if self.is_loading:
            return loading()
        if item.path != CHAT:
            return self._fact(item.path, item.body)
        decided = self.decide(item.body) if self.decide is not None else None
        if decided is not None:
            return decided
        return self.scripts.pop(0) if self.scripts else self.otherwise

    def _fact(self, path: str, body: Any) -> Script:
        facts: dict[str, Callable[[], Any]] = {
            "/health": lambda: {"status": "ok"},
            "/props": self._props,
            "/slots": lambda: [{"id": 0, "n_ctx": self.n_ctx, "speculative": True, "is_processing": False}],
            "/v1/models": self._models,
            "/tokenize": lambda: {"tokens": list(range(len(str(body.get("content", ""))) // 4))},
            "/apply-template": lambda: {"prompt": json.dumps(body.get("messages", ""))},
            CHAT + "/input_tokens": lambda: {"input_tokens": self.tokens(body), "object": "response.input_tokens"},
        }
        if path not in facts:
            return error(404, "File Not Found", "not_found_error")
        return Script(body=json.dumps(facts[path]()).encode())

    def _props(self) -> Any:
        return {
            "default_generation_settings": {"params": {}, "n_ctx": self.n_ctx},
            "total_slots": 4,
            "model_alias": self.model,
            "model_path": f"/models/{self.model}.gguf",
            "modalities": {"vision": True, "video": False, "audio": False},
            "build_info": "b11549-scripted",
        }

    def _models(self) -> Any:
        meta = {"n_ctx": self.n_ctx, "n_ctx_train": self.n_ctx, "n_vocab": 1024}
        return {"object": "list", "data": [{"id": self.model, "object": "model", "owned_by": "llamacpp", "meta": meta}]}


class _Wire(asyncio.Protocol):
    """One connection: reads requests, and hands each to a task that plays its script."""

    def __init__(self, server: FaultUpstream) -> None:
        self.server = server
        self.pending = b""
        self.ordinal = 0
        self.current: Seen | None = None
        self.task: asyncio.Task[None] | None = None
        self.writable = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.writable.set()
        self.server.connections += 1
        self.number = self.server.connections
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

    def abort(self) -> None:
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self.pending += data
        if self.task is None:
            self._next_request()

    def _next_request(self) -> None:
        head, found, rest = self.pending.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", "0"))
        if "expect" in headers and len(rest) < length:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if len(rest) < length:
            return
        self.pending = rest[length:]
        path = lines[0].split(" ")[1].partition("?")[0]
        body: Any = None
        with contextlib.suppress(ValueError):
            body = json.loads(rest[:length]) if length else None
        item = Seen(path, headers, body, self.number, self.ordinal)
        self.ordinal += 1
        self.current = item
        self.server._record(item)
        stale = self.server.stale_after
        if stale is not None and item.path == CHAT and item.ordinal >= stale:
            self.transport.close()
            return
        self.task = asyncio.get_running_loop().create_task(self._play(item, self.server._script(item)))
        self.server._tasks.add(self.task)
        self.task.add_done_callback(self.server._tasks.discard)

    async def _play(self, item: Seen, script: Script) -> None:
        keep = await script.play(self._write, item.body, item.started.set)
        item.started.set()
        if not keep:
            if script.resets:
                self.transport.abort()
            else:
                self.transport.close()
            return
        item.done = True
        self.task, self.current = None, None
        self._next_request()

    async def _write(self, data: bytes) -> None:
        if self.transport.is_closing():
            raise asyncio.CancelledError
        self.transport.write(data)
        await self.writable.wait()
