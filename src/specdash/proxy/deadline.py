"""The longest time a turn may take."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from specdash.proxy.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class Deadline:
    """`PROXY_GENERATION_TIMEOUT` of one turn; 0 seconds are no limit."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timeout: asyncio.Timeout | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Let the time run for this block. Raises `ApiError` 504 when it is over."""
        if not self._seconds:
            yield
            return
        try:
            async with asyncio.timeout(self._seconds) as self._timeout:
                yield
        except TimeoutError:
            said = f"the turn took longer than PROXY_GENERATION_TIMEOUT={self._seconds:g} s"
            raise ApiError(504, said) from None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let the time stand still for this block: waiting for an operator is no part of the turn."""
        timeout = self._timeout
        when = timeout.when() if timeout is not None else None
        if timeout is None or when is None:
            yield
            return
        loop = asyncio.get_running_loop()
        left = when - loop.time()
        timeout.reschedule(None)
        try:
            yield
        finally:
            if not timeout.expired():
                timeout.reschedule(loop.time() + left)
