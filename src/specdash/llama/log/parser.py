"""Bytes of a llama-server log in, facts out.

Built for storms: a log may hold a million warnings, so the work per line is a look-up. Lines that differ in their
digits alone mean the same: a block of lines is reduced to its *frames*, with 0 for every digit, in one pass, and every
frame is looked up among those already known. Warnings are counted per block. What is remembered is bounded.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from itertools import compress, groupby
from operator import attrgetter, not_
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from specdash.core.log_facts import (
    DETAIL,
    NOTABLE,
    UNTOUCHED,
    ChildFacts,
    LogBatch,
    LogFact,
    PromptTiming,
    ServerEvent,
    TaskLaunched,
    TaskReleased,
    Touched,
    VerificationSteps,
    WarningTally,
)
from specdash.llama.log import GRAMMAR, OTHER_ERROR, OTHER_WARNING
from specdash.llama.log.forms import ANSI, DIGITS, PrintedStep, TimingHeader, out_of_json, split_port
from specdash.llama.log.server_lines import SERVER_STARTING
from specdash.llama.log.trouble_lines import BEFORE_START

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.llama.log.forms import ReadLine

RUN_S: Final = 1.0
"""A run of steps covers at most this long, so that a date taken from its end is at most that far off."""
_MAX_SLOTS = 1024


class StepAdder:
    """Adds up the steps of each slot that have no other fact between them, and keeps replays apart from steps that
    count: a step repeats tokens counted already if a checkpoint was restored after the slot's last step."""

    def __init__(self) -> None:
        self._restored: dict[int, float | None] = {}
        """Slots whose next step is a replay, and when the restore was."""

    def added_up(self, facts: Iterable[LogFact | PrintedStep]) -> list[LogFact]:
        """The next facts of a log, with the steps added up."""
        found: list[LogFact] = []
        runs: dict[tuple[int, int], VerificationSteps] = {}
        """Steps added up so far by slot and task, in the order of their last ones."""
        for fact in facts:
            if not isinstance(fact, PrintedStep):
                found += runs.values()
                runs.clear()
                # The first step of a task or of a server repeats nothing.
                if isinstance(fact, (TaskLaunched, TaskReleased)):
                    self._restored.pop(fact.slot, None)
                elif isinstance(fact, ServerEvent) and fact.name == "restarted":
                    self._restored.clear()
                found.append(fact)
                continue
            key, step = (fact.slot, fact.task), self._counted(fact)
            run = runs.pop(key, None)
            if run is not None and (step.at_s or 0.0) > (run.first_s or 0.0) + RUN_S:
                found += (*runs.values(), run)
                runs.clear()
                run = None
            runs[key] = step if run is None else _both(run, step)
        return [*found, *runs.values()]

    def _counted(self, step: PrintedStep) -> VerificationSteps:
        """One step, as one that counts or as a replay."""
        slot, task, accepted, generated, restored, at = step
        replay = slot in self._restored
        since = self._restored.pop(slot, None)
        if restored and len(self._restored) < _MAX_SLOTS:
            self._restored[slot] = at
        if not replay:
            return VerificationSteps(slot, task, 1, accepted, generated, 0, int(restored), at, at_s=at)
        # Of the draft tokens and the one before them, all but the last were decoded before.
        took = max(0.0, at - since) if at is not None and since is not None else 0.0
        return VerificationSteps(
            slot, task, 0, 0, 0, 1, int(restored), at, replayed=generated, replay_s=round(took, 6), at_s=at
        )


_SUMS = ("steps", "accepted", "generated", "replays", "restored", "replayed", "replay_s")


def _both(run: VerificationSteps, step: VerificationSteps) -> VerificationSteps:
    sums = {name: round(getattr(run, name) + getattr(step, name), 6) for name in _SUMS}
    return replace(step, first_s=run.first_s, **sums)


LOOKED_AT: Final = 24
"""Lines of a class that are looked at for their slots and tasks, in a block."""
_NAMES_SLOT = re.compile(
    rb"slot[^:|]{0,80}: *id *(?P<slot>\d{1,9}) *\| *task *(?P<task>-?\d{1,18}) *\|"
    # Of `find_slot`: sequences are slots.
    rb"|(?:for sequence|purging slot) (?P<other>\d{1,9}) |(?:id_task =|task id =) (?P<id>\d{1,18})"
)


def evenly(indices: Sequence[int]) -> Iterable[int]:
    """At most `LOOKED_AT` of the indices, evenly spread, the first and the last among them."""
    if len(indices) <= LOOKED_AT:
        return indices
    step = (len(indices) - 1) / (LOOKED_AT - 1)
    return [indices[round(place * step)] for place in range(LOOKED_AT)]


