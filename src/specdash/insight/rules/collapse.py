"""Has acceptance collapsed? Recent requests against earlier ones of the same kind of work.

Acceptance differs by what is written: tool calls are accepted more than prose, long contexts less than short ones. So
requests are compared within strata of context length and work only, and what the strata say is added up (the van
Elteren test: stratified rank sums). That says whether it is chance; how far it fell is told by the acceptance that the
recent requests would have had at their strata's earlier rates.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.insight.samples import RequestSample

LEAST_DRAFTED = 8
"""A request with fewer draft tokens says nothing by itself."""
_CONTEXTS = (1024, 4096, 16384, 65536)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Recent requests against earlier ones of the same strata."""

    recent: int
    before: int
    drafted: int
    """Draft tokens of the recent requests."""
    acceptance: float
    """Of the recent requests."""
    expected: float
    """What it would be at the earlier rates of the same strata."""
    sigma: float
    """By how many standard deviations the recent requests rank below the earlier ones."""
    strata: int


def stratum(sample: RequestSample) -> tuple[int, str]:
    """What a request is compared within: its context's size class and its work, or whether it went on from a cache."""
    length = (sample.prompt_tokens or 0) + (sample.decode_tokens or 0)
    size = sum(length > bound for bound in _CONTEXTS)
    if sample.work is not None:
        return size, str(sample.work)
    cached = (sample.cached_tokens or 0) * 2 >= (sample.prompt_tokens or 0) > 0
    return size, "went on" if cached else "began"


def usable(samples: Iterable[RequestSample]) -> list[RequestSample]:
    """Those that drafted enough to have an acceptance."""
    return [one for one in samples if one.accepted is not None and (one.drafted or 0) >= LEAST_DRAFTED]


def compare(recent: Sequence[RequestSample], before: Sequence[RequestSample]) -> Comparison | None:
    """The comparison over the strata that both have; None where there is none."""
    strata: defaultdict[tuple[int, str], tuple[list[RequestSample], list[RequestSample]]] = defaultdict(
        lambda: ([], [])
    )
    for side, samples in enumerate((recent, before)):
        for one in usable(samples):
            strata[stratum(one)][side].append(one)
    shared = [(now, then) for now, then in strata.values() if now and then]
    if not shared:
        return None
    drafted = accepted = expected = below = variance = 0.0
    for now, then in shared:
        rate = sum(one.accepted or 0 for one in then) / sum(one.drafted or 0 for one in then)
        of_now = sum(one.drafted or 0 for one in now)
        drafted, expected = drafted + of_now, expected + of_now * rate
        accepted += sum(one.accepted or 0 for one in now)
        deficit, spread = _rank_deficit([_rate(one) for one in now], [_rate(one) for one in then])
        weight = 1.0 / (len(now) + len(then) + 1)
        below, variance = below + weight * deficit, variance + weight**2 * spread
    return Comparison(
        recent=sum(len(now) for now, _ in shared),
        before=sum(len(then) for _, then in shared),
        drafted=int(drafted),
        acceptance=accepted / drafted,
        expected=expected / drafted,
        sigma=below / sqrt(variance) if variance > 0 else 0.0,
        strata=len(shared),
    )


def _rate(sample: RequestSample) -> float:
    return (sample.accepted or 0) / (sample.drafted or 1)


def _rank_deficit(now: Sequence[float], then: Sequence[float]) -> tuple[float, float]:
    """How far the rank sum of `now` lies below its mean under no difference, and its variance, ties allowed for."""
    pooled = sorted((*now, *then))
    counts = Counter(pooled)
    ranks: dict[float, float] = {}
    place = 0
    for value in dict.fromkeys(pooled):
        ranks[value] = place + (counts[value] + 1) / 2
        place += counts[value]
    n, m = len(now), len(then)
    total = n + m
    ties = sum(count**3 - count for count in counts.values()) / (total * (total - 1)) if total > 1 else 0.0
    return n * (total + 1) / 2 - sum(ranks[value] for value in now), n * m / 12 * (total + 1 - ties)
