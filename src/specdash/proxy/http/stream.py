"""Answers that take their time: kept alive while they stream, and given up when no client waits for them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import Response

from specdash.core.proxy_events import RequestOutcome
from specdash.proxy.http.responses import ApiError, ProxyStoppingError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from starlette.types import Receive, Scope, Send

    Ended = Callable[[RequestOutcome, int, str | None, ApiError | None], None]
    """Records the end of a request: outcome, status, type of error, and the error where it is the client's to read."""

_LOG = logging.getLogger("specdash.proxy")
_T = TypeVar("_T")


class ClientLeftError(Exception):
    """The client closed its connection before the answer was complete."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`, which is cancelled when the client leaves. Raises `ClientLeftError` then."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeftError
        return task.result()
    finally:
        await _cancelled(task, gone)


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
        self._sent_at = 0.0

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
        task, gone = asyncio.ensure_future(self._produce(self)), asyncio.ensure_future(_gone(receive))
        try:
            other = await self._watched(task, gone)
        except BaseException as error:
            await _cancelled(task, gone)
            shown = _record_end(error, self._ended)
            if shown is None:
                return
            if not self.started:
                raise
            await send({"type": "http.response.body", "body": self._failure(shown)})
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            await _cancelled(task, gone)
            if other is not None:
                await other(scope, receive, send)
            else:
                await send({"type": "http.response.body", "body": b""})

    async def _watched(self, task: asyncio.Task[Response | None], gone: asyncio.Task[None]) -> Response | None:
        loop = asyncio.get_running_loop()
        wait_s, self._sent_at = self._commit_s, loop.time()
        while True:
            await asyncio.wait({task, gone}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if gone.done():
                raise ClientLeftError
            limit_s = self._ping_s if self.started else self._commit_s
            wait_s = limit_s - (loop.time() - self._sent_at)
            if wait_s <= 0:
                await self.write(self._idle())
                self._sent_at = loop.time()
                wait_s = self._ping_s


def _record_end(error: BaseException, ended: Ended) -> ApiError | None:
    """Record a request that ended with `error`; what its client is to read, None for a client that is gone."""
    if isinstance(error, ClientLeftError):
        ended(RequestOutcome.CLIENT_LEFT, 499, None, None)
        return None
    if isinstance(error, ApiError):
        shown = error
    elif isinstance(error, asyncio.CancelledError):
        # Only the end of the drain cancels a request.
        shown = ProxyStoppingError()
    else:
        _LOG.error("unexpected error in an answer", exc_info=error)
        shown = ApiError(500, "internal error of the proxy; its log says more")
    ended(RequestOutcome.ERROR, shown.status, shown.type, shown)
    return shown


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
