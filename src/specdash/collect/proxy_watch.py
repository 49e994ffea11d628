"""Watches the proxy of one target: the one that was named, or whichever is found to stand before the server."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from specdash.collect.proxy_discover import ProxySearch
from specdash.collect.worker import Worker
from specdash.core.readings import FailureKind, Reading, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.collect.proxy_log import ProxyEventsCollector
    from specdash.core.target import Target

SEARCH_S = 5.0
"""Seconds between two looks for a proxy."""

NO_PROXY: dict[Source, str] = {
    Source.PROXY: "no proxy is known; name it with --proxy-url http://127.0.0.1:4000",
    Source.PROXY_EVENTS: "no proxy log is known; name it with --proxy-log FILE or --proxy-log journal:UNIT",
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
