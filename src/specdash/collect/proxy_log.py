"""The proxy's events to readings: from its events file, or from the log or journal of a UAP proxy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from specdash.collect.log_source import lines_of
from specdash.core.proxy_events import ProxyEvents, ProxyStatus, SessionView, from_json
from specdash.core.readings import Failure, Reading, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.collect.log_source import LogLines
    from specdash.collect.tail import TailChunk
    from specdash.core.proxy_events import ProxyEvent
    from specdash.core.proxy_lines import ContextLine

PERIOD_S = 0.5
"""Seconds between looks at the file, and so between batches."""

BACKFILL_BYTES = 1024 * 1024
"""How much of the end of the file is read at first."""

MAX_LINE_BYTES = 256 * 1024
"""A longer line is no event, and is lost."""

MAX_EVENTS = 5000
"""Events that one batch carries at most; the oldest are lost."""

JOURNAL_LINES = 500
_SLICE_BYTES = 256 * 1024
_PAST_S = 2.0
"""What is read so soon after the begin was written before it."""


class ProxyEventsCollector:
    """Reads what is new and publishes it. `step` is to be called again after the seconds it returns."""

    def __init__(
        self,
        place: str,
        publish: Callable[[Reading[Any]], None],
        *,
        tells_context: Callable[[], bool] = lambda: False,
        lines: LogLines | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`place` is one of `core.log_places`; where it `tells_context`, CONTEXT lines become PROXY readings
        too, for a proxy whose address is not known."""
        self._lines = lines or lines_of(
            place, whole_below=BACKFILL_BYTES, backfill=BACKFILL_BYTES, backlog_lines=JOURNAL_LINES
        )
        self._publish = publish
        self._clock = clock
        self._rest = b""
        self._is_overlong = False
        self._failure: Failure | None = None
        self._told = False
        self._wall = wall
        self._began: float | None = None
        self._tells_context = tells_context
        self._session: SessionView | None = None
        self._has_json = False
        """Once an event came as JSON, the same things in words are not counted again."""
        self._begin_batch()

    def step(self) -> float:
        """Publish what is new; seconds until the next look."""
        now = self._clock()
        self._began = now if self._began is None else self._began
        # A line of the past that has no time stamp is not one of now.
        wall = self._wall() if now - self._began >= _PAST_S else 0.0
        chunk = self._lines.read(_SLICE_BYTES)
        # The first batch holds all that is read of the past; later ones come a slice at a time.
        while True:
            self._take(chunk, wall)
            if not chunk.more or self._told:
                break
            chunk = self._lines.read(_SLICE_BYTES)
        self._tell(chunk.failure)
        return PERIOD_S / 10 if chunk.more else PERIOD_S

    def close(self) -> None:
        """Let go of the file or the journal."""
        self._lines.close()

    def _begin_batch(self) -> None:
        self._events: list[ProxyEvent] = []
        self._contexts: list[ContextLine] = []
        self._dropped = self._unread = 0

    def _take(self, chunk: TailChunk, wall: float) -> None:
        if chunk.replaced and self._rest:
            self._add(self._rest, wall)
            self._rest, self._is_overlong = b"", False
        if not chunk.data:
            return
        *whole, rest = (self._rest + chunk.data).split(b"\n")
        for line in whole:
            if self._is_overlong:
                self._is_overlong = False
                self._dropped += 1
            elif line:
                self._add(line, wall)
        self._is_overlong = self._is_overlong or len(rest) > MAX_LINE_BYTES
        self._rest = b"" if self._is_overlong else rest

    def _add(self, line: bytes, wall: float) -> None:
        if line.lstrip().startswith(b"{"):
            event = from_json(line)
            # Most lines of a log are not about events; a JSON object that is none was meant to be one.
            self._unread += event is None
            self._has_json = self._has_json or event is not None
            self._events += [event] if event is not None else []
            return
        from specdash.collect.uap_journal import parse_line
        from specdash.core.proxy_lines import ContextLine

        found = parse_line(line.decode("utf-8", "replace"), wall)
        if isinstance(found, ContextLine):
            self._contexts.append(found)
        elif found is not None and not self._has_json:
            self._events.append(found)

    def _tell(self, failure: Failure | None) -> None:
        now = self._clock()
        is_new = bool(self._events or self._dropped or self._unread)
        recovered = self._failure is not None and failure is None
        if is_new or recovered or (failure is None and not self._told):
            lost = max(0, len(self._events) - MAX_EVENTS)
            batch = ProxyEvents(tuple(self._events[lost:]), self._dropped + lost, self._unread)
            self._publish(Reading.known(Source.PROXY_EVENTS, now, batch))
        if self._contexts and self._tells_context():
            status = _status(self._session, self._contexts)
            (self._session,) = status.sessions
            self._publish(Reading.known(Source.PROXY, now, status))
        if failure is not None and (failure != self._failure or is_new):
            self._publish(Reading.unknown(Source.PROXY_EVENTS, now, failure.kind, failure.detail))
        self._failure, self._told = failure, True
        self._begin_batch()


def _status(before: SessionView | None, lines: Sequence[ContextLine]) -> ProxyStatus:
    """What CONTEXT lines tell of the proxy. They name no session, so that all are of one, which was `before`."""
    last = lines[-1]
    peak = max(line.tokens for line in lines)
    session = SessionView(
        id="",
        last_seen=last.at,
        requests=len(lines) + (before.requests if before is not None else 0),
        context_tokens=last.tokens,
        context_window=last.window,
        peak_tokens=max(peak, (before.peak_tokens or 0) if before is not None else 0),
        turns_remaining=last.turns_remaining,
        prunes=last.pruned,
        overflows=last.overflows,
    )
    return ProxyStatus(context_window=last.window, requests=session.requests, sessions=(session,), session_count=1)
