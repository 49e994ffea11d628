"""Bytes of a llama-server log in, facts out.

Built for storms: a log may hold a million warnings, so the work per line is a look-up. Lines that differ in their
digits alone mean the same: a block of lines is reduced to its *frames*, with 0 for every digit, in one pass, and every
frame is looked up among those already known. One that is new is read by its shape (see `log_grammar.forms`) and by the
regex of that. The numbers of all lines of a block that mean the same are taken at once. Warnings are counted per block.
What is remembered is bounded.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from dataclasses import replace
from itertools import compress
from math import inf
from operator import attrgetter, not_
from typing import TYPE_CHECKING, Final, get_args

from specdash.core.log_facts import (
    DETAIL,
    TOLD,
    UNTOUCHED,
    AcceptancePerPosition,
    DecodeTiming,
    LogBatch,
    LogFact,
    PromptTiming,
    RequestAcceptance,
    ServerEvent,
    TaskLaunched,
    TaskReleased,
    TotalTiming,
    Touched,
    VerificationSteps,
    WarningTally,
)
from specdash.llama.log_grammar import WARNING_CLASSES, Context, Made, PrintedStep, TimingHeader, shape_of
from specdash.llama.log_reading import (
    ANSI,
    CONTINUATION,
    MALFORMED,
    ShapeMeaning,
    is_behind_text,
    read_line,
    read_shape,
    seconds_of,
)
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RUN_S: Final = 1.0
"""A run of steps covers at most this long, so that a date taken from its end is at most that far off."""
_MAX_SLOTS = 1024
_TELLING = attrgetter("telling")
_DETAIL = attrgetter("is_detail")
_TimingLine = PromptTiming | DecodeTiming | TotalTiming | RequestAcceptance | AcceptancePerPosition
_UNDER_HEADER = get_args(_TimingLine)


@dataclass(slots=True)
class _Run:
    slot: int
    task: int
    origin: int | None
    first_s: float | None
    replay: bool
    """Whether the next step is one."""
    last_s: float | None = None
    """When its last step ended, or before its first one, when the restore was that this one follows."""
    steps: int = 0
    accepted: int = 0
    generated: int = 0
    replays: int = 0
    restored: int = 0
    replayed: int = 0
    replay_s: float = 0.0
    until_s: float = inf
    """Steps after this time stamp are another run."""


class StepAdder:
    """Adds up the steps of each slot that have no other fact between them, and tells replays from steps that count.

    A step repeats tokens counted already if a checkpoint was restored after the slot's last step.
    """

    def __init__(self) -> None:
        self._runs: dict[tuple[int | None, int], _Run] = {}
        """Runs under way by origin and slot, in the order of their last steps."""
        self._restored: dict[tuple[int | None, int], float | None] = {}
        """Origin and slot of those whose next step is a replay, and when the restore was; runs under way left out."""

    def added_up(self, facts: Iterable[LogFact | PrintedStep]) -> list[LogFact]:
        """The next facts of a log, with the steps added up."""
        found: list[LogFact] = []
        run: _Run | None = None
        for fact in facts:
            if not isinstance(fact, tuple):
                if run is not None:
                    self._end_runs(found)
                    run = None
                if self._restored:
                    self._forget(fact)
                found.append(fact)
                continue
            slot, task, accepted, generated, restored, at, origin = fact
            if (
                run is None
                or slot != run.slot
                or task != run.task
                or origin != run.origin
                or (at is not None and at > run.until_s)
            ):
                run = self._run_of(fact, found)
            if run.replay:
                run.replays += 1
                # Of the draft tokens and the one before them, all but the last were decoded before.
                run.replayed += generated
                if at is not None and run.last_s is not None:
                    run.replay_s += max(0.0, at - run.last_s)
            else:
                run.steps += 1
                run.accepted += accepted
                run.generated += generated
            run.last_s = at
            run.restored += restored
            run.replay = restored
        self._end_runs(found)
        return found

    def _run_of(self, step: PrintedStep, found: list[LogFact]) -> _Run:
        slot, task, _, _, _, at, origin = step
        key = (origin, slot)
        run = self._runs.get(key)
        if run is not None and (run.task != task or (at is not None and at > run.until_s)):
            self._end_runs(found)
            run = None
        if run is None:
            run = _Run(slot, task, origin, at, key in self._restored, self._restored.get(key))
            if at is not None:
                run.until_s = at + RUN_S
        else:
            del self._runs[key]
        self._runs[key] = run
        return run

    def _end_runs(self, found: list[LogFact]) -> None:
        for key, run in self._runs.items():
            found.append(
                VerificationSteps(
                    run.slot, run.task, run.steps, run.accepted, run.generated, run.replays, run.restored, run.first_s,
                    run.last_s, run.origin, run.replayed, round(run.replay_s, 6),
                )
            )  # fmt: skip
            if not run.replay:
                self._restored.pop(key, None)
            elif len(self._restored) < _MAX_SLOTS:
                self._restored[key] = run.last_s
        self._runs.clear()

    def _forget(self, fact: LogFact) -> None:
        """The first step of a task or of a server repeats nothing."""
        if isinstance(fact, (TaskLaunched, TaskReleased)):
            self._restored.pop((fact.origin, fact.slot), None)
        elif isinstance(fact, ServerEvent) and fact.name == "restarted":
            self._restored = {
                key: at for key, at in self._restored.items() if fact.origin is not None and key[0] != fact.origin
            }


LOOKED_AT: Final = 24
_SLOT_PREFIX = re.compile(rb"slot[^:|]{0,80}: *id *(\d{1,9}) *\| *task *(-?\d{1,18}) *\|")
_SEQUENCE = re.compile(rb"for sequence (\d{1,9}) ")
"""Of `find_slot`: sequences are slots."""
_PURGED = re.compile(rb"purging slot (\d{1,9}) ")
_CANCELLED = re.compile(rb"id_task = (\d{1,18})")
_FAILED = re.compile(rb"task id = (\d{1,18})")
_WORDS = ("for sequence", "purging slot", "id_task", "task id")
NAMING: Final = frozenset(
    name
    for name, line_class in WARNING_CLASSES.items()
    if not line_class.forms
    or any(
        form.context is Context.AFTER_SLOT or any(word in form.template for word in _WORDS) for form in line_class.forms
    )
)
"""Classes whose lines can name a slot or a task; of those without forms nothing is known."""


def evenly(indices: Sequence[int]) -> Iterable[int]:
    """At most `LOOKED_AT` of the indices, evenly spread, the first and the last among them."""
    if len(indices) <= LOOKED_AT:
        return indices
    step = (len(indices) - 1) / (LOOKED_AT - 1)
    return [indices[round(place * step)] for place in range(LOOKED_AT)]


def touched(lines: Iterable[bytes], *, all_seen: bool) -> tuple[Touched, Touched]:
    """Slots and tasks that the lines name; `all_seen` says that they are all there are."""
    slots: list[bytes] = []
    tasks: list[bytes] = []
    for line in lines:
        prefix = _SLOT_PREFIX.search(line)
        if prefix is not None:
            slots.append(prefix[1])
            tasks.append(prefix[2])
            continue
        for pattern, found in ((_SEQUENCE, slots), (_PURGED, slots), (_CANCELLED, tasks), (_FAILED, tasks)):
            match = pattern.search(line)
            if match is not None:
                found.append(match[1])
                break
    return _distinct(slots, all_seen=all_seen), _distinct(tasks, all_seen=all_seen)


def _distinct(numbers: Sequence[bytes], *, all_seen: bool) -> Touched:
    if not numbers:
        return UNTOUCHED
    latest_first = dict.fromkeys(int(number) for number in reversed(numbers))
    ids = tuple(number for number in reversed(latest_first) if number >= 0)
    return Touched(ids, bool(ids) and not all_seen)


MAX_LINE: Final = 64 * 1024
"""Bytes of a line that are looked at; the rest of a longer line is skipped."""
TAIL_CHARACTERS: Final = 500
SAMPLE_CHARACTERS: Final = 300
_BLOCK = 256 * 1024
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_MAX_FRAMES = 8192
_MAX_FRAME = 1024
_MAX_SAMPLES = 5
_MAX_CONTINUATION = 500
_MAX_ORIGINS = 256
_BACKWARDS_S = 1.0
"""Time stamps of several threads may be out of order by milliseconds; going back further means a new server."""

_UNPRINTABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def clean_line(line: bytes, characters: int) -> str:
    """A raw line as text for people: colour codes and control characters removed, invalid UTF-8 replaced, cut."""
    text = line[: 8 * characters].decode(errors="replace")
    if text.isprintable():
        return text[:characters]
    text = ANSI.sub(b"", line[: 8 * characters]).decode(errors="replace").replace("\t", " ")
    return _UNPRINTABLE.sub("", text)[:characters]


def clean_lines(lines: list[bytes]) -> tuple[str, ...]:
    """`clean_line` for each of the tail's lines, decoded at once."""
    texts = b"\n".join(lines).decode(errors="replace").split("\n")
    if len(texts) != len(lines):
        return tuple(clean_line(line, TAIL_CHARACTERS) for line in lines)
    return tuple(
        text if len(text) <= TAIL_CHARACTERS and text.isprintable() else clean_line(line, TAIL_CHARACTERS)
        for text, line in zip(texts, lines, strict=True)
    )


