"""Starts and stops all collectors of one target. The only thing that screens and commands need of this layer."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from specdash.collect.discover import ProxySearch, discover
from specdash.core.readings import OTHER_SERVERS, STARVED_SHARE, FailureKind, Reading, SchedulingDelay, Source
from specdash.core.target import local_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from specdash.collect.backend import BackendPoller
    from specdash.collect.host import HostCollector
    from specdash.collect.log_source import LogLines
    from specdash.collect.own_files import TrialCollector
    from specdash.collect.proxy import ProxyPoller
    from specdash.collect.proxy_log import ProxyEventsCollector
    from specdash.core.target import Target

    Sink = Callable[[Reading[Any]], None]


# A daemon thread that takes one step after another, for everything that may block.

_log = logging.getLogger(__name__)

RETRY_S = 5.0
TOGETHER_S = 0.02
"""Steps that are due within this are taken at one wake-up."""


class Worker:
    """Takes steps until stopped; each returns the seconds to wait before it is taken again.

    An error in a step is a bug: it is logged once, handed to its `on_error` every time, and it goes on after a pause.
    The thread is a daemon, so that a driver call that never returns cannot keep the program from ending.
    """

    def __init__(self, name: str, step: Callable[[], float], on_error: Callable[[Exception], None]) -> None:
        self._steps: dict[Callable[[], float], Callable[[Exception], None]] = {step: on_error}
        self._due: dict[Callable[[], float], float] = {}
        self._wake = threading.Event()
        self._stopping = False
        self._failed: set[Callable[[], float]] = set()
        self._thread = threading.Thread(target=self._run, name=f"specdash-{name}", daemon=True)

    def add(self, step: Callable[[], float], on_error: Callable[[Exception], None]) -> None:
        """Take this step, too; before `start`."""
        self._steps[step] = on_error

    def start(self) -> None:
        """Take the first steps at once, in the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Take all steps now."""
        self._wake.set()

    def stop(self) -> None:
        """Take no further step. Returns at once; `join` waits."""
        self._stopping = True
        self._wake.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; False when it did not come in time."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping:
            now = time.monotonic()
            for step in self._steps:
                if self._due.get(step, now) <= now + TOGETHER_S:
                    self._due[step] = self._pause(step) + time.monotonic()
            if self._wake.wait(max(0.0, min(self._due.values()) - time.monotonic())):
                self._wake.clear()
                self._due.clear()

    def _pause(self, step: Callable[[], float]) -> float:
        try:
            return step()
        except Exception as error:  # noqa: BLE001 - a bug shall show, not end the watch
            if step not in self._failed:
                self._failed.add(step)
                _log.exception("%s failed", self._thread.name)
            self._steps[step](error)
            return RETRY_S


# Watches the proxy of one target: the one that was named, or whichever is found to stand before the server.


SEARCH_S = 5.0
"""Seconds between two looks for a proxy."""

NO_PROXY: dict[Source, str] = {
    Source.PROXY: "no proxy found: start specdash with --proxy-url http://127.0.0.1:4000",
    Source.PROXY_EVENTS: "no proxy log: start specdash with --proxy-log FILE or journal:UNIT",
}
"""What to do about a proxy that nobody named."""

_LAST_STEP_S = 0.5
"""What the reader of another proxy's events gets to end."""


