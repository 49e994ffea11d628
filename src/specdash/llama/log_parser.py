"""Bytes of a llama-server log in, facts out.

Built for storms: a log may hold a million warnings, so the work per line is a look-up. A block of lines is reduced to
shapes (see `log_grammar.forms`) in one pass, and every shape is looked up among those already known. Only lines that
carry numbers are looked at one by one, and matched with a regex if their layout (see `log_reading`) is new. Warnings
are counted per block. What is remembered is bounded.
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Final

from specdash.core.log_facts import (
    UNTOUCHED,
    LogBatch,
    LogFact,
    ServerEvent,
    WarningTally,
)
from specdash.llama.log_grammar import DROPPED
from specdash.llama.log_prefix import ANSI, Clock, json_message_end, seconds_of, whole_microseconds
from specdash.llama.log_reading import CONTINUATION, LAYOUT, MALFORMED, Reading, cutter, read_shape
from specdash.llama.log_steps import StepAdder
from specdash.llama.log_touched import LOOKED_AT, NAMING, evenly, touched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.llama.log_prefix import Foreign

MAX_LINE: Final = 64 * 1024
"""Bytes of a line that are looked at; the rest of a longer line is skipped."""
TAIL_CHARACTERS: Final = 500
SAMPLE_CHARACTERS: Final = 300
_BLOCK = 256 * 1024
_MAX_SHAPES = 4096
_MAX_SHAPE = 1024
_MAX_LAYOUTS = 4096
_MAX_LEARNT = 32
_MAX_SAMPLES = 5
_MAX_CONTINUATION = 500
_MAX_ORIGINS = 256
_BACKWARDS_S = 1.0
"""Time stamps of several threads may be out of order by milliseconds; going back further means a new server."""

_UNPRINTABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def clean_line(line: bytes, characters: int) -> str:
    """A raw line as text for people: colour codes and control characters removed, invalid UTF-8 replaced, cut."""
    text = ANSI.sub(b"", line[: 8 * characters]).decode(errors="replace").replace("\t", " ")
    return _UNPRINTABLE.sub("", text)[:characters]


class LogParser:
    """Turns the bytes of one log, in pieces of any size, into batches of facts.

    How the bytes are cut into pieces makes no difference to the facts and counts, but that steps are added up within a
    piece only. A line without its newline waits for the next piece. `remember_shapes` is for tests: without it every
    line is classified and matched anew, with the same outcome.
    """

    def __init__(self, *, tail_lines: int = 200, remember_shapes: bool = True) -> None:
        self._known: dict[bytes, Reading] = {}
        self._cutters: dict[bytes, Callable[[bytes], tuple[bytes, ...]]] = {}
        self._remember = remember_shapes
        self._learnt: tuple[Foreign, ...] = ()
        self._held = bytearray()
        self._tail: deque[bytes] = deque(maxlen=tail_lines)
        self._previous: Reading | None = None
        self._continued = 0
        self._begun = False
        self._headers: dict[int | None, tuple[int, int]] = {}
        self._headers_used: set[int | None] = set()
        self._clocks: dict[int | None, float] = {}
        self._steps = StepAdder()
        self._reset_batch()

    def feed(self, data: bytes) -> LogBatch:
        """Read the next piece of the log."""
        for start in range(0, len(data), _BLOCK):
            self._feed_block(data[start : start + _BLOCK])
        return self._take_batch()

    def close(self) -> LogBatch:
        """Read what is left, if the log does not end with a newline."""
        if self._held:
            self._consume(bytes(self._held))
            self._held.clear()
        return self._take_batch()

    def _feed_block(self, data: bytes) -> None:
        last = data.rfind(b"\n")
        if last < 0:
            self._hold(data)
            return
        if self._held:
            first = data.find(b"\n")
            self._hold(data[:first])
            self._consume(bytes(self._held) + data[first:last])
            self._held.clear()
        else:
            self._consume(data[:last])
        self._hold(data[last + 1 :])

    def _hold(self, part: bytes) -> None:
        self._held += part[: MAX_LINE - len(self._held)]

    def _reset_batch(self) -> None:
        self._lines = 0
        self._unrecognised = 0
        self._facts: list[LogFact] = []
        self._tallies: dict[tuple[int, str], WarningTally] = {}
        self._life = 0
        self._cuts: list[int] = []
        self._samples: list[str] = []
        self._restarted = False
        self._tail.clear()

    def _take_batch(self) -> LogBatch:
        batch = LogBatch(
            self._lines,
            self._unrecognised,
            tuple(self._steps.added_up(self._facts)),
            tuple(
                tally if life == self._life else replace(tally, lives_ago=self._life - life)
                for (life, _), tally in self._tallies.items()
            ),
            tuple(clean_line(line, TAIL_CHARACTERS) for line in self._tail),
            self._restarted,
            tuple(self._samples),
        )
        self._reset_batch()
        return batch

    def _consume(self, block: bytes) -> None:
        """Read complete lines, given without the last newline."""
        lines = block.split(b"\n")
        if len(block) > MAX_LINE and max(map(len, lines)) > MAX_LINE:
            lines = [line[:MAX_LINE] for line in lines]
            block = b"\n".join(lines)
        if b"\x1b" in block:
            block = ANSI.sub(b"", block)
            lines = block.split(b"\n")
        shapes = block.translate(None, DROPPED).split(b"\n")
        while lines:
            found, lesson = self._readings(shapes)
            if found:
                self._take_in(lines[: len(found)], found)
            if lesson is not None:
                self._learn(lesson)
            lines, shapes = lines[len(found) :], shapes[len(found) :]

    def _take_in(self, lines: list[bytes], found: list[Reading]) -> None:
        self._capture_block(lines, found)
        self._previous = found[-1]
        self._lines += len(lines)
        begin = 0
        for cut in self._cuts:
            self._tally(lines[begin:cut], found[begin:cut])
            self._life, begin = self._life + 1, cut
        self._cuts.clear()
        self._tally(lines[begin:] if begin else lines, found[begin:] if begin else found)
        if self._tail.maxlen:
            self._tail.extend(lines[-self._tail.maxlen :])

    def _readings(self, shapes: list[bytes]) -> tuple[list[Reading], Foreign | None]:
        """What the lines are, up to the first one that teaches a prefix: it and those behind it are read with that."""
        found = list(map(self._known.get, shapes))
        if None not in found:
            return found, None  # type: ignore[return-value]
        for index, reading in enumerate(found):
            if reading is None:
                found[index] = reading = self._look_up(shapes[index])
                lesson = reading.prefix.learns
                if lesson is not None and lesson not in self._learnt and len(self._learnt) < _MAX_LEARNT:
                    return found[:index], lesson  # type: ignore[return-value]
        return found, None  # type: ignore[return-value]

    def _look_up(self, shape: bytes) -> Reading:
        reading = self._known.get(shape)
        if reading is None:
            reading = read_shape(shape, self._learnt)
            if self._remember and len(shape) <= _MAX_SHAPE:
                if len(self._known) >= _MAX_SHAPES:
                    self._known.clear()
                self._known[shape] = reading
        return reading

    def _learn(self, foreign: Foreign) -> None:
        """Keep a prefix that this log has not shown before, and forget what was read without it."""
        self._learnt = tuple(sorted((*self._learnt, foreign), key=lambda known: -len(known.shape)))
        self._known.clear()
        self._cutters.clear()

    def _capture_block(self, lines: list[bytes], found: list[Reading]) -> None:
        """Take the values out of the lines, in order.

        The common kind, a stamped line of a slot, is captured here without a further call, in just the way in which
        `_capture` does it; everything out of the ordinary about such a line is left to `_capture`.
        """
        keep = self._facts.append
        known = self._cutters.get
        clock = self._clocks.get(None, inf)
        for index, reading in enumerate(found):
            if not reading.busy:
                continue
            make, line = reading.make_common, lines[index]
            if make is not None:
                cut = known(line.translate(LAYOUT))
                groups = cut(line) if cut is not None else self._fields(reading, line)
                if groups is not None:
                    at = (whole_microseconds(groups[0]) + int(groups[1] + groups[2])) / 1e6
                    if at >= clock - _BACKWARDS_S:
                        try:
                            fact = make(int(groups[3]), int(groups[4]), groups[5:], at, None)
                        except ValueError:
                            pass
                        else:
                            keep(fact)
                            if reading.ends_header:
                                self._headers.pop(None, None)
                            self._clocks[None] = clock = at
                            continue
            self._handle(index, line, found)
            clock = self._clocks.get(None, inf)

    def _fields(self, reading: Reading, line: bytes) -> tuple[bytes, ...] | None:
        """What the line's pattern captures; None if the values are not what its shape promised."""
        layout = line.translate(LAYOUT)
        cut = self._cutters.get(layout)
        if cut is not None:
            return cut(line)
        match = reading.match(line[: json_message_end(line)] if reading.prefix.is_quoted else line)
        if match is None:
            return None
        if self._remember and reading.any_digits and len(line) <= _MAX_SHAPE:
            if len(self._cutters) >= _MAX_LAYOUTS:
                self._cutters.clear()
            self._cutters[layout] = cutter(match, len(line))
        return match.groups()

    def _handle(self, index: int, line: bytes, found: list[Reading]) -> None:
        reading = found[index]
        if reading.captures:
            if not self._capture(reading, line, found, index):
                found[index] = reading = MALFORMED
        elif reading.may_continue:
            previous = found[index - 1] if index else self._previous
            if previous is not None and self._continues(previous):
                found[index] = reading = CONTINUATION
        if reading.unknown and len(self._samples) < _MAX_SAMPLES:
            self._samples.append(clean_line(line, TAIL_CHARACTERS))

    def _continues(self, previous: Reading) -> bool:
        if previous.line_class.continues:
            self._continued = 0
        elif previous is not CONTINUATION:
            return False
        self._continued += 1
        return self._continued <= _MAX_CONTINUATION

    def _capture(self, reading: Reading, line: bytes, found: list[Reading], index: int) -> bool:
        """Take the values out of a line; False if they are not what its shape promised."""
        clock = reading.clock
        groups = self._fields(reading, line)
        if groups is None:
            return False
        at = origin = slot = task = None
        if reading.routed:
            origin = int(groups[0])
            groups = groups[1:]
        if clock is Clock.STAMP:
            at = (whole_microseconds(groups[0]) + int(groups[1] + groups[2])) / 1e6
            groups = groups[3:]
        elif clock is Clock.JSON:
            at = int(groups[0]) / 1e6
            groups = _unescaped(groups[1:])
        if reading.in_slot:
            slot, task = int(groups[0]), int(groups[1])
            groups = groups[2:]
        elif self._headers:
            slot, task = self._under_header(reading, origin)
        if reading.make is None:
            if slot is not None and task is not None:
                self._open_header(origin, slot, task)
            return True
        try:
            fact = reading.make(slot, task, groups, at, origin)
        except ValueError:
            return False
        before = self._clocks.get(origin)
        if at is None or before is None or at < before - _BACKWARDS_S or reading.starts:
            self._watch_clock(reading, at, origin, found, index)
        else:
            self._clocks[origin] = at
        self._facts.append(fact)
        if reading.ends_header:
            self._headers.pop(origin, None)
        return True

    def _open_header(self, origin: int | None, slot: int, task: int) -> None:
        if len(self._headers) >= _MAX_ORIGINS:
            self._headers.clear()
            self._headers_used.clear()
        self._headers[origin] = (slot, task)
        self._headers_used.discard(origin)

    def _under_header(self, reading: Reading, origin: int | None) -> tuple[int | None, int | None]:
        """Slot and task of the timing block that the line belongs to; a block has one line on prefill, its first."""
        if reading.line_class.id == "prompt_timing" and origin in self._headers:
            if origin in self._headers_used:
                del self._headers[origin]
            self._headers_used.add(origin)
        return self._headers.get(origin, (None, None))

    def _watch_clock(
        self, reading: Reading, at: float | None, origin: int | None, found: list[Reading], index: int
    ) -> None:
        """Notice that a new server writes from here on, and forget what the old one was doing."""
        before = self._clocks.get(origin)
        if reading.starts:
            begun = self._begun or any(other.begins for other in found[:index])
            restarted = begun if origin is None else before is not None
        else:
            restarted = before is not None and at is not None and at < before - _BACKWARDS_S
        if at is not None:
            if before is None and len(self._clocks) >= _MAX_ORIGINS:
                self._clocks.clear()
            self._clocks[origin] = at
        if not restarted:
            return
        if origin is None:
            self._restarted = True
            self._cuts.append(index)
            self._headers.clear()
        self._headers.pop(origin, None)
        self._facts.append(ServerEvent("restarted", (), at, origin))

    def _tally(self, lines: list[bytes], found: list[Reading]) -> None:
        backwards = found[::-1]
        spans: dict[str, tuple[int, int, int]] = {}
        for reading, count in Counter(found).items():
            self._begun = self._begun or reading.begins
            if reading.unknown:
                self._unrecognised += count
            if reading.line_class.severity is None:
                continue
            first, last = found.index(reading), len(found) - 1 - backwards.index(reading)
            known = spans.get(reading.line_class.id, (0, first, last))
            spans[reading.line_class.id] = (known[0] + count, min(known[1], first), max(known[2], last))
        for name, (count, first, last) in spans.items():
            slots, tasks = UNTOUCHED, UNTOUCHED
            if name in NAMING:
                places: Sequence[int] = range(first, last + 1)
                if len(places) > count:
                    places = [index for index in places if found[index].line_class.id == name]
                slots, tasks = touched([lines[index] for index in evenly(places)], all_seen=count <= LOOKED_AT)
            tally = WarningTally(
                name,
                count,
                seconds_of(found[first].prefix, lines[first]),
                seconds_of(found[last].prefix, lines[last]),
                "" if (self._life, name) in self._tallies else clean_line(lines[first], SAMPLE_CHARACTERS),
                slots,
                tasks,
            )
            before = self._tallies.get((self._life, name))
            self._tallies[self._life, name] = tally if before is None else before.and_then(tally)


def _unescaped(groups: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Captures of a JSON line as they were before they were escaped."""
    return tuple(_unescape(group) if b"\\" in group else group for group in groups)


def _unescape(group: bytes) -> bytes:
    try:
        return str(json.loads(b'"' + group + b'"')).encode(errors="replace")
    except ValueError:
        return group
