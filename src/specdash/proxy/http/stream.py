"""Answers that take their time: kept alive while they stream, and given up when no client waits for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import Response

from specdash.core.proxy_events import RequestOutcome
from specdash.proxy.http.responses import ApiError, shown_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from starlette.types import Receive, Scope, Send

    Ended = Callable[[RequestOutcome, int, str | None, ApiError | None], None]
    """Records the end of a request: outcome, status, type of error, and the error where it is the client's to read."""

_T = TypeVar("_T")


class ClientLeftError(Exception):
    """The client closed its connection before the answer was complete."""


async def unless_gone(
    receive: Receive, work: Coroutine[Any, Any, _T], tick: Callable[[], Awaitable[float]] | None = None
) -> _T:
    """The result of `work`, which is cancelled when the client leaves. Raises `ClientLeftError` then.

    `tick` is called meanwhile, each time after as many seconds as it asked for last.
    """

    async def left() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = task, gone = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        while not task.done():
            if gone.done():
                raise ClientLeftError
            await asyncio.wait(tasks, timeout=await tick() if tick else None, return_when=asyncio.FIRST_COMPLETED)
        return task.result()
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class EventStream(Response):
    """Server-sent events that `produce` writes while the client stays, or the other response that it returns.

    A stream begins with the first bytes, or with what `idle` gives once `commit_s` seconds have passed without any:
    until then an error keeps its status, and `produce` may return another response. Afterwards an error is what
    `failure` makes of it, and `idle` is asked for something to send whenever nothing was sent for `ping_s` seconds.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        produce: Callable[[EventStream], Coroutine[Any, Any, Response | None]],
        *,
        commit_s: float,
        ping_s: float,
        idle: Callable[[], bytes],
        failure: Callable[[ApiError], bytes],
        ended: Ended,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.started = False
        """The client has the head, and can no longer be given another status."""
        self._produce = produce
        self._commit_s = commit_s
        self._ping_s = ping_s
        self._idle = idle
        self._failure = failure
        self._ended = ended
        self._send: Send
        self._sent_at = asyncio.get_running_loop().time()

    async def write(self, data: bytes) -> None:
        """Send some of the stream, whole events or not."""
        if not data:
            return
        self._sent_at = asyncio.get_running_loop().time()
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        try:
            other = await unless_gone(receive, self._produce(self), self._tick)
        except ClientLeftError:
            self._ended(RequestOutcome.CLIENT_LEFT, 499, None, None)
        except BaseException as error:
            shown = shown_error(error, "an answer")
            self._ended(RequestOutcome.ERROR, shown.status, shown.type, shown)
            if not self.started:
                raise
            await send({"type": "http.response.body", "body": self._failure(shown)})
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            if other is not None:
                await other(scope, receive, send)
            else:
                await send({"type": "http.response.body", "body": b""})

    async def _tick(self) -> float:
        """Send something when nothing was sent for too long; the seconds until that may be so again."""
        loop = asyncio.get_running_loop()
        left_s = (self._ping_s if self.started else self._commit_s) - (loop.time() - self._sent_at)
        if left_s > 0:
            return left_s
        await self.write(self._idle())
        self._sent_at = loop.time()
        return self._ping_s
