"""Noticing that a client has gone, at any moment of its request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from specdash.proxy.answer.blocks import SseWriter
    from specdash.proxy.http.responses import ApiError, Send


# The client's side of a streamed turn: the HTTP response, started as late as it may be, and pings while it waits.

HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class ClientStream:
    """Sends what `writer` has written.

    The response begins with the first bytes sent. `begin` is called to write message_start when `commit_after` seconds
    have passed without any: from then on the client gets a ping whenever nothing was sent for `ping_interval` seconds,
    and an error can only be an event. Use as an async context manager; leaving it ends the pings.
    """

    def __init__(self, send: Send, writer: SseWriter, begin: Callable[[], None], *, ping_interval: float) -> None:
        self._send = send
        self._writer = writer
        self._begin = begin
        self._ping_interval = ping_interval
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._last_sent = 0.0
        self.started = False
        """True once the response has begun."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop_timer()
        if self._pinging is not None:
            self._pinging.cancel()
            await asyncio.gather(self._pinging, return_exceptions=True)

    def commit_after(self, seconds: float) -> None:
        """Begin the response `seconds` from now, unless it has begun by then."""
        if not self.started:
            self._watch(seconds)

    async def flush(self) -> None:
        """Send what has been written since the last time."""
        async with self._lock:
            data = self._writer.take()
            if data:
                await self._send_head()
                await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def fail(self, error: ApiError, request_id: str) -> None:
        """End a stream that has begun with the event of an error."""
        self._writer.error(error.envelope(request_id))
        await self.close()

    async def close(self) -> None:
        """Send the rest and end the response."""
        self._stop_timer()
        async with self._lock:
            await self._send_head()
            await self._send({"type": "http.response.body", "body": self._writer.take()})

    async def _send_head(self) -> None:
        self._last_sent = self._loop.time()
        if not self.started:
            self.started = True
            if not self._writer.finished:
                self._watch(self._ping_interval)
            await self._send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        if self._writer.finished:
            return
        if self._pinging is not None and not self._pinging.done():
            self._watch(self._ping_interval)
            return
        quiet = self._loop.time() - self._last_sent
        if self.started and quiet < self._ping_interval:
            self._watch(self._ping_interval - quiet)
            return
        if not self._writer.started:
            self._begin()
        self._writer.ping()
        self._pinging = self._loop.create_task(self.flush())
        self._watch(self._ping_interval)


class ClientLeftError(Exception):
    """The client closed its connection before the answer was complete."""


class ClientWatch:
    """Cancels its block as soon as the client is gone, and raises `ClientLeftError` in its place.

    Use it once the body is read. Once `answered` is set the answer only has to be sent: leaving no longer counts.
    """

    def __init__(self, receive: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self.answered = False
        self.left = False
        """The block is being ended because the client is gone."""
        self._receive = receive
        self._task: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        task, watcher, self._task, self._watcher = self._task, self._watcher, None, None
        # Forgotten, since a cancelled task keeps the frames that it was in, and with them this, the request and its
        # connection, until the garbage collector's rarest look.
        if watcher is not None:
            watcher.cancel()
        if not self.left or task is None:
            return
        if kind is None:
            # The block ended in the moment of the cancellation, which is still to be delivered.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                kind = asyncio.CancelledError
        if task.uncancel() == 0 and (kind is None or issubclass(kind, asyncio.CancelledError)):
            raise ClientLeftError from None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.answered and self._task is not None:
            self.left = True
            self._task.cancel()
