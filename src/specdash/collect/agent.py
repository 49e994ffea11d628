"""The collecting half of specdash on the machine where the server runs: readings to a pipe, a line at a time.

Nothing grows while the link is slow: raw log lines are left out first, then all but the newest reading of each source,
then the oldest facts of the log; and what was left out is counted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from specdash.collect.agent_wire import MOST_LINE_BYTES, AgentHello, AgentLine, AgentTarget, write_line
from specdash.collect.logs import merged
from specdash.core.log_facts import LogBatch
from specdash.core.proxy_events import ProxyEvents
from specdash.core.readings import FailureKind, Reading, Source
from specdash.core.sources import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from specdash.collect.agent_wire import LogPlace
    from specdash.core.target import Target

BEAT_S: Final = 2.0
"""So long nothing is written at most: whoever reads knows by it that the agent lives."""
MOST_WAITING: Final = 20_000
"""Facts, raw lines and events that wait to be written; about 3 MB."""
MOST_FACTS: Final = 5_000
"""Facts of a line."""
_MOST_LIVES: Final = 16
_MOST_EVENTS: Final = 2_000


class Outbox:
    """What waits to be written. `add` never waits; `lines` gives it out, until `close`."""

    def __init__(self, hello: AgentHello, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._change = threading.Condition()
        self._hello = hello
        self._target: AgentTarget | None = None
        self._words = ""
        self._waiting: deque[Reading[Any]] = deque()
        self._weight = self._heaviest = 0
        self._log_read: LogPlace | None = None
        self._lines_left_out = self._readings_left_out = 0
        self._is_closed = False

    def add(self, reading: Reading[Any], log_read: LogPlace | None = None) -> None:
        """A sink of readings. `log_read` is how far the log was read for this one."""
        with self._change:
            self._waiting.append(reading)
            weight = weight_of(reading)
            self._weight, self._heaviest = self._weight + weight, max(self._heaviest, weight)
            self._log_read = log_read or self._log_read
            # What the log had before anybody looked comes as one reading, and is waited for.
            if self._weight - self._heaviest > MOST_WAITING:
                self._make_room()
            self._change.notify()

    def know(self, target: Target) -> None:
        """Tell what is watched, before all later readings."""
        with self._change:
            self._target, self._words = AgentTarget.of(target), ""
            self._change.notify()

    def wait_for(self, words: str) -> None:
        """Tell why nothing is watched yet."""
        with self._change:
            self._words = words
            self._change.notify()

    def close(self) -> None:
        """Give out nothing more."""
        with self._change:
            self._is_closed = True
            self._change.notify()

    def lines(self) -> Iterator[bytes]:
        """Whatever there is to write, as soon as there is something; and a sign of life."""
        # A line of its own, short and at once, whatever there is to tell.
        yield write_line(AgentLine(self._clock(), time.time(), self._hello))
        while True:
            with self._change:
                if not (self._waiting or self._target or self._words or self._is_closed):
                    self._change.wait(BEAT_S)
                if self._is_closed:
                    return
                readings, self._waiting, self._weight, self._heaviest = list(self._waiting), deque(), 0, 0
                target, words, log_read = self._target, self._words, self._log_read
                left_out = self._lines_left_out, self._readings_left_out
                self._target, self._words, self._log_read = None, "", None
            parts = _parts(readings)
            while parts:
                part = parts.pop(0)
                yield self._line(part, left_out, None if parts else log_read, target, words)
                target, words = None, ""

    def _line(
        self,
        readings: Sequence[Reading[Any]],
        left_out: tuple[int, int],
        log_read: LogPlace | None,
        target: AgentTarget | None,
        words: str,
    ) -> bytes:
        def written(readings: Sequence[Reading[Any]]) -> bytes:
            rows = tuple(map(encode, readings))
            return write_line(AgentLine(self._clock(), time.time(), None, target, words, rows, log_read, *left_out))

        try:
            line = written(readings)
        except ValueError:
            line = b""
        if line and len(line) <= MOST_LINE_BYTES:
            return line
        # A number that is none, or a text without end: the source says so itself.
        return written([_told(reading) for reading in readings])

    def _make_room(self) -> None:
        waiting = [self._without_lines(reading) for reading in self._waiting]
        newest: dict[Source, int] = {reading.source: place for place, reading in enumerate(waiting)}
        log = [reading for reading in waiting if isinstance(reading.value, LogBatch)]
        kept = [
            reading
            for place, reading in enumerate(waiting)
            if not isinstance(reading.value, LogBatch)
            and (place == newest[reading.source] or isinstance(reading.value, ProxyEvents))
        ]
        self._readings_left_out += len(waiting) - len(kept) - len(log)
        self._waiting = deque([*_events_kept(kept), *_log_kept(log)])
        self._weight, self._heaviest = sum(map(weight_of, self._waiting)), 0

    def _without_lines(self, reading: Reading[Any]) -> Reading[Any]:
        batch = reading.value
        if not isinstance(batch, LogBatch) or not batch.tail:
            return reading
        self._lines_left_out += len(batch.tail)
        return replace(reading, value=replace(batch, tail=(), tail_kinds="", unrecognised_samples=()))


def weight_of(reading: Reading[Any]) -> int:
    """About how many small objects a reading has."""
    value = reading.value
    if isinstance(value, LogBatch):
        return len(value.facts) + len(value.tail) + len(value.warnings) + 1
    return len(value.events) + 1 if isinstance(value, ProxyEvents) else 10


def _log_kept(log: Sequence[Reading[LogBatch]]) -> Iterator[Reading[Any]]:
    """The newest facts, in as few readings as can be; lines, warnings and restarts are counted all the same."""
    if not log:
        return
    batches = merged([reading.value for reading in log if reading.value is not None])[-_MOST_LIVES:]
    room = MOST_WAITING // 4
    kept: list[LogBatch] = []
    for batch in reversed(batches):
        kept.append(replace(batch, facts=batch.facts[max(0, len(batch.facts) - room) :]))
        room = max(0, room - len(batch.facts))
    newest = log[-1].value
    for batch in reversed(kept):
        age, follows = (newest.age_s, newest.more_follows) if newest is not None else (None, False)
        yield replace(log[-1], value=replace(batch, age_s=age, more_follows=follows))


def _events_kept(readings: Sequence[Reading[Any]]) -> Iterator[Reading[Any]]:
    """The newest events of the proxy; how many were left out is part of what is read."""
    room = _MOST_EVENTS
    kept: list[Reading[Any]] = []
    for reading in reversed(readings):
        batch = reading.value
        if isinstance(batch, ProxyEvents):
            events = batch.events[max(0, len(batch.events) - room) :]
            lost = len(batch.events) - len(events)
            room = max(0, room - len(events))
            reading = replace(reading, value=replace(batch, events=events, dropped=batch.dropped + lost))
            if not events and kept and isinstance(kept[-1].value, ProxyEvents):
                before = kept[-1].value
                kept[-1] = replace(kept[-1], value=replace(before, dropped=before.dropped + reading.value.dropped))
                continue
        kept.append(reading)
    return iter(kept[::-1])


def _parts(readings: Sequence[Reading[Any]]) -> list[list[Reading[Any]]]:
    """The readings of each line: no line holds more facts than `MOST_FACTS`, so that none is too long."""
    parts: list[list[Reading[Any]]] = [[]]
    room = MOST_FACTS
    for reading in readings:
        for piece in _pieces(reading):
            weight = weight_of(piece)
            if weight > room and parts[-1]:
                parts.append([])
                room = MOST_FACTS
            parts[-1].append(piece)
            room -= weight
    return parts


def _pieces(reading: Reading[Any]) -> Iterator[Reading[Any]]:
    """A batch of the log in pieces, of which all but the last say that more follows; counts and warnings are in the
    last."""
    batch = reading.value
    if not isinstance(batch, LogBatch) or len(batch.facts) <= MOST_FACTS:
        yield reading
        return
    newest = _newest_s(batch)
    restarted = batch.restarted
    last = (len(batch.facts) - 1) // MOST_FACTS * MOST_FACTS
    for start in range(0, last, MOST_FACTS):
        piece = LogBatch(facts=batch.facts[start : start + MOST_FACTS], restarted=restarted, more_follows=True)
        # Its newest line is older than that of the whole batch.
        own, age = _newest_s(piece), batch.age_s
        if age is not None and newest is not None and own is not None:
            age += max(0.0, newest - own)
        yield replace(reading, value=replace(piece, age_s=age))
        restarted = False
    yield replace(reading, value=replace(batch, facts=batch.facts[last:], restarted=restarted))


def _newest_s(batch: LogBatch) -> float | None:
    return next((fact.at_s for fact in reversed(batch.facts) if fact.at_s is not None and fact.origin is None), None)


def _told(reading: Reading[Any]) -> Reading[Any]:
    """The reading, or that it cannot be written."""
    try:
        line = write_line(AgentLine(0.0, 0.0, readings=(encode(reading),)))
    except ValueError:
        return Reading.unknown(reading.source, reading.at, FailureKind.GARBAGE, "a number that is none")
    if len(line) <= MOST_LINE_BYTES // 8:
        return reading
    return Reading.unknown(reading.source, reading.at, FailureKind.TOO_LARGE, f"{len(line)} bytes in one look")
