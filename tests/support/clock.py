"""A clock that the test moves."""

from dataclasses import dataclass


@dataclass
class Clock:
    """Says the time that it was set to."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now