class LogParser:
    """Turns the bytes of one log, in pieces of any size, into batches of facts.

    How the bytes are cut into pieces makes no difference to the facts and counts, but that steps are added up within a
    piece only. A line without its newline waits for the next piece. `remember_shapes` is for tests: without it every
    line is classified and matched by itself, with the same outcome.
    """

    def __init__(self, *, tail_lines: int = 200, remember_shapes: bool = True) -> None:
        self._known: dict[bytes, ShapeMeaning] = {}
        """By the frame of a line, which is the line with 0 for every digit."""
        self._shapes: dict[tuple[bytes, bool], ShapeMeaning] = {}
        """By the shape of a line, and whether the server's clock stands behind other text in it."""
        self._remember = remember_shapes
        self._held = bytearray()
        self._tail: deque[tuple[int, bytes, bool]] = deque(maxlen=tail_lines)
        self._told: deque[tuple[int, bytes, bool]] = deque(maxlen=tail_lines)
        """The last lines that are no detail; each with its number in the batch."""
        self._within_detail = False
        """Whether the last line was detail: a line that continues it is, too."""
        self._previous: ShapeMeaning | None = None
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
        self._facts: list[LogFact | PrintedStep] = []
        self._tallies: dict[tuple[int, str], WarningTally] = {}
        self._life = 0
        self._cuts: list[int] = []
        self._samples: list[str] = []
        self._restarted = False
        self._tail.clear()
        self._told.clear()

    def _take_batch(self) -> LogBatch:
        first = self._tail[0][0] if self._tail else 0
        tail = [*(line for line in self._told if line[0] < first), *self._tail]
        batch = LogBatch(
            self._lines,
            self._unrecognised,
            tuple(self._steps.added_up(self._facts)),
            tuple(
                tally if life == self._life else replace(tally, lives_ago=self._life - life)
                for (life, _), tally in self._tallies.items()
            ),
            clean_lines([line for _, line, _ in tail]),
            self._restarted,
            tuple(self._samples),
            tail_kinds="".join(DETAIL if is_detail else TOLD for _, _, is_detail in tail),
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
        frames = block.translate(_DIGITS).split(b"\n")
        self._take_in(lines, self._readings(lines, frames))

    def _take_in(self, lines: list[bytes], found: list[ShapeMeaning]) -> None:
        self._take_facts(lines, found)
        self._previous = found[-1]
        self._lines += len(lines)
        begin = 0
        for cut in self._cuts:
            self._tally(lines[begin:cut], found[begin:cut])
            self._life, begin = self._life + 1, cut
        self._cuts.clear()
        self._tally(lines[begin:] if begin else lines, found[begin:] if begin else found)
        if self._tail.maxlen:
            self._keep_lines(lines, found, self._tail.maxlen)

    def _take_facts(self, lines: list[bytes], found: list[ShapeMeaning]) -> None:
        clocks, take = self._clocks, self._facts.append
        telling = [*compress(range(len(found)), map(_TELLING, found))]
        for index, fact in zip(telling, self._facts_of(lines, found, telling), strict=True):
            if fact is None:
                reading = found[index]
                if reading.captures:
                    found[index] = MALFORMED
                    self._sample(lines[index])
                else:
                    self._continue(index, lines[index], found)
                continue
            if isinstance(fact, tuple):
                if isinstance(fact, TimingHeader):
                    self._open_header(fact)
                    continue
                at, origin = fact[5], fact[6]
            else:
                at, origin = fact.at_s, fact.origin
                if self._headers:
                    fact = self._under_header(fact)
            before = clocks.get(origin)
            if before is None or at is None or at < before - _BACKWARDS_S or isinstance(fact, ServerEvent):
                self._watch_clock(found, index, at, origin)
            else:
                clocks[origin] = at
            take(fact)

    def _facts_of(self, lines: list[bytes], meanings: list[ShapeMeaning], telling: list[int]) -> Iterable[Made | None]:
        """The fact of each of the lines that are `telling`; None for one that has none."""
        places: defaultdict[ShapeMeaning, list[int]] = defaultdict(list)
        for index in telling:
            places[meanings[index]].append(index)
        made: list[Made | None] = [None] * len(lines)
        for reading, indices in places.items():
            if reading.captures:
                alike = [lines[index] for index in indices]
                for index, fact in zip(indices, _facts_of_alike(reading, alike), strict=True):
                    made[index] = fact
        return map(made.__getitem__, telling)

    def _keep_lines(self, lines: list[bytes], meanings: list[ShapeMeaning], kept: int) -> None:
        details = [*map(_DETAIL, meanings)]
        if CONTINUATION in meanings:
            for index, reading in enumerate(meanings):
                if reading is CONTINUATION:
                    details[index] = details[index - 1] if index else self._within_detail
        self._within_detail = details[-1]
        first = self._lines - len(lines)
        last = range(max(0, len(lines) - kept), len(lines))
        no_detail = [*compress(range(len(lines)), map(not_, details))][-kept:]
        for kept_lines, places in ((self._tail, last), (self._told, no_detail)):
            kept_lines.extend((first + place, lines[place], details[place]) for place in places)

    def _readings(self, lines: list[bytes], frames: list[bytes]) -> list[ShapeMeaning]:
        """What the lines are."""
        known = self._known.get
        return [known(frame) or self._look_up(line, frame) for line, frame in zip(lines, frames, strict=True)]

    def _look_up(self, line: bytes, frame: bytes) -> ShapeMeaning:
        if not self._remember or len(frame) > _MAX_FRAME:
            return read_line(line).of_line(line, quickly=False)
        if len(self._known) >= _MAX_FRAMES:
            self._known.clear()
            self._shapes.clear()
        shape, behind_text = key = shape_of(frame), is_behind_text(line)
        meaning = self._shapes.get(key)
        if meaning is None:
            meaning = self._shapes[key] = read_shape(shape, behind_text=behind_text)
        self._known[frame] = reading = meaning.of_line(line)
        return reading

    def _continue(self, index: int, line: bytes, found: list[ShapeMeaning]) -> None:
        """A line that says nothing by itself: part of the message before it, or unknown."""
        reading = found[index]
        if reading.may_continue and reading is not MALFORMED:
            previous = found[index - 1] if index else self._previous
            if previous is not None and self._continues(previous):
                found[index] = reading = CONTINUATION
        if reading.unknown:
            self._sample(line)

    def _sample(self, line: bytes) -> None:
        if len(self._samples) < _MAX_SAMPLES:
            self._samples.append(clean_line(line, TAIL_CHARACTERS))

    def _continues(self, previous: ShapeMeaning) -> bool:
        if previous.line_class.continues:
            self._continued = 0
        elif previous is not CONTINUATION:
            return False
        self._continued += 1
        return self._continued <= _MAX_CONTINUATION

    def _open_header(self, header: TimingHeader) -> None:
        if len(self._headers) >= _MAX_ORIGINS:
            self._headers.clear()
            self._headers_used.clear()
        self._headers[header.origin] = (header.slot, header.task)
        self._headers_used.discard(header.origin)

    def _under_header(self, fact: LogFact) -> LogFact:
        """The fact with slot and task of the timing block it belongs to; a block has one line on prefill, its first."""
        if isinstance(fact, _UNDER_HEADER) and fact.slot is None:
            if isinstance(fact, PromptTiming) and fact.origin in self._headers:
                if fact.origin in self._headers_used:
                    del self._headers[fact.origin]
                self._headers_used.add(fact.origin)
            slot, task = self._headers.get(fact.origin, (None, None))
            fact = replace(fact, slot=slot, task=task)
        elif isinstance(fact, (TaskLaunched, TaskReleased)):
            # From here on, a header is about another request.
            self._headers.pop(fact.origin, None)
        return fact

    def _watch_clock(self, found: list[ShapeMeaning], index: int, at: float | None, origin: int | None) -> None:
        """Notice that a new server writes from here on, and forget what the old one was doing."""
        before = self._clocks.get(origin)
        if found[index].starts:
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

    def _tally(self, lines: list[bytes], found: list[ShapeMeaning]) -> None:
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
                    own = {reading for reading in set(found) if reading.line_class.id == name}
                    places = list(compress(range(len(found)), map(own.__contains__, found)))
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


def _facts_of_alike(reading: ShapeMeaning, lines: list[bytes]) -> Sequence[Made | None]:
    """The facts of lines that mean the same; None for one whose texts are not what its shape promised."""
    try:
        return reading.facts_of(lines)
    except ValueError:
        if len(lines) == 1:
            return [None]
        return [fact for line in lines for fact in _facts_of_alike(reading, [line])]
