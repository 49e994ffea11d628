"""Each boot against the start, for people to look at: prompt by prompt, with a 95 % interval. It decides nothing.

The gain is of decode speed on the workload: the start's seconds per token over the boot's, less one. Its interval has
two parts: how differently the prompts gain (delete-one jackknife over prompts, both sides without the same one), and by
how much speeds differ from boot to boot (of points that were booted more than once, all such points together). Before
any point was booted twice the second part is not known, and the interval is of the prompts alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.tune.objective import is_of_the_tail
from specdash.tune.problem import mixture_speed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.tune.problem import BootResult, Point, PromptResult, Workload

_Z = 1.96
_LEAST_PROMPTS = 3
"""Of fewer there is no interval."""


@dataclass(frozen=True, slots=True)
class Gain:
    """A share over the start (0.1 is 10 % faster), and its 95 % interval where there is one."""

    gain: float
    low: float | None = None
    high: float | None = None


def gains(boots: Sequence[BootResult], start: Point, workload: Workload) -> list[Gain | None]:
    """One for each boot; None for the start's own, for those that failed, and while the start was not measured."""
    at_start = [one for one in boots if one.point == start and _speed(one.prompts, workload) is not None]
    noise = boot_noise(boots, workload)
    if is_of_the_tail(workload):
        from specdash.tune.tail import tail_gain

        usable = [None if one.point == start or one.failure else one for one in boots]
        return [tail_gain(at_start, [one], noise) if one is not None else None for one in usable]
    return [None if one.point == start else _gain(one, at_start, workload, noise) for one in boots]


def boot_noise(boots: Sequence[BootResult], workload: Workload) -> float | None:
    """Standard deviation of the logarithm of speed from boot to boot of the same point; None before there are two."""
    by_point: dict[Point, list[float]] = {}
    for one in boots:
        speed = _speed(one.prompts, workload) if not one.failure else None
        if speed is not None:
            by_point.setdefault(one.point, []).append(math.log(speed))
    squares, freedom = 0.0, 0
    for logs in by_point.values():
        mean = sum(logs) / len(logs)
        squares += sum((one - mean) ** 2 for one in logs)
        freedom += len(logs) - 1
    return math.sqrt(squares / freedom) if freedom else None


def _gain(boot: BootResult, start: Sequence[BootResult], workload: Workload, noise: float | None) -> Gain | None:
    ratio = _log_ratio(boot, start, workload, "") if start and not boot.failure else None
    if ratio is None:
        return None
    names = sorted({one.prompt for one in boot.prompts})
    without = [_log_ratio(boot, start, workload, name) for name in names]
    left_out = [one for one in without if one is not None]
    # A class with one prompt cannot be told without it: then there is no interval.
    if len(names) < _LEAST_PROMPTS or len(left_out) < len(names):
        return Gain(math.expm1(ratio))
    mean = sum(left_out) / len(left_out)
    variance = (len(left_out) - 1) / len(left_out) * sum((one - mean) ** 2 for one in left_out)
    variance += (noise or 0.0) ** 2 * (1 + 1 / len(start))
    reach = _Z * math.sqrt(variance)
    return Gain(math.expm1(ratio), math.expm1(ratio - reach), math.expm1(ratio + reach))


def _log_ratio(boot: BootResult, start: Sequence[BootResult], workload: Workload, without: str) -> float | None:
    """Logarithm of the boot's speed over the start's, on the prompts that both have, one left out."""
    shared = {one.prompt for one in boot.prompts}.intersection(
        *({one.prompt for one in each.prompts} for each in start)
    )
    shared.discard(without)
    own = _speed(_of(boot.prompts, shared), workload)
    others = [_speed(_of(one.prompts, shared), workload) for one in start]
    known = [math.log(one) for one in others if one is not None]
    return math.log(own) - sum(known) / len(known) if own is not None and known else None


def _of(prompts: Sequence[PromptResult], names: set[str]) -> tuple[PromptResult, ...]:
    return tuple(one for one in prompts if one.prompt in names)


def _speed(prompts: tuple[PromptResult, ...], workload: Workload) -> float | None:
    return mixture_speed(prompts, workload) if prompts else None
