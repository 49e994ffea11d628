"""Boots against the start, prompt by prompt, with an interval: 95 % of each boot by itself, for people to look at.

The gain is of decode speed on the workload: the start's seconds per token over the boot's, less one. Its interval has
two parts: how differently the prompts gain (delete-one jackknife over prompts, both sides without the same one), and by
how much speeds differ from boot to boot (of points that were booted more than once, all such points together). Before
any point was booted twice the second part is not known, and the interval is of the prompts alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.system.stats import Z_95, pooled_deviation
from specdash.tune.model.problem import mixture_speed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.tune.model.problem import BootResult, Point, PromptResult, WorkloadShares

_LEAST_PROMPTS = 3
"""Of fewer there is no interval."""


class Gain(Struct, frozen=True):
    """A share over the start (0.1 is 10 % faster), and its 95 % interval where there is one."""

    gain: float
    low: float | None = None
    high: float | None = None


def gains(boots: Sequence[BootResult], start: Point, workload: WorkloadShares) -> list[Gain | None]:
    """One for each boot; None for the start's own, for those that failed, and while the start was not measured."""
    at_start = [boot for boot in boots if boot.point == start and _speed(boot.prompts, workload) is not None]
    noise = Z_95 * (boot_noise(boots, workload)[0] or 0.0)
    return [
        None if boot.point == start or boot.failure else gain_of([boot], at_start, workload, noise, Z_95)
        for boot in boots
    ]


def boot_noise(boots: Sequence[BootResult], workload: WorkloadShares) -> tuple[float | None, int]:
    """Standard deviation of the logarithm of speed from boot to boot of the same point, and its degrees of freedom;
    None before there are two boots of one."""
    by_point: dict[Point, list[float]] = {}
    for boot in boots:
        speed = _speed(boot.prompts, workload) if not boot.failure else None
        if speed is not None:
            by_point.setdefault(boot.point, []).append(math.log(speed))
    return pooled_deviation(by_point.values())


def gain_of(
    mine: Sequence[BootResult], start: Sequence[BootResult], workload: WorkloadShares, noise: float, reach: float
) -> Gain | None:
    """Of the boots of one point over those of the start, give or take `reach` standard deviations of the prompts and
    `noise`, how far one boot may be off; None where they cannot be compared."""
    ratio = _log_ratio(mine, start, workload, "") if mine and start else None
    if ratio is None:
        return None
    names = sorted({prompt.prompt for prompt in mine[0].prompts})
    without = [_log_ratio(mine, start, workload, name) for name in names]
    left_out = [value for value in without if value is not None]
    # A class with one prompt cannot be left out: then there is no interval.
    if len(names) < _LEAST_PROMPTS or len(left_out) < len(names):
        return Gain(math.expm1(ratio))
    mean = sum(left_out) / len(left_out)
    by_prompts = (len(left_out) - 1) / len(left_out) * sum((value - mean) ** 2 for value in left_out)
    off = math.sqrt(reach**2 * by_prompts + noise**2 * (1 / len(mine) + 1 / len(start)))
    return Gain(math.expm1(ratio), math.expm1(ratio - off), math.expm1(ratio + off))


def _log_ratio(
    mine: Sequence[BootResult], start: Sequence[BootResult], workload: WorkloadShares, without: str
) -> float | None:
    """Logarithm of the speed over the start's, on the prompts that all of them have, one left out."""
    shared = set.intersection(*({prompt.prompt for prompt in boot.prompts} for boot in (*mine, *start))) - {without}
    logs = [
        [math.log(speed) for boot in side if (speed := _speed(_of(boot.prompts, shared), workload)) is not None]
        for side in (mine, start)
    ]
    return sum(logs[0]) / len(logs[0]) - sum(logs[1]) / len(logs[1]) if all(logs) else None


def _of(prompts: Sequence[PromptResult], names: set[str]) -> tuple[PromptResult, ...]:
    return tuple(prompt for prompt in prompts if prompt.prompt in names)


def _speed(prompts: tuple[PromptResult, ...], workload: WorkloadShares) -> float | None:
    return mixture_speed(prompts, workload) if prompts else None
