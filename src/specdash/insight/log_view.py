"""What the log told so far: totals, warnings, finished requests, live steps, and the raw tail."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from specdash.core.log_facts import (
    CheckpointEvent,
    DecodeTiming,
    PrefillProgress,
    PromptTiming,
    RequestAcceptance,
    ServerEvent,
    VerificationSteps,
)
from specdash.insight.acceptance import ExactWindow
from specdash.insight.counter_log import KEEP_S
from specdash.insight.requests import LoggedRequest, RequestAssembler
from specdash.insight.storms import StormBook

if TYPE_CHECKING:
    from specdash.core.log_facts import LogBatch, LogFact

RECENT_REQUESTS = 50
TAIL_LINES = 5000
LIVE_STEPS_S = 60.0
FRESH_S = 5.0
"""A line this young when it is read happened now; an older one was in the file before we looked."""


@dataclass(slots=True)
class SlotSteps:
    """Verification steps of a slot's current task, replays not counted.

    `first_s` and `last_s` are the time stamps of its first and last step in the log, replays included, in seconds since
    the server's start; None where the log has none.
    """

    task: int
    generated: int = 0
    accepted: int = 0
    steps: int = 0
    first_s: float | None = None
    last_s: float | None = None


@dataclass(slots=True)
class Fresh:
    """What a batch said of this moment: draft tokens of its verification steps, and timings of requests that ended."""

    generated: int = 0
    accepted: int = 0
    prompt_tokens: int = 0
    prompt_ms: float = 0.0
    decode_tokens: int = 0
    decode_ms: float = 0.0


class LogView:
    """Takes in log batches in order; memory is bounded whatever the log says."""

    def __init__(self) -> None:
        self.lines = 0
        self.unrecognised = 0
        self.newest_s: float | None = None
        """Time stamp of the newest line that had one: seconds since the server's start."""
        self.finished = 0
        self.cancelled = 0
        self.recent: deque[tuple[float, LoggedRequest]] = deque(maxlen=RECENT_REQUESTS)
        self.storms = StormBook()
        self.checkpoints: Counter[str] = Counter()
        self.events: dict[str, ServerEvent] = {}
        self.requests_exact = ExactWindow(KEEP_S)
        self.steps_exact = ExactWindow(LIVE_STEPS_S)
        self.slot_steps: dict[int, SlotSteps] = {}
        self.prefill: dict[int, PrefillProgress] = {}
        self._assembler = RequestAssembler()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._tail_end = 0

    def add(self, at: float, batch: LogBatch, uptime_s: float | None) -> Fresh:
        """Take in one batch read at monotonic `at`, and return what in it is of this moment.

        The server's `uptime_s`, or else the newest line, dates the others by their time stamps.
        """
        if batch.restarted:
            self._new_server()
        self.lines += batch.lines
        self.unrecognised += batch.unrecognised
        self._tail.extend(batch.tail)
        self._tail_end += len(batch.tail)
        stamps = [fact.at_s for fact in batch.facts if fact.at_s is not None]
        if stamps:
            self.newest_s = stamps[-1]
        now_s = uptime_s if uptime_s is not None else self.newest_s
        fresh = Fresh()
        for fact in batch.facts:
            age = _age(now_s, fact.at_s)
            self._fact(at - age, fact)
            if age == 0.0:
                _note(fresh, fact)
        for request in self._assembler.feed(batch.facts):
            self._finish(at - _age(now_s, request.at_s), request)
        for tally in batch.warnings:
            self.storms.add(at, tally, now_s)
        return fresh

    def lines_after(self, after: int, limit: int) -> tuple[int, tuple[str, ...]]:
        """Raw lines numbered above `after`, at most the last `limit`, and the newest number."""
        fresh = min(self._tail_end - after, limit, len(self._tail))
        if fresh <= 0:
            return self._tail_end, ()
        return self._tail_end, tuple(islice(self._tail, len(self._tail) - fresh, None))

    def _new_server(self) -> None:
        self._assembler = RequestAssembler()
        self.newest_s = None
        self.steps_exact.clear()
        self.requests_exact.clear()
        self.slot_steps.clear()
        self.prefill.clear()
        self.events.clear()

    def _steps(self, at: float, steps: VerificationSteps) -> None:
        self.steps_exact.add(at, steps.generated, steps.accepted, steps.steps)
        live = self.slot_steps.get(steps.slot)
        if live is None or live.task != steps.task:
            live = self.slot_steps[steps.slot] = SlotSteps(steps.task, first_s=steps.first_s)
        live.generated += steps.generated
        live.accepted += steps.accepted
        live.steps += steps.steps
        live.last_s = steps.at_s

    def _fact(self, at: float, fact: LogFact) -> None:
        if isinstance(fact, VerificationSteps):
            self._steps(at, fact)
        elif isinstance(fact, RequestAcceptance):
            self.requests_exact.add(at, fact.generated, fact.accepted)
        elif isinstance(fact, PrefillProgress):
            self.prefill[fact.slot] = fact
        elif isinstance(fact, CheckpointEvent):
            self.checkpoints[f"{fact.kind} {fact.action}"] += 1
        elif isinstance(fact, ServerEvent):
            self.events[fact.name] = fact

    def _finish(self, at: float, request: LoggedRequest) -> None:
        self.recent.appendleft((at, request))
        self.finished += not request.cancelled
        self.cancelled += request.cancelled
        if request.slot is not None:
            self.prefill.pop(request.slot, None)


def _age(now_s: float | None, at_s: float | None) -> float:
    """How long ago a line was written, in seconds; 0 for one that is fresh or has no date."""
    if now_s is None or at_s is None:
        return 0.0
    age = now_s - at_s
    return age if age > FRESH_S else 0.0


def _note(fresh: Fresh, fact: LogFact) -> None:
    if isinstance(fact, VerificationSteps):
        fresh.generated += fact.generated
        fresh.accepted += fact.accepted
    elif isinstance(fact, PromptTiming):
        fresh.prompt_tokens += fact.tokens
        fresh.prompt_ms += fact.ms
    elif isinstance(fact, DecodeTiming):
        fresh.decode_tokens += fact.tokens
        fresh.decode_ms += fact.ms
