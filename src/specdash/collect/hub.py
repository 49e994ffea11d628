"""Starts and stops all collectors of one target. The only thing that screens and commands need of this layer."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from specdash.collect.bus import Bus
from specdash.collect.proxy_watch import ProxyWatch
from specdash.collect.record_watch import RecordWatch
from specdash.collect.scheduling import SchedulingWatch
from specdash.collect.worker import RETRY_S, Worker
from specdash.core.readings import FailureKind, Reading, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from specdash.collect.backend import BackendPoller
    from specdash.collect.host import HostCollector
    from specdash.collect.proxy import ProxyPoller
    from specdash.core.target import Target

_log = logging.getLogger(__name__)

PROXY_FIELDS = ("proxy_url", "proxy_key", "proxy_log", "proxy_origin", "proxy_found")
"""What the proxy's watch knows of a target."""
RECORD_FIELDS = ("pid", "engine", "parameters", "start_check")
"""What the run record's watch knows of it."""
STOP_S = 0.9
"""How long `stop` may take in all."""


class Hub:
    """Watches one target from `start` to `stop`, publishing every reading to the sinks.

    Sinks are called one at a time, on the collectors' threads: they must be quick and must not call `stop`. HTTP runs
    in an event loop of its own; everything that may block (NVML, psutil, the log) has a thread of its own each.
    """

    def __init__(
        self,
        target: Target,
        sinks: Iterable[Callable[[Reading[Any]], None]] = (),
        *,
        interval_s: float = 1.0,
        gpu: bool = True,
        host: bool = True,
        on_target: Callable[[Target], None] = lambda _: None,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        """`on_target` is told, on another thread, of the target as it is known by now: with a proxy that was found for
        it, or with the parameters of another engine. `env` says where records are."""
        self.bus = Bus(sinks)
        self._target = target
        self._interval_s = interval_s
        self._with_gpu, self._with_host = gpu, host
        self._env = env
        self._workers: list[Worker] = []
        self._host: HostCollector | None = None
        self._http = _HttpThread(target, self.bus.publish, interval_s, lambda: self._target)
        self._on_target = on_target
        self._knowing = threading.Lock()
        self._proxy = ProxyWatch(
            target, self.bus.publish, poll=self._http.watch_proxy, on_target=partial(self._learn, PROXY_FIELDS), env=env
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to watch. Raises UsageError when the target's url cannot be meant."""
        self._http.start()
        self._watch_log()
        self._watch_applies()
        self._watch_baselines()
        self._watch_trials()
        self._watch_record()
        self._proxy.start()
        if self._with_host:
            self._watch_host()
        if self._with_gpu:
            self._watch_gpu()
        for worker in self._workers:
            worker.start()

    def stop(self) -> None:
        """End within a second, whatever hangs; no sink is called afterwards."""
        self.bus.close()
        deadline = time.monotonic() + STOP_S
        self._http.stop()
        self._proxy.stop()
        for worker in self._workers:
            worker.stop()
        self._http.join(deadline - time.monotonic())
        for worker in self._workers:
            worker.join(deadline - time.monotonic())
        self._proxy.join(deadline - time.monotonic())

    def set_interval(self, interval_s: float) -> None:
        """Change the seconds between two looks, from now on."""
        self._interval_s = interval_s
        self._http.set_interval(interval_s)
        for worker in self._workers:
            worker.wake()

    def _watch_log(self) -> None:
        path = self._target.log
        if path is None:
            detail = "no log file is known; name it with --log FILE"
            self.bus.publish(Reading.unknown(Source.LOG, time.monotonic(), FailureKind.NOT_CONFIGURED, detail))
            return
        from specdash.collect.logs import LogCollector

        self._work("log", LogCollector(path, self.bus.publish).step, Source.LOG)

    def _watch_applies(self) -> None:
        from specdash.collect.applies import ApplyCollector

        self._work("applies", ApplyCollector(self._target.url, self.bus.publish, self._env).step, Source.APPLIES)

    def _watch_baselines(self) -> None:
        from specdash.collect.baselines import BaselineCollector

        self._work("baselines", BaselineCollector(self.bus.publish, self._env).step, Source.BASELINES)

    def _watch_trials(self) -> None:
        from specdash.collect.trials import TrialCollector

        self._work("trials", TrialCollector(self._target.url, self.bus.publish, self._env).step, Source.TRIAL)

    def _watch_record(self) -> None:
        watch = RecordWatch(self._target, partial(self._learn, RECORD_FIELDS), self._env)
        self._work("record", watch.step, Source.PROCESS)

    def _learn(self, fields: tuple[str, ...], target: Target) -> None:
        """Take what `target` says in `fields`: two watches each know a part."""
        with self._knowing:
            self._target = replace(self._target, **{name: getattr(target, name) for name in fields})
            self._on_target(self._target)

    def _watch_host(self) -> None:
        from specdash.collect.host import HostCollector, written_places

        self._host = HostCollector(
            self._target, self.bus.publish, places=lambda: written_places(self._target, self._env)
        )
        self._work("host", partial(self._step, self._host.step), Source.HOST)

    def _watch_gpu(self) -> None:
        from specdash.collect.gpu import GpuCollector

        pids = self._host.backend_pids if self._host is not None else frozenset
        self._work("gpu", partial(self._step, GpuCollector(self.bus.publish, pids).step), Source.GPU)

    def _step(self, step: Callable[[float], float]) -> float:
        return step(self._interval_s)

    def _work(self, name: str, step: Callable[[], float], source: Source) -> None:
        self._workers.append(Worker(name, step, partial(self._collector_failed, source)))

    def _collector_failed(self, source: Source, error: Exception) -> None:
        detail = f"the collector failed: {type(error).__name__}"
        self.bus.publish(Reading.unknown(source, time.monotonic(), FailureKind.ERROR, detail))


class _HttpThread:
    """The event loop that polls the server and its proxy, in a daemon thread."""

    def __init__(
        self,
        target: Target,
        publish: Callable[[Reading[Any]], None],
        interval_s: float,
        known: Callable[[], Target],
    ) -> None:
        """`known` is the target as it is known by now."""
        self._target = target
        self._known = known
        self._publish = publish
        self._interval_s = interval_s
        self._poller: BackendPoller | None = None
        self._proxied: Target | None = None
        """The target whose proxy is to be polled."""
        self._polled: Target | None = None
        self._proxy: ProxyPoller | None = None
        self._scheduling = SchedulingWatch(publish)
        self._group: asyncio.TaskGroup | None = None
        self._polling: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._root: asyncio.Task[None] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="specdash-http", daemon=True)

    def start(self) -> None:
        from specdash.llama.address import normalise_url

        normalise_url(self._target.url)
        if self._target.proxy_url is not None:
            normalise_url(self._target.proxy_url)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._in_loop(self._cancel)

    def join(self, timeout_s: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_s))

    def watch_proxy(self, target: Target) -> None:
        """Poll the target's proxy, and no other one. From any thread."""
        self._proxied = target
        self._in_loop(self._poll_proxy)

    def set_interval(self, interval_s: float) -> None:
        self._interval_s = interval_s
        if (poller := self._poller) is not None:
            self._in_loop(partial(poller.set_interval, interval_s))
        if (proxy := self._proxy) is not None:
            self._in_loop(partial(proxy.set_interval, interval_s))

    def _in_loop(self, call: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(call)
            except RuntimeError:
                # The loop has ended in the meantime, and with it whatever was to be changed.
                return

    def _run(self) -> None:
        loop = self._loop = asyncio.new_event_loop()
        try:
            if not self._stopping.is_set():
                self._root = loop.create_task(self._watch())
                loop.run_until_complete(self._root)
        except asyncio.CancelledError:
            return
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def _watch(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            self._group.create_task(self._scheduling.run())
            self._group.create_task(self._watch_server())
            self._poll_proxy()

    def _poll_proxy(self) -> None:
        # Before the watch has begun, it will see by itself what is to be polled.
        target = self._proxied
        if self._group is None or target is None or target is self._polled or self._stopping.is_set():
            return
        self._polled = target
        if self._polling is not None:
            self._polling.cancel()
        self._polling = self._group.create_task(self._watch_proxy(target))

    async def _watch_server(self) -> None:
        from specdash.collect.backend import BackendPoller
        from specdash.collect.model_files import ModelFiles
        from specdash.collect.processes import local_port
        from specdash.llama.client import LlamaClient

        client = LlamaClient(self._target)
        files = ModelFiles(self._known) if local_port(self._target.url) is not None else None
        try:
            while not self._stopping.is_set():
                self._poller = BackendPoller(
                    client,
                    self._publish,
                    interval_s=self._interval_s,
                    files=files,
                    model=self._target.model,
                    slept_since=self._scheduling.slept_since,
                )
                await self._keep(self._poller, Source.HEALTH)
        finally:
            await client.aclose()

    async def _watch_proxy(self, target: Target) -> None:
        from specdash.collect.proxy import ProxyPoller

        poller = self._proxy = ProxyPoller(target, self._publish, interval_s=self._interval_s)
        try:
            while not self._stopping.is_set():
                await self._keep(poller, Source.PROXY)
        finally:
            await poller.aclose()

    async def _keep(self, poller: BackendPoller | ProxyPoller, source: Source) -> None:
        """Poll; an error is a bug, which is told, and after a pause the caller may try again."""
        try:
            await poller.run()
        except Exception as error:  # noqa: BLE001 - a bug shall show, not end the watch
            _log.exception("polling failed")
            detail = f"the collector failed: {type(error).__name__}"
            self._publish(Reading.unknown(source, time.monotonic(), FailureKind.ERROR, detail))
            await asyncio.sleep(RETRY_S)

    def _cancel(self) -> None:
        # Only the root: it ends its children in order, and the library's own tasks are for the library to end.
        if self._root is not None:
            self._root.cancel()
