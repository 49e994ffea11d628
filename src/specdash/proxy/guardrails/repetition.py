"""A turn that repeats itself without end: found by an exact period of the latest text."""

from __future__ import annotations

UNIT_MAX = 500
"""Longest repeated unit, in characters."""
REPEATS = 8
"""Least number of times that a unit stands in a row."""
ENOUGH = 10_000
"""Least length of such a run, in characters."""
_KEPT = ENOUGH + UNIT_MAX
_BLOCK = 256


class RepetitionWatch:
    """Looks for one unit repeated exactly for at least `ENOUGH` characters, and eight times, at the end of a text.

    Memory is bounded. The tail is looked at once every 256 characters, however the text is cut into fragments.
    """

    __slots__ = ("_pending", "_period", "_run", "_size", "_tail", "tripped")

    def __init__(self) -> None:
        self.tripped = False
        self._pending: list[str] = []
        self._size = 0
        self._tail = ""
        self._period = 0
        self._run = 0

    def feed(self, text: str) -> bool:
        """Take the next piece of the text; True once it repeats endlessly, and from then on."""
        self._pending.append(text)
        self._size += len(text)
        if self._size < _BLOCK:
            return self.tripped
        return self._take()

    def _take(self) -> bool:
        text = "".join(self._pending)
        whole = len(text) - len(text) % _BLOCK
        self._pending = [text[whole:]] if whole < len(text) else []
        self._size = len(text) - whole
        for at in range(0, 0 if self.tripped else whole, _BLOCK):
            if self._look(text[at : at + _BLOCK]):
                self.tripped = True
                break
        return self.tripped

    def _look(self, block: str) -> bool:
        self._tail = tail = (self._tail + block)[-_KEPT:]
        if self._period and tail[-_BLOCK:] == tail[-_BLOCK - self._period : -self._period]:
            self._run += _BLOCK
        else:
            self._period, self._run = self._find(tail)
        return bool(self._period) and self._run >= max(ENOUGH, self._period * REPEATS)

    def _find(self, tail: str) -> tuple[int, int]:
        """The period of the tail's end and how many characters follow it, or zeros."""
        if len(tail) <= UNIT_MAX:
            return 0, 0
        found = tail.rfind(tail[-UNIT_MAX:], max(0, len(tail) - 2 * UNIT_MAX), len(tail) - 1)
        period = len(tail) - UNIT_MAX - found
        return (period, _run(tail, period)) if found >= 0 else (0, 0)


def _run(text: str, period: int) -> int:
    """Length of the longest ending of `text` in which every character equals the one `period` before it."""
    low, high = period, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if text[-middle:-period] == text[len(text) - middle + period :]:
            low = middle
        else:
            high = middle - 1
    return low
