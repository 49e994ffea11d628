"""Downsampled series: least, mean, most and count of every charted metric, per second, ten seconds and minute.

A chunk is the cells of one tier over `Tier.span_s`, stored as columns of whole numbers: values are kept to four decimal
places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from specdash.history.columns import Columns, Packed

if TYPE_CHECKING:
    from collections.abc import Mapping

GRAIN: Final = 10_000
_MOST: Final = 1e12


@dataclass(frozen=True, slots=True)
class Tier:
    """One resolution: seconds of a cell, seconds of a chunk, and how many times longer it is kept than every second."""

    step_s: int
    span_s: int
    times_longer: float


TIERS: Final = (Tier(1, 60, 1.0), Tier(10, 3600, 8.0), Tier(60, 6 * 3600, 52.0))
"""The finest first."""


@dataclass(slots=True)
class Cell:
    """The samples of one cell."""

    low: float
    total: float
    high: float
    count: int

    @property
    def mean(self) -> float:
        """Their mean."""
        return self.total / self.count

    def add(self, value: float) -> None:
        """Take in one sample."""
        self.low, self.high = min(self.low, value), max(self.high, value)
        self.total += value
        self.count += 1


Cells = dict[int, Cell]
"""By the cell's number: its Unix time divided by the tier's step."""


class Chunk:
    """The cells of one tier and one span, of all metrics."""

    def __init__(self, step_s: int) -> None:
        self.step_s = step_s
        self.metrics: dict[str, Cells] = {}

    def add(self, metric: str, at: float, value: float) -> None:
        """Take in one sample at Unix time `at`; what is not finite is none."""
        if not -_MOST < value < _MOST:
            return
        cells = self.metrics.setdefault(metric, {})
        number = math.floor(at / self.step_s)
        if (cell := cells.get(number)) is None:
            cells[number] = Cell(value, value, value, 1)
        else:
            cell.add(value)

    def pack(self) -> bytes:
        """As bytes."""
        columns = Columns()
        for metric, cells in self.metrics.items():
            ordered = sorted(cells.items())
            means = [round(cell.mean * GRAIN) for _, cell in ordered]
            columns.put(f"{metric}.cell", [number for number, _ in ordered])
            columns.put(f"{metric}.mean", means)
            lows = [mean - round(cell.low * GRAIN) for (_, cell), mean in zip(ordered, means, strict=True)]
            highs = [round(cell.high * GRAIN) - mean for (_, cell), mean in zip(ordered, means, strict=True)]
            columns.put(f"{metric}.low", lows)
            columns.put(f"{metric}.high", highs)
            columns.put(f"{metric}.count", [cell.count for _, cell in ordered])
        columns.put("metrics", list(self.metrics))
        return columns.pack()

    @classmethod
    def unpack(cls, step_s: int, data: bytes) -> Chunk:
        """The chunk of `pack`. Raises columns.DamagedError."""
        chunk, packed = cls(step_s), Packed(data)
        for metric in packed.get("metrics") or []:
            chunk.metrics[metric] = _cells(packed, metric)
        return chunk


def cells_of(data: bytes, metric: str) -> Mapping[int, Cell]:
    """The cells of one metric of a packed chunk. Raises columns.DamagedError."""
    return _cells(Packed(data), metric)


def _cells(packed: Packed, metric: str) -> Cells:
    def column(name: str) -> list[Any]:
        return packed.get(f"{metric}.{name}") or []

    rows = zip(*map(column, ("cell", "mean", "low", "high", "count")), strict=True)
    return {
        number: Cell((mean - low) / GRAIN, mean * count / GRAIN, (mean + high) / GRAIN, count)
        for number, mean, low, high, count in rows
    }


def tier_for(seconds: float, count: int) -> tuple[Tier, ...]:
    """The tiers to look in for `count` columns over `seconds`: the coarsest whose cells are no wider than a column
    first, then the finer ones, then the coarser ones."""
    width = seconds / max(1, count)
    fitting = [tier for tier in reversed(TIERS) if tier.step_s <= width]
    return (*fitting, *(tier for tier in TIERS if tier.step_s > width))