def touched(lines: Iterable[bytes], *, all_seen: bool) -> tuple[Touched, Touched]:
    """Slots and tasks that the lines name; `all_seen` says that they are all there are."""
    found = [match for line in lines if (match := _NAMES_SLOT.search(line)) is not None]
    slots = [match["slot"] or match["other"] for match in found if match["slot"] or match["other"]]
    tasks = [match["task"] or match["id"] for match in found if match["task"] or match["id"]]
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
_MAX_SAMPLES = 5
_MAX_CHILDREN = 256
_BACKWARDS_S = 1.0
"""Time stamps of several threads may be out of order by milliseconds; going back further means a new server."""
_UNPRINTABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_MADE, _DETAIL = attrgetter("made"), attrgetter("detail")


def clean_line(line: bytes, characters: int) -> str:
    """A raw line as text for people: colour codes and control characters removed, invalid UTF-8 replaced, cut."""
    text = ANSI.sub(b"", line[: 8 * characters]).decode(errors="replace").replace("\t", " ")
    return _UNPRINTABLE.sub("", text)[:characters]


def _begins(read: ReadLine) -> bool:
    """Whether such a warning comes from a server that has begun."""
    return read.line_class.severity is not None and read.line_class.id not in BEFORE_START


class _Server:
    """What one server that writes the log was last doing."""

    def __init__(self) -> None:
        self.steps = StepAdder()
        self.begun = False
        self.clock: float | None = None
        self.header: TimingHeader | None = None
        self.header_used = False

    def place(self, fact: LogFact) -> LogFact:
        """The fact with slot and task of the timing block it belongs to, where its line does not name them."""
        if self.header is None:
            return fact
        if isinstance(fact, (TaskLaunched, TaskReleased)):
            # From here on, a header is about another request.
            self.header = None
        elif getattr(fact, "slot", 0) is None:
            if isinstance(fact, PromptTiming):
                # A block has one such line, its first.
                if self.header_used:
                    self.header = None
                    return fact
                self.header_used = True
            return replace(fact, slot=self.header.slot, task=self.header.task)
        return fact

    def is_new(self, fact: LogFact, before: Sequence[ReadLine]) -> bool:
        """Whether a new server writes from this fact on; `before` are the lines of the block before it."""
        starts = isinstance(fact, ServerEvent) and fact.name == SERVER_STARTING
        clock, at = self.clock, fact.at_s
        if starts:
            new = self.begun or any(map(_begins, before))
        else:
            new = at is not None and clock is not None and at < clock - _BACKWARDS_S
        self.begun = True
        self.clock = at if at is not None else clock
        if new:
            self.header = None
        return new


