"""UAP's formula and its simulation, kept for comparison: a heuristic, and a model that cannot but agree with it.

`tune` maps an acceptance and a rollback rate to three knobs by fixed weights. `simulate` "measures" it with a speed
model whose optimum is that very formula, so the improvement it reports is circular: it says nothing of any engine. The
tuner may start from the formula; it never believes it. Source: universal-agent-protocol, speculative-autotune and
spec-benchmark of 1.13.15 (JavaScript); numbers agree with it to the last digit, rounding included.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal
from enum import StrEnum

from msgspec import Struct

from specdash.core.errors import UsageError

DEFAULT_ACCEPTANCE = 0.7
DEFAULT_ROLLBACK = 0.15
RETUNED_EVERY = 6
_KEPT = 0.35
_FADING = 0.75
_MODULUS = 2**32
_MULTIPLIER, _INCREMENT = 1_664_525, 1_013_904_223
_LARGEST = 0xFFFFFFFF
MOST_STEPS = 1_000_000


class FormulaProfile(StrEnum):
    """What the formula leans to."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    STABLE = "stable"


class FormulaTrace(StrEnum):
    """How the made-up acceptance goes."""

    STABLE = "stable"
    VOLATILE = "volatile"
    MIXED = "mixed"


_DRAFT_BIAS = {FormulaProfile.THROUGHPUT: 1.5, FormulaProfile.LATENCY: -1.5, FormulaProfile.STABLE: 0.0}
_P_BIAS = {FormulaProfile.THROUGHPUT: -0.015, FormulaProfile.LATENCY: 0.02, FormulaProfile.STABLE: 0.0}


class Knobs(Struct, frozen=True):
    """Longest draft, shortest draft, and least probability; as UAP writes them, `21/6/0.72`."""

    draft_max: int = 16
    draft_min: int = 3
    p_min: float = 0.8

    def __str__(self) -> str:
        return f"{self.draft_max}/{self.draft_min}/{self.p_min:g}"


class Simulation(Struct, frozen=True):
    """What the circular model says. Speeds are in its own unit, no tokens per second of anything real."""

    steps: int
    seed: int
    trace: FormulaTrace
    profile: FormulaProfile
    static: float
    adaptive: float
    improvement_percent: float
    final: Knobs


def tune(
    acceptance: float, rollback: float, profile: FormulaProfile = FormulaProfile.THROUGHPUT, base: Knobs | None = None
) -> Knobs:
    """The formula. Rates are clamped to 0..1; `base.draft_min` is not read. Raises `UsageError` for no number."""
    base = base or Knobs()
    for name, value in (("acceptance", acceptance), ("rollback", rollback), ("base p_min", base.p_min)):
        if not math.isfinite(value):
            raise UsageError(f"{name} {value}: must be a number from 0 to 1")
    a, r = _clamp(acceptance, 0.0, 1.0), _clamp(rollback, 0.0, 1.0)
    longest = 8 + 16 * a - 4 * r + _DRAFT_BIAS[profile]
    least = 0.92 - 0.25 * a + 0.05 * r + _P_BIAS[profile]
    longest = _KEPT * base.draft_max + (1 - _KEPT) * longest
    least = _KEPT * base.p_min + (1 - _KEPT) * least
    if a < 0.45 or r > 0.35:
        longest -= 2
        least += 0.03
    shortest = longest * (0.22 if profile is FormulaProfile.LATENCY else 0.28)
    draft_max = half_up(_clamp(longest, 4, 32))
    draft_min = half_up(_clamp(shortest, 1, min(8, draft_max)))
    return Knobs(draft_max, draft_min, fixed(_clamp(least, 0.6, 0.95)))


def simulate(
    steps: int = 120,
    seed: int = 42,
    trace: FormulaTrace = FormulaTrace.MIXED,
    profile: FormulaProfile = FormulaProfile.THROUGHPUT,
    static: Knobs | None = None,
) -> Simulation:
    """Static knobs against the formula, on a made-up acceptance. Raises `UsageError` for steps out of range."""
    if not 1 <= steps <= MOST_STEPS:
        raise UsageError(f"steps {steps}: must be from 1 to {MOST_STEPS}")
    static = static or Knobs()
    rates = acceptances(steps, seed, trace)
    adaptive = static
    smooth, rolled = rates[0], (1 - rates[0]) * 0.35
    total_static = total_adaptive = 0.0
    for index, rate in enumerate(rates):
        smooth = _FADING * smooth + (1 - _FADING) * rate
        rolled = _FADING * rolled + (1 - _FADING) * (1 - rate) * 0.35
        total_static += speed(static, rate)
        if index % RETUNED_EVERY == 0:
            adaptive = tune(smooth, rolled, profile, adaptive)
        total_adaptive += speed(adaptive, rate)
    before, after = fixed(total_static / steps), fixed(total_adaptive / steps)
    return Simulation(steps, seed, trace, profile, before, after, fixed((after - before) / before * 100), adaptive)


def speed(knobs: Knobs, acceptance: float) -> float:
    """The circular model: highest where the knobs are the formula's own."""
    a = _clamp(acceptance, 0.05, 0.99)
    best_max, best_p = 8 + 16 * a, 0.92 - 0.25 * a
    length = 1 + (knobs.draft_max - 10) * 0.022
    missed_max = max(0.35, 1 - min(0.45, abs(knobs.draft_max - best_max) * 0.025))
    missed_p = max(0.4, 1 - min(0.35, abs(knobs.p_min - best_p) * 1.8))
    return fixed(max(12.0, 100 * length * (0.62 + 0.68 * a) * missed_max * missed_p))


def acceptances(steps: int, seed: int, trace: FormulaTrace) -> list[float]:
    """The made-up acceptance of every step, from a linear congruential generator."""
    found = []
    state = seed % _MODULUS
    for index in range(steps):
        state = (_MULTIPLIER * state + _INCREMENT) % _MODULUS
        jitter = 2 * (state / _LARGEST) - 1
        middle, noise = _shape(trace, index / max(1, steps - 1))
        found.append(_clamp(middle + jitter * noise, 0.2, 0.95))
    return found


def _shape(trace: FormulaTrace, phase: float) -> tuple[float, float]:
    if trace is FormulaTrace.STABLE:
        return 0.74, 0.04
    if trace is FormulaTrace.VOLATILE:
        return 0.62 + 0.15 * math.sin(5 * math.pi * phase), 0.12
    if phase < 0.33:
        return 0.78, 0.05
    return (0.58, 0.11) if phase < 0.66 else (0.72, 0.06)


def _clamp(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def half_up(value: float) -> int:
    """Rounded as JavaScript's Math.round does: a half goes up, also below zero."""
    return math.floor(value + 0.5)


def fixed(value: float) -> float:
    """Two decimals as JavaScript's toFixed gives them: a half of the exact binary value goes up."""
    return float(Decimal(value).quantize(Decimal("0.01"), ROUND_HALF_UP))
