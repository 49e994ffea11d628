"""Prefill and decode rates in tokens per second, from slots while requests run and from counters when they end.

Decode of a running request is the growth of `/slots` n_decoded between two looks at the same task, summed over slots. A
request shorter than the polling interval shows up only in the counters, whose tokens over seconds are its own speed;
that times the mean number of busy slots is the same aggregate. Idle time never enters: a rate is a speed, not a
utilisation.

/metrics and /slots are never of one moment, nor are the totals within one scrape: a request may be over in one of them
and not in the other, and totals are printed with six digits. So a figure is given only where that cannot change it by
more than `MOST_ERROR` and `MOST_SKEW`, and never one that no server can reach (`core.token_speed`, `most_per_decode`).
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.proxy_events import DECODE, PREFILL, possible, speed
from specdash.insight.log.counter_log import delta
from specdash.insight.speculation.acceptance import between, rounding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.core.proxy_events import SpeedLimits
    from specdash.core.readings import Counters, Slots, Source
    from specdash.insight.log.counter_log import Scrape


IDLE_POINT_FRESH_S = 4.0
LEAST_APART_S = 0.2
"""Two looks at /slots that follow each other closer, because one was answered late, say nothing of a speed."""
LEAST_CALLS = 10
"""Decode calls below which tokens per decode are unknown."""
MOST_ERROR = 0.1
"""Share of a figure by which rounding may change it."""
MOST_SKEW = 0.5
"""The same of tokens under way, at worst: mostly it is far less, and a busy server has no better moments."""
SPEED_ERROR = 0.25
"""By how much a slot may have been faster or slower since the last look at it."""
SLOTS_FRESH_S = 3.0
"""Older slots say nothing of what is in flight."""


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
            if grown > 0 and possible(grown / spent, DECODE) is not None:
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
    a, b = first.counters, last.counters
    prefill = _rate((a.prompt_tokens, b.prompt_tokens), (a.prompt_seconds, b.prompt_seconds), PREFILL)
    decode = _rate((a.predicted_tokens, b.predicted_tokens), (a.predicted_seconds, b.predicted_seconds), DECODE)
    return prefill, decode * busy if decode is not None and busy is not None else None


def lifetime_rates(first: Counters, last: Counters) -> tuple[float | None, float | None]:
    """The (prefill, decode) rates per request over a server's life (`CounterLog.life`)."""
    return (
        _rate((first.prompt_tokens, last.prompt_tokens), (first.prompt_seconds, last.prompt_seconds), PREFILL),
        _rate(
            (first.predicted_tokens, last.predicted_tokens), (first.predicted_seconds, last.predicted_seconds), DECODE
        ),
    )


class GainPoint(Struct, frozen=True):
    """A scrape with the tokens that requests under way had generated then, and by how many that may be off."""

    scrape: Scrape
    in_flight: float
    error: float

    @property
    def is_exact(self) -> bool:
        """Whether everything that was generated is in the totals: the server rested."""
        return self.error == 0


def gain_point(
    scrape: Scrape, before: Scrape | None, slots: tuple[float, Slots] | None, rates: Mapping[int, float]
) -> GainPoint:
    """The point of a scrape. `before` is the scrape before it, `slots` the last look at the slots with its time, and
    `rates` the tokens per second of each."""
    totals = scrape.counters
    if before is None:
        return GainPoint(scrape, 0, inf)
    earlier = before.counters
    if totals.requests_processing == 0:
        # While a request ends its totals move one after the other: rest is what two scrapes agree on, and what came
        # since the one before may be in one of them only.
        ended = delta(earlier.predicted_tokens, totals.predicted_tokens) or 0.0
        called = delta(earlier.decode_calls, totals.decode_calls) or 0.0
        return GainPoint(scrape, 0, max(ended, called, float(earlier.requests_processing != 0)))
    if slots is None or not 0 <= scrape.at - slots[0] < SLOTS_FRESH_S:
        return GainPoint(scrape, 0, inf)
    at_work = [slot for slot in slots[1].slots if slot.is_processing]
    known = sum(slot.n_decoded or 0 for slot in at_work)
    since = sum(rates.get(slot.id, 0.0) for slot in at_work) * (scrape.at - slots[0])
    # Of a slot that was seen once only it is not known how fast it is: what came since may be as much again.
    error = max(1.0, SPEED_ERROR * since) + sum(slot.n_decoded or 0 for slot in at_work if slot.id not in rates)
    if totals.predicted_tokens != earlier.predicted_tokens or before.at > slots[0]:
        # Some of these requests may have ended since: then the totals have their tokens already.
        error += known
    return GainPoint(scrape, known + since, error)


