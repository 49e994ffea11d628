"""Gaussian processes over points: kernels, a posterior, and the worth of one more boot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from specdash.tune.problem import Point

    Floats = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_UNLIMITED = 16


class Likeness:
    """How alike points are, knob by knob, from 0 to 1; (point, point) each."""

    def __init__(self, points: Sequence[Point]) -> None:
        model = [tuple(one for one in point.types if not one.startswith("ngram")) for point in points]
        copies = [tuple(one for one in point.types if one.startswith("ngram")) for point in points]
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
