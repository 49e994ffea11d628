"""Whether a point is better than the start: what its boots show, with the physics as a witness and not as the judge.

The promotion test looks at measured speeds. Between boots of one configuration a machine differs from itself, which no
number of prompts takes away; so boots are what is counted. All boots are pooled: measured speeds are regressed on what
the physics says (on a machine that does not obey it the slope comes out as nothing, and so does the gain), every point
deviates by itself, and every boot by its luck. The boots of the two points alone must agree. The same prompts have the
same text, but a few prompts are not the traffic: that doubt is taken from the differences between prompts, in pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specdash.system.data import dataclass
from specdash.system.stats import student

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from specdash.tune.model.acceptance import BootTally
    from specdash.tune.model.model import Surface

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int_]


_SLOPE = 0.5
"""How far the slope on the physics may be from 1."""
_OWN = (0.01, 0.03)
"""How far a point may be from the regression; the likelier is taken."""


_BELIEVED = 3.0
"""How many boots the noise that all boots together tell counts for, against the spread of two points' own."""


@dataclass(frozen=True, slots=True)
class Rules:
    """When a gain is believed. Chosen on development seeds, and on development environments whose points are equal."""

    sureness: float = 1.645
    """Standard deviations of the pooled gain that must lie above 0: 95 % from one side."""
    alone: float = 1.0
    """Likewise of the two points' own boots, which the pooled test must not outvote: 84 %."""
    rough: float = 0.07
    """Boot noise from which the two points' own boots must be as sure as the pooled gain: where boots of one point
    differ by so much, few of them tell little of how much they differ."""
    unpooled: float = 0.01
    """Of the interval of two points' own boots, both sides: what is beyond it needs no physics."""
    looked_at: int = 4
    """How many of the best points are tested, the best first."""


@dataclass(frozen=True, slots=True)
class RaceVerdict:
    """A gain of decode speed over the start, as a share, with the lower and upper bound it was tested by."""

    place: int
    gain: float
    low: float
    high: float
    gap: float = 0.0
    """Logarithm of the gain by the boots of the two points alone."""
    error: float = np.inf
    """Its standard error, by the noise from boot to boot; infinite where that is not known."""
    boots: int = 0
    """Of the point."""
    against: int = 0
    """Of the start."""
    winnable: bool = True
    """Whether boots without any noise would make the gain sure; they take no doubt of the prompts away."""
    hope: float = 0.0
    """The larger of the gain and of what the two points' own boots say: what is worth a test."""

    def promoted(self, least: float) -> bool:
        """Whether it is sure and worth a restart."""
        return self.low > 0 and self.gain >= least


@dataclass(frozen=True, slots=True)
class _Pooled:
    mean: Floats
    covariance: Floats
    noise: float
    speeds: Floats
    """Logarithm of seconds per token, by boot."""


def verdict(
    surface: Surface,
    order: Sequence[int],
    start: int,
    tallies: Sequence[BootTally],
    weights: Floats,
    rules: Rules,
    least: float,
) -> RaceVerdict | None:
    """The first point in `order` that is promoted, else the first; None where no point comes before the start."""
    pooled = _pool(surface, weights)
    first: RaceVerdict | None = None
    for place in order[: rules.looked_at]:
        if place == start:
            break
        found = _judged(surface, pooled, place, start, tallies, weights, rules)
        first = first or found
        if found.promoted(least):
            return found
    return first


def _judged(
    surface: Surface,
    pooled: _Pooled,
    place: int,
    start: int,
    tallies: Sequence[BootTally],
    weights: Floats,
    rules: Rules,
) -> RaceVerdict:
    rows = {int(entry): row for row, entry in enumerate(surface.booted)}
    number, other = rows[place], rows[start]
    gain = float(pooled.mean[other] - pooled.mean[number])
    spread = pooled.covariance[number, number] + pooled.covariance[other, other] - 2 * pooled.covariance[number, other]
    luck = text_luck(tallies, surface.boots, place, start, weights)
    sd = float(np.sqrt(max(spread, 0.0) + luck))
    mine, theirs = pooled.speeds[surface.boots == place], pooled.speeds[surface.boots == start]
    noise = _seen_noise(max(pooled.noise, surface.timing.noise), mine, theirs)
    gap = float(np.median(theirs) - np.median(mine))
    error = max(noise, surface.field.doubts.usual_boot) * float(np.sqrt(1 / mine.size + 1 / theirs.size))
    doubt = rules.alone if noise < rules.rough else rules.sureness
    alone = gap - doubt * noise * np.sqrt(1 / mine.size + 1 / theirs.size)
    low, high = min(gain - rules.sureness * sd, alone), gain + rules.sureness * sd
    hope = max(gain, gap)
    reach = _reach(pooled.speeds, surface, mine.size, theirs.size, luck, rules)
    if gap - reach > max(low, 0.0):
        gain, low, high = gap, gap - reach, gap + reach
    return RaceVerdict(
        place,
        float(np.expm1(gain)),
        float(np.expm1(low)),
        float(np.expm1(max(high, low))),
        gap,
        np.inf if surface.timing.blind and mine.size + theirs.size < 4 else error,
        mine.size,
        theirs.size,
        winnable=hope > rules.sureness * float(np.sqrt(luck)),
        hope=float(np.expm1(hope)),
    )


