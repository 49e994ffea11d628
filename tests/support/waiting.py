"""Waiting for what happens elsewhere: in another thread, in another process, or in another task."""

import asyncio
import time
from collections.abc import Callable


def until(
    true: Callable[[], object], seconds: float = 30.0, why: Callable[[], str] = lambda: "it never came true"
) -> None:
    """Wait until `true` says so; fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, why()
        time.sleep(0.005)


async def until_async(true: Callable[[], object], seconds: float = 30.0) -> None:
    """The same within an event loop."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 - what is waited for happens outside this process, too
            await asyncio.sleep(0.005)
