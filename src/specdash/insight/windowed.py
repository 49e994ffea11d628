"""Totals over any window of the past, as the difference of two totals."""

from __future__ import annotations

from bisect import bisect_left
from typing import Generic, Protocol, Self, TypeVar


class Amount(Protocol):
    """What can be added up and taken back."""

    def __add__(self, other: Self, /) -> Self: ...
    def __sub__(self, other: Self, /) -> Self: ...


T = TypeVar("T", bound=Amount)


class Windowed(Generic[T]):
    """A total of one server, and what it was at times of the last `keep_s` seconds: any window is a difference.

    What comes within `grain_s` seconds is one entry, and a window is off by at most that much.
    """

    def __init__(self, nothing: T, keep_s: float, grain_s: float = 0.0) -> None:
        self._keep_s, self._grain_s = keep_s, grain_s
        self.total = nothing
        self._began = float("-inf")
        """When the newest entry began."""
        self._times: list[float] = []
        self._totals: list[T] = []
        """The totals at these times."""

    def add(self, at: float, amount: T) -> None:
        """Take in what ended at monotonic `at`; a time before the newest one counts as that."""
        at = max(at, self.newest or at)
        self.total += amount
        if self._times and (at < self._began + self._grain_s or at == self._began):
            self._times[-1], self._totals[-1] = at, self.total
            return
        self._began = at
        self._times.append(at)
        self._totals.append(self.total)
        if self._times[0] < at - 1.05 * self._keep_s:
            # The last of the old ones stays: what came after is counted from there.
            gone = bisect_left(self._times, at - self._keep_s) - 1
            del self._times[:gone], self._totals[:gone]

    @property
    def newest(self) -> float | None:
        """Monotonic time of the newest entry."""
        return self._times[-1] if self._times else None

    def since(self, moment: float) -> T:
        """What came from monotonic `moment` on."""
        place = bisect_left(self._times, moment) - 1
        return self.total if place < 0 else self.total - self._totals[place]
