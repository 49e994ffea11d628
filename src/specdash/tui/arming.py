"""Whether the dashboard may change anything: read-only until armed, and read-only again when nobody uses it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Arming:
    """Armed for `idle_s` seconds after the last key. `locked` dashboards are never armed. Times are monotonic."""

    idle_s: float = 60.0
    locked: bool = False
    until: float | None = None

    def armed(self, now: float) -> bool:
        """Whether changes are allowed at this moment."""
        return self.until is not None and now < self.until

    def left_s(self, now: float) -> float | None:
        """Seconds until it disarms itself, None when it is not armed."""
        return self.until - now if self.until is not None and now < self.until else None

    def toggle(self, now: float) -> bool:
        """Arm or disarm; whether it is armed now. A locked one stays as it is."""
        self.until = None if self.armed(now) or self.locked else now + self.idle_s
        return self.until is not None

    def touch(self, now: float) -> None:
        """Somebody is there: begin the idle time anew."""
        if self.armed(now):
            self.until = now + self.idle_s
