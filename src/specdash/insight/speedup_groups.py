"""Requests grouped by what they were: by context length and by kind of work. Pure."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from specdash.insight.samples import Work
from specdash.insight.speedup_model import effort_of
from specdash.insight.speedup_picture import GroupFigures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Reversible, Sequence

    from specdash.insight.samples import RequestSample

CONTEXT_BOUNDS = (256, 1024, 4096, 16384, 65536)
CONTEXT_NAMES = ("0–256", "256–1k", "1k–4k", "4k–16k", "16k–64k", "64k+")
LONG_PROMPT = 2048
"""Tokens to process from which a request counts as one with a long prompt."""
FOLLOW_UP = 0.5
"""Share of a prompt's tokens that must have been cached for a follow-up."""
LONG, NEXT, FRESH = "long prompt", "follow-up", "new prompt"
PHASES = (*(str(one) for one in Work), LONG, NEXT, FRESH)
_LATE_S = 2.0
_DISORDER_S = 60.0
"""Requests that were told of later may have ended earlier by so much."""


def context_of(sample: RequestSample) -> str | None:
    """The bucket of its context's length at its end."""
    if sample.prompt_tokens is None:
        return None
    length = sample.prompt_tokens + (sample.decode_tokens or 0)
    return CONTEXT_NAMES[sum(length >= bound for bound in CONTEXT_BOUNDS)]


def phase_of(sample: RequestSample, work: Work | None) -> str | None:
    """What the proxy saw it was for; else the shape of its prompt, which is all that the server's log tells."""
    if work is not None:
        return str(work)
    if sample.prompt_tokens is None:
        return None
    cached = sample.cached_tokens or 0
    if sample.prompt_tokens - cached >= LONG_PROMPT:
        return LONG
    return NEXT if cached >= FOLLOW_UP * sample.prompt_tokens and cached else FRESH


def works(samples: Sequence[RequestSample], told: Reversible[RequestSample]) -> dict[int, Work]:
    """What the proxy told of requests of the log, by their index: same tokens, and ended at the same time.

    Both are in the order in which they ended: of what was told only as much is looked at as the samples span.
    """
    known: dict[tuple[int | None, int | None], list[RequestSample]] = {}
    first = min((one.ended for one in samples if one.work is None), default=math.inf) - _LATE_S
    for one in reversed(told):
        if one.ended < first - _DISORDER_S:
            break
        if one.work is not None:
            known.setdefault((one.prompt_tokens, one.decode_tokens), []).append(one)
    found: dict[int, Work] = {}
    for index, sample in enumerate(samples):
        for one in known.get((sample.prompt_tokens, sample.decode_tokens), ()):
            if abs(one.ended - sample.ended) <= _LATE_S and one.work is not None:
                found.setdefault(index, one.work)
    return found


def grouped(
    samples: Sequence[RequestSample],
    names: Mapping[int, str | None],
    order: Sequence[str],
    speedup: Callable[[int], tuple[float, float] | None],
) -> tuple[GroupFigures, ...]:
    """One group a name, in this order. `speedup` gives seconds without and with speculation of the request at an index,
    None where it cannot be compared."""
    members: dict[str, list[int]] = {}
    for index in range(len(samples)):
        name = names.get(index)
        if name is not None:
            members.setdefault(name, []).append(index)
    return tuple(_figures(name, samples, members[name], speedup) for name in order if name in members)


def _figures(
    name: str,
    samples: Sequence[RequestSample],
    indices: Sequence[int],
    speedup: Callable[[int], tuple[float, float] | None],
) -> GroupFigures:
    own = [samples[index] for index in indices]
    effort = effort_of(own)
    pairs = [pair for index in indices if (pair := speedup(index)) is not None]
    took = sum(pair[1] for pair in pairs)
    rates = [
        ((one.decode_tokens or 1) - 1) / one.decode_s for one in own if one.decode_s and (one.decode_tokens or 0) > 1
    ]
    return GroupFigures(
        name=name,
        requests=len(own),
        acceptance=effort.acceptance,
        mean_accepted_length=effort.length,
        decode_rate=median(rates) if rates else None,
        speedup=sum(pair[0] for pair in pairs) / took if took > 0 else None,
    )