class ProxyWatch:
    """Follows the proxy's events and has its picture polled, from `start` to `stop`.

    While no proxy is named it looks for one that runs, and again when the one that it found has ended; until another is
    found, that one stays.
    """

    def __init__(
        self,
        target: Target,
        publish: Callable[[Reading[Any]], None],
        *,
        poll: Callable[[Target], None],
        on_target: Callable[[Target], None],
        env: Mapping[str, str],
    ) -> None:
        """`poll` polls the proxy of a target instead of the one before; `on_target` hears of a target that changed."""
        self._target = target
        self._publish = publish
        self._poll = poll
        self._on_target = on_target
        self._stopped = False
        self._events: tuple[ProxyEventsCollector, Worker] | None = None
        self._search = ProxySearch(target, env) if target.proxy_url is None or target.proxy_found else None
        self._searching = Worker("proxy-search", self._look, partial(self._failed, Source.PROXY))

    def start(self) -> None:
        """Begin."""
        for source, named in ((Source.PROXY, self._target.proxy_url), (Source.PROXY_EVENTS, self._target.proxy_log)):
            if named is None:
                self._publish_none(source)
        if self._target.proxy_url is not None:
            self._poll(self._target)
        self._follow()
        if self._search is not None:
            self._searching.start()

    def stop(self) -> None:
        """Begin to end; `join` waits."""
        self._stopped = True
        self._searching.stop()
        if self._events is not None:
            self._events[1].stop()

    def join(self, timeout_s: float) -> None:
        """Wait for the end."""
        deadline = time.monotonic() + timeout_s
        self._searching.join(timeout_s)
        # The search may have begun to follow a file since `stop`.
        if (events := self._events) is not None:
            collector, worker = events
            worker.stop()
            worker.join(deadline - time.monotonic())
            collector.close()

    def _look(self) -> float:
        found = self._search.look() if self._search is not None else None
        if found is not None and not self._stopped:
            self._change(found)
        return SEARCH_S

    def _change(self, target: Target) -> None:
        before, self._target = self._target, target
        other_log = before.proxy_log != target.proxy_log
        if other_log:
            self._end_events()
        elif self._events is not None:
            self._events[0].tell_no_context()
        # Before anything of the other proxy is published.
        self._on_target(target)
        if (before.proxy_url, before.proxy_key) != (target.proxy_url, target.proxy_key):
            self._poll(target)
        if other_log:
            self._follow()
            if target.proxy_log is None:
                self._publish_none(Source.PROXY_EVENTS)

    def _follow(self) -> None:
        place = self._target.proxy_log
        if place is None or self._stopped:
            return
        from specdash.collect.proxy_log import ProxyEventsCollector

        collector = ProxyEventsCollector(place, self._publish, tell_context=self._target.proxy_url is None)
        worker = Worker("proxy-log", collector.step, partial(self._failed, Source.PROXY_EVENTS))
        self._events = collector, worker
        worker.start()

    def _end_events(self) -> None:
        if self._events is None:
            return
        collector, worker = self._events
        worker.stop()
        if worker.join(_LAST_STEP_S):
            collector.close()
        self._events = None

    def _publish_none(self, source: Source) -> None:
        self._publish(Reading.unknown(source, time.monotonic(), FailureKind.NOT_CONFIGURED, NO_PROXY[source]))

    def _failed(self, source: Source, error: Exception) -> None:
        detail = f"the collector failed: {type(error).__name__}"
        self._publish(Reading.unknown(source, time.monotonic(), FailureKind.ERROR, detail))


class Bus:
    """Hands every reading to every sink, one at a time, on the thread that published it.

    A sink that raises loses that reading and nothing else: the others get theirs and the collectors go on. The first
    error of each sink is logged, the rest are counted in `errors`.
    """

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self._sinks: list[Sink] = list(sinks)
        self._failed: set[int] = set()
        self._lock = threading.RLock()
        self._closed = False
        self.errors = 0

    def publish(self, reading: Reading[Any]) -> None:
        """Hand a reading to every sink; nothing once the bus is closed."""
        with self._lock:
            if self._closed:
                return
            for sink in tuple(self._sinks):
                try:
                    sink(reading)
                except Exception:  # noqa: BLE001 - a sink is not ours, and no error of it may stop the collectors
                    self._note_error(sink, reading)

    def close(self) -> None:
        """Publish nothing from now on."""
        # Without the lock: a sink that hangs must not be able to hold up the end.
        self._closed = True

    def _note_error(self, sink: Sink, reading: Reading[Any]) -> None:
        self.errors += 1
        if id(sink) not in self._failed:
            self._failed.add(id(sink))
            _log.exception("a sink failed on a %s reading; further failures of it are not logged", reading.source)


TICK_S = 0.5
SPAN_S = 5.0
"""Over so many seconds lateness is added up; specdash counts as starved so long after it was."""
REPEATED_S = 1.0
"""While it is starved, it says so again after this."""


