"""Sums since the proxy's start, for metrics. Labels are few and known: endpoints, outcomes, error types, guardrails."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdash.core.proxy_events import Outcome

if TYPE_CHECKING:
    from specdash.core.proxy_events import RequestEvent
    from specdash.proxy.telemetry.active import Totals

BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the buckets, in seconds; one more bucket has none."""
MAX_LABELS = 32
OTHER = "other"


class Histogram:
    """Counts of values by bucket, not cumulative, and their sum."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(BOUNDS_S, value)] += 1
        self.sum += value


@dataclass(slots=True)
class Tally:
    """Tokens are summed over retries; seconds are the upstream's own, of prompt processing and of decoding."""

    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By endpoint and outcome."""
    errors: Counter[str] = field(default_factory=Counter)
    """By error type."""
    retries: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    prefilled_tokens: int = 0
    prefill_s: float = 0.0
    decoded_tokens: int = 0
    decode_s: float = 0.0
    held_s: float = 0.0
    ttft: Histogram = field(default_factory=Histogram)
    duration: Histogram = field(default_factory=Histogram)

    def add(self, event: RequestEvent, totals: Totals) -> None:
        """Count a finished request."""
        self.requests[event.path, event.outcome] += 1
        if event.outcome is Outcome.ERROR:
            kind = event.error_type or "unknown"
            self.errors[kind if kind in self.errors or len(self.errors) < MAX_LABELS else OTHER] += 1
        self.retries += event.retries or 0
        if not event.prompt_estimated:
            self.prompt_tokens += event.prompt_tokens or 0
        self.cached_tokens += event.cached_tokens or 0
        self.completion_tokens += event.completion_tokens or 0
        self.draft_tokens += event.draft_tokens or 0
        self.accepted_tokens += event.accepted_tokens or 0
        self.prefilled_tokens += totals.prefilled or 0
        self.prefill_s += event.prefill_s or 0.0
        self.decoded_tokens += totals.decoded or 0
        self.decode_s += event.decode_s or 0.0
        self.held_s += event.held_s or 0.0
        if event.ttft_s is not None:
            self.ttft.add(event.ttft_s)
        if event.duration_s is not None:
            self.duration.add(event.duration_s)

    def count(self, outcome: Outcome) -> int:
        """Requests that ended so, over all endpoints."""
        return sum(number for (_, how), number in self.requests.items() if how == outcome)
