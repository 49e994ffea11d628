"""Acceptance rate: accepted over generated draft tokens, windowed, lifetime and live, and per draft position.

Counters move only when a request ends, and print six significant digits: above a million a window's few tokens drown in
rounding. Then the log's exact per-request figures take over, where there is a log. Live acceptance exists only in the
per-step lines of `LLAMA_TRACE=1` (llama.cpp tools/server/server-context.cpp).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import floor, log10
from typing import TYPE_CHECKING

from specdash.insight.counter_log import delta

if TYPE_CHECKING:
    from specdash.core.observations import Counters
    from specdash.insight.counter_log import Scrape


@dataclass(frozen=True, slots=True)
class DraftWindow:
    """Draft tokens generated and accepted, and verification steps, between two moments."""

    generated: float
    accepted: float
    steps: float | None = None

    @property
    def rate(self) -> float | None:
        """Acceptance rate 0 to 1; None when nothing was drafted, which is not an acceptance of zero."""
        return min(1.0, max(0.0, self.accepted / self.generated)) if self.generated > 0 else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens per verification step: 1 + accepted / steps."""
        return 1.0 + self.accepted / self.steps if self.steps else None


def exact_accepted(counters: Counters) -> float | None:
    """Accepted draft tokens: the exact sum over positions when it agrees with the rounded total, else the total."""
    total, positions = counters.accepted_tokens, counters.accepted_per_position
    if not positions or total is None:
        return total
    exact = float(sum(positions))
    return exact if abs(exact - total) <= max(0.5, total * 1e-5) else total


def between(first: Scrape, last: Scrape) -> DraftWindow | None:
    """What was drafted between two scrapes; None when the server has no such counters."""
    generated = delta(first.counters.draft_tokens, last.counters.draft_tokens)
    accepted = delta(exact_accepted(first.counters), exact_accepted(last.counters))
    if generated is None or accepted is None:
        return None
    return DraftWindow(generated, accepted, delta(first.counters.verification_steps, last.counters.verification_steps))


def since_start(counters: Counters) -> DraftWindow | None:
    """What was drafted since the server's start."""
    accepted = exact_accepted(counters)
    if counters.draft_tokens is None or accepted is None:
        return None
    return DraftWindow(counters.draft_tokens, accepted, counters.verification_steps)


def resolution(total: float | None) -> float:
    """The smallest step that a counter printed with six significant digits can show."""
    return max(1.0, rounding(total))


def rounding(total: float | None) -> float:
    """By how much a number that was printed with six significant digits may be off; 0 where it is exact."""
    if not total or (total < 1e6 and float(total).is_integer()):
        return 0.0
    return float(10.0 ** (floor(log10(total)) - 5))


def per_position(
    first: tuple[int, ...] | None, last: tuple[int, ...] | None, steps: float | None
) -> tuple[float, ...] | None:
    """Share of verification steps whose draft token at each position was accepted; trailing positions never seen are
    cut."""
    if not last or not steps or steps <= 0:
        return None
    before = first or ()
    accepted = [count - (before[i] if i < len(before) else 0) for i, count in enumerate(last)]
    while accepted and accepted[-1] == 0:
        accepted.pop()
    return tuple(min(1.0, count / steps) for count in accepted)


class ExactWindow:
    """Per-request or per-step draft figures with their arrival times, for windows too small for the counters."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._events: deque[tuple[float, int, int, int]] = deque()

    def add(self, at: float, generated: int, accepted: int, steps: int = 0) -> None:
        """One request or verification step of monotonic time `at`; a time before the newest one counts as that."""
        events = self._events
        at = max(at, events[-1][0]) if events else at
        if events and events[-1][0] == at:
            _, g, a, s = events.pop()
            generated, accepted, steps = g + generated, a + accepted, s + steps
        events.append((at, generated, accepted, steps))
        while events[0][0] < at - self._keep_s:
            events.popleft()

    def clear(self) -> None:
        """Forget everything: a new server process."""
        self._events.clear()

    @property
    def newest(self) -> float | None:
        """Monotonic time of the newest event."""
        return self._events[-1][0] if self._events else None

    def window(self, now: float, window_s: float) -> DraftWindow | None:
        """Sums over the last `window_s` seconds; None when nothing was seen."""
        generated = accepted = steps = 0
        for at, g, a, s in reversed(self._events):
            if at < now - window_s:
                break
            generated, accepted, steps = generated + g, accepted + a, steps + s
        return DraftWindow(generated, accepted, steps or None) if generated else None
