"""The proxy's events to readings: from its events file, or from the log or journal of a UAP proxy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from specdash.collect.log_source import lines_of
from specdash.core.proxy_events import ProxyEvents, from_json
from specdash.core.readings import Failure, Reading, Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.collect.log_source import LogLines
    from specdash.collect.tail import TailChunk
    from specdash.core.proxy_events import ProxyEvent

PERIOD_S = 0.5
"""Seconds between looks at the file, and so between batches."""

BACKFILL_BYTES = 1024 * 1024
"""How much of the end of the file is read at first."""

MAX_LINE_BYTES = 256 * 1024
"""A longer line is not an event, and is lost."""

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
        lines: LogLines | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`place` is one of `core.log_places`."""
        self._lines = lines or lines_of(
            place, whole_below=BACKFILL_BYTES, backfill=BACKFILL_BYTES, backlog_lines=JOURNAL_LINES
        )
        self._publish = publish
        self._clock, self._wall = clock, wall
        self._began = clock()
        self._rest = b""
        self._is_overlong = False
        self._failure: Failure | None = None
        self._has_published = self._has_json = False
        """Once an event came as JSON, the same things in words are not counted again."""

    def step(self) -> float:
        """Publish what is new; seconds until the next look."""
        # A line of the past that has no time stamp is not one of now.
        wall = self._wall() if self._clock() - self._began >= _PAST_S else 0.0
        self._events: list[ProxyEvent] = []
        self._dropped = self._unread = 0
        # The first batch holds all that is read of the past; later ones come a slice at a time.
        while True:
            chunk = self._lines.read(_SLICE_BYTES)
            self._take(chunk, wall)
            if not chunk.more or self._has_published:
                break
        now, failure = self._clock(), chunk.failure
        is_new = bool(self._events or self._dropped or self._unread)
        if is_new or (failure is None and (self._failure is not None or not self._has_published)):
            lost = max(0, len(self._events) - MAX_EVENTS)
            batch = ProxyEvents(tuple(self._events[lost:]), self._dropped + lost, self._unread)
            self._publish(Reading.known(Source.PROXY_EVENTS, now, batch))
        if failure is not None and (failure != self._failure or is_new):
            self._publish(Reading.unknown(Source.PROXY_EVENTS, now, failure.kind, failure.detail))
        self._failure, self._has_published = failure, True
        return PERIOD_S / 10 if chunk.more else PERIOD_S

    def close(self) -> None:
        """Let go of the file or the journal."""
        self._lines.close()

    def _take(self, chunk: TailChunk, wall: float) -> None:
        if chunk.replaced:
            self._add(self._rest, wall)
            self._rest, self._is_overlong = b"", False
        *whole, rest = (self._rest + chunk.data).split(b"\n")
        for line in whole:
            if self._is_overlong:
                self._is_overlong = False
                self._dropped += 1
            else:
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

        found = parse_line(line.decode("utf-8", "replace"), wall)
        if found is not None and not self._has_json:
            self._events.append(found)
