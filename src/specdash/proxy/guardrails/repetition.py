"""A turn that repeats itself without end: told from an exact period of the latest text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from specdash.proxy.answer.blocks import Cut
from specdash.proxy.guardrails.markup_search import FENCE_LINE_MAX, fence_closes, fence_opening

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.proxy.answer.blocks import BlockSink
    from specdash.proxy.settings import ProxySettings

UNIT_MAX = 500
"""Longest repeated unit, in characters."""
REPEATS = 8
"""Least number of times that a unit stands in a row."""
WEAK_FACTOR = 8
"""How much longer a run of a weak unit may be than one of a sentence."""
ROWS_FACTOR = 20
"""The same for rows of data or code, and for anything in a fence: equal ones by the hundred are asked for."""
_LETTERS = 4
_BLOCK = 256
_WORD = re.compile(r"[^\W\d_][\w'’-]*")
_CJK = "\u2e80"
_SEPARATOR = re.compile(r"[|\t;{}=<>()\[\]\",]")
_TIGHT = re.compile(r"[,;](?!\s)|[|\t]|(?<=\S) {2,}(?=\S)")
"""Separators that no sentence has: they count twice and more."""
_FIELD = re.compile(r"\s*(?:- )?[a-z_][\w-]*: .*[^.!?]\Z|\s*(?:\[|\$ |[A-Z]{4,}\b)")
"""A field of YAML, a line of a log or a shell, a statement of SQL."""
_ROW_END = re.compile(r"[,;|>})\]\"']\s*\Z")
_ASKED_MAX = 20_000
_SENTENCE_SHARE = 0.75


class RepetitionWatch:
    """Looks for one unit repeated exactly for at least `repetition_chars`, and eight times, at the end of a text.

    A unit with a sentence in it counts at that length. Others, as in rules, padding, tables of zeros or encoded data,
    count at eight times that length; rows of data, and all that stands in a fence, at twenty times. What the user asked
    for by its words, as a line to be written a hundred times, is taken for rows. Memory is bounded, and the tail is
    looked at once every 256 characters of the text, however it is cut into fragments.
    """

    __slots__ = (
        "_asked", "_enough", "_fence", "_keep", "_line", "_on", "_pending", "_period", "_probes", "_run", "_size",
        "_tail", "tripped",
    )  # fmt: skip

    def __init__(self, settings: ProxySettings, asked: str = "") -> None:
        self.tripped = False
        self._asked = asked[-_ASKED_MAX:]
        self._fence = ""
        self._line = ""
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
        self._note_fences(block)
        self._tail = tail = (self._tail + block)[-self._keep :]
        if self._period and tail[-_BLOCK:] == tail[-_BLOCK - self._period : -self._period]:
            self._run += _BLOCK
        else:
            self._period, self._run = self._find(tail)
        return bool(self._period) and self._enough <= self._run >= self._needed(tail[-self._period :])

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
        letters = {name for name in unit.casefold() if name.isalpha()}
        if len(letters) < _LETTERS or (all(map(str.isascii, letters)) and not any(map(str.isspace, unit))):
            factor = WEAK_FACTOR
        elif self._fence or not _has_sentence(unit) or self._is_asked(unit):
            factor = ROWS_FACTOR
        else:
            factor = 1
        return max(self._enough * factor, len(unit) * REPEATS)

    def _is_asked(self, unit: str) -> bool:
        """True when the unit, which may begin anywhere in what is repeated, stands in the user's instruction."""
        turned = ((unit[at:] + unit[:at]).strip() for at in range(len(unit)))
        return any(len(name) >= _LETTERS and name in self._asked for name in turned)

    def _note_fences(self, block: str) -> None:
        *lines, self._line = (self._line + block).split("\n")
        for line in lines:
            line = line.lstrip(" ")
            if not self._fence:
                self._fence = fence_opening(line)
            elif fence_closes(line, self._fence):
                self._fence = ""
        self._line = self._line[: FENCE_LINE_MAX + 1]


def _has_sentence(unit: str) -> bool:
    """True when a line of a repeated unit reads like prose, not like a row of data or code."""
    if "\n" not in unit:
        return _is_sentence(unit)
    # The unit may begin anywhere in a line.
    head, tail = unit.split("\n", 1)
    lines = (tail + head).split("\n")
    return any(_is_sentence(line) and not _ROW_END.search(line) and not _FIELD.match(line) for line in lines)


def _is_sentence(line: str) -> bool:
    line = line.strip()
    words = _WORD.findall(line)
    if len(words) < 3 and sum(name >= _CJK for name in line) < 6:
        return False
    plain = sum(map(len, words)) + sum(map(str.isspace, line))
    separators = len(_SEPARATOR.findall(line)) + 2 * len(_TIGHT.findall(line))
    return plain >= _SENTENCE_SHARE * len(line) and separators * 3 <= len(words) + 2


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


class RepetitionCut(Cut):
    """Ends an answer where its visible text or its reasoning repeats endlessly; calls are not watched."""

    __slots__ = ("_watch",)

    def __init__(self, watch: RepetitionWatch, sink: BlockSink, on_cut: Callable[[], None] | None = None) -> None:
        super().__init__(sink, on_cut)
        self._watch = watch

    def thinking(self, text: str) -> None:
        if not self.is_cut:
            self._sink.thinking(text)
            if self._watch.feed(text):
                self.cut()

    def text(self, text: str) -> None:
        if not self.is_cut:
            self._sink.text(text)
            if self._watch.feed(text):
                self.cut()
