"""When tokens over seconds are a speed: how many and how long at least, and what no machine reaches.

One home for every speed that is shown, recorded, compared or passed on. llama-server rates whatever it did: the first
token of an answer as `predicted_n 1, predicted_ms 0.001`, a million a second, and the one token that is processed again
after a cache hit as a prefill of less than one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any


@dataclass(frozen=True, slots=True)
class SpeedLimits:
    """What makes tokens over seconds a speed."""

    least_tokens: int
    least_ms: float
    most: float
    """Tokens per second that nothing reaches: more is a fault of the clock or of the counting."""


DECODE = SpeedLimits(least_tokens=8, least_ms=1.0, most=1e5)
"""Of one request. A model of 260,000 parameters, drafted to its end, stays below 40,000."""
PREFILL = SpeedLimits(least_tokens=32, least_ms=1.0, most=1e7)
"""Of processed tokens, cached ones left out. A shorter prompt takes as long as one batch does, whatever its length."""


def speed(tokens: float | None, ms: float | None, limits: SpeedLimits) -> float | None:
    """Tokens per second of `tokens` in `ms`; None when unknown, on too little evidence, or beyond what is possible."""
    if tokens is None or ms is None or not tokens >= limits.least_tokens or not ms >= limits.least_ms:
        return None
    return possible(tokens * 1000.0 / ms, limits)


def told_speed(value: float | None, tokens: float | None, limits: SpeedLimits) -> float | None:
    """A speed in tokens per second that another program reckoned from `tokens`, held to the same limits."""
    if value is None or (tokens is not None and tokens < limits.least_tokens):
        return None
    return possible(value, limits)


def with_credible_speeds(told: dict[str, Any]) -> dict[str, Any]:
    """The fields that a proxy tells of a request, without speeds that its own counts of tokens do not bear out.

    Raises TypeError where a field is no number.
    """
    done = told.get("prompt_done", told.get("prompt_tokens"))
    processed = done - (told.get("cached_tokens") or 0) if done is not None else None
    for name, tokens, limits in (
        ("prefill_rate", processed, PREFILL),
        ("decode_rate", told.get("completion_tokens"), DECODE),
    ):
        if told.get(name) is not None:
            told[name] = told_speed(told[name], tokens, limits)
    return told


def possible(value: float, limits: SpeedLimits) -> float | None:
    """The speed in tokens per second, None where nothing can be that fast."""
    return value if isfinite(value) and 0 < value <= limits.most else None
