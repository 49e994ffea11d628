"""How late specdash's own poll loop wakes. Where it gets no CPU, a silence says nothing about the server."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from specdash.core.observations import STARVED_SHARE, SchedulingDelay
from specdash.core.readings import Reading, Source

if TYPE_CHECKING:
    from collections.abc import Callable

TICK_S = 0.25
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
