"""How far a long measurement is, on stderr: one line kept up to date on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

_BETWEEN_LINES_S = 60.0
_MOST_WORDS = 60
_FIRST_SHARE = 0.02
"""Less is too little to tell how long the rest takes."""


@dataclass(slots=True)
class Progress:
    """Shows `done` of `total` steps of about the same length, and how long the rest will take.

    Where steps differ, count what they have in common (requests, tokens), or give `left_s` to `show`. Nothing of a
    progress is shown when `quiet`, only what is said.
    """

    total: float
    quiet: bool = False
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    clock: Callable[[], float] = time.monotonic
    _began: float = field(init=False)
    _said: float = field(init=False)
    _live: bool = field(init=False)
    _open: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._began = self._said = self.clock()
        self._live = self.stream.isatty()

    def left_s(self, done: float) -> float | None:
        """Seconds until all is done, at the pace so far; None while that is a guess."""
        if self.total <= 0 or done < _FIRST_SHARE * self.total or done <= 0:
            return None
        return (self.clock() - self._began) / done * max(0.0, self.total - done)

    def show(self, done: float, words: str = "", left_s: float | None = None) -> None:
        """So far; `words` say what is going on."""
        if self.quiet:
            return
        left = left_s if left_s is not None else self.left_s(done)
        share = min(1.0, done / self.total) if self.total > 0 else 0.0
        line = f"  {share:4.0%}  {words[:_MOST_WORDS]}" + (f"  {duration(left)} left" if left is not None else "")
        if self._live:
            print(f"\r\x1b[K{line}", end="", file=self.stream, flush=True)
            self._open = True
        elif self.clock() - self._said >= _BETWEEN_LINES_S:
            self._said = self.clock()
            print(f"specdash:{line[1:]}", file=self.stream, flush=True)

    def say(self, words: str) -> None:
        """A line that stays."""
        self.end()
        print(f"specdash: {words}", file=self.stream, flush=True)

    def end(self) -> None:
        """Clear the running line."""
        if self._open:
            print("\r\x1b[K", end="", file=self.stream, flush=True)
            self._open = False


def duration(seconds: float) -> str:
    """In one or two units: `42 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
