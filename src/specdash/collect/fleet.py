"""Watches many servers lightly: one event loop asks all of them, one thread reads their logs, one the GPUs of this
machine."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from specdash.collect.backend import BackendPoller
from specdash.collect.hub import LoopThread, SchedulingWatch, keep_stepping
from specdash.core.target import local_port
from specdash.llama.client import LlamaClient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.core.readings import Reading
    from specdash.core.target import Target

    Sink = Callable[[Reading[Any]], None]

FILES_LEFT = 64
"""File descriptors that are kept for everything but connections."""
CONNECTIONS = 4
"""At most so many for each server."""


class FleetHub(LoopThread):
    """Hands what is read of each server to the sink that came with it, on one of three threads.

    A server is asked for /health, /metrics, /slots, and now and then for /props; a router for its models. Its log is
    read where it is known, and of one on this machine the GPUs are its own. A sink that raises costs the others
    nothing.
    """

    def __init__(self, watched: Sequence[tuple[Target, Sink]], *, interval_s: float = 1.0) -> None:
        super().__init__("specdash-fleet")
        self._watched = tuple(watched)
        self._interval_s = interval_s

    def start(self) -> None:
        """Begin, without waiting."""
        _allow_files(len(self._watched) * CONNECTIONS + FILES_LEFT)
        super().start()

    async def _watch(self) -> None:
        scheduling = SchedulingWatch(partial(_publish, [sink for _, sink in self._watched]))
        async with asyncio.TaskGroup() as group:
            group.create_task(scheduling.run())
            logs = [(target.log, sink) for target, sink in self._watched if target.log is not None]
            if logs:
                group.create_task(_watch_logs(logs))
            here = [sink for target, sink in self._watched if local_port(target.url) is not None]
            if here:
                from specdash.collect.gpu import GpuCollector

                # Once for all servers on this machine.
                gpus = GpuCollector(partial(_publish, here))
                group.create_task(keep_stepping(lambda: gpus.step(1.0)))
            for number, (target, sink) in enumerate(self._watched):
                # Spread over the interval, that no moment has the work of all.
                begins = self._interval_s * number / len(self._watched)
                group.create_task(self._watch_server(target, sink, begins, scheduling))

    async def _watch_server(self, target: Target, sink: Sink, begins: float, scheduling: SchedulingWatch) -> None:
        await asyncio.sleep(begins)
        async with contextlib.aclosing(LlamaClient(target)) as client:
            poller = BackendPoller(
                client,
                partial(_publish, [sink]),
                interval_s=self._interval_s,
                model=target.model,
                slept_since=scheduling.slept_since,
            )
            await poller.run()


def _publish(sinks: Sequence[Sink], reading: Reading[Any]) -> None:
    for sink in sinks:
        with suppress(Exception):
            sink(reading)


async def _watch_logs(logs: Sequence[tuple[str, Sink]]) -> None:
    """Read all of them in turn, as often as the one that has most to read asks for."""
    from specdash.collect.logs import LogCollector

    collectors = [LogCollector(path, partial(_publish, [sink])) for path, sink in logs]

    def close() -> None:
        for collector in collectors:
            collector.close()

    await keep_stepping(lambda: min([collector.step() for collector in collectors]), close=close)


def _allow_files(wanted: int) -> None:
    """Raise the soft limit of open files as far as it may be."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted and (hard == resource.RLIM_INFINITY or soft < hard):
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard < 0 else min(wanted, hard), hard))
