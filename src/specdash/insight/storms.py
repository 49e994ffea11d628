"""Warnings by class: counted, rated, dated, and with the slots and tasks that they touched; in O(1) memory per class,
however many lines come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdash.core.log_facts import UNTOUCHED, Touched

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
    peak: float = 0.0
    slots: Touched = UNTOUCHED
    tasks: Touched = UNTOUCHED
    tasks_before: int = 0
    """Tasks of servers that are gone: their numbers begin anew with the next one."""
    is_former: bool = True

    def add_recent(self, at: float, count: int) -> None:
        self._advance(at)
        self.ring[self.second % MINUTE] += count
        self.peak = max(self.peak, float(sum(self.ring)))

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
    peak_per_minute: float = 0.0
    """The most lines that any minute had, of those that came while we looked."""
    slots: Touched = UNTOUCHED
    tasks: Touched = UNTOUCHED
    """Of the server that writes now."""
    tasks_touched: int = 0
    """Of all servers; a least count where `tasks.more`."""
    is_former: bool = False
    """No line is of the server that writes now."""


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
        storm.slots = storm.slots.and_then(tally.slots)
        if tally.lives_ago:
            storm.tasks_before += len(tally.tasks.ids)
        else:
            storm.tasks = storm.tasks.and_then(tally.tasks)
            storm.is_former = False
        if at - last_at < MINUTE:
            storm.add_recent(at, tally.count)

    def count(self, warning: str) -> int:
        """How many lines of that class came."""
        storm = self._storms.get(warning)
        return storm.count if storm is not None else 0

    def view(self, now: float) -> list[StormView]:
        """Every class, the most recently seen first."""
        views = [
            StormView(
                warning=name,
                count=s.count,
                per_minute=s.per_minute(now),
                first_at=s.first_at,
                last_at=s.last_at,
                sample=s.sample,
                peak_per_minute=s.peak,
                slots=s.slots,
                tasks=s.tasks,
                tasks_touched=s.tasks_before + len(s.tasks.ids),
                is_former=s.is_former,
            )
            for name, s in self._storms.items()
        ]
        return sorted(views, key=lambda view: -view.last_at)

    def new_server(self) -> None:
        """A new server process writes from here on: its tasks are others."""
        for storm in self._storms.values():
            storm.tasks_before += len(storm.tasks.ids)
            storm.tasks = Touched((), storm.tasks.more)
            storm.is_former = True
