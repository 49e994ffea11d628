"""How near the simulator comes to a real server: its own kinds of cost and text, fitted to measured figures.

A fit tells whether something like the measured server can be drawn at all, and what is left over. It is no forecast:
what a tuner predicts from a few boots is for the tuner to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.tuner_lab.exact import accepted_at, follow
from benchmarks.tuner_lab.grid import DEEPEST
from benchmarks.tuner_lab.rig import BATCHES, curve
from benchmarks.tuner_lab.text import EASY, HARD, PLAIN, STATES, Text, chain, expit
from specdash.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_STARTS, _ROUNDS = 6, 40
_STEP = 1e-4


@dataclass(frozen=True, slots=True)
class CostFit:
    """A cost curve of the simulator for measured milliseconds per step; errors are shares of what was measured."""

    alone_ms: float
    slope: float
    """What each draft token adds, made and verified, in plain steps."""
    spread: float
    cliff: int
    """Batch after which another kernel serves; the longest batch where none was seen."""
    jump: float
    fitted_ms: dict[int, float]
    median_error: float
    largest_error: float


@dataclass(frozen=True, slots=True)
class AcceptanceFit:
    """Hidden states for measured acceptance by position; errors are in points of acceptance."""

    hard: float
    easy: float
    sticky: float
    right: tuple[float, float, float]
    """Of hard, plain and easy tokens."""
    fade: float
    fitted: dict[int, tuple[float, ...]]
    rms_error: float
    largest_error: float

    def accepted(self, longest: int) -> tuple[float, ...]:
        """What the same text accepts by position in drafts of at most `longest` tokens."""
        values = np.array((self.hard, self.easy, self.sticky, *self.right, self.fade))
        return tuple(float(entry) for entry in _accepted(values, longest))


def fit_costs(step_ms: Mapping[int, float]) -> CostFit:
    """Fits milliseconds per step by draft length, 0 being off, of drafts that no gate shortens.

    Raises `UsageError` without a measurement of off and of two draft lengths.
    """
    lengths = np.array(sorted(step_ms))
    if len(lengths) < 3 or lengths[0] != 0 or lengths[-1] >= BATCHES:
        raise UsageError(f"draft lengths {list(step_ms)}: off (0) and two more are needed, all below {BATCHES}")
    measured = np.array([step_ms[int(length)] for length in lengths])
    found: list[tuple[float, Floats, tuple[float, int]]] = []
    for decay in (2.0, 3.5, 6.0):
        for cliff in (4, 8, 16, BATCHES):
            columns = _cost_columns(lengths, decay, cliff)
            weights, left = _non_negative(columns / measured[:, None], np.ones(len(measured)))
            found.append((left + 1e-6 * columns.shape[1], weights, (decay, cliff)))
    _, weights, (decay, cliff) = min(found, key=lambda pair: pair[0])
    fitted = _cost_columns(lengths, decay, cliff) @ weights
    errors = np.abs(fitted / measured - 1)
    alone = float(weights[0])
    return CostFit(
        alone_ms=alone,
        slope=float(weights[1]) / alone,
        spread=float(weights[2]) / alone,
        cliff=cliff,
        jump=float(weights[3]) / alone if len(weights) > 3 else 0.0,
        fitted_ms={int(n): float(ms) for n, ms in zip(lengths, fitted, strict=True)},
        median_error=float(np.median(errors)),
        largest_error=float(errors.max()),
    )


def fit_acceptance(accepted: Mapping[int, Sequence[float]]) -> AcceptanceFit:
    """Fits acceptance by position, of one or several longest drafts (the keys). Raises `UsageError` for no curve."""
    for longest, curve_ in accepted.items():
        if not 1 <= len(curve_) <= longest <= DEEPEST or not all(0 <= value <= 1 for value in curve_):
            raise UsageError(
                f"acceptance of drafts of {longest}: one to {longest} shares are needed, at most {DEEPEST}"
            )
    if not accepted:
        raise UsageError("acceptance: no curve was given")

    def left_over(raw: Floats) -> Floats:
        values = _bounded(raw)
        parts = [_accepted(values, longest)[: len(wanted)] - np.array(wanted) for longest, wanted in accepted.items()]
        return np.concatenate((*parts, 0.002 * raw))

    random = np.random.default_rng(0)
    tries = [_least_squares(left_over, random.normal(0.0, 1.0, len(_BOUNDS))) for _ in range(_STARTS)]
    best = min(tries, key=lambda raw: float((left_over(raw) ** 2).sum()))
    values = _bounded(best)
    fitted = {longest: tuple(float(entry) for entry in _accepted(values, longest)) for longest in accepted}
    errors = np.concatenate([np.array(fitted[n][: len(wanted)]) - np.array(wanted) for n, wanted in accepted.items()])
    hard, easy, sticky, low, middle, high, fade = (float(value) for value in values)
    return AcceptanceFit(
        hard,
        easy,
        sticky,
        (low, middle, high),
        fade,
        fitted,
        float(np.sqrt((errors**2).mean())),
        float(np.abs(errors).max()),
    )


_BOUNDS = np.array(  # those that texts are drawn from, with what skill adds
    ((0.02, 0.60), (0.10, 0.39), (0.2, 0.85), (0.03, 0.70), (0.40, 0.93), (0.85, 0.997), (0.5, 1.0))
)


def _bounded(raw: Floats) -> Floats:
    low, high = _BOUNDS.T
    return np.asarray(low + (high - low) * expit(raw), dtype=np.float64)


def _accepted(values: Floats, longest: int) -> Floats:
    hard, easy, sticky, low, middle, high, fade = values
    right = np.full(STATES, 0.5)
    right[[HARD, PLAIN, EASY]] = low, middle, high
    ones = np.ones((1, STATES))
    move = chain(float(hard), float((1 - hard) * easy / 0.4), float(sticky), 0.0, 0.0)
    text = Text(move[None], right[None], fade ** np.arange(DEEPEST), ones, ones, np.ones(1), ones, ones)
    return np.asarray(accepted_at(follow(text, 0, longest), longest)[0], dtype=np.float64)


def _cost_columns(lengths: NDArray[np.int64], decay: float, cliff: int) -> Floats:
    """A plain step; a token more; woken experts; and, if any length is past it, the cliff."""
    batch = lengths + 1
    alone = np.ones(len(lengths))
    line = lengths.astype(np.float64)
    experts = curve(0.0, 1.0, decay, BATCHES, 0.0, 1.0)[batch] - 1
    columns = [alone, line, experts]
    if (batch > cliff).any() and (batch <= cliff).any():
        columns.append((batch > cliff).astype(np.float64))
    return np.stack(columns, axis=1)


def _non_negative(columns: Floats, wanted: Floats) -> tuple[Floats, float]:
    """Least squares without negative weights: the worst is set to 0 until none is left."""
    used = list(range(columns.shape[1]))
    weights = np.zeros(columns.shape[1])
    while used:
        some = np.linalg.lstsq(columns[:, used], wanted)[0]
        if (some >= 0).all():
            weights[used] = some
            break
        used.pop(int(np.argmin(some)))
    return weights, float(((columns @ weights - wanted) ** 2).sum())


def _least_squares(left_over: Callable[[Floats], Floats], start: Floats) -> Floats:
    """Levenberg and Marquardt, with derivatives by differences."""
    at, damping = start, 1e-2
    now = left_over(at)
    for _ in range(_ROUNDS):
        slopes = np.stack([(left_over(at + _STEP * row) - now) / _STEP for row in np.eye(len(at))], axis=1)
        square = slopes.T @ slopes
        move = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-9), -slopes.T @ now)
        then = left_over(at + move)
        if (then**2).sum() < (now**2).sum():
            gained = 1 - (then**2).sum() / (now**2).sum()
            at, now, damping = at + move, then, damping / 4
            if gained < 1e-6:
                break
        else:
            damping *= 5
            if damping > 1e8:
                break
    return at
