"""How much of the machine's CPUs other programs took, at any time of the last half hour. Pure."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdash.core.readings import Gpus, Host, ProcessTree

KEPT = 2048
"""Looks at the machine; there is about one a second."""
RECENT_S = 5.0
"""What is called now: long enough that one look decides nothing, and no longer than a verdict may be wrong."""
TOGETHER_S = 0.1
"""Readings of machine and process that are no further apart are one look."""
_GOT_IT = 0.05
"""Share of the time that a thread may wait for a CPU and still have got it whenever it wanted."""


class CpuOfOthers:
    """The share that others took, look by look; a look stands for the time since the one before."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._sums: list[float] = []
        """Share times seconds from the first look to these times."""
        self._last = 0.0

    def add(self, at: float, host: Host | None, process: ProcessTree | None, gpus: Gpus | None) -> None:
        """Take in one look at both; one that lacks a figure is passed over.

        Not held to 0 and more: a look at the machine and one at the process are never of quite the same time, and what
        the first has too much the next has too little. A server that decodes on a GPU and got a CPU whenever it wanted
        one lost nothing to others.
        """
        if host is None or process is None or process.cpu_cores is None:
            return
        if host.cpu_utilisation is None or not host.cpu_count:
            return
        share = host.cpu_utilisation - process.cpu_cores / host.cpu_count
        if gpus is not None and gpus.gpus and process.cpu_wait is not None and process.cpu_wait < _GOT_IT:
            share = 0.0
        if self._times and at < self._times[-1]:
            return
        if self._times and at - self._times[-1] < TOGETHER_S:
            # The other half of the same look.
            self._times.pop()
            self._sums.pop()
        spent = at - self._times[-1] if self._times else 0.0
        self._sums.append((self._sums[-1] if self._sums else 0.0) + share * spent)
        self._times.append(at)
        self._last = share
        if len(self._times) > KEPT:
            del self._times[: KEPT // 4], self._sums[: KEPT // 4]

    def over(self, first: float, last: float) -> float | None:
        """The mean share between two moments, None before the first look; what was not looked at is as the look
        nearest to it."""
        if not self._times:
            return None
        first = max(first, self._times[0])
        if last - first < 1e-3:
            last = first + 1e-3
        return min(1.0, max(0.0, (self._until(last) - self._until(first)) / (last - first)))

    def now(self, now: float) -> float | None:
        """The mean share of the last seconds; None without a recent look."""
        if not self._times or now - self._times[-1] > 3 * RECENT_S:
            return None
        return self.over(self._times[-1] - RECENT_S, self._times[-1])

    def _until(self, moment: float) -> float:
        place = bisect_left(self._times, moment)
        if place == len(self._times):
            return self._sums[-1] + self._last * (moment - self._times[-1])
        if place == 0:
            return self._sums[0]
        before, after = self._times[place - 1], self._times[place]
        part = (moment - before) / (after - before)
        return self._sums[place - 1] + part * (self._sums[place] - self._sums[place - 1])
