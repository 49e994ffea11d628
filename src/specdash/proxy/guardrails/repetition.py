"""A turn that repeats itself without end: found by an exact period of the latest text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdash.proxy.settings import ProxySettings

UNIT_MAX = 500
"""Longest repeated unit, in characters."""
REPEATS = 8
"""Least number of times that a unit stands in a row."""
_BLOCK = 256


class RepetitionWatch:
    """Looks for one unit repeated exactly for at least `repetition_chars`, and eight times, at the end of a text.

    Memory is bounded. The tail is looked at once every 256 characters, however the text is cut into fragments.
    """

    __slots__ = ("_enough", "_keep", "_pending", "_period", "_probes", "_run", "_size", "_tail", "tripped")

    def __init__(self, settings: ProxySettings) -> None:
        self.tripped = False
        self._enough = settings.repetition_chars
        self._keep = max(self._enough, UNIT_MAX * REPEATS) + UNIT_MAX
        self._probes = sorted({min(UNIT_MAX, self._enough // 2), UNIT_MAX})
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
        self._tail = tail = (self._tail + block)[-self._keep :]
        if self._period and tail[-_BLOCK:] == tail[-_BLOCK - self._period : -self._period]:
            self._run += _BLOCK
        else:
            self._period, self._run = self._find(tail)
        return bool(self._period) and self._run >= max(self._enough, self._period * REPEATS)

    def _find(self, tail: str) -> tuple[int, int]:
        """The period of the tail's end and how many characters follow it, or zeros."""
        for probe in self._probes:
            if len(tail) <= probe:
                break
            found = tail.rfind(tail[-probe:], max(0, len(tail) - probe - UNIT_MAX), len(tail) - 1)
            period = len(tail) - probe - found
            if found >= 0:
                return period, _run(tail, period)
        return 0, 0


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
