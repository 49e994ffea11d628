"""Noticing that a client has gone, at any moment of its request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class ClientLeftError(Exception):
    """The client closed its connection before the answer was complete."""


class ClientWatch:
    """Cancels its block as soon as the client is gone, and raises `ClientLeftError` in its place.

    Use it once the body is read. Once `answered` is set the answer only has to be sent: leaving no longer counts.
    """

    def __init__(self, receive: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self.answered = False
        self._receive = receive
        self._left = False
        self._task: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None

    @property
    def left(self) -> bool:
        """True when the block is being ended because the client is gone."""
        return self._left

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        if not self._left or self._task is None:
            return
        if kind is None:
            # The block ended in the moment of the cancellation, which is still to be delivered.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                kind = asyncio.CancelledError
        if self._task.uncancel() == 0 and (kind is None or issubclass(kind, asyncio.CancelledError)):
            raise ClientLeftError from None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.answered and self._task is not None:
            self._left = True
            self._task.cancel()
