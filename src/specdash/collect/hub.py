"""Starts and stops all collectors of one target. The only thing that screens and commands need of this layer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from specdash.collect import own_files
from specdash.collect.discover import PROXY_FIELDS, RECORD_FIELDS, discover, with_proxy, with_record
from specdash.core.readings import OTHER_SERVERS, STARVED_SHARE, FailureKind, Reading, SchedulingDelay, Source
from specdash.core.target import local_port, normalise_url
from specdash.system.http import new_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from specdash.collect.backend import BackendPoller
    from specdash.collect.logs import LogCollector
    from specdash.collect.proxy import ProxyPoller
    from specdash.core.target import Target

    Sink = Callable[[Reading[Any]], None]

_log = logging.getLogger(__name__)

RETRY_S = 5.0
SEARCH_S = 5.0
"""Seconds between two looks for a proxy."""
NO_PROXY = "no proxy found: start specdash with --proxy-url http://127.0.0.1:4000"
NO_PROXY_LOG = "no proxy log: start specdash with --proxy-log FILE or journal:UNIT"
NO_LOG = "no log is known: start specdash with --log FILE, journal:UNIT, docker:NAME or podman:NAME"
LAST_STEP_S = 0.5
"""What a step gets to end before what it works on is closed."""


async def keep_stepping(
    step: Callable[[], float],
    on_error: Callable[[Exception], None] = lambda _: None,
    *,
    wake: asyncio.Event | None = None,
    close: Callable[[], None] = lambda: None,
) -> None:
    """Take a step that may block, in a thread of the loop's, and the next after the seconds that it returns or at
    `wake`, until cancelled; then `close`.

    An error in a step is a bug: it is logged once, handed to `on_error` every time, and the next step comes after a
    pause.
    """
    loop, wake, has_failed = asyncio.get_running_loop(), wake or asyncio.Event(), False
    try:
        while True:
            wake.clear()
            running = loop.run_in_executor(None, step)
            try:
                pause = await asyncio.shield(running)
            except Exception as error:  # noqa: BLE001 - a bug shall show, not end the watch
                if not has_failed:
                    _log.exception("a collector failed")
                has_failed, pause = True, RETRY_S
                on_error(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await wake.wait()
    finally:
        done, _ = await asyncio.wait({running}, timeout=LAST_STEP_S)
        for ended in done:
            ended.exception()
            close()


class Bus:
    """Hands every reading to every sink, one at a time, on the thread that published it.

    A sink that raises loses that reading and nothing else: the others get theirs and the collectors go on. The first
    error of each sink is logged.
    """

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self._sinks = tuple(sinks)
        self._failed: set[int] = set()
        self._lock = threading.RLock()
        self._closed = False

    def publish(self, reading: Reading[Any]) -> None:
        """Hand a reading to every sink; nothing once the bus is closed."""
        with self._lock:
            for place, sink in enumerate(() if self._closed else self._sinks):
                try:
                    sink(reading)
                except Exception:  # noqa: BLE001 - no error of a sink may stop the collectors
                    if place not in self._failed:
                        _log.exception(
                            "a sink failed on a %s reading; its next failures are not logged", reading.source
                        )
                    self._failed.add(place)

    def close(self) -> None:
        """Publish nothing from now on."""
        # Without the lock: a sink that hangs must not be able to hold up the end.
        self._closed = True


TICK_S = 0.5
SPAN_S = 5.0
"""Over so many seconds lateness is added up; specdash counts as starved so long after it was."""
SETTLE_S = 5.0
"""Late in the first seconds is what imports and connects, and not the machine's fault."""


