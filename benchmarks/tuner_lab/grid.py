"""The simulator's search space and its presets.

Source of the grid: 112 configurations, off, draft-mtp, ngram-mod and both together, as in the project's tuning notes.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache

from specdash.tune.model.problem import Point

GENERATOR = 3
"""Raised by every change that lets one seed mean another environment, or another noise."""

MTP, NGRAM = "draft-mtp", "ngram-mod"
KINDS = ("coding", "pattern", "prose", "agentic")
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12)
GATES = (0.0, 0.5, 0.75)
NGRAM_LENGTHS = (16, 48, 64)
DEEPEST = max(LENGTHS)


class Noise(StrEnum):
    """How far the same configuration is from itself, from boot to boot: `QUIET` 0.3 to 1.2 %, `NOISY` 2 to 5 %."""

    QUIET = "quiet"
    NOISY = "noisy"


def mtp(longest: int, gate: float) -> Point:
    """The model's own draft layers."""
    return Point((MTP,), n_max=longest, p_min=gate)


def ngram(longest: int) -> Point:
    """Copies from the text so far."""
    return Point((NGRAM,), ngram_max=longest)


def both(longest: int, gate: float, copied: int) -> Point:
    """Copies where the text repeats itself, draft layers elsewhere."""
    return Point((MTP, NGRAM), n_max=longest, p_min=gate, ngram_max=copied)


OFF_POINT = Point()
ENGINE_DEFAULT = mtp(3, 0.0)
"""What llama.cpp does where `--spec-type draft-mtp` alone is given."""

PRESETS = (OFF_POINT, ENGINE_DEFAULT, mtp(6, 0.75), ngram(64), both(12, 0.75, 48))
"""Where people start: off, the default, a hand-swept MTP, ngram-mod's default, and UAP's long gated chain."""


@cache
def points() -> tuple[Point, ...]:
    """All 112, always in this order."""
    drafted = tuple((longest, gate) for longest in LENGTHS for gate in GATES)
    return (
        OFF_POINT,
        *(mtp(longest, gate) for longest, gate in drafted),
        *(ngram(copied) for copied in NGRAM_LENGTHS),
        *(both(longest, gate, copied) for longest, gate in drafted for copied in NGRAM_LENGTHS),
    )


@cache
def index() -> dict[Point, int]:
    """Place of each point in `points`."""
    return {point: place for place, point in enumerate(points())}
