"""Waiting for what a dashboard does besides drawing."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from textual.app import App
from textual.pilot import Pilot
from textual.worker import WorkerCancelled


async def answered(app: App[None]) -> None:
    """Wait until no thread's answer is out; one whose place a newer took does not count."""
    while asked := [worker for worker in app.workers if not worker.is_finished]:
        with suppress(WorkerCancelled):
            await app.workers.wait_for_complete(asked)


async def until(pilot: Pilot[Any], true: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for it while the dashboard goes on."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"it never came true on {pilot.app.screen}"
        await pilot.pause(0.01)


async def idle(min_sleep: float = 0.0, max_sleep: float = 30.0) -> None:
    """Textual's `wait_for_idle` without sleeping: until every task waits, for the outside or for a timer that is not
    about to end. A few of those are waited for: what is laid out at one paint, at 60 Hz, may ask for another."""
    loop = asyncio.get_running_loop()
    timers, end = 6, loop.time() + max_sleep
    while loop.time() < end:
        for _ in range(2):  # what is ready, and what the outside has answered meanwhile
            await asyncio.sleep(min_sleep)
        if loop._ready:  # type: ignore[attr-defined]
            continue
        due = min((timer.when() for timer in loop._scheduled if not timer.cancelled()), default=end)  # type: ignore[attr-defined]
        if not timers or due > loop.time() + 0.02:
            return
        timers -= 1
        await asyncio.sleep(max(0.0, due - loop.time()))
