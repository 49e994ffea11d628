"""Warnings by class: counted, rated and dated in O(1) memory per class, however many lines come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdash.core.log_facts import WarningTally

MINUTE = 60


@dataclass(slots=True)
class _Storm:
    count: int
    first_at: float
    last_at: float
    sample: str
    ring: list[int] = field(default_factory=lambda: [0] * MINUTE)
    second: int = 0

    def add_recent(self, at: float, count: int) -> None:
        self._advance(at)
        self.ring[self.second % MINUTE] += count

    def per_minute(self, now: float) -> float:
        self._advance(now)
        return float(sum(self.ring))

    def _advance(self, at: float) -> None:
        second = int(at)
        for passed in range(max(self.second + 1, second - MINUTE + 1), second + 1):
            self.ring[passed % MINUTE] = 0
        self.second = max(self.second, second)


@dataclass(frozen=True, slots=True)
class StormView:
    """One class at one moment; times are monotonic seconds."""

    warning: str
    count: int
    per_minute: float
    first_at: float
    last_at: float
    sample: str


class StormBook:
    """All warning classes seen."""

    def __init__(self) -> None:
        self._storms: dict[str, _Storm] = {}

    def add(self, at: float, tally: WarningTally, uptime_s: float | None = None) -> None:
        """Count a tally that was read at `at`.

        With the server's `uptime_s` known, the lines' own time stamps date them, so that a log read from its beginning
        does not look like a storm of this minute.
        """
        first_at, last_at = at, at
        if uptime_s is not None and tally.first_s is not None and tally.last_s is not None:
            first_at = at - max(0.0, uptime_s - tally.first_s)
            last_at = at - max(0.0, uptime_s - tally.last_s)
        storm = self._storms.get(tally.warning)
        if storm is None:
            storm = self._storms[tally.warning] = _Storm(0, first_at, last_at, tally.sample, second=int(at))
        storm.count += tally.count
        storm.last_at = max(storm.last_at, last_at)
        if at - last_at < MINUTE:
            storm.add_recent(at, tally.count)

    def view(self, now: float) -> list[StormView]:
        """Every class, the most recently seen first."""
        views = [
            StormView(name, s.count, s.per_minute(now), s.first_at, s.last_at, s.sample)
            for name, s in self._storms.items()
        ]
        return sorted(views, key=lambda view: -view.last_at)

    def clear(self) -> None:
        """Forget everything: a new server process writes the log."""
        self._storms.clear()
