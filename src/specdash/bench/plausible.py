"""What is odd about a measured request: figures that cannot be, and answers that are too short to tell much."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdash.bench.samples import Sample

SHORT = "short"
"""It ended long before the length that was asked for."""
CACHED = "cached"
"""Part of the prompt came from a cache although none was to be used."""
NO_TIMINGS = "no timings"
"""The server does not tell its own times."""
TOO_FAST = "decode too fast"
TOO_LONG = "longer than it took"
MISSING = "time missing"
"""The client waited long for something that the server does not account for; another user's request, mostly."""
IMPOSSIBLE = "impossible draft counts"
UNUSABLE = frozenset({TOO_FAST, TOO_LONG, MISSING, IMPOSSIBLE, CACHED})
"""Those that keep a request out of speeds."""

SHORT_SHARE = 0.25
_FASTER = 10.0
_LEAST_PROMPT = 64
"""Prompt tokens below which the speed of the prompt says little."""
_SLACK_S = 0.05
_SLACK_SHARE = 0.02
_MISSING_SHARE = 0.25
_MISSING_S = 0.25


def flags_of(sample: Sample, *, wanted: int | None, alone: bool, cache: bool) -> tuple[str, ...]:
    """What is odd about the sample. `wanted` is the length asked for, `alone` whether no other request of ours ran."""
    if sample.failed:
        return ()
    found = []
    tokens = sample.predicted_tokens
    if wanted and tokens is not None and tokens < SHORT_SHARE * wanted:
        found.append(SHORT)
    if not cache and sample.cached_tokens:
        found.append(CACHED)
    if sample.predicted_ms is None or sample.prompt_ms is None:
        return (*found, NO_TIMINGS)
    return (*found, *_impossible(sample, alone=alone))


def _impossible(sample: Sample, *, alone: bool) -> list[str]:
    found = []
    processed = (sample.prompt_tokens or 0) - (sample.cached_tokens or 0)
    decode, prefill = sample.decode_rate, sample.prefill_rate
    if decode is not None and prefill is not None and processed >= _LEAST_PROMPT and decode > _FASTER * prefill:
        found.append(TOO_FAST)
    if sample.done_s is not None:
        told = ((sample.prompt_ms or 0.0) + (sample.predicted_ms or 0.0)) / 1000.0
        wall = sample.done_s - sample.sent_s
        if told > wall * (1 + _SLACK_SHARE) + _SLACK_S:
            found.append(TOO_LONG)
        if alone and wall - told > max(_MISSING_S, _MISSING_SHARE * wall):
            found.append(MISSING)
    drafted, accepted, tokens = sample.drafted or 0, sample.accepted or 0, sample.predicted_tokens or 0
    if accepted > drafted or accepted > tokens:
        found.append(IMPOSSIBLE)
    return found
