"""Acceptance rate: accepted over generated draft tokens, windowed, lifetime and live, and per draft position.

Counters move only when a request ends, and print six significant digits: above a million a window's few tokens drown in
rounding. Then the log's exact per-request figures take over, where there is a log. Live acceptance exists only in the
per-step lines of `LLAMA_TRACE=1` (llama.cpp tools/server/server-context.cpp).
"""

from __future__ import annotations

from math import floor, log10
from typing import TYPE_CHECKING

from specdash.insight.log.counter_log import delta
from specdash.insight.request import DraftTally

if TYPE_CHECKING:
    from specdash.core.readings import Counters
    from specdash.insight.log.counter_log import Scrape


def exact_accepted(counters: Counters) -> float | None:
    """Accepted draft tokens: the exact sum over positions when it agrees with the rounded total, else the total."""
    total, positions = counters.accepted_tokens, counters.accepted_per_position
    if not positions or total is None:
        return total
    exact = float(sum(positions))
    return exact if abs(exact - total) <= max(0.5, total * 1e-5) else total


def between(first: Scrape, last: Scrape) -> DraftTally | None:
    """What was drafted between two scrapes; None when the server has no such counters."""
    total = since_start(last.counters)
    if total is None:
        return None
    # A series that appeared in between began at zero.
    before = first.counters
    return total - DraftTally(
        before.draft_tokens or 0.0,
        exact_accepted(before) or 0.0,
        before.verification_steps or 0.0,
        before.accepted_per_position or () if total.per_position else (),
    )


def decoded(first: Scrape, last: Scrape) -> tuple[float, float, DraftTally] | None:
    """Tokens, their decode seconds, and what was drafted between two scrapes; None where nothing was generated, or more
    was accepted than that."""
    drafts = between(first, last)
    tokens = delta(first.counters.predicted_tokens, last.counters.predicted_tokens)
    seconds = delta(first.counters.predicted_seconds, last.counters.predicted_seconds)
    if drafts is None or not tokens or drafts.accepted >= tokens:
        return None
    return tokens, seconds or 0.0, drafts


def since_start(counters: Counters) -> DraftTally | None:
    """What was drafted since the server's start."""
    accepted = exact_accepted(counters)
    if counters.draft_tokens is None or accepted is None:
        return None
    return DraftTally(
        counters.draft_tokens, accepted, counters.verification_steps, counters.accepted_per_position or ()
    )


def resolution(total: float | None) -> float:
    """The smallest step that a counter printed with six significant digits can show."""
    return max(1.0, rounding(total))


def rounding(total: float | None) -> float:
    """By how much a number that was printed with six significant digits may be off; 0 where it is exact."""
    if not total or (total < 1e6 and float(total).is_integer()):
        return 0.0
    return float(10.0 ** (floor(log10(total)) - 5))
