"""A turn that repeats itself without end: told from an exact period of the latest text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.proxy.blocks import BlockSink
    from specdash.proxy.settings import ProxySettings

UNIT_MAX = 500
"""Longest repeated unit, in characters."""
REPEATS = 8
"""Least number of times that a unit stands in a row."""
WEAK_FACTOR = 8
"""How much longer a run of a weak unit may be than one of a sentence."""
_LETTERS = 4
_BLOCK = 256


class RepetitionWatch:
    """Looks for one unit repeated exactly for at least `repetition_chars`, and eight times, at the end of a text.

    A unit that reads like prose or code (four different letters, and a space or letters outside ASCII) counts at that
    length. Others, as in rules, padding, tables of zeros or encoded data, count at eight times that length. Memory is
    bounded, and the tail is looked at once every 256 characters of the text, however it is cut into fragments.
    """

    __slots__ = ("_enough", "_keep", "_on", "_pending", "_period", "_probes", "_run", "_size", "_tail", "tripped")

    def __init__(self, settings: ProxySettings) -> None:
        self.tripped = False
        self._on = settings.repetition_cut
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
        for at in range(0, whole if self._on and not self.tripped else 0, _BLOCK):
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
        return bool(self._period) and self._run >= self._needed(tail[-self._period :])

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

    def _needed(self, unit: str) -> int:
        letters = {one for one in unit.casefold() if one.isalpha()}
        prose = len(letters) >= _LETTERS and (any(map(str.isspace, unit)) or any(one > "\x7f" for one in letters))
        return max(self._enough if prose else self._enough * WEAK_FACTOR, len(unit) * REPEATS)


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


class RepetitionCut:
    """A `BlockSink` that ends where the visible text or the reasoning repeats endlessly; calls are not watched.

    `on_trip` is called once, when it ends.
    """

    __slots__ = ("_on_trip", "_sink", "_watch", "tripped")

    def __init__(self, watch: RepetitionWatch, sink: BlockSink, on_trip: Callable[[], None] | None = None) -> None:
        self._watch = watch
        self._sink = sink
        self._on_trip = on_trip
        self.tripped = False

    def thinking(self, text: str) -> None:
        """Reasoning text."""
        if not self.tripped:
            self._sink.thinking(text)
            if self._watch.feed(text):
                self._trip()

    def text(self, text: str) -> None:
        """Visible text."""
        if not self.tripped:
            self._sink.text(text)
            if self._watch.feed(text):
                self._trip()

    def tool(self, index: int, call_id: str, name: str) -> None:
        """A tool call begins."""
        if not self.tripped:
            self._sink.tool(index, call_id, name)

    def arguments(self, index: int, fragment: str) -> None:
        """A piece of its input."""
        if not self.tripped:
            self._sink.arguments(index, fragment)

    def _trip(self) -> None:
        self.tripped = True
        if self._on_trip is not None:
            self._on_trip()