class SchedulingWatch:
    """Publishes SCHEDULING readings: the first, at every tick while specdash is starved, and when that is over.

    `worked` is the CPU time of its thread: who is late by own work, as for a server that floods it, did not sleep.
    """

    def __init__(
        self,
        publish: Callable[[Reading[Any]], None],
        clock: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        self._publish, self._clock, self._worked = publish, clock, worked
        self._settled, self._due, self._worked_s = clock() + SETTLE_S, clock() + TICK_S, 0.0
        self._delays: deque[tuple[float, float]] = deque()
        """When it woke, and how late that was."""
        self._was_starved = True

    async def run(self) -> None:
        """Watch until cancelled, in the loop that polls."""
        while True:
            self._due, self._worked_s = self._clock() + TICK_S, self._worked()
            await asyncio.sleep(TICK_S)
            self.woke()

    def woke(self) -> None:
        """Take in one wake-up, which was due `TICK_S` after the one before, and publish what it changes."""
        now, worked = self._clock(), self._worked()
        self._delays.append((now, max(0.0, now - self._due - (worked - self._worked_s))))
        self._due, self._worked_s = now + TICK_S, worked
        while self._delays[0][0] <= now - SPAN_S:
            self._delays.popleft()
        late_s = sum(min(late, max(0.0, woke - self._settled)) for woke, late in self._delays)
        delay = SchedulingDelay(late_s, SPAN_S)
        if delay.is_starved or self._was_starved:
            self._publish(Reading.known(Source.SCHEDULING, now, delay))
        self._was_starved = delay.is_starved

    def slept_since(self, asked: float) -> bool:
        """Whether specdash itself slept through so much of the time since `asked` (monotonic) that an answer may have
        come in time and was not taken."""
        now = self._clock()
        late = sum(min(late, woke - asked) for woke, late in self._delays if woke > asked)
        late += max(0.0, now - max(self._due, asked) - (self._worked() - self._worked_s))
        return late >= STARVED_SHARE * max(now - asked, TICK_S)


STOP_S = 0.9
"""How long `stop` may take in all."""


class LoopThread:
    """One asyncio loop in a thread of its own, which runs `_watch` from `start` to `stop`; all that may block (NVML,
    psutil, logs) takes its steps in other threads of the loop's."""

    def __init__(self, name: str) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._root: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin, without waiting."""
        self._loop = new_loop()
        self._root = self._loop.create_task(self._watch())
        self._thread.start()

    def stop(self) -> None:
        """End within a second, even if something hangs."""
        if self._root is not None:
            # Only the root: it ends its children in order, and the library's own tasks are for the library to end.
            self._in_loop(self._root.cancel)
            self._thread.join(STOP_S)

    async def _watch(self) -> None:
        raise NotImplementedError

    def _in_loop(self, call: Callable[..., object], *arguments: Any) -> None:
        if self._loop is not None:
            # A loop that has ended has nothing left to change.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(call, *arguments)

    def _run(self) -> None:
        assert self._loop is not None  # noqa: S101 - for the type checker
        assert self._root is not None  # noqa: S101
        try:
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._root)
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


OTHERS_S, OTHERS_NAMED = 30.0, 3
"""Seconds between two looks for other servers while nothing was seen alive at the address, and how many are named."""
SOON_S = 0.1
"""A process that was killed takes a moment to end: after this it is looked at again."""


class Hub(LoopThread):
    """Watches one target from `start` to `stop`, publishing every reading to the sinks.

    Sinks are called one at a time, on any of the loop's threads: they must be quick and must not call `stop`.
    """

    def __init__(
        self,
        target: Target,
        sinks: Iterable[Sink] = (),
        *,
        interval_s: float = 1.0,
        gpu: bool = True,
        host: bool = True,
        on_target: Callable[[Target], None] = lambda _: None,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        """`on_target` is called on the hub's thread when the target changes: a proxy was found for it, or another
        engine has other parameters. `env` says where records are."""
        super().__init__("specdash-hub")
        self.bus = Bus(sinks)
        self._target = target
        self._interval_s = interval_s
        self._with_gpu, self._with_host = gpu, host
        self._env = env
        self._on_target = on_target
        self._scheduling = SchedulingWatch(self.bus.publish)
        self._pollers: dict[Source, BackendPoller | ProxyPoller] = {}
        self._host_wake, self._gpu_wake = asyncio.Event(), asyncio.Event()
        self._is_refused = self._seen_alive = False
        self._others: list[str] = []
        self._others_due = 0.0
        self._log: LogCollector | None = None
        self._trials = own_files.trials(target.url, self.bus.publish, env)

    def start(self) -> None:
        """Begin to watch. Raises UsageError when an address of the target cannot be meant."""
        for url in filter(None, (self._target.url, self._target.proxy_url)):
            normalise_url(url)
        super().start()

    def stop(self) -> None:
        """End within a second, even if something hangs; no sink is called afterwards."""
        self.bus.close()
        super().stop()

    def set_interval(self, interval_s: float) -> None:
        """Change the seconds between two looks, from now on."""

        def change() -> None:
            for poller in self._pollers.values():
                poller.set_interval(interval_s)
            self._host_wake.set()
            self._gpu_wake.set()

        self._interval_s = interval_s
        self._in_loop(change)

    async def _watch(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            self._group.create_task(self._scheduling.run())
            self._group.create_task(self._watch_server())
            self._watch_log()
            self._watch_own_files()
            self._group.create_task(self._watch_proxy())
            self._watch_machine()

    def _keep_stepping(self, step: Callable[[], float], source: Source, **more: Any) -> asyncio.Task[None]:
        return self._group.create_task(keep_stepping(step, partial(self._collector_failed, source), **more))

    async def _keep_polling(self, source: Source, new_poller: Callable[[], BackendPoller | ProxyPoller]) -> None:
        """Poll until cancelled; an error is a bug, which is published, and after a pause another poller tries again."""
        while True:
            poller = self._pollers[source] = new_poller()
            try:
                await poller.run()
            except Exception as error:  # noqa: BLE001 - a bug shall show, not end the watch
                _log.exception("polling failed")
                self._collector_failed(source, error)
                await asyncio.sleep(RETRY_S)

    async def _watch_server(self) -> None:
        from specdash.collect.backend import BackendPoller

        is_here = local_port(self._target.url) is not None
        await self._keep_polling(
            Source.HEALTH,
            lambda: BackendPoller(
                self._target,
                self._publish_answer,
                interval_s=self._interval_s,
                known=(lambda: self._target) if is_here else None,
                slept_since=self._scheduling.slept_since,
            ),
        )

    async def _watch_proxy(self) -> None:
        """Poll the proxy that was named, or else the one that is found, and follow its events. While none is named it
        looks for one that runs, and again when the one that it found has ended; until another is found, that one
        stays."""
        target = self._target
        polling = self._group.create_task(self._poll_proxy(target))
        following = self._follow_events(target)
        while target.proxy_url is None or target.proxy_found:
            before = target
            try:
                target = await asyncio.get_running_loop().run_in_executor(None, with_proxy, before, self._env)
            except Exception as error:  # noqa: BLE001 - a bug shall show, not end the watch
                _log.exception("the search for a proxy failed")
                self._collector_failed(Source.PROXY, error)
            if target != before:
                if has_other_log := before.proxy_log != target.proxy_log:
                    following.cancel()
                    await asyncio.wait({following})
                # Before anything of the other proxy is published.
                self._learn(PROXY_FIELDS, target)
                if (before.proxy_url, before.proxy_key) != (target.proxy_url, target.proxy_key):
                    polling.cancel()
                    polling = self._group.create_task(self._poll_proxy(target))
                if has_other_log:
                    following = self._follow_events(target)
            await asyncio.sleep(SEARCH_S)

    async def _poll_proxy(self, target: Target) -> None:
        if target.proxy_url is None:
            self._publish_unknown(Source.PROXY, NO_PROXY)
            return
        from specdash.collect.proxy import ProxyPoller

        poller = ProxyPoller(target, self.bus.publish, interval_s=self._interval_s)
        async with contextlib.aclosing(poller):
            await self._keep_polling(Source.PROXY, lambda: poller)

    def _follow_events(self, target: Target) -> asyncio.Task[None]:
        if target.proxy_log is None:
            self._publish_unknown(Source.PROXY_EVENTS, NO_PROXY_LOG)
            return self._group.create_task(asyncio.sleep(0))
        from specdash.collect.proxy_log import ProxyEventsCollector

        events = ProxyEventsCollector(target.proxy_log, self.bus.publish)
        return self._keep_stepping(events.step, Source.PROXY_EVENTS, close=events.close)

    def _watch_log(self) -> None:
        path = self._target.log
        if path is None:
            self._publish_unknown(Source.LOG, NO_LOG)
            return
        from specdash.collect.logs import LogCollector

        log = self._log = LogCollector(path, self.bus.publish)
        self._keep_stepping(log.step, Source.LOG, close=log.close)

    def _watch_own_files(self) -> None:
        publish, env = self.bus.publish, self._env
        applies, baselines = own_files.applies(self._target.url, publish, env), own_files.baselines(publish, env)

        def step() -> float:
            # All at once: a look costs less than its way to another thread.
            for file in (self._trials, applies, baselines):
                file.step()
            if (known := with_record(self._target, env)) != self._target:
                self._in_loop(self._learn, RECORD_FIELDS, known)
            return own_files.PERIOD_S

        def failed(error: Exception) -> None:
            for source in (Source.TRIAL, Source.APPLIES, Source.BASELINES):
                self._collector_failed(source, error)

        self._group.create_task(keep_stepping(step, failed))

    def _watch_machine(self) -> None:
        from specdash.collect.host import HostCollector

        hosts = HostCollector(self._target, self._publish_answer)
        if self._with_host:
            self._keep_stepping(lambda: hosts.step(self._interval_s), Source.HOST, wake=self._host_wake)
        if self._with_gpu:
            from specdash.collect.gpu import GpuCollector

            gpus = GpuCollector(self.bus.publish, hosts.backend_pids)
            self._keep_stepping(lambda: gpus.step(self._interval_s), Source.GPU, wake=self._gpu_wake)

    def _learn(self, fields: tuple[str, ...], target: Target) -> None:
        """Take what `target` says in `fields`: two watches each know a part."""
        before = self._target
        self._target = replace(before, **{name: getattr(target, name) for name in fields})
        self._on_target(self._target)
        if (path := self._target.log) is not None and path != before.log:
            if self._log is None:
                self._watch_log()
            else:
                self._log.follow(path)

    def _publish_answer(self, reading: Reading[Any]) -> None:
        """Whether a server that does not answer, or whose process is gone, is on trial is published first; that its
        process has ended must not wait either, for the alert does."""
        failure = reading.failure
        if failure is not None:
            self._trials.step()
        if reading.source is not Source.HEALTH:
            self.bus.publish(reading)
            return
        was_refused, self._is_refused = self._is_refused, failure is not None and failure.kind is FailureKind.REFUSED
        self._seen_alive = self._seen_alive or failure is None
        if failure is not None and self._is_refused and not self._seen_alive and local_port(self._target.url):
            # The address may be wrong.
            if reading.at >= self._others_due:
                self._others = [found.url for found in discover(self._env) if found.url != self._target.url]
                self._others_due = reading.at + OTHERS_S
            others = OTHER_SERVERS + ", ".join(self._others[:OTHERS_NAMED]) if self._others else ""
            reading = Reading.unknown(reading.source, reading.at, failure.kind, failure.detail + others)
        self.bus.publish(reading)
        if self._is_refused and not was_refused:
            self._host_wake.set()
            asyncio.get_running_loop().call_later(SOON_S, self._host_wake.set)

    def _publish_unknown(self, source: Source, detail: str, kind: FailureKind = FailureKind.NOT_CONFIGURED) -> None:
        self.bus.publish(Reading.unknown(source, time.monotonic(), kind, detail))

    def _collector_failed(self, source: Source, error: Exception) -> None:
        self._publish_unknown(source, f"the collector failed: {type(error).__name__}", FailureKind.ERROR)