class LogParser:
    """Turns the bytes of one log, in pieces of any size, into batches of facts.

    How the bytes are cut into pieces makes no difference to the facts and counts, but that steps are added up within a
    piece only. A line without its newline waits for the next piece.
    """

    def __init__(self, *, tail_lines: int = 200) -> None:
        self._held = bytearray()
        self._servers: dict[int | None, _Server] = {None: _Server()}
        """The server itself, and a router's children by port."""
        self._tail: deque[tuple[int, bytes, bool]] = deque(maxlen=tail_lines)
        self._notable: deque[tuple[int, bytes, bool]] = deque(maxlen=tail_lines)
        """The last lines that are no detail; each with its number in the batch."""
        self._reset_batch()

    def feed(self, data: bytes) -> LogBatch:
        """Read the next piece of the log."""
        for start in range(0, len(data), _BLOCK):
            whole, newline, rest = data[start : start + _BLOCK].rpartition(b"\n")
            if newline:
                self._consume(bytes(self._held) + whole)
                self._held.clear()
            self._held += rest[: MAX_LINE - len(self._held)]
        return self._take_batch()

    def close(self) -> LogBatch:
        """Read what is left, if the log does not end with a newline."""
        if self._held:
            self._consume(bytes(self._held))
            self._held.clear()
        return self._take_batch()

    def _reset_batch(self) -> None:
        self._lines = 0
        self._unrecognised = 0
        self._facts: list[LogFact] = []
        self._children: dict[int, list[LogFact]] = {}
        self._tallies: dict[tuple[int, str], WarningTally] = {}
        self._life = 0
        """How many servers began in this batch."""
        self._samples: list[str] = []
        self._restarted = False
        self._tail.clear()
        self._notable.clear()

    def _take_batch(self) -> LogBatch:
        first = self._tail[0][0] if self._tail else 0
        tail = [*(line for line in self._notable if line[0] < first), *self._tail]
        batch = LogBatch(
            self._lines,
            self._unrecognised,
            tuple(self._facts),
            tuple(
                tally if life == self._life else replace(tally, lives_ago=self._life - life)
                for (life, _), tally in self._tallies.items()
            ),
            tuple(clean_line(line, TAIL_CHARACTERS) for _, line, _ in tail),
            self._restarted,
            tuple(self._samples),
            tail_kinds="".join(DETAIL if is_detail else NOTABLE for _, _, is_detail in tail),
            children=tuple(ChildFacts(port, tuple(facts)) for port, facts in self._children.items()),
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
        shown = lines
        if block.startswith(b'{"') and (own := out_of_json(block, len(lines))) is not block:
            block, lines = own, own.split(b"\n")
        if b"] " in block or b'{"' in block:
            for port, run in groupby(zip(map(split_port, lines), shown, strict=True), lambda pair: pair[0][0]):
                printed, whole = zip(*((line, whole) for (_, line), whole in run), strict=True)
                self._read(printed, b"\n".join(printed), whole, port)
        else:
            self._read(lines, block, shown, None)

    def _read(self, lines: Sequence[bytes], block: bytes, shown: Sequence[bytes], port: int | None) -> None:
        """Read lines of one server, `shown` with what a router put before them."""
        known, read = GRAMMAR.known.get, GRAMMAR.read
        frames = block.translate(DIGITS).split(b"\n")
        found = [known(frame) or read(line, frame) for line, frame in zip(lines, frames, strict=True)]
        cuts = self._take_facts(lines, found, port)
        for begin, end in zip([0, *cuts], [*cuts, len(lines)], strict=True):
            self._life += begin > 0
            self._tally(lines[begin:end], found[begin:end], shown[begin:end])
        if kept := self._tail.maxlen:
            details = [*map(_DETAIL, found)]
            last = range(max(0, len(lines) - kept), len(lines))
            notable = [*compress(range(len(lines)), map(not_, details))][-kept:]
            for kept_lines, places in ((self._tail, last), (self._notable, notable)):
                kept_lines.extend((self._lines + place, shown[place], details[place]) for place in places)
        self._lines += len(lines)

    def _take_facts(self, lines: Sequence[bytes], found: list[ReadLine], port: int | None) -> list[int]:
        """Take the facts of the lines; where a new server begins to write."""
        if port not in self._servers and len(self._servers) >= _MAX_CHILDREN:
            self._servers = {None: self._servers[None]}
        server = self._servers.setdefault(port, _Server())
        made: list[LogFact | PrintedStep] = []
        cuts: list[int] = []
        for index in compress(range(len(found)), map(_MADE, found)):
            fact = found[index].fact(lines[index])
            if fact is None:
                continue
            if isinstance(fact, tuple):
                if isinstance(fact, TimingHeader):
                    server.header, server.header_used = fact, False
                else:
                    server.begun = True
                    made.append(fact)
                continue
            if server.is_new(fact, found[:index] if not server.begun else ()):
                made.append(ServerEvent("restarted", (), at_s=fact.at_s))
                if port is None:
                    self._restarted = True
                    cuts.append(index)
            made.append(server.place(fact))
        server.begun = server.begun or any(map(_begins, set(found)))
        added_up = server.steps.added_up(made)
        (self._facts if port is None else self._children.setdefault(port, [])).extend(added_up)
        return cuts

    def _tally(self, lines: Sequence[bytes], found: list[ReadLine], shown: Sequence[bytes]) -> None:
        counts = Counter(found)
        classes = {read.line_class for read in counts if read.line_class.severity is not None}
        for line_class in classes:
            own = {read for read in counts if read.line_class is line_class}
            count = sum(map(counts.__getitem__, own))
            if count == len(found):
                places: Sequence[int] = range(count)
            else:
                places = [*compress(range(len(found)), map(own.__contains__, found))]
            first, last = places[0], places[-1]
            slots, tasks = touched([lines[index] for index in evenly(places)], all_seen=count <= LOOKED_AT)
            key = self._life, line_class.id
            before = self._tallies.get(key)
            tally = WarningTally(
                line_class.id,
                count,
                found[first].seconds(lines[first]),
                found[last].seconds(lines[last]),
                "" if before is not None else clean_line(shown[first], SAMPLE_CHARACTERS),
                slots,
                tasks,
            )
            self._tallies[key] = tally if before is None else before.and_then(tally)
            if line_class in (OTHER_ERROR, OTHER_WARNING):
                self._unrecognised += count
                room = _MAX_SAMPLES - len(self._samples)
                self._samples += [clean_line(shown[index], TAIL_CHARACTERS) for index in places[:room]]