def tokens_per_decode(points: Sequence[GainPoint], longest_draft: int | None, slots: int | None = None) -> float | None:
    """Generated tokens per slot and target decode call over some time: the live gain of speculation; None where the
    points do not tell.

    The server drafts at most `longest_draft` tokens in `slots` slots, None where that is not known. Prompt batches and
    checkpoint replays cost decode calls too and lower the figure, which is what they do to the user.
    """
    bounds = _gain_bounds(points)
    if bounds is None:
        return None
    first, last = bounds
    a, b = first.scrape.counters, last.scrape.counters
    generated = (delta(a.predicted_tokens, b.predicted_tokens) or 0.0) + last.in_flight - first.in_flight
    busy = mean_busy_slots(a, b, slots)
    calls = (b.decode_calls or 0.0) - (a.decode_calls or 0.0)
    error = first.error + last.error + rounding(b.predicted_tokens)
    if busy is None or generated <= 0 or error > MOST_SKEW * generated:
        return None
    value, most = generated / (calls * busy), most_per_decode(bounds, longest_draft)
    # A little more is the error that is allowed; much more is no measurement.
    return min(value, most) if value <= most * (1 + MOST_ERROR) + error / (calls * busy) else None


def most_per_decode(bounds: tuple[GainPoint, GainPoint], longest_draft: int | None) -> float:
    """What a slot can gain by a decode call at most: one token, and what of its draft was accepted."""
    first, last = bounds
    most = 1.0 + longest_draft if longest_draft is not None else inf
    drafted = between(first.scrape, last.scrape)
    if drafted is not None and drafted.steps is not None and first.is_exact and last.is_exact:
        most = min(most, drafted.mean_accepted_length or 1.0)
    return most


def _gain_bounds(points: Sequence[GainPoint]) -> tuple[GainPoint, GainPoint] | None:
    """The two points to take tokens per decode between: exact ones where there are, else those that are off by the
    least, the farther apart the better."""
    exact = [point for point in points if point.is_exact]
    if _reach(exact, points[-1]) and _tell(exact[0], exact[-1]):
        return exact[0], exact[-1]
    known = [point for point in points if point.error < inf]
    if not _reach(known, points[-1]):
        return None
    half = len(known) // 2
    first = min(known[:half], key=lambda point: (point.error, point.scrape.at))
    last = min(known[half:], key=lambda point: (point.error, -point.scrape.at))
    return (first, last) if _tell(first, last) else None


def _reach(chosen: Sequence[GainPoint], newest: GainPoint) -> bool:
    """Whether there are two, and the last of them is fresh."""
    return len(chosen) >= 2 and newest.scrape.at - chosen[-1].scrape.at <= IDLE_POINT_FRESH_S


def _tell(first: GainPoint, last: GainPoint) -> bool:
    before, after = first.scrape.counters.decode_calls, last.scrape.counters.decode_calls
    if before is None or after is None or last.scrape.counters.predicted_tokens is None:
        return False
    return after - before >= max(LEAST_CALLS, rounding(after) / MOST_ERROR)


def _rate(
    tokens: tuple[float | None, float | None], seconds: tuple[float | None, float | None], limits: SpeedLimits
) -> float | None:
    """Tokens per second between two pairs of totals, where their growth is more than the digits that are printed."""
    grown = delta(*tokens), delta(*seconds)
    for growth, pair in zip(grown, (tokens, seconds), strict=True):
        if growth is None or growth * MOST_ERROR < rounding(pair[1]):
            return None
    return speed(grown[0], (grown[1] or 0.0) * 1000.0, limits)
