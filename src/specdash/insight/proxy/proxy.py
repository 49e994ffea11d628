"""The state of the proxy: its pictures of itself and its events in, `ProxyPicture` out. Bounded, without a clock."""

from __future__ import annotations

import math
from collections import Counter, deque
from itertools import pairwise
from typing import TYPE_CHECKING

from specdash.core.proxy_events import Guardrail, GuardrailEvent, RequestEvent, RequestOutcome
from specdash.core.readings import Reading, ReadingStatus
from specdash.insight.log.counter_log import KEEP_S
from specdash.insight.picture import (
    HOW_TO,
    SERIES_COLUMNS,
    GuardrailCount,
    ProxyPicture,
    ProxyWindow,
    is_error,
)
from specdash.insight.windowed import Windowed
from specdash.system.stats import median, share

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.core.proxy_events import ProxyEvents, ProxyStatus
    from specdash.core.target import Target

KEPT_REQUESTS = 500
KEPT_ACTIONS = 500
_KEPT_NAMES = 64
_ORDER = {str(guardrail): index for index, guardrail in enumerate(Guardrail)}


class RateTally:
    """How often each name came, by second, for as long as the longest window."""

    def __init__(self) -> None:
        self._names: dict[str, Windowed[int]] = {}

    def add(self, at: float, name: str, count: int = 1) -> None:
        """Count what came at `at`; names beyond a bound are left out."""
        if name in self._names or len(self._names) < _KEPT_NAMES:
            self._names.setdefault(name, Windowed(0, KEEP_S)).add(math.floor(at), count)

    def columns(self, name: str, now: float, window_s: float, count: int) -> tuple[int, ...]:
        """How often it came per column; columns are aligned to the clock, as in `Series.columns`."""
        found = self._names.get(name)
        width = window_s / count
        first = math.floor(now / width) - count + 1
        if found is None:
            return (0,) * count
        edges = [found.since((first + index) * width) for index in range(count + 1)]
        return tuple(left - right for left, right in pairwise(edges))

    def count(self, name: str, now: float, window_s: float) -> int:
        """How often it came in the last `window_s` seconds."""
        found = self._names.get(name)
        return found.since(math.floor(now - window_s) + 1) if found is not None else 0


