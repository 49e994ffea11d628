"""Prefill and decode rates in tokens per second, from slots while requests run and from counters when they end.

Decode of a running request is the growth of `/slots` n_decoded between two looks at the same task, summed over slots. A
request shorter than the polling interval shows up only in the counters, whose tokens over seconds are its own speed;
that times the mean number of busy slots is the same aggregate. Idle time never enters: a rate is a speed, not a
utilisation.

Totals are printed with six digits and move one after the other when a request ends. So a figure is given only where
that cannot change it by more than `MOST_ERROR`, and never one that no server can reach.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.proxy_events import DECODE, PREFILL, plausible_rate, speed
from specdash.insight.log.counter_log import decoded, delta, rounding

if TYPE_CHECKING:
    from specdash.core.proxy_events import SpeedLimits
    from specdash.core.readings import Counters, Slots, Source
    from specdash.insight.log.counter_log import Scrape


LEAST_APART_S = 0.2
"""Two looks at /slots that follow each other closer, because one was answered late, say nothing of a speed."""
LEAST_CALLS = 10
"""Decode calls below which tokens per decode are unknown."""
MOST_ERROR = 0.1
"""Share of a figure by which rounding may change it."""


class RateSample(Struct, frozen=True):
    """One measured rate, tokens per second, and where it comes from."""

    at: float
    value: float
    source: Source


class _Seen(Struct):
    at: float
    task: int | None
    decoded: int
    processed: int


class SlotRates:
    """Follows the slots' token counts from look to look."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._at = -inf
        self.decode_by_slot: dict[int, float] = {}

    def add(self, at: float, slots: Slots) -> tuple[float | None, float | None]:
        """The (prefill, decode) rates since the last look, summed over slots; None where no slot advanced."""
        prefill: float | None = None
        decode: float | None = None
        if at - self._at < LEAST_APART_S:
            return prefill, decode
        self._at = at
        self.decode_by_slot = {}
        for slot in slots.slots:
            before = self._seen.get(slot.id)
            if not slot.is_processing:
                self._seen.pop(slot.id, None)
                continue
            now = _Seen(at, slot.task, slot.n_decoded or 0, slot.n_prompt_tokens_processed or 0)
            self._seen[slot.id] = now
            if before is None or before.task != now.task:
                continue
            spent = at - before.at
            if spent <= 0:  # one slot twice in one answer
                continue
            grown = now.decoded - before.decoded if before.decoded else 0
            if grown > 0 and plausible_rate(grown / spent, None, DECODE) is not None:
                self.decode_by_slot[slot.id] = grown / spent
                decode = (decode or 0.0) + grown / spent
            read = speed(now.processed - before.processed, spent * 1000.0, PREFILL) if now.decoded == 0 else None
            if read is not None:
                prefill = (prefill or 0.0) + read
        return prefill, decode


def mean_busy_slots(first: Counters, last: Counters, slots: int | None = None) -> float | None:
    """Mean number of slots in a decode call between two scrapes of a server that has `slots`; 1 where it does not say,
    None where the rounding of what it prints leaves nothing to tell."""
    if first.decode_calls is None or last.decode_calls is None or last.busy_slots_per_decode is None:
        return 1.0
    calls = last.decode_calls - first.decode_calls
    if calls <= 0:
        return 1.0
    mean = last.busy_slots_per_decode
    busy = mean * last.decode_calls - (first.busy_slots_per_decode or 0.0) * first.decode_calls
    if rounding(mean) * last.decode_calls + mean * rounding(last.decode_calls) > MOST_ERROR * calls:
        return None
    return min(max(1.0, busy / calls), slots or inf)


def counter_rates(first: Scrape, last: Scrape, busy: float | None) -> tuple[float | None, float | None]:
    """The (prefill, decode) rates of requests that ended between two scrapes, with a mean of `busy` slots at work; None
    where none did, or too little to tell."""
    prefill, decode = lifetime_rates(first.counters, last.counters)
    return prefill, decode * busy if decode is not None and busy is not None else None


def lifetime_rates(first: Counters, last: Counters) -> tuple[float | None, float | None]:
    """The (prefill, decode) rates per request over a server's life (`CounterLog.life`)."""
    a, b = first, last
    prefill = _rate((a.prompt_tokens, b.prompt_tokens), (a.prompt_seconds, b.prompt_seconds), PREFILL)
    return prefill, _rate((a.predicted_tokens, b.predicted_tokens), (a.predicted_seconds, b.predicted_seconds), DECODE)


def tokens_per_decode(first: Scrape, last: Scrape) -> float | None:
    """Generated tokens per slot and target decode call, of requests that ended between two scrapes: the gain of
    speculation; None where the totals do not tell.

    Every decode call brings one token beside those accepted, a replay too; no draft is longer than the positions that
    the server counts.
    """
    found = decoded(first, last)
    if found is None or found[2].steps is None:
        return None
    generated, _, drafted = found
    calls = generated - drafted.accepted
    # Fewer calls than verification steps: one total was read before another one of the same request moved.
    if calls < (drafted.steps or 0) * (1 - MOST_ERROR) or calls < max(
        LEAST_CALLS, rounding(last.counters.predicted_tokens) / MOST_ERROR
    ):
        return None
    positions = last.counters.accepted_per_position
    value, most = generated / calls, 1.0 + len(positions) if positions else inf
    return value if 1.0 <= value <= most else None


def _rate(
    tokens: tuple[float | None, float | None], seconds: tuple[float | None, float | None], limits: SpeedLimits
) -> float | None:
    """Tokens per second between two pairs of totals, where their growth is more than the digits that are printed."""
    grown = delta(*tokens), delta(*seconds)
    for growth, pair in zip(grown, (tokens, seconds), strict=True):
        if growth is None or growth * MOST_ERROR < rounding(pair[1]):
            return None
    return speed(grown[0], (grown[1] or 0.0) * 1000.0, limits)
