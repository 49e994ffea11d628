"""What makes a comparison of two sets of requests unfair, in words."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from specdash.insight.experiment_picture import MeasureName, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from specdash.insight.experiment_picture import Measure
    from specdash.insight.samples import RequestSample

    Sides = tuple[tuple[RequestSample, ...], tuple[RequestSample, ...]]

LEAST = 5
"""With fewer requests on a side, nothing is said of their kind."""
TIMES = 2.0
"""Medians of lengths that differ by more make a comparison unfair."""
BUSY_TIMES = 1.5
CACHED_APART = 0.25


def caveats(measures: Sequence[Measure], logged: Sides, told: Sides) -> tuple[str, ...]:
    """Sentences without a full stop, the weightiest first."""
    sides = logged if min(map(len, logged)) >= min(map(len, told)) else told
    found = [_contradiction(measures)]
    if min(map(len, sides)) >= LEAST:
        found += [
            _lengths("prompts", sides, lambda one: one.prompt_tokens),
            _lengths("answers", sides, lambda one: one.decode_tokens),
            _concurrency(sides),
            _cache(sides),
        ]
    return tuple(text for text in found if text)


def busy_slots(samples: Iterable[RequestSample]) -> float | None:
    """How many requests ran at a time, on average over the time in which any ran; None without one that took time."""
    spans = sorted((one.began, one.ended) for one in samples if one.ended > one.began)
    if not spans:
        return None
    covered, end = 0.0, spans[0][0]
    for left, right in spans:
        covered += max(0.0, right - max(left, end))
        end = max(end, right)
    return sum(right - left for left, right in spans) / covered


def _contradiction(measures: Sequence[Measure]) -> str:
    verdicts = {measure.name: measure.verdict for measure in measures}
    acceptance, decode = verdicts.get(MeasureName.ACCEPTANCE), verdicts.get(MeasureName.DECODE)
    if {acceptance, decode} == {Verdict.BETTER, Verdict.WORSE}:
        return f"acceptance got {acceptance} and decode {decode}: speed counts, acceptance only explains it"
    return ""


def _lengths(what: str, sides: Sides, length: Callable[[RequestSample], int | None]) -> str:
    before, after = (_median(length(one) for one in side) for side in sides)
    if not before or not after or max(before, after) <= TIMES * min(before, after):
        return ""
    longer = after > before
    times = after / before if longer else before / after
    return f"{what} are {times:.1f}x {'longer' if longer else 'shorter'} after ({before:.0f}, then {after:.0f} tokens)"


def _concurrency(sides: Sides) -> str:
    before, after = (busy_slots(side) for side in sides)
    if before is None or after is None or max(before, after) <= BUSY_TIMES * min(before, after):
        return ""
    return f"{before:.1f} requests ran at a time before, {after:.1f} after"


def _cache(sides: Sides) -> str:
    before, after = (_cached_share(side) for side in sides)
    if before is None or after is None or abs(before - after) <= CACHED_APART:
        return ""
    return f"the prompt cache gave {before:.0%} of the prompt tokens before, {after:.0%} after"


def _cached_share(samples: Iterable[RequestSample]) -> float | None:
    known = [
        (one.cached_tokens, one.prompt_tokens) for one in samples if one.cached_tokens is not None and one.prompt_tokens
    ]
    total = sum(prompt for _, prompt in known)
    return sum(cached for cached, _ in known) / total if total else None


def _median(values: Iterable[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(median(known)) if known else None
