"""What every point is worth, from the boots so far: the text, the cost of steps, and what both miss, with doubts.

Seconds per token of a class are amounts (`acceptance`, counters) times costs (`timing`), times what the machine does
besides at this point (a smooth residual of the whole boot), times what this boot was luckier or unluckier by.
Counters repeat exactly, so that only time is noisy; and as a boot's luck is the same for all its prompts, differences
between classes and prompts within a boot tell costs apart without it. Where an engine has no counters, a wide smooth
residual of every class takes the text's place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specdash.system.data import dataclass
from specdash.tune.model import acceptance, timing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from specdash.tune.model.acceptance import BootTally, Parameters
    from specdash.tune.model.problem import Point
    from specdash.tune.model.timing import Timing

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int_]


# Gaussian processes over points: kernels, a posterior, and the worth of one more boot.

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_UNLIMITED = 16


class PointSimilarity:
    """How alike points are, knob by knob, from 0 to 1; (point, point) each."""

    def __init__(self, points: Sequence[Point]) -> None:
        model = [tuple(kind for kind in point.types if not kind.startswith("ngram")) for point in points]
        copies = [tuple(kind for kind in point.types if kind.startswith("ngram")) for point in points]
        depth = [np.log1p(point.n_max or _UNLIMITED) if on else 0.0 for point, on in zip(points, model, strict=True)]
        copy = [
            np.log1p(point.ngram_max or _UNLIMITED) if on else 0.0 for point, on in zip(points, copies, strict=True)
        ]
        size = [np.log(point.ngram_size or 12) if on else 0.0 for point, on in zip(points, copies, strict=True)]
        least = [np.log1p(point.n_min or 0) + np.log1p(point.ngram_min or 0) for point in points]
        self.model = _same(model)
        self.copies = _same(copies)
        self._depth, self._least = _apart(depth), _apart(least)
        self._gate = _apart([point.p_min or 0.0 for point in points])
        self._copy, self._size = _apart(copy), _apart(size)

    def kernel(self, depth: float, gate: float, copy: float) -> Floats:
        """Squared-exponential in each knob, of these scales; the product over knobs, with parts of it by themselves."""
        by_depth = self.model * np.exp(-0.5 * (self._depth / depth) ** 2) * np.exp(-0.5 * self._least**2)
        by_gate = np.exp(-0.5 * (self._gate / gate) ** 2)
        by_copy = self.copies * np.exp(-0.5 * (self._copy / copy) ** 2 - 0.5 * self._size**2)
        return np.asarray(
            0.4 * by_depth * by_gate * by_copy + 0.35 * by_depth * by_gate + 0.15 * by_copy + 0.1 * by_depth
        )


def _apart(values: Sequence[float]) -> Floats:
    column = np.array(values, dtype=np.float64)
    return np.asarray(column[:, None] - column[None, :])


def _same(values: Sequence[tuple[str, ...]]) -> Floats:
    codes = {value: index for index, value in enumerate(dict.fromkeys(values))}
    column = np.array([codes[value] for value in values])
    return np.asarray((column[:, None] == column[None, :]).astype(np.float64))


@dataclass(frozen=True, slots=True)
class Posterior:
    """Of one number per point: mean, and covariance (point, point)."""

    mean: Floats
    covariance: Floats

    @property
    def sd(self) -> Floats:
        """Standard deviation, by point."""
        return np.sqrt(np.maximum(np.diag(self.covariance), 0.0))

    def gain(self, better: int, worse: int) -> tuple[float, float]:
        """Mean and standard deviation of how much lower `better` is than `worse`."""
        variance = self.covariance[better, better] + self.covariance[worse, worse] - 2 * self.covariance[better, worse]
        return float(self.mean[worse] - self.mean[better]), float(np.sqrt(max(variance, 0.0)))


def worth(posterior: Posterior, candidates: NDArray[np.int_], choosable: NDArray[np.bool_], noise: float) -> Floats:
    """By how much one more boot of each candidate is expected to lower the mean of the point chosen after it.

    The knowledge gradient: a boot moves the means of all points that are like it, and a repeated boot is worth what it
    takes away of the noise. `choosable` may be chosen now; a candidate may be after its boot.
    """
    spread = np.sqrt(np.maximum(np.diag(posterior.covariance)[candidates] + noise**2, 1e-12))
    move = posterior.covariance[:, candidates] / spread  # (point, candidate)
    best = posterior.mean[choosable].min() if choosable.any() else np.inf
    means = np.where(choosable, posterior.mean, np.inf)[:, None, None] + move[:, :, None] * _NODES
    own = posterior.mean[candidates][:, None] + move[candidates, np.arange(candidates.size)][:, None] * _NODES
    lowest = np.minimum(means.min(axis=0), own)
    if not np.isfinite(best):
        return np.asarray(-(lowest @ _WEIGHTS))
    return np.asarray(best - lowest @ _WEIGHTS)


@dataclass(frozen=True, slots=True)
class PhysicsDoubt:
    """How far the physics may be off: standard deviations of logarithms. Chosen on development seeds."""

    text: float = 0.015
    gated: float = 0.1
    copied: float = 0.03
    kind_of_copy: float = 0.1
    """Of an n-gram type, which the text model takes to draft as every other."""
    shared: float = 0.3
    """Of what the text model misses, the share that all classes have in common."""
    machine: tuple[float, ...] = (0.015, 0.03, 0.06)
    """Of the cost line; the likeliest of these is taken."""
    boots: tuple[float, ...] = (0.003, 0.005, 0.008, 0.012, 0.018, 0.026, 0.037, 0.052, 0.075, 0.11, 0.16, 0.23)
    """From boot to boot; likewise."""
    usual_boot: float = 0.012
    boot_spread: float = 0.8
    prompt: float = 0.004
    """Of a class within a boot, where the prompts themselves do not say more."""
    split: float = 0.01
    """Of a class within a boot, where counters do not tell what drafted, or how long a gate let it."""
    counted: float = 0.004
    timed: float = 0.02
    """Of the log's draft time."""
    tails: float = 5.0
    """Degrees of freedom of a boot's luck: now and then a boot is far off."""
    blind: float = 0.25
    """Of the text, where nothing counts it."""