class ProxyState:
    """State read from the proxy so far. The caller holds the target's lock."""

    def __init__(self) -> None:
        self.finished: deque[RequestEvent] = deque(maxlen=KEPT_REQUESTS)
        self.actions: deque[GuardrailEvent] = deque(maxlen=KEPT_ACTIONS)
        self.version = 0
        """Grows whenever events came."""
        self.lost = self.unread = 0
        self._live: ProxyStatus | None = None
        self._read: Counter[str] = Counter()
        """Actions read of the events, by `guardrail:action`."""
        self._dated = RateTally()
        """The same over Unix time."""
        self._polled = RateTally()
        """Growth of the proxy's own counters over monotonic time, for a proxy whose events cannot be read."""
        self._has_events = False

    def add_status(self, at: float, status: ProxyStatus) -> None:
        """Take in a picture, read at monotonic `at`."""
        before, self._live = self._live, status
        if before is None or before is status or before.started != status.started:
            return
        for name, count in status.counters.items():
            grown = count - before.counters.get(name, 0)
            if grown > 0:
                self._polled.add(at, name.partition(":")[0], grown)

    def add_events(self, batch: ProxyEvents) -> None:
        """Take in events."""
        self._has_events = True
        self.version += 1
        self.lost += batch.dropped
        self.unread += batch.unread
        for event in batch.events:
            if isinstance(event, RequestEvent):
                self.finished.append(event)
            else:
                self.actions.append(event)
                self._read[f"{event.guardrail}:{event.action}"] += 1
                self._dated.add(event.at, str(event.guardrail))

    def picture(
        self,
        target: Target,
        readings: tuple[Reading[ProxyStatus] | None, Reading[ProxyStatus] | None],
        events: Reading[ProxyEvents] | None,
        moment: tuple[float, float, float],
    ) -> ProxyPicture:
        """The proxy at one moment (monotonic, Unix time, window).

        `readings` are the latest of PROXY and the last known one with its age applied, `events` the latest of
        PROXY_EVENTS.
        """
        now, wall, window_s = moment
        latest, known = readings
        failure = latest.failure if latest is not None else None
        live = known.value if known is not None else None
        status = ReadingStatus.UNKNOWN if known is None or live is None else known.status
        if failure is not None and status is ReadingStatus.KNOWN:
            status = ReadingStatus.STALE
        events_failure = events.failure if events is not None else None
        return ProxyPicture(
            configured=target.proxy_url is not None or target.proxy_log is not None or live is not None,
            url=target.proxy_url,
            origin=target.proxy_origin,
            status=status,
            reason=self._reason(target, failure, status),
            failure=failure.kind if failure is not None else None,
            age_s=now - known.at if known is not None and live is not None else None,
            live=live,
            events_status=ReadingStatus.UNKNOWN
            if events is None or events_failure is not None
            else ReadingStatus.KNOWN,
            events_reason=str(events_failure) if events_failure is not None else "",
            events_lost=self.lost,
            events_unread=self.unread,
            window=_window(self.finished, wall, window_s) if self.finished else ProxyWindow(),
            finished=tuple(reversed(self.finished)),
            actions=tuple(reversed(self.actions)),
            guardrails=tuple(self._guardrails(live, now, wall, window_s)),
        )

    @staticmethod
    def _reason(target: Target, failure: object, status: ReadingStatus) -> str:
        if target.proxy_url is None:
            return (
                HOW_TO if target.proxy_log is None else "only its log is known: start specdash with --proxy-url URL too"
            )
        if failure is not None:
            return str(failure)
        return {ReadingStatus.KNOWN: "", ReadingStatus.STALE: "no answer for a while"}.get(status, "no answer yet")

    def _guardrails(
        self, live: ProxyStatus | None, now: float, wall: float, window_s: float
    ) -> Iterable[GuardrailCount]:
        totals = dict(live.counters) if live is not None and live.counters else dict(self._read)
        by_name: dict[str, Counter[str]] = {}
        for name, count in (*((name, 0) for name in self._read), *totals.items()):
            guardrail, _, action = name.partition(":")
            by_name.setdefault(guardrail, Counter())[action] += count
        tally, at = (self._dated, wall) if self._has_events else (self._polled, now)
        for guardrail in sorted(by_name, key=lambda name: (_ORDER.get(name, len(_ORDER)), name)):
            actions = by_name[guardrail]
            yield GuardrailCount(
                guardrail,
                tally.count(guardrail, at, window_s),
                sum(actions.values()),
                tuple((action, count) for action, count in actions.most_common() if count),
                tally.columns(guardrail, at, window_s, SERIES_COLUMNS),
            )


def _window(finished: Iterable[RequestEvent], wall: float, window_s: float) -> ProxyWindow:
    since = wall - window_s
    ended = [event for event in finished if since < event.at + (event.duration_s or 0.0)]
    tells_errors = all(event.status is not None for event in ended)
    errors = sum(map(is_error, ended)) if tells_errors else None
    drafted = accepted = prompted = cached = left = 0
    for event in ended:
        left += event.outcome is RequestOutcome.CLIENT_LEFT
        if event.draft_tokens and event.accepted_tokens is not None:
            drafted, accepted = drafted + event.draft_tokens, accepted + event.accepted_tokens
        if event.prompt_tokens and event.cached_tokens is not None:
            prompted, cached = prompted + event.prompt_tokens, cached + event.cached_tokens
    return ProxyWindow(
        requests=len(ended),
        errors=errors,
        clients_left=left if tells_errors else None,
        error_rate=share(errors, len(ended)),
        ttft_p50_s=median(event.ttft_s for event in ended),
        decode_p50=median(event.decode_rate for event in ended),
        acceptance=share(accepted, drafted),
        cache_share=share(cached, prompted),
    )
