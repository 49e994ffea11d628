"""Downsampled series: least, mean, most and count of every charted metric, per second, ten seconds and minute.

A chunk is the cells of one tier over `Tier.span_s`, stored as whole numbers: values are kept to four decimal places.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from specdash.history import block

if TYPE_CHECKING:
    from collections.abc import Mapping

Point = tuple[float, str, float]
"""Unix time, the metric's name, a value."""
GRAIN: Final = 10_000
_MOST: Final = 1e12


class Tier(Struct, frozen=True):
    """One resolution: seconds of a cell, seconds of a chunk, and how many times longer it is kept than every second."""

    step_s: int
    span_s: int
    times_longer: float


TIERS: Final = (Tier(1, 60, 1.0), Tier(10, 3600, 8.0), Tier(60, 6 * 3600, 52.0))
"""The finest first."""


class TierCell(Struct):
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


Cells = dict[int, TierCell]
"""By the cell's number: its Unix time divided by the tier's step."""


class TierChunk:
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
            cells[number] = TierCell(value, value, value, 1)
        else:
            cell.add(value)

    def pack(self) -> bytes:
        """As bytes."""
        chunk = {}
        for metric, cells in self.metrics.items():
            ordered = sorted(cells.items())
            means = [round(cell.mean * GRAIN) for _, cell in ordered]
            chunk[metric] = [
                [number for number, _ in ordered],
                means,
                [mean - round(cell.low * GRAIN) for (_, cell), mean in zip(ordered, means, strict=True)],
                [round(cell.high * GRAIN) - mean for (_, cell), mean in zip(ordered, means, strict=True)],
                [cell.count for _, cell in ordered],
            ]
        return block.pack(chunk)

    @classmethod
    def unpack(cls, step_s: int, data: bytes) -> TierChunk:
        """The chunk of `pack`. Raises block.DamagedError."""
        chunk = cls(step_s)
        for metric, columns in _columns(data).items():
            chunk.metrics[metric] = _cells(columns)
        return chunk


def cells_of(data: bytes, metric: str) -> Mapping[int, TierCell]:
    """The cells of one metric of a packed chunk. Raises block.DamagedError."""
    columns = _columns(data).get(metric)
    return _cells(columns) if columns is not None else {}


def _columns(data: bytes) -> dict[str, list[list[int]]]:
    chunk = block.unpack(data)
    if not isinstance(chunk, dict):
        raise block.DamagedError("no chunk of a series")
    return chunk


def _cells(columns: list[list[int]]) -> Cells:
    try:
        return {
            number: TierCell((mean - low) / GRAIN, mean * count / GRAIN, (mean + high) / GRAIN, count)
            for number, mean, low, high, count in zip(*columns, strict=True)
        }
    except (TypeError, ValueError) as error:
        raise block.DamagedError(str(error)) from error


def points_of(content: Any) -> list[Point]:
    """The points of what is in no block yet. Raises block.DamagedError."""
    try:
        return [(float(at), str(name), float(value)) for at, name, value in content["points"]]
    except (TypeError, ValueError, LookupError) as error:
        raise block.DamagedError(str(error)) from error


def tier_for(seconds: float, count: int) -> tuple[Tier, ...]:
    """The tiers to look in for `count` columns over `seconds`: the coarsest whose cells are no wider than a column
    first, then the finer ones, then the coarser ones."""
    width = seconds / max(1, count)
    fitting = [tier for tier in reversed(TIERS) if tier.step_s <= width]
    return (*fitting, *(tier for tier in TIERS if tier.step_s > width))