@dataclass(frozen=True, slots=True)
class Field:
    """The points, and what about them does not depend on any boot."""

    points: tuple[Point, ...]
    kinds: tuple[str, ...]
    doubts: PhysicsDoubt
    design: acceptance.Design
    by_text: Floats
    by_machine: Floats
    by_sight: Floats
    """What takes the text's place where nothing counts it."""
    mixed: NDArray[np.bool_]
    """Points of whose drafts the counters do not tell which sort or how long they are."""

    @classmethod
    def of(cls, points: Sequence[Point], kinds: Sequence[str], doubts: PhysicsDoubt | None = None) -> Field:
        """For these points and classes of prompts."""
        doubts = doubts or PhysicsDoubt()
        design, like = acceptance.Design.of(points), PointSimilarity(points)
        drafts, copies = design.depth > 0, design.copy > 0
        scale, copying = np.sqrt(design.gate * drafts), copies.astype(np.float64)
        by_text = doubts.text**2 * like.kernel(0.7, 0.5, 0.7)
        by_text += doubts.gated**2 * np.outer(scale, scale) * like.kernel(1.2, 0.25, 1.5)
        by_text += doubts.copied**2 * np.outer(copying, copying) * like.kernel(1.2, 1.0, 0.7)
        if len({tuple(name for name in point.types if name.startswith("ngram")) for point in points} - {()}) > 1:
            by_text += doubts.kind_of_copy**2 * np.outer(copying, copying) * like.copies
        return cls(
            tuple(points),
            tuple(kinds),
            doubts,
            design,
            by_text,
            like.kernel(0.3, 0.6, 0.6),
            doubts.blind**2 * like.kernel(0.7, 0.5, 0.7),
            drafts & ((design.gate > 0) | copies),
        )


