"""The server's log file to facts on the bus: a tail, a parser, and at most two batches a second."""

from __future__ import annotations

import time
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from specdash.collect.log_source import LogLines, lines_of
from specdash.core.log_facts import DETAIL, TOLD, ChildFacts, LogBatch, WarningTally
from specdash.core.readings import Failure, Reading, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.core.log_facts import LogFact


class LineParser(Protocol):
    """What `specdash.llama.log.parser.LogParser` offers."""

    def feed(self, data: bytes) -> LogBatch:
        """Facts of the whole lines in `data`; an unfinished line waits for the next."""

    def close(self) -> LogBatch:
        """Facts of the unfinished line."""


PERIOD_S = 0.5
"""Seconds between looks at the file, and so between batches: each costs as much as some hundred lines."""

TURN_S = 0.2
"""A backlog is parsed for so long at a time."""

SLICE_BYTES = 256 * 1024
"""Parsed at a time, so that other threads get their turn."""

BACKFILL_S = 3.0
"""The first batch holds all that the file had, if it can be parsed within this time."""

KEPT_TAIL_LINES = 1000
"""Raw lines that one batch carries at most."""


class LogCollector:
    """Reads what is new in a log file and publishes it. `step` is to be called again after the seconds it returns."""

    def __init__(
        self,
        path: str,
        publish: Callable[[Reading[Any]], None],
        *,
        lines: LogLines | None = None,
        new_parser: Callable[[], LineParser] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._wall = wall
        self._lines = lines or lines_of(path)
        self._publish = publish
        self._new_parser = new_parser or _log_parser
        self._clock = clock
        self._parser: LineParser | None = None
        self._failure: Failure | None = None
        self._told = False
        self._caught_up = False

    def step(self) -> float:
        """Publish what is new; seconds until the next look."""
        started = self._clock()
        deadline = started + (TURN_S if self._told else BACKFILL_S)
        batches: list[LogBatch] = []
        chunk = self._lines.read(SLICE_BYTES)
        while True:
            if chunk.data or chunk.replaced:
                self._parse(chunk.data, replaced=chunk.replaced, into=batches)
            if not chunk.more or self._clock() >= deadline:
                break
            chunk = self._lines.read(SLICE_BYTES)
        self._tell(batches, chunk.failure, more=chunk.more)
        spent = self._clock() - started
        # While there is a backlog, rest as long as the work took: half a core is the most a storm may cost.
        return min(spent, TURN_S) if chunk.more else max(0.01, PERIOD_S - spent)

    def close(self) -> None:
        """Let go of the file."""
        self._lines.close()

    def _age_s(self) -> float | None:
        written_at = self._lines.written_at()
        return max(0.0, self._wall() - written_at) if written_at is not None else None

    def _parse(self, data: bytes, *, replaced: bool, into: list[LogBatch]) -> None:
        if self._parser is None:
            self._parser = self._new_parser()
        elif replaced:
            into.append(self._parser.close())
            self._parser = self._new_parser()
        batch = self._parser.feed(data)
        into.append(replace(batch, restarted=True) if replaced else batch)

    def _tell(self, batches: Sequence[LogBatch], failure: Failure | None, *, more: bool) -> None:
        now = self._clock()
        recovered = self._failure is not None and failure is None
        if batches or recovered or (failure is None and not self._told):
            *earlier, last = merged(batches) or (LogBatch(),)
            last = replace(last, age_s=self._age_s()) if batches else last
            for batch, ends in (*((log_batch, False) for log_batch in earlier), (last, not more)):
                told = batch if self._caught_up or ends else replace(batch, more_follows=True)
                self._publish(Reading.known(Source.LOG, now, told))
            self._caught_up = self._caught_up or not more
        if failure is not None and (failure != self._failure or batches):
            self._publish(Reading.unknown(Source.LOG, now, failure.kind, failure.detail))
        self._failure = failure
        self._told = True


def merged(batches: Sequence[LogBatch]) -> tuple[LogBatch, ...]:
    """The batches as few as possible: one, and one more for every restart of the log within them."""
    runs: list[list[LogBatch]] = []
    for batch in batches:
        if not runs or batch.restarted:
            runs.append([])
        runs[-1].append(batch)
    return tuple(run[0] if len(run) == 1 else _merge(run) for run in runs)


def _merge(run: Sequence[LogBatch]) -> LogBatch:
    tail, kinds = _last_lines(run)
    return LogBatch(
        lines=sum(batch.lines for batch in run),
        unrecognised=sum(batch.unrecognised for batch in run),
        facts=tuple(fact for batch in run for fact in batch.facts),
        children=_children(run),
        warnings=_tallies(run),
        tail=tail,
        tail_kinds=kinds,
        restarted=run[0].restarted,
        unrecognised_samples=next((batch.unrecognised_samples for batch in run if batch.unrecognised_samples), ()),
    )


def _children(run: Sequence[LogBatch]) -> tuple[ChildFacts, ...]:
    facts: dict[int, tuple[LogFact, ...]] = {}
    for child in chain.from_iterable(batch.children for batch in run):
        facts[child.port] = facts.get(child.port, ()) + child.facts
    return tuple(ChildFacts(port, of_port) for port, of_port in facts.items())


def _tallies(run: Sequence[LogBatch]) -> tuple[WarningTally, ...]:
    tallies: dict[tuple[str, int], WarningTally] = {}
    for batch in run:
        for tally in batch.warnings:
            key = tally.warning, tally.lives_ago
            before = tallies.get(key)
            tallies[key] = tally if before is None else before.and_then(tally)
    return tuple(tallies.values())


def _last_lines(run: Sequence[LogBatch]) -> tuple[tuple[str, ...], str]:
    """The tail of them all and its kinds: the last lines, and of those before them what is no detail."""
    texts = tuple(chain.from_iterable(batch.tail for batch in run))
    kinds = "".join(batch.tail_kinds or TOLD * len(batch.tail) for batch in run)
    if len(texts) > KEPT_TAIL_LINES:
        half = KEPT_TAIL_LINES // 2
        told = [text for text, kind in zip(texts[:-half], kinds[:-half], strict=True) if kind == TOLD][-half:]
        texts, kinds = (*told, *texts[-half:]), TOLD * len(told) + kinds[-half:]
    return texts, kinds if DETAIL in kinds else ""


def _log_parser() -> LineParser:
    from specdash.llama.log.parser import LogParser

    return LogParser()
