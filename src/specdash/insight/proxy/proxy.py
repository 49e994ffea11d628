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
)
from specdash.insight.request import is_error
from specdash.insight.windowed import Windowed
from specdash.system.stats import median, ratio, share

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.core.proxy_events import ProxyEvents, ProxyStatus
    from specdash.core.target import Target

KEPT_REQUESTS = 500
KEPT_ACTIONS = 500
_KEPT_NAMES = 64
_ORDER = {str(guardrail): index for index, guardrail in enumerate(Guardrail)}


class ProxyState:
    """State read from the proxy so far. The caller holds the target's lock."""

    def __init__(self) -> None:
        self.finished: deque[RequestEvent] = deque(maxlen=KEPT_REQUESTS)
        self.actions: deque[GuardrailEvent] = deque(maxlen=KEPT_ACTIONS)
        self.lost = self.unread = 0
        self._live: ProxyStatus | None = None
        self._read: Counter[str] = Counter()
        """Actions read of the events, by `guardrail:action`."""
        self._acted: dict[str, Windowed[int]] = {}
        """How often each guardrail acted: the events over Unix time, or, for a proxy whose events cannot be read, the
        growth of its own counters over monotonic time."""
        self._has_events = False

    def add_status(self, at: float, status: ProxyStatus) -> None:
        """Take in a picture, read at monotonic `at`."""
        before, self._live = self._live, status
        if self._has_events or before is None or before is status or before.started != status.started:
            return
        for name, count in status.counters.items():
            if count > before.counters.get(name, 0):
                self._count(at, name.partition(":")[0], count - before.counters.get(name, 0))

    def add_events(self, batch: ProxyEvents) -> None:
        """Take in events."""
        if not self._has_events:
            self._has_events, self._acted = True, {}
        self.lost += batch.dropped
        self.unread += batch.unread
        for event in batch.events:
            if isinstance(event, RequestEvent):
                self.finished.append(event)
            else:
                self.actions.append(event)
                self._read[f"{event.guardrail}:{event.action}"] += 1
                self._count(event.at, str(event.guardrail), 1)

    def _count(self, at: float, name: str, count: int) -> None:
        """Count by second; names beyond a bound are left out."""
        if name in self._acted or len(self._acted) < _KEPT_NAMES:
            self._acted.setdefault(name, Windowed(0, KEEP_S)).add(math.floor(at), count)

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
        reason = {ReadingStatus.KNOWN: "", ReadingStatus.STALE: "no answer for a while"}.get(status, "no answer yet")
        if target.proxy_url is None:
            reason = HOW_TO if target.proxy_log is None else "only its log is known: name its address with --proxy-url"
        elif failure is not None:
            reason = str(failure)
        is_read = events is not None and events.failure is None
        return ProxyPicture(
            configured=target.proxy_url is not None or target.proxy_log is not None or live is not None,
            url=target.proxy_url,
            origin=target.proxy_origin,
            status=status,
            reason=reason,
            failure=failure.kind if failure is not None else None,
            age_s=now - known.at if known is not None and live is not None else None,
            live=live,
            events_status=ReadingStatus.KNOWN if is_read else ReadingStatus.UNKNOWN,
            events_reason=str(events.failure) if events is not None and events.failure is not None else "",
            events_lost=self.lost,
            events_unread=self.unread,
            window=_window(self.finished, wall, window_s) if self.finished else ProxyWindow(),
            finished=tuple(reversed(self.finished)),
            actions=tuple(reversed(self.actions)),
            guardrails=tuple(self._guardrails(live, now, wall, window_s)),
        )

    def _guardrails(
        self, live: ProxyStatus | None, now: float, wall: float, window_s: float
    ) -> Iterable[GuardrailCount]:
        totals = dict(live.counters) if live is not None and live.counters else dict(self._read)
        by_name: dict[str, Counter[str]] = {}
        for name, count in (*((name, 0) for name in self._read), *totals.items()):
            guardrail, _, action = name.partition(":")
            by_name.setdefault(guardrail, Counter())[action] += count
        at, width = wall if self._has_events else now, window_s / SERIES_COLUMNS
        # Columns are aligned to the clock, as in `Series.columns`.
        first = math.floor(at / width) - SERIES_COLUMNS + 1
        for guardrail in sorted(by_name, key=lambda name: (_ORDER.get(name, len(_ORDER)), name)):
            actions, acted = by_name[guardrail], self._acted.get(guardrail, Windowed(0, KEEP_S))
            edges = [acted.since((first + index) * width) for index in range(SERIES_COLUMNS + 1)]
            yield GuardrailCount(
                guardrail,
                acted.since(math.floor(at - window_s) + 1),
                sum(actions.values()),
                tuple((action, count) for action, count in actions.most_common() if count),
                tuple(left - right for left, right in pairwise(edges)),
            )


def _window(finished: Iterable[RequestEvent], wall: float, window_s: float) -> ProxyWindow:
    since = wall - window_s
    ended = [event for event in finished if since < event.at + (event.duration_s or 0.0)]
    has_status = all(event.status is not None for event in ended)
    errors = sum(map(is_error, ended)) if has_status else None
    drafted = [event for event in ended if event.draft_tokens and event.accepted_tokens is not None]
    prompted = [event for event in ended if event.prompt_tokens and event.cached_tokens is not None]
    return ProxyWindow(
        requests=len(ended),
        errors=errors,
        clients_left=sum(event.outcome is RequestOutcome.CLIENT_LEFT for event in ended) if has_status else None,
        error_rate=share(errors, len(ended)),
        ttft_p50_s=median(event.ttft_s for event in ended),
        decode_p50=median(event.decode_rate for event in ended),
        acceptance=ratio((event.accepted_tokens or 0, event.draft_tokens or 0) for event in drafted),
        cache_share=ratio((event.cached_tokens or 0, event.prompt_tokens or 0) for event in prompted),
    )
