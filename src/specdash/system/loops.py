"""An event loop whose threads the end of the program does not wait for."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class DaemonThreads(ThreadPoolExecutor):
    """As many daemon threads as calls run at once: a resolver or a driver that never returns holds up neither another
    call nor the program's end."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[SimpleQueue[Callable[[], None] | None]] = []
        self._ended = False

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Make the call in a thread that has nothing to do, else in a new one."""
        future: Future[Any] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = call(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - the error belongs to the caller of `result`
                future.set_exception(error)
            else:
                future.set_result(result)

        try:
            calls = self._waiting.pop()
        except IndexError:
            calls = SimpleQueue()
            Thread(target=self._serve, args=(calls,), name="specdash-blocking", daemon=True).start()
        calls.put(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - of the class
        """Return at once; threads end with the call that they are at."""
        self._ended = True
        while self._waiting:
            self._waiting.pop().put(None)

    def _serve(self, calls: SimpleQueue[Callable[[], None] | None]) -> None:
        while (call := calls.get()) is not None:
            call()
            self._waiting.append(calls)
            if self._ended:
                return


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop that resolves names, and runs all else that may block, in such threads."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(DaemonThreads())
    return loop
