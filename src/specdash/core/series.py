"""A bounded time series and its view as chart columns."""

from __future__ import annotations

import math
from array import array


class Series:
    """Ring buffer of (monotonic time, value) samples, oldest dropped first.

    A gap is stored as NaN: the source was asked and had nothing to say. Times must not decrease.
    """

    __slots__ = ("_capacity", "_start", "_times", "_values")

    def __init__(self, capacity: int = 4096) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self._capacity = capacity
        self._times: array[float] = array("d")
        self._values: array[float] = array("d")
        self._start = 0

    def __len__(self) -> int:
        return len(self._times)

    def append(self, at: float, value: float | None) -> None:
        """Add one sample; None is a gap."""
        number = math.nan if value is None else float(value)
        if len(self._times) < self._capacity:
            self._times.append(at)
            self._values.append(number)
            return
        self._times[self._start] = at
        self._values[self._start] = number
        self._start = (self._start + 1) % self._capacity

    def last(self) -> tuple[float, float] | None:
        """The newest sample that is not a gap, None when there is none."""
        for index in range(len(self._times) - 1, -1, -1):
            at = (self._start + index) % len(self._times)
            if not math.isnan(self._values[at]):
                return self._times[at], self._values[at]
        return None

    def since(self, start: float) -> list[tuple[float, float]]:
        """Samples with time >= start, oldest first; gaps are NaN."""
        count = len(self._times)
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if self._times[(self._start + middle) % count] < start:
                low = middle + 1
            else:
                high = middle
        return [
            (self._times[(self._start + i) % count], self._values[(self._start + i) % count]) for i in range(low, count)
        ]

    def columns(self, now: float, window: float, count: int) -> list[float | None]:
        """Mean per column for a chart of `count` columns ending at `now`, `window` seconds wide; None where nothing
        is known.

        Columns are aligned to multiples of window / count of the clock, so a column's value never changes once its time
        has passed: the chart moves by whole columns and only its last one is live.
        """
        if count < 1:
            return []
        width = window / count
        last_column = math.floor(now / width)
        first_column = last_column - count + 1
        sums = [0.0] * count
        seen = [0] * count
        for at, value in self.since(first_column * width):
            index = math.floor(at / width) - first_column
            if 0 <= index < count and not math.isnan(value):
                sums[index] += value
                seen[index] += 1
        return [total / n if n else None for total, n in zip(sums, seen, strict=True)]
