"""Watches many servers lightly: one event loop asks all of them, one thread reads their logs, one the GPUs of this
machine."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from specdash.collect.backend import BackendPoller
from specdash.collect.hub import STOP_S, SchedulingWatch, keep_stepping
from specdash.core.target import local_port
from specdash.llama.client import LlamaClient
from specdash.system.loops import new_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.collect.logs import LogCollector
    from specdash.core.readings import Reading
    from specdash.core.target import Target

    Sink = Callable[[Reading[Any]], None]

FILES_LEFT = 64
"""File descriptors that are kept for everything but connections."""
CONNECTIONS = 4
"""At most so many for each server."""


class FleetHub:
    """Hands what is read of each server to the sink that came with it, on one of three threads.

    A server is asked for /health, /metrics, /slots, and now and then for /props; a router for its models. Its log is
    read where it is known, and of one on this machine the GPUs are its own. A sink that raises costs the others
    nothing.
    """

    def __init__(self, watched: Sequence[tuple[Target, Sink]], *, interval_s: float = 1.0) -> None:
        self._watched = tuple(watched)
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._root: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="specdash-fleet", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin, without waiting."""
        _allow_files(len(self._watched) * CONNECTIONS + FILES_LEFT)
        self._thread.start()

    def stop(self) -> None:
        """End within a second, whatever hangs."""
        self._stopping.set()
        if self._loop is not None and self._root is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._root.cancel)
        if self._thread.ident is not None:
            self._thread.join(STOP_S)

    def _run(self) -> None:
        async def watch() -> None:
            self._loop, self._root = asyncio.get_running_loop(), asyncio.current_task()
            if not self._stopping.is_set():
                await self._watch()

        with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(watch())

    async def _watch(self) -> None:
        scheduling = SchedulingWatch(self._publish_all)
        async with asyncio.TaskGroup() as group:
            group.create_task(scheduling.run())
            logs = [(target.log, sink) for target, sink in self._watched if target.log is not None]
            if logs:
                collector = _Logs(logs)
                group.create_task(keep_stepping(collector.step, close=collector.close))
            here = [sink for target, sink in self._watched if local_port(target.url) is not None]
            if here:
                group.create_task(keep_stepping(_Gpus(here).step))
            for number, (target, sink) in enumerate(self._watched):
                # Spread over the interval, that no moment has the work of all.
                begins = self._interval_s * number / len(self._watched)
                group.create_task(self._watch_server(target, sink, begins, scheduling))

    async def _watch_server(self, target: Target, sink: Sink, begins: float, scheduling: SchedulingWatch) -> None:
        await asyncio.sleep(begins)
        client = LlamaClient(target)
        publish = partial(_publish, sink)
        try:
            poller = BackendPoller(
                client,
                publish,
                interval_s=self._interval_s,
                model=target.model,
                slept_since=scheduling.slept_since,
            )
            await poller.run()
        finally:
            await client.aclose()

    def _publish_all(self, reading: Reading[Any]) -> None:
        for _, sink in self._watched:
            _publish(sink, reading)


def _publish(sink: Sink, reading: Reading[Any]) -> None:
    with suppress(Exception):
        sink(reading)


class _Logs:
    """Reads the logs of many servers in turn, each when it is due."""

    def __init__(self, logs: Sequence[tuple[str, Sink]]) -> None:
        self._logs = logs
        self._order = itertools.count()
        self._due: list[tuple[float, int, LogCollector]] = []

    def close(self) -> None:
        """Let go of them all."""
        for _, _, collector in self._due:
            collector.close()

    def step(self) -> float:
        """Read the one that is due first; seconds until the next."""
        from specdash.collect.logs import LogCollector

        if self._logs:
            for path, sink in self._logs:
                heapq.heappush(self._due, (0.0, next(self._order), LogCollector(path, partial(_publish, sink))))
            self._logs = ()
        _, _, collector = self._due[0]
        due = time.monotonic() + collector.step()
        heapq.heapreplace(self._due, (due, next(self._order), collector))
        return max(0.0, self._due[0][0] - time.monotonic())


class _Gpus:
    """Reads the GPUs of this machine once for all servers on it."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks
        self._step: Callable[[float], float] | None = None

    def step(self) -> float:
        """Read them; seconds until the next look."""
        if self._step is None:
            from specdash.collect.gpu import GpuCollector

            self._step = GpuCollector(self.publish, frozenset).step
        return self._step(1.0)

    def publish(self, reading: Reading[Any]) -> None:
        """Hand a reading to all of them."""
        for sink in self._sinks:
            _publish(sink, reading)


def _allow_files(wanted: int) -> None:
    """Raise the soft limit of open files as far as it may be."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted and (hard == resource.RLIM_INFINITY or soft < hard):
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard < 0 else min(wanted, hard), hard))
