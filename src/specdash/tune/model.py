"""What every point is worth, from the boots so far: the text, the cost of steps, and what both miss, with doubts.

Seconds per token of a class are amounts (`acceptance`, counters) times costs (`costs`), times what the machine does
besides at this point (a smooth residual of the whole boot), times what this boot was luckier or unluckier by.
Counters repeat exactly, so that only time is noisy; and as a boot's luck is the same for all its prompts, differences
between classes and prompts within a boot tell costs apart without it. Where an engine has no counters, a wide smooth
residual of every class takes the text's place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specdash.tune import acceptance, costs, timing
from specdash.tune.surrogate import Likeness, Posterior

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from specdash.tune.acceptance import Parameters
    from specdash.tune.problem import Point
    from specdash.tune.tally import Tally
    from specdash.tune.timing import Timing

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int_]


@dataclass(frozen=True, slots=True)
class Doubts:
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
    doubts: Doubts
    design: acceptance.Design
    by_text: Floats
    by_machine: Floats
    by_sight: Floats
    """What takes the text's place where nothing counts it."""
    mixed: NDArray[np.bool_]
    """Points of whose drafts the counters do not tell which sort or how long they are."""

    @classmethod
    def of(cls, points: Sequence[Point], kinds: Sequence[str], doubts: Doubts | None = None) -> Field:
        """For these points and classes of prompts."""
        doubts = doubts or Doubts()
        design, like = acceptance.Design.of(points), Likeness(points)
        drafts, copies = design.depth > 0, design.copy > 0
        scale, copying = np.sqrt(design.gate * drafts), copies.astype(np.float64)
        by_text = doubts.text**2 * like.kernel(0.7, 0.5, 0.7)
        by_text += doubts.gated**2 * np.outer(scale, scale) * like.kernel(1.2, 0.25, 1.5)
        by_text += doubts.copied**2 * np.outer(copying, copying) * like.kernel(1.2, 1.0, 0.7)
        if len({tuple(name for name in one.types if name.startswith("ngram")) for one in points} - {()}) > 1:
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
    field: Field, tallies: Sequence[Tally], start: Parameters | None = None, *, same_text: bool = False
) -> Surface:
    """Fits everything to the boots, from `start` on, which are the text's parameters by an earlier fit.

    `same_text`: they hold, because since then only points were booted that had been booted before.
    """
    kinds = len(field.kinds)
    places = np.array([field.points.index(one.point) for one in tallies], dtype=np.int_)
    first = {place: row for row, place in reversed(list(enumerate(places.tolist())))}
    seen = [row for row in first.values() if tallies[row].counted]
    parameters = start or acceptance.Parameters.prior(kinds)
    if not (start and same_text):
        parameters = acceptance.fit(acceptance.Counters([tallies[row] for row in seen], kinds), parameters, 12)
    text = acceptance.expected(field.design, parameters.kinds, parameters.gates)
    amounts = costs.expected_amounts(field.design, text)
    counted = [
        costs.counted_amounts(one, field.design, place, text) if one.counted else amounts[place, one.kind]
        for one, place in zip(tallies, places, strict=True)
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


def _by_class(tally: Tally, per_token: Floats, kinds: int) -> Floats:
    tokens = tally.by_kind(tally.tokens, kinds)
    return np.asarray(tally.by_kind(per_token * tally.tokens, kinds) / np.maximum(tokens, 1.0))