def _reach(speeds: Floats, surface: Surface, mine: int, theirs: int, luck: float, rules: Rules) -> float:
    """How far the two points' own boots may be off, where repeated boots tell the noise: for machines that do not obey
    the physics at all, which pooling would talk out of a gain that every boot shows. Infinite without repeats."""
    boots = surface.boots
    middle = np.bincount(boots, speeds) / np.maximum(np.bincount(boots), 1)
    freedom = boots.size - surface.booted.size
    if min(mine, theirs) < 2 or freedom < 2:
        return float(np.inf)
    spread = float(np.sqrt(((speeds - middle[boots]) ** 2).sum() / freedom))
    noise = max(spread, surface.field.doubts.usual_boot)
    by_boots = student(freedom, rules.unpooled) * noise * np.sqrt(1 / mine + 1 / theirs)
    return float(np.hypot(by_boots, rules.sureness * np.sqrt(luck)))


def _seen_noise(believed: float, *sides: Floats) -> float:
    """Boot noise, where repeated boots of the two points differ by more than all boots together make believe."""
    spread = sum(float(((side - side.mean()) ** 2).sum()) for side in sides)
    freedom = sum(side.size - 1 for side in sides)
    return max(believed, float(np.sqrt((_BELIEVED * believed**2 + spread) / (_BELIEVED + freedom))))


def _pool(surface: Surface, weights: Floats) -> _Pooled:
    doubts = surface.field.doubts
    speeds = np.log(np.exp(np.nan_to_num(surface.observed, nan=-50.0)) @ weights)
    physics = np.log(np.exp(surface.physics) @ weights)
    boots, places = surface.boots, surface.booted
    middle = float(physics[boots].mean())
    away, target = physics[boots] - middle, speeds - physics[boots]
    slope, owns = (0.0, (doubts.blind,)) if surface.timing.blind else (_SLOPE, _OWN)
    shared = 1.0 + slope**2 * np.outer(away, away)
    same = (boots[:, None] == boots[None, :]).astype(np.float64)
    best, own, noise, matrix = -np.inf, owns[0], doubts.usual_boot, shared
    for each in owns:
        for luck in doubts.boots:
            kernel = shared + each**2 * same + luck**2 * np.eye(boots.size)
            factor = np.linalg.cholesky(kernel)
            white = np.linalg.solve(factor, target)
            fit = -0.5 * float(white @ white) - float(np.log(np.diag(factor)).sum())
            fit -= 0.5 * (np.log(luck / doubts.usual_boot) / doubts.boot_spread) ** 2
            if fit > best:
                best, own, noise, matrix = fit, each, luck, kernel
    there = physics[places] - middle
    cross = 1.0 + slope**2 * np.outer(there, away) + own**2 * (places[:, None] == boots[None, :])
    prior = 1.0 + slope**2 * np.outer(there, there) + own**2 * np.eye(places.size)
    inverse = np.linalg.inv(matrix)
    return _Pooled(
        physics[places] + cross @ inverse @ target, prior - cross @ inverse @ cross.T, noise, np.asarray(speeds)
    )


def text_luck(tallies: Sequence[BootTally], boots: Ints, place: int, start: int, weights: Floats) -> float:
    """Variance of the logarithm of the gain, from the prompts being a sample: their paired differences, by class."""
    boot_tally = tallies[int(np.flatnonzero(boots == place)[0])]
    other = tallies[int(np.flatnonzero(boots == start)[0])]
    common = [name for name in boot_tally.prompt if name in other.prompt]
    mine = [boot_tally.prompt.index(name) for name in common]
    theirs = [other.prompt.index(name) for name in common]
    times = other.seconds[theirs] / other.tokens[theirs]
    ratios = np.log(boot_tally.seconds[mine] / boot_tally.tokens[mine] / times)
    kinds = boot_tally.kind[mine]
    part = np.array([share * _mean(times[kinds == kind]) for kind, share in enumerate(weights)])
    total, found = part.sum(), 0.0
    for kind in range(weights.size):
        own = ratios[kinds == kind]
        if own.size < 2 or not total:
            continue
        usual = 1.4826 * float(np.median(np.abs(own - np.median(own))))
        sd = min(float(np.std(own, ddof=1)), 2.5 * usual + 0.002)
        found += (part[kind] / total * sd) ** 2 / own.size
    return float(found)


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else 0.0
