"""The server's log to facts on the bus: lines, a parser, and two batches a second while it keeps up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from specdash.collect.log_source import lines_of
from specdash.collect.tail import WHOLE_BELOW_BYTES, LogTail
from specdash.core.log_facts import LogBatch
from specdash.core.readings import Failure, Reading, Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.llama.log.parser import LogParser

PERIOD_S = 0.5
"""Seconds between looks at the log, and so between batches: each costs as much as some hundred lines."""
TURN_S = 0.2
"""The longest rest between two pieces of a backlog."""
PIECE_BYTES = 1024 * 1024
"""Parsed at a time; of what there was at first, all that the source reads of it."""


class LogCollector:
    """Reads what is new in a log and publishes it. `step` is to be called again after the seconds it returns."""

    def __init__(
        self,
        path: str,
        publish: Callable[[Reading[Any]], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._lines = lines_of(path)
        self._publish = publish
        self._clock, self._wall = clock, wall
        self._parser: LogParser | None = None
        self._failure: Failure | None = None
        self._caught_up = False
        """What there was before anybody looked has been read."""

    def step(self) -> float:
        """Publish what is new; seconds until the next look."""
        started = self._clock()
        chunk = self._lines.read(PIECE_BYTES if self._caught_up else WHOLE_BELOW_BYTES)
        ends_backlog = not (self._caught_up or chunk.more) and chunk.failure is None
        if chunk.replaced and self._parser is not None:
            last, self._parser = self._parser.close(), None
            if last.lines:
                self._publish_batch(replace(last, more_follows=not self._caught_up))
        if chunk.data or chunk.replaced:
            if self._parser is None:
                from specdash.llama.log.parser import LogParser

                self._parser = LogParser()
            batch = self._parser.feed(chunk.data)
            written_at = self._lines.written_at
            age_s = max(0.0, self._wall() - written_at) if written_at is not None else None
            follows = not self._caught_up and chunk.more
            restarted = chunk.replaced or batch.restarted
            self._publish_batch(replace(batch, age_s=age_s, more_follows=follows, restarted=restarted))
        elif ends_backlog or (self._failure is not None and chunk.failure is None):
            self._publish_batch(LogBatch())
        self._caught_up = self._caught_up or ends_backlog
        failure = chunk.failure
        if failure is not None and (failure != self._failure or chunk.data):
            self._publish(Reading.unknown(Source.LOG, self._clock(), failure.kind, failure.detail))
        self._failure = failure
        spent = self._clock() - started
        # While there is a backlog, rest as long as the work took: half a core is the most a storm may cost.
        if chunk.more:
            return max(0.01, min(spent, TURN_S)) if chunk.data else TURN_S
        return max(0.01, PERIOD_S - spent)

    def follow(self, path: str) -> None:
        """Go on with the file of a server that was started again. A log that another program keeps stays the one."""
        if isinstance(self._lines, LogTail):
            self._lines.follow(path)

    def close(self) -> None:
        """Let go of the log."""
        self._lines.close()

    def _publish_batch(self, batch: LogBatch) -> None:
        self._publish(Reading.known(Source.LOG, self._clock(), batch))
