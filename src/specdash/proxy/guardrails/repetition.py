"""A turn that repeats itself without end: found by an exact period of the latest text."""

from __future__ import annotations

UNIT_MAX = 500
"""Longest repeated unit, in characters."""
ENOUGH = 10_000
"""Least length of a run of one unit, in characters."""
_BLOCK = 256


class RepetitionWatch:
    """Looks for one unit repeated exactly for at least `ENOUGH` characters at the end of a text.

    Memory is bounded. The tail is looked at once every 256 characters, however the text is cut into fragments.
    """

    def __init__(self) -> None:
        self.tripped = False
        self._pending: list[str] = []
        self._size = 0
        self._tail = ""

    def feed(self, text: str) -> bool:
        """Take the next piece of the text; True once it repeats endlessly, and from then on."""
        self._pending.append(text)
        self._size += len(text)
        if self._size < _BLOCK or self.tripped:
            return self.tripped
        joined, at = "".join(self._pending), 0
        while len(joined) - at >= _BLOCK and not self.tripped:
            self._tail = (self._tail + joined[at : at + _BLOCK])[-ENOUGH:]
            self.tripped = len(self._tail) == ENOUGH and _repeats(self._tail)
            at += _BLOCK
        self._pending, self._size = [joined[at:]], len(joined) - at
        return self.tripped


def _repeats(tail: str) -> bool:
    """Whether every character equals the one a period of at most `UNIT_MAX` before it."""
    found = tail.rfind(tail[-UNIT_MAX:], len(tail) - 2 * UNIT_MAX, len(tail) - 1)
    period = len(tail) - UNIT_MAX - found
    return found >= 0 and tail[period:] == tail[:-period]