class SchedulingWatch:
    """Publishes SCHEDULING readings: the first, every change, and the state again while it is starved."""

    def __init__(self, publish: Callable[[Reading[Any]], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._publish = publish
        self._clock = clock
        self._due = clock() + TICK_S
        self._delays: deque[tuple[float, float]] = deque()
        """When it woke, and how late that was."""
        self._last: tuple[float, SchedulingDelay] | None = None

    async def run(self) -> None:
        """Watch until cancelled, in the loop that polls."""
        while True:
            self._due = self._clock() + TICK_S
            await asyncio.sleep(TICK_S)
            self.woke()

    def woke(self) -> None:
        """Take in one wake-up, which was due `TICK_S` after the one before, and publish what it changes."""
        now = self._clock()
        self._delays.append((now, max(0.0, now - self._due)))
        self._due = now + TICK_S
        while self._delays[0][0] <= now - SPAN_S:
            self._delays.popleft()
        delay = SchedulingDelay(sum(late for _, late in self._delays), SPAN_S)
        if self._last is not None:
            at, before = self._last
            if delay.is_starved == before.is_starved and not (delay.is_starved and now - at >= REPEATED_S):
                return
        self._last = now, delay
        self._publish(Reading.known(Source.SCHEDULING, now, delay))

    def slept_since(self, asked: float) -> bool:
        """Whether specdash itself slept through so much of the time since `asked` (monotonic) that an answer may have
        come in time and was not taken."""
        now = self._clock()
        late = sum(min(late, woke - asked) for woke, late in self._delays if woke > asked)
        late += max(0.0, now - max(self._due, asked))
        return late >= STARVED_SHARE * max(now - asked, TICK_S)


PROXY_FIELDS = ("proxy_url", "proxy_key", "proxy_log", "proxy_origin", "proxy_found")
"""What the proxy's watch knows of a target."""
RECORD_FIELDS = ("pid", "log", "engine", "parameters", "start_check")
"""What the run record's watch knows of it."""
STOP_S = 0.9
"""How long `stop` may take in all."""
OTHERS_S, OTHERS_NAMED = 30.0, 3
"""Seconds between two looks for other servers while nothing was seen alive at the address, and how many are named."""
SOON_S, SOON_LOOKS = 0.1, 5
"""A process that was killed takes a moment to end: so often it is looked at, and how long between two looks."""


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
        self.bus = Bus([*sinks, self._look_again])
        self._target = target
        self._interval_s = interval_s
        self._with_gpu, self._with_host = gpu, host
        self._env = env
        self._workers: list[Worker] = []
        self._host: HostCollector | None = None
        self._host_worker: Worker | None = None
        self._looks_soon = 0
        self._was_refused = False
        self._seen_alive = False
        self._others: list[str] = []
        self._others_due = 0.0
        self._log_lines: LogLines | None = None
        self._trials: TrialCollector | None = None
        self._http = _HttpThread(target, self._publish_answer, interval_s, lambda: self._target)
        self._on_target = on_target
        self._knowing = threading.Lock()
        self._stopped = False
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
        self._watch_own_files()
        self._proxy.start()
        if self._with_host:
            self._watch_host()
        if self._with_gpu:
            self._watch_gpu()
        # A copy: one of these threads may learn of a log from the run record, and append the worker that reads it.
        for worker in list(self._workers):
            worker.start()

    def stop(self) -> None:
        """End within a second, whatever hangs; no sink is called afterwards."""
        self.bus.close()
        with self._knowing:
            self._stopped = True
        deadline = time.monotonic() + STOP_S
        self._http.stop()
        self._proxy.stop()
        for worker in self._workers:
            worker.stop()
        self._http.join(deadline - time.monotonic())
        for worker in self._workers:
            worker.join(deadline - time.monotonic())
        if self._log_lines is not None:
            self._log_lines.close()
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
            detail = "no log is known: start specdash with --log FILE, journal:UNIT, docker:NAME or podman:NAME"
            self.bus.publish(Reading.unknown(Source.LOG, time.monotonic(), FailureKind.NOT_CONFIGURED, detail))
            return
        self._read_log(path)

    def _read_log(self, path: str) -> Worker:
        from specdash.collect.log_source import lines_of
        from specdash.collect.logs import LogCollector

        lines = self._log_lines = lines_of(path)
        return self._work("log", LogCollector(path, self.bus.publish, lines=lines).step, Source.LOG)

    def _follow_log(self, path: str) -> None:
        """The server was started again, and writes another log than before."""
        if self._log_lines is not None:
            self._log_lines.follow(path)
            return
        with self._knowing:
            if not self._stopped:
                self._read_log(path).start()

    def _watch_own_files(self) -> None:
        from specdash.collect.own_files import ApplyCollector, BaselineCollector, RecordWatch, TrialCollector

        publish, url, env = self.bus.publish, self._target.url, self._env
        record = RecordWatch(self._target, partial(self._learn, RECORD_FIELDS), env)
        self._trials = TrialCollector(url, publish, env)
        files = self._work("own-files", self._trials.step, Source.TRIAL)
        for step, source in (
            (ApplyCollector(url, publish, env).step, Source.APPLIES),
            (BaselineCollector(publish, env).step, Source.BASELINES),
            (record.step, Source.PROCESS),
        ):
            files.add(step, partial(self._collector_failed, source))

    def _publish_answer(self, reading: Reading[Any]) -> None:
        """Whether a server that does not answer, or whose process is gone, is on trial is told first."""
        if reading.failure is not None and self._trials is not None:
            self._trials.step()
        if reading.source is Source.HEALTH:
            reading = self._with_others(reading)
        self.bus.publish(reading)

    def _with_others(self, reading: Reading[Any]) -> Reading[Any]:
        """Where nothing was ever seen alive at the address, it may be wrong: with the other servers there are."""
        failure = reading.failure
        if failure is None or failure.kind is not FailureKind.REFUSED:
            self._seen_alive = self._seen_alive or failure is None
            return reading
        if self._seen_alive or local_port(self._target.url) is None:
            return reading
        if time.monotonic() >= self._others_due:
            self._others = [found.url for found in discover(self._env, ports=()) if found.url != self._target.url]
            self._others_due = time.monotonic() + OTHERS_S
        if not self._others:
            return reading
        named = OTHER_SERVERS + ", ".join(self._others[:OTHERS_NAMED])
        return Reading.unknown(reading.source, reading.at, failure.kind, failure.detail + named)

    def _learn(self, fields: tuple[str, ...], target: Target) -> None:
        """Take what `target` says in `fields`: two watches each know a part."""
        with self._knowing:
            before, self._target = (
                self._target,
                replace(self._target, **{name: getattr(target, name) for name in fields}),
            )
            self._on_target(self._target)
        path = self._target.log
        if path is not None and path != before.log:
            self._follow_log(path)

    def _watch_host(self) -> None:
        from specdash.collect.host import HostCollector, written_places

        self._host = HostCollector(
            self._target, self._publish_answer, places=lambda: written_places(self._target, self._env)
        )
        self._host_worker = self._work("host", self._step_host, Source.HOST)

    def _look_again(self, reading: Reading[Any]) -> None:
        """Where nothing listens any more, whether its process has ended must not wait: the alert does for it."""
        if reading.source is Source.HEALTH and self._host_worker is not None:
            is_refused = reading.failure is not None and reading.failure.kind is FailureKind.REFUSED
            if is_refused and not self._was_refused:
                self._looks_soon = SOON_LOOKS
                self._host_worker.wake()
            self._was_refused = is_refused

    def _step_host(self) -> float:
        assert self._host is not None  # noqa: S101 - for the type checker
        pause = self._host.step(self._interval_s)
        self._looks_soon -= bool(self._looks_soon)
        return min(pause, SOON_S) if self._looks_soon else pause

    def _watch_gpu(self) -> None:
        from specdash.collect.gpu import GpuCollector

        pids = self._host.backend_pids if self._host is not None else frozenset
        self._work("gpu", partial(self._step, GpuCollector(self.bus.publish, pids).step), Source.GPU)

    def _step(self, step: Callable[[float], float]) -> float:
        return step(self._interval_s)

    def _work(self, name: str, step: Callable[[], float], source: Source) -> Worker:
        self._workers.append(Worker(name, step, partial(self._collector_failed, source)))
        return self._workers[-1]

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
        from specdash.core.target import normalise_url

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
        from specdash.core.target import local_port
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
