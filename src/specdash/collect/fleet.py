"""Watches many servers lightly: one event loop asks all of them, one thread reads their logs, one the GPUs of this
machine."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from specdash.collect.backend import BackendPoller
from specdash.collect.gpu import GpuCollector
from specdash.collect.hub import LoopThread, SchedulingWatch, keep_stepping
from specdash.collect.logs import LogCollector
from specdash.core.target import local_port

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.collect.hub import Sink
    from specdash.core.readings import Reading
    from specdash.core.target import Target


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

    async def _watch(self) -> None:
        scheduling = SchedulingWatch(partial(_publish, [sink for _, sink in self._watched]))
        async with asyncio.TaskGroup() as group:
            group.create_task(scheduling.run())
            logs = [
                LogCollector(target.log, partial(_publish, [sink]))
                for target, sink in self._watched
                if target.log is not None
            ]
            if logs:

                def close() -> None:
                    for log in logs:
                        log.close()

                # In turn, as often as the one that has most to read asks for.
                group.create_task(keep_stepping(lambda: min([log.step() for log in logs]), close=close))
            here = [sink for target, sink in self._watched if local_port(target.url) is not None]
            if here:
                # Once for all servers on this machine.
                gpus = GpuCollector(partial(_publish, here))
                group.create_task(keep_stepping(lambda: gpus.step(1.0)))
            for number, (target, sink) in enumerate(self._watched):
                # Spread over the interval, that no moment has the work of all.
                begins = self._interval_s * number / len(self._watched)
                group.create_task(self._watch_server(target, sink, begins, scheduling))

    async def _watch_server(self, target: Target, sink: Sink, begins: float, scheduling: SchedulingWatch) -> None:
        await asyncio.sleep(begins)
        publish, slept = partial(_publish, [sink]), scheduling.slept_since
        await BackendPoller(target, publish, interval_s=self._interval_s, slept_since=slept).run()


def _publish(sinks: Sequence[Sink], reading: Reading[Any]) -> None:
    for sink in sinks:
        with contextlib.suppress(Exception):
            sink(reading)
