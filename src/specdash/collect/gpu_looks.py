"""GPUs looked at when somebody wants to know, everything asked anew, for measurements: nothing here runs by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from specdash.collect.gpu import ENERGY, FOREVER_S, FREE, PROBES, GpuCollector
from specdash.core.observations import Gpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.core.observations import Gpu
    from specdash.core.readings import Reading

Number = TypeVar("Number", int, float)
_PROBES = tuple(
    one if one.ttl_s == FOREVER_S else replace(one, ttl_s=0.0)
    for one in (*PROBES, ENERGY, FREE)
    if one.fields != ("processes",)
)


@dataclass(frozen=True, slots=True)
class GpuLook:
    """All GPUs at one moment, without their processes. What no driver tells is None."""

    gpus: tuple[Gpu, ...] = ()
    absent: str = ""
    """Why there is none."""
    energy_joules: float | None = None
    """Of all together, since the driver was loaded; None where one of them does not tell."""
    free_bytes: int | None = None
    """Of the one with the least."""

    @property
    def utilisation(self) -> float | None:
        """Of the busiest, 0 to 1."""
        return max(_known(one.utilisation for one in self.gpus), default=None)

    @property
    def used_bytes(self) -> int | None:
        """Of all together."""
        return _sum([one.memory_used_bytes for one in self.gpus])

    @property
    def watts(self) -> float | None:
        """Of all together."""
        return _sum([one.power_watts for one in self.gpus])

    @property
    def celsius(self) -> float | None:
        """Of the hottest."""
        return max(_known(one.temperature_celsius for one in self.gpus), default=None)

    @property
    def clock_mhz(self) -> int | None:
        """Of the slowest."""
        return min(_known(one.sm_clock_mhz for one in self.gpus), default=None)

    @property
    def words(self) -> tuple[str, ...]:
        """Name and power limit of each, as a stored result depends on them."""
        return tuple(
            f"{one.name or 'unknown'}, {'--' if one.power_limit_watts is None else f'{one.power_limit_watts:.0f}'} W"
            for one in self.gpus
        )


class GpuLooks:
    """Looks through NVML. What cannot be looked at is absent, with the reason. For one thread at a time."""

    def __init__(self, *, nvml: Any = None) -> None:
        """`nvml` is as in `collect.gpu`."""
        self._said: Reading[Any] | None = None
        self._collector = GpuCollector(self._take, nvml=nvml, probes=_PROBES)

    def look(self) -> GpuLook:
        """What the GPUs say now."""
        self._collector.step(1.0)
        said = self._said
        value = said.value if said is not None else None
        if not isinstance(value, Gpus):
            return GpuLook(absent=str(said.failure) if said is not None else "")
        energy, free = self._collector.told("energy_joules"), self._collector.told("memory_free_bytes")
        return GpuLook(value.gpus, "", _sum(energy), min(_known(free), default=None))

    def _take(self, reading: Reading[Any]) -> None:
        self._said = reading


def _known(values: Iterable[Number | None]) -> list[Number]:
    return [one for one in values if one is not None]


def _sum(values: Sequence[Number | None]) -> Number | None:
    """None where one is not known: a part is no sum."""
    known = _known(values)
    return sum(known[1:], known[0]) if known and len(known) == len(values) else None
