"""Each boot against the start, for people to look at: prompt by prompt, with a 95 % interval. It decides nothing.

The gain is of decode speed on the workload: the start's seconds per token over the boot's, less one. Its interval has
two parts: how differently the prompts gain (delete-one jackknife over prompts, both sides without the same one), and by
how much speeds differ from boot to boot (of points that were booted more than once, all such points together). Before
any point was booted twice the second part is not known, and the interval is of the prompts alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from specdash.system.data import dataclass
from specdash.system.stats import Z_95, pooled_deviation
from specdash.tune.model.problem import mixture_speed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.tune.model.problem import BootResult, Point, PromptResult, WorkloadShares

_LEAST_PROMPTS = 3
"""Of fewer there is no interval."""


@dataclass(frozen=True, slots=True)
class Gain:
    """A share over the start (0.1 is 10 % faster), and its 95 % interval where there is one."""

    gain: float
    low: float | None = None
    high: float | None = None


def gains(boots: Sequence[BootResult], start: Point, workload: WorkloadShares) -> list[Gain | None]:
    """One for each boot; None for the start's own, for those that failed, and while the start was not measured."""
    at_start = [boot for boot in boots if boot.point == start and _speed(boot.prompts, workload) is not None]
    noise = boot_noise(boots, workload)
    return [None if boot.point == start else _gain(boot, at_start, workload, noise) for boot in boots]


def boot_noise(boots: Sequence[BootResult], workload: WorkloadShares) -> float | None:
    """Standard deviation of the logarithm of speed from boot to boot of the same point; None before there are two."""
    by_point: dict[Point, list[float]] = {}
    for boot in boots:
        speed = _speed(boot.prompts, workload) if not boot.failure else None
        if speed is not None:
            by_point.setdefault(boot.point, []).append(math.log(speed))
    return pooled_deviation(by_point.values())[0]


def _gain(boot: BootResult, start: Sequence[BootResult], workload: WorkloadShares, noise: float | None) -> Gain | None:
    ratio = _log_ratio(boot, start, workload, "") if start and not boot.failure else None
    if ratio is None:
        return None
    names = sorted({prompt.prompt for prompt in boot.prompts})
    without = [_log_ratio(boot, start, workload, name) for name in names]
    left_out = [value for value in without if value is not None]
    # A class with one prompt cannot be told without it: then there is no interval.
    if len(names) < _LEAST_PROMPTS or len(left_out) < len(names):
        return Gain(math.expm1(ratio))
    mean = sum(left_out) / len(left_out)
    variance = (len(left_out) - 1) / len(left_out) * sum((value - mean) ** 2 for value in left_out)
    variance += (noise or 0.0) ** 2 * (1 + 1 / len(start))
    reach = Z_95 * math.sqrt(variance)
    return Gain(math.expm1(ratio), math.expm1(ratio - reach), math.expm1(ratio + reach))


def _log_ratio(boot: BootResult, start: Sequence[BootResult], workload: WorkloadShares, without: str) -> float | None:
    """Logarithm of the boot's speed over the start's, on the prompts that both have, one left out."""
    shared = {prompt.prompt for prompt in boot.prompts}.intersection(
        *({prompt.prompt for prompt in each.prompts} for each in start)
    )
    shared.discard(without)
    own = _speed(_of(boot.prompts, shared), workload)
    others = [_speed(_of(boot_result.prompts, shared), workload) for boot_result in start]
    known = [math.log(value) for value in others if value is not None]
    return math.log(own) - sum(known) / len(known) if own is not None and known else None


def _of(prompts: Sequence[PromptResult], names: set[str]) -> tuple[PromptResult, ...]:
    return tuple(prompt for prompt in prompts if prompt.prompt in names)


def _speed(prompts: tuple[PromptResult, ...], workload: WorkloadShares) -> float | None:
    return mixture_speed(prompts, workload) if prompts else None
