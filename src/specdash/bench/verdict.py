"""Whether one configuration is faster than another, or the difference is within noise.

The unit of replication is the boot: speeds differ from boot to boot by more than they do within one. So each round
boots every configuration once, two configurations are compared round by round and prompt by prompt
(`statistics.paired_log`), and every second round goes through them backwards, so that a drift of the machine cancels.
Nothing is called real that its interval does not hold apart from no difference, and nothing is called better that gains
less than is worth a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from math import atan, cos, exp, expm1, log, pi, sqrt, tan
from random import Random
from typing import TYPE_CHECKING

from specdash.bench.statistics import Figure, Spread, is_over_one_sigma, paired_log, ratio, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from specdash.bench.statistics import Boot, PairedLog

LEAST_GAIN = 0.02
ALPHA = 0.05
MOST_ROUNDS = 200
"""More are not worth naming: nobody waits for them."""
_STEPS = 128
_FEW = 20.0


class Verdict(StrEnum):
    """What a comparison says."""

    FASTER = "real: faster"
    SLOWER = "real: slower"
    SMALL = "real, but too small to matter"
    SAME = "the same"
    """The whole interval lies within what does not matter."""
    NOISE = "within noise"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One configuration beside the reference. `gain` and its bounds are shares of the reference's speed, `figure` of
    the 95 % interval of this pair alone; the verdict holds all comparisons of a trial to 5 % together."""

    name: str
    verdict: Verdict
    gain: float
    low: float | None
    high: float | None
    pairs: int
    before: Spread
    after: Spread
    """Decode tok/s of the boots, as UAP tells results: mean and sample standard deviation."""
    over_one_sigma: bool | None
    """UAP's "real (> 1 sigma)", for comparison; with three boots a side it calls a third of equals real."""
    more_rounds: int | None = None
    """How many more would decide, as far as these tell; None where it is decided, or no number would."""
    only_alone: bool = False
    """Its own interval holds no zero, but not at the strictness that all comparisons together need."""
    hopeless: bool = False
    """It is not decided, and more rounds alone will not do it: the difference is as small as what matters, or prompts
    gain too differently."""


def order(names: Sequence[str], rounds: int, seed: int) -> list[list[str]]:
    """Who is booted when: every round has each name once; each pair of rounds is one random order, and that backwards.

    Over such a pair all names stand at the same place on average, so that whatever changes steadily cancels.
    """
    random = Random(f"rounds/{seed}")  # noqa: S311 - an order, no secret
    found: list[list[str]] = []
    for number in range(rounds):
        found.append(random.sample(list(names), len(names)) if number % 2 == 0 else found[-1][::-1])
    return found


def compare(
    name: str,
    blocks: Sequence[tuple[Boot, Boot]],
    *,
    comparisons: int = 1,
    least_gain: float = LEAST_GAIN,
) -> Comparison | None:
    """Judge pairs of boots of the reference and of `name`; None where no two boots have a prompt in common.

    `comparisons` is how many configurations are compared with the reference: the more, the surer each has to be.
    """
    found = paired_log(blocks)
    if found is None:
        return None
    before, after = (spread([_rate(pair[side]) for pair in blocks]) for side in (0, 1))
    if before is None or after is None:
        return None
    low, high = _bounds(found, ALPHA)
    verdict = judge(found, ALPHA / comparisons, least_gain)
    more = None
    if verdict is Verdict.NOISE:
        more = rounds_to_decide(found, ALPHA / comparisons, least_gain)
    return Comparison(
        name=name,
        verdict=verdict,
        gain=expm1(found.mean),
        low=None if low is None else expm1(low),
        high=None if high is None else expm1(high),
        pairs=found.pairs,
        before=before,
        after=after,
        over_one_sigma=is_over_one_sigma(before, after),
        more_rounds=more,
        only_alone=verdict is Verdict.NOISE and judge(found, ALPHA, least_gain) is not Verdict.NOISE,
        hopeless=verdict is Verdict.NOISE and more is None,
    )


