"""An event loop whose threads the end of the program does not wait for."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class DaemonThreads(ThreadPoolExecutor):
    """A daemon thread for each call: a resolver or a driver that never returns holds up neither another call nor the
    program's end."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Make the call in a thread of its own."""
        future: Future[Any] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001 - the error belongs to the caller of `result`
                    future.set_exception(error)

        Thread(target=work, name="specdash-blocking", daemon=True).start()
        return future


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop that resolves names, and runs all else that may block, in such threads."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(DaemonThreads())
    return loop
