"""Latency of the slowest requests (p95), and by how much a point betters it.

Which prompts are slow is luck in part: of the text, as a draft has it, and of the boot. Whoever marks the slowest of
one side and asks how the other does on them sees a gain where there is none, because luck does not stay with a prompt.
So the slowest are marked anew in every boot, by its own times: what luck adds to one side it adds to the other, too.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, expm1, sqrt
from typing import TYPE_CHECKING

import numpy as np

from specdash.core.change_words import between_words, change_words
from specdash.tune.gains import Gain
from specdash.tune.objective import TAIL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from specdash.tune.problem import BootResult, Outcome, PromptResult, Task

    Floats = NDArray[np.float64]

SHARE = 0.2
LEAST = 3
"""Prompts that are marked at least, where there are as many."""
SURENESS = 1.645
"""Normal quantile of 95 % from one side, as the tuner's own test has it."""
_RESAMPLES = 1000
_SEED = 20_261_122


def count(prompts: int) -> int:
    """How many of so many prompts are the slowest."""
    return min(prompts, max(LEAST, ceil(SHARE * prompts)))


def marked(results: Sequence[PromptResult]) -> tuple[PromptResult, ...]:
    """The results, those with the longest times as a class of their own."""
    slowest = sorted(results, key=lambda one: (-one.seconds, one.prompt))[: count(len(results))]
    names = {one.prompt for one in slowest}
    return tuple(replace(one, kind=TAIL) if one.prompt in names else one for one in results)


def tail_gain(start: Sequence[BootResult], point: Sequence[BootResult], noise: float | None = None) -> Gain | None:
    """By how much shorter the slowest requests of a point are than the start's, as a share like any gain of speed, with
    an interval of 90 % that takes in which prompts were asked, which of them are slow, and the luck of the boots.

    `noise` is the standard deviation of the logarithm of speed from boot to boot, None where that is not known. None
    where there are too few prompts that all boots have.
    """
    names = sorted(_common([*start, *point]))
    if not start or not point or len(names) <= LEAST:
        return None
    ours, theirs = _times(point, names), _times(start, names)
    everyone = np.arange(len(names))[None, :]
    one, other = _logs(ours, everyone)[:, 0], _logs(theirs, everyone)[:, 0]
    drawn = np.random.default_rng(_SEED).integers(len(names), size=(_RESAMPLES, len(names)))
    spread = _logs(theirs, drawn).mean(axis=0) - _logs(ours, drawn).mean(axis=0)
    sd = sqrt(float(spread.var(ddof=1)) + _luck(one, other, noise))
    gain, reach = float(other.mean() - one.mean()), _student(2 * (count(len(names)) - 1)) * sd
    return Gain(expm1(gain), expm1(gain - reach), expm1(gain + reach))


def in_the_tail(outcome: Outcome, results: Sequence[BootResult], task: Task) -> Outcome:
    """An improvement, held against the slowest requests of both points: its interval is the wider of the two, and it is
    none where that holds no gain."""
    good = [one for one in results if not one.failure]
    start = [one for one in good if one.point == task.start]
    told = tail_gain(start, [one for one in good if one.point == outcome.chosen], outcome.noise)
    if told is None or told.low is None or told.high is None:
        why = f"no improvement found: too few prompts to say how {outcome.chosen.name} does on the slowest of them"
        return replace(outcome, chosen=task.start, improved=False, why=why)
    low = min(told.low, outcome.low if outcome.low is not None else told.low)
    high = max(told.high, outcome.high if outcome.high is not None else told.high)
    outcome = replace(outcome, gain=told.gain, low=low, high=high)
    if low > 0 and told.gain >= task.least_gain:
        return outcome
    why = (
        f"no improvement found: the slowest requests of {outcome.chosen.name} are {change_words(told.gain)} faster "
        f"than the start's, {between_words(low, high)}, as other prompts might have been the slowest"
    )
    return replace(outcome, chosen=task.start, improved=False, why=why)


def _common(boots: Sequence[BootResult]) -> set[str]:
    found = [{one.prompt for one in boot.prompts if one.seconds > 0} for boot in boots]
    return set.intersection(*found) if found else set()


def _times(boots: Sequence[BootResult], names: Sequence[str]) -> Floats:
    """Seconds, a row a boot and a column a prompt."""
    rows = [{one.prompt: one.seconds for one in boot.prompts} for boot in boots]
    return np.array([[row[name] for name in names] for row in rows])


def _logs(times: Floats, drawn: NDArray[np.int_]) -> Floats:
    """Logarithm of the mean latency of the slowest requests, a row a boot and a column a draw of prompts."""
    slow = count(drawn.shape[1])
    return np.array([np.log(-np.sort(-row[drawn], axis=1)[:, :slow].mean(axis=1)) for row in times])


def _luck(one: Floats, other: Floats, noise: float | None) -> float:
    """Variance of the gain from boot to boot: by the noise that all boots show, or these, whichever is larger."""
    freedom = one.size + other.size - 2
    squares = float(((one - one.mean()) ** 2).sum() + ((other - other.mean()) ** 2).sum())
    variance = max((noise or 0.0) ** 2, squares / freedom if freedom else 0.0)
    return variance * (1 / one.size + 1 / other.size)


def _student(freedom: int) -> float:
    """Student's quantile for `SURENESS` (Cornish and Fisher): how much few prompts vary is not known, either."""
    z, n = SURENESS, max(1, freedom)
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