def judge(found: PairedLog, alpha: float, least_gain: float = LEAST_GAIN) -> Verdict:
    """The verdict on one difference, wrong in at most `alpha` of the cases where there is none.

    One pair of boots never tells: how much boots differ is not known of it.
    """
    if found.pairs < 2 or found.variance is None:
        return Verdict.NOISE
    low, high = _bounds(found, alpha)
    if low is None or high is None:
        return Verdict.NOISE
    least = log(1 + least_gain)
    if -least < low and high < least:
        return Verdict.SAME
    if low <= 0 <= high:
        return Verdict.NOISE
    if abs(found.mean) < least:
        return Verdict.SMALL
    return Verdict.FASTER if found.mean > 0 else Verdict.SLOWER


def rounds_to_decide(found: PairedLog, alpha: float, least_gain: float = LEAST_GAIN) -> int | None:
    """How many more rounds would take the verdict out of the noise if mean and scatter stay; None for no number."""
    for pairs in range(max(2, found.pairs + 1), MOST_ROUNDS + 1):
        then = replace(found, of_boots=found.of_boots * found.pairs / pairs, pairs=pairs)
        if judge(then, alpha, least_gain) is not Verdict.NOISE:
            return pairs - found.pairs
    return None


def boots_figure(boots: Sequence[Boot]) -> Figure | None:
    """Tokens a second over all boots, with a 95 % interval from boot to boot."""
    rates = [log(_rate(boot)) for boot in boots if boot]
    if not rates:
        return None
    mean = sum(rates) / len(rates)
    if len(rates) < 2:
        return Figure(exp(mean), None, None, 1)
    variance = sum((one - mean) ** 2 for one in rates) / (len(rates) - 1)
    reach = student(len(rates) - 1, ALPHA) * sqrt(variance / len(rates))
    return Figure(exp(mean), exp(mean - reach), exp(mean + reach), len(rates))


def pairs_of(rounds: Mapping[int, Mapping[str, Boot]], before: str, after: str) -> list[tuple[Boot, Boot]]:
    """The rounds in which both were measured."""
    return [(one[before], one[after]) for one in rounds.values() if one.get(before) and one.get(after)]


def _bounds(found: PairedLog, alpha: float) -> tuple[float | None, float | None]:
    variance = found.variance
    if variance is None:
        return None, None
    # Pairs that agree by chance make the share of prompts look large, and with it the freedom: that of pairs is safe.
    freedom = min(found.freedom, found.pairs - 1) if found.pairs > 1 else found.freedom
    reach = student(freedom, alpha) * sqrt(variance)
    return found.mean - reach, found.mean + reach


def _rate(boot: Boot) -> float:
    return ratio(boot.values()) or float("nan")


def student(freedom: float, alpha: float) -> float:
    """Student's quantile that is exceeded, to either side, with probability `alpha`; of the degrees of freedom, what is
    beyond the last quarter does not count."""
    quarters = 4 if freedom < _FEW else 1
    return _student(max(1.0, int(freedom * quarters) / quarters), alpha)


@lru_cache(maxsize=1024)
def _student(freedom: float, alpha: float) -> float:
    """With x = sqrt(freedom) tan(a), the density in a is cos(a) to the power of freedom - 1; that is integrated."""

    def weight(angle: float) -> float:
        return float(max(0.0, cos(angle)) ** (freedom - 1))

    whole = _integral(weight, 0.0, pi / 2)
    low, high = 0.0, atan(1e9)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _integral(weight, 0.0, middle) < (1 - alpha) * whole else (low, middle)
    return sqrt(freedom) * tan((low + high) / 2)


def _integral(function: Callable[[float], float], low: float, high: float) -> float:
    """Simpson's rule."""
    width = (high - low) / _STEPS
    inner = sum((4 if number % 2 else 2) * function(low + number * width) for number in range(1, _STEPS))
    return (function(low) + inner + function(high)) * width / 3