@dataclass(frozen=True, slots=True)
class Surface:
    """What is believed of all points: the logarithm of seconds per token, by class, and on a mix of classes."""

    field: Field
    parameters: Parameters
    timing: Timing
    mean: Floats
    """(point, class)."""
    text: Floats
    """Posterior covariance of what the text model misses, (point, point), of one class."""
    shares: Floats
    """(point, class, part)."""
    booted: Ints
    """Points that were booted, each once."""
    physics: Floats
    """(point, class): the mean without what the machine does besides."""
    boots: Ints
    """The point of every boot."""
    observed: Floats
    """(boot, class): the logarithm of seconds per token as measured, outliers among the prompts left out."""

    def posterior(self, weights: Floats) -> Posterior:
        """Of the logarithm of seconds per token on a mix: `weights` are the classes' shares of the tokens."""
        times = weights * np.exp(self.mean)
        total = times.sum(axis=1)
        part = times / total[:, None]
        system, doubts = self.timing, self.field.doubts
        shares = np.einsum("xc,xcp->xp", part, self.shares)
        spread = system.unsure**2
        prior = (shares * spread) @ shares.T + system.machine**2 * self.field.by_machine
        cross = (shares * spread) @ system.shares.T
        own = system.place >= 0
        cross[:, own] += system.machine**2 * self.field.by_machine[:, system.place[own]]
        alike = doubts.shared + (1 - doubts.shared) * (part @ part.T)
        if system.blind:
            prior += self.field.by_sight * alike
            along = doubts.shared + (1 - doubts.shared) * part[:, system.kind[own]]
            cross[:, own] += self.field.by_sight[:, system.place[own]] * along
        covariance = prior - cross @ system.inverse @ cross.T
        return Posterior(np.log(total), covariance + self.text * alike)


def survey(
    field: Field, tallies: Sequence[BootTally], start: Parameters | None = None, *, same_text: bool = False
) -> Surface:
    """Fits everything to the boots, from `start` on, which are the text's parameters by an earlier fit.

    `same_text`: they hold, because since then only points were booted that had been booted before.
    """
    kinds = len(field.kinds)
    places = np.array([field.points.index(tally.point) for tally in tallies], dtype=np.int_)
    first = {place: row for row, place in reversed(list(enumerate(places.tolist())))}
    seen = [row for row in first.values() if tallies[row].counted]
    parameters = start or acceptance.Parameters.prior(kinds)
    if not (start and same_text):
        parameters = acceptance.fit(acceptance.AcceptanceCounts([tallies[row] for row in seen], kinds), parameters, 12)
    text = acceptance.expected(field.design, parameters.kinds, parameters.gates)
    amounts = timing.expected_amounts(field.design, text)
    counted = [
        timing.counted_amounts(tally, field.design, place, text) if tally.counted else amounts[place, tally.kind]
        for tally, place in zip(tallies, places, strict=True)
    ]
    system = timing.solve(field, tallies, places, counted)
    by_class = amounts @ system.costs
    known = np.array(seen, dtype=np.int_)
    physics, doubt = np.log(by_class), field.by_text
    if system.blind:
        doubt = np.zeros_like(doubt)
    elif known.size:
        here = places[known]
        sums = np.stack([_by_class(tallies[row], counted[row] @ system.costs, kinds) for row in seen])
        missed = np.where(sums > 0, np.log(np.maximum(sums, 1e-12)) - physics[here], 0.0)
        matrix = field.by_text[np.ix_(here, here)] + field.doubts.counted**2 * np.eye(known.size)
        gain = np.linalg.solve(matrix, field.by_text[here]).T
        physics, doubt = physics + gain @ missed, field.by_text - gain @ field.by_text[here]
    return Surface(
        field,
        parameters,
        system,
        physics + timing.residual(field, system),
        doubt,
        amounts * system.costs / by_class[..., None],
        np.array(list(first), dtype=np.int_),
        physics,
        places,
        timing.observed(field, tallies, counted, system.costs),
    )


def _by_class(tally: BootTally, per_token: Floats, kinds: int) -> Floats:
    tokens = tally.by_kind(tally.tokens, kinds)
    return np.asarray(tally.by_kind(per_token * tally.tokens, kinds) / np.maximum(tokens, 1.0))
