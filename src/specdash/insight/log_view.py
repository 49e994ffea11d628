"""What the log told so far: totals, warnings, finished requests, live steps, and the raw tail."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from specdash.core.log_facts import (
    TOUCHED_KEPT,
    CheckpointEvent,
    DecodeTiming,
    PrefillProgress,
    PromptTiming,
    RequestAcceptance,
    ServerEvent,
    SpeculativeStatistics,
    TaskLaunched,
    Touched,
    VerificationSteps,
)
from specdash.core.token_speed import DECODE, PREFILL, speed
from specdash.insight.acceptance import ExactWindow
from specdash.insight.answer_progress import AnswerProgress
from specdash.insight.checkpoint_tally import CheckpointTally
from specdash.insight.counter_log import KEEP_S
from specdash.insight.draft_statistics import DraftStatistics
from specdash.insight.log_dates import FormerServer, at_reading, lives, newest
from specdash.insight.prompt_cache_book import PromptCacheBook
from specdash.insight.requests import LoggedRequest, RequestAssembler
from specdash.insight.step_totals import StepTotals
from specdash.insight.storms import StormBook

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from specdash.core.log_facts import LogBatch, LogFact, WarningTally
    from specdash.insight.log_dates import Clock

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
    replays: int = 0
    """Each brought one token more."""
    first_s: float | None = None
    last_s: float | None = None


@dataclass(slots=True)
class Fresh:
    """What a batch said of this moment: draft tokens of its verification steps, and timings of requests that ended and
    were long enough to have a speed.

    `ended` are all its requests, also those of the past, with the monotonic time of their end; without those that
    cannot be dated, such as those of `former` servers, whose ends nobody saw. The one that writes now `began` at this
    monotonic time; None where that is not known, or was told.
    """

    generated: int = 0
    accepted: int = 0
    prompt_tokens: int = 0
    prompt_ms: float = 0.0
    decode_tokens: int = 0
    decode_ms: float = 0.0
    ended: list[tuple[float, LoggedRequest]] = field(default_factory=list)
    former: Sequence[FormerServer] = ()
    began: float | None = None


class LogView:
    """Takes in log batches in order; memory is bounded whatever the log says."""

    def __init__(self) -> None:
        self.since_wall: float | None = None
        """Unix time from when on lines were counted; None when it is from the log's beginning."""
        self.lines = 0
        self.unrecognised = 0
        self.newest_s: float | None = None
        """Time stamp of the newest line that had one: seconds since the server's start."""
        self.newest_at = 0.0
        """When that line was written, on the monotonic clock."""
        self.finished = 0
        self.cancelled = 0
        self.recent: deque[tuple[float, LoggedRequest]] = deque(maxlen=RECENT_REQUESTS)
        self.lives = 0
        """How many servers began to write since the first line."""
        self._of_this_life: deque[LoggedRequest] = deque(maxlen=RECENT_REQUESTS)
        self.ended_here = 0
        """How many of the newest are of the server that writes now."""
        self.storms = StormBook()
        self.checkpoints: Counter[str] = Counter()
        self.live: Counter[str] = Counter()
        """What happened while we looked, the past of the log left out: see `LogPicture.live`."""
        self.events: dict[str, ServerEvent] = {}
        self.implementations: dict[str, dict[str, str]] = {}
        """What each speculative implementation said of its settings at the start, by type."""
        self.step_totals = StepTotals()
        self.checkpoint_tally = CheckpointTally()
        self.requests_exact = ExactWindow(KEEP_S)
        self.steps_exact = ExactWindow(LIVE_STEPS_S)
        self.slot_steps: dict[int, SlotSteps] = {}
        self.drafting = DraftStatistics()
        self.answers = AnswerProgress()
        self.prompt_cache = PromptCacheBook()
        self.prefill: dict[int, PrefillProgress] = {}
        self._former: list[FormerServer] = []
        self._unwatched: FormerServer | None = FormerServer()
        """The server whose lines are read, until all is read that the file had before anybody looked."""
        self._task_of: dict[int, int] = {}
        """The task that each slot began last."""
        self._assembler = RequestAssembler()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._tail_end = 0

    def add(self, at: float, batch: LogBatch, uptime_s: float | None) -> Fresh:
        """Take in one batch read at monotonic `at`, and return what in it is of this moment.

        The server's `uptime_s`, or else the newest line, dates the others by their time stamps.
        """
        is_first = not self.lines
        tasks_before = dict(self._task_of)
        parts = lives(batch)
        if batch.restarted and len(parts) == 1:
            self._new_server()
        self.lines += batch.lines
        self.unrecognised += batch.unrecognised
        self._tail.extend(batch.tail)
        self._tail_end += len(batch.tail)
        stamps = [newest(part) for part in parts[:-1]]
        stamps.append(newest(parts[-1], _other_stamps(batch, is_first=is_first)))
        clocks = at_reading(stamps, batch.age_s)
        if batch.age_s is None and uptime_s is not None and not batch.restarted:
            clocks[-1][None] = uptime_s
        fresh = Fresh()
        for index, (facts, clock) in enumerate(zip(parts, clocks, strict=True)):
            if index:
                self._new_server()
            if self._unwatched is not None:
                self._unwatched.newest_s = max(self._unwatched.newest_s, stamps[index].get(None, 0.0))
            self._life(at, facts, clock, fresh, may_be_live=not batch.more_follows)
        if self._unwatched is not None and not batch.more_follows:
            self._caught_up(at, clocks[-1], self._unwatched, fresh)
        if None in stamps[-1]:
            self.newest_s, self.newest_at = stamps[-1][None], at - (batch.age_s or 0.0)
        for tally in batch.warnings:
            tally = _with_tasks(tally, tasks_before, batch.facts)
            clock = clocks[max(0, len(clocks) - 1 - tally.lives_ago)]
            self.storms.add(at, tally, clock.get(None, None if tally.lives_ago else uptime_s))
        return fresh

    def _caught_up(self, at: float, clock: Clock, last: FormerServer, fresh: Fresh) -> None:
        """The log is read to its end: the server that writes now is known by its clock, those before it are not."""
        for request in last.requests:
            now_s = clock.get(request.origin)
            if now_s is not None and request.at_s is not None:
                fresh.ended.append((at - max(0.0, now_s - request.at_s), request))
        fresh.former, self._former = self._former, []
        fresh.began = at - clock[None] if None in clock else None
        self._unwatched = None

    def _life(self, at: float, facts: Sequence[LogFact], clock: Clock, fresh: Fresh, *, may_be_live: bool) -> None:
        """Take in what one server wrote. `clock` has its time stamps of the moment `at`, per origin."""
        for fact in facts:
            age = _age(clock.get(fact.origin), fact.at_s)
            self._fact(at - age, fact)
            if age == 0.0 and may_be_live:
                _note(fresh, fact)
                self._note_live(fact)
        for request in self._assembler.feed(facts):
            now_s = clock.get(request.origin)
            self._finish(at - _age(now_s, request.at_s), request)
            if self._unwatched is not None:
                self._unwatched.requests.append(request)
            elif now_s is not None and request.at_s is not None:
                fresh.ended.append((at - max(0.0, now_s - request.at_s), request))
            else:
                fresh.ended.append((at, request))

    def whole(self, count: int) -> int | None:
        """A count of the log, None where the log was not read from its beginning."""
        return count if self.since_wall is None else None

    def lines_after(self, after: int, limit: int) -> tuple[int, tuple[str, ...]]:
        """Raw lines numbered above `after`, at most the last `limit`, and the newest number."""
        fresh = min(self._tail_end - after, limit, len(self._tail))
        if fresh <= 0:
            return self._tail_end, ()
        return self._tail_end, tuple(islice(self._tail, len(self._tail) - fresh, None))

    def leave_out(self, tasks: Collection[int]) -> None:
        """Take these tasks of the server that writes now from the finished requests: they are no user's."""
        if not tasks:
            return
        ours = [one for one in self._of_this_life if one.task in tasks and one.origin is None]
        for request in ours:
            self._of_this_life.remove(request)
            self.finished -= not request.cancelled
            self.cancelled -= request.cancelled
        if ours:
            kept = [(at, one) for at, one in self.recent if not any(one is request for request in ours)]
            self.recent = deque(kept, maxlen=RECENT_REQUESTS)

    def _new_server(self) -> None:
        self.lives += 1
        if self._unwatched is not None:
            self._former.append(self._unwatched)
            self._unwatched = FormerServer()
        self._of_this_life.clear()
        self._assembler = RequestAssembler()
        self.newest_s = None
        self.ended_here = 0
        self.steps_exact.clear()
        self.requests_exact.clear()
        self.slot_steps.clear()
        self.drafting.clear()
        self.answers.clear()
        self.prompt_cache.clear()
        self.prefill.clear()
        self.events.clear()
        self.implementations.clear()
        self.step_totals.clear()
        self.checkpoint_tally.clear()
        self.storms.new_server()
        self._task_of.clear()

    def _steps(self, at: float, steps: VerificationSteps) -> None:
        self.steps_exact.add(at, steps.generated, steps.accepted, steps.steps)
        live = self.slot_steps.get(steps.slot)
        before = live.last_s if live is not None and live.task == steps.task else None
        self.step_totals.note(at, steps, before)
        if live is None or live.task != steps.task:
            live = self.slot_steps[steps.slot] = SlotSteps(steps.task, first_s=steps.first_s)
        live.generated += steps.generated
        live.accepted += steps.accepted
        live.steps += steps.steps
        live.replays += steps.replays
        live.last_s = steps.at_s

    def _fact(self, at: float, fact: LogFact) -> None:
        self.answers.note(at, fact)
        self.prompt_cache.note(at, fact)
        if isinstance(fact, VerificationSteps):
            self._steps(at, fact)
        elif isinstance(fact, RequestAcceptance):
            self.requests_exact.add(at, fact.generated, fact.accepted)
        elif isinstance(fact, SpeculativeStatistics):
            self.drafting.note(at, fact)
        elif isinstance(fact, PrefillProgress):
            self.prefill[fact.slot] = fact
        elif isinstance(fact, CheckpointEvent):
            self.checkpoints[f"{fact.kind} {fact.action}"] += 1
            self.checkpoint_tally.note(fact)
        elif isinstance(fact, ServerEvent):
            self._event(fact)
        elif isinstance(fact, TaskLaunched):
            self._task_of[fact.slot] = fact.task

    def _event(self, event: ServerEvent) -> None:
        self.events[event.name] = event
        if event.name == "stopping" and event.origin is None and self._unwatched is not None:
            self._unwatched.stopped_s = event.at_s
        if event.name == "spec_implementation":
            self.implementations.setdefault(event.get("type") or "", {})
        elif event.name == "spec_parameters" and self.implementations:
            self.implementations[next(reversed(self.implementations))].update(event.fields)

    def _note_live(self, fact: LogFact) -> None:
        if isinstance(fact, VerificationSteps):
            self.live["steps"] += fact.steps
            self.live["replays"] += fact.replays
            self.live["drafted"] += fact.generated
            self.live["accepted"] += fact.accepted
        elif isinstance(fact, CheckpointEvent):
            self.live[f"{fact.kind} {fact.action}"] += 1
        elif isinstance(fact, ServerEvent):
            self.live[fact.name] += 1

    def _finish(self, at: float, request: LoggedRequest) -> None:
        self.recent.appendleft((at, request))
        self.ended_here += 1
        self._of_this_life.append(request)
        self.finished += not request.cancelled
        self.cancelled += request.cancelled
        if request.slot is not None:
            self.prefill.pop(request.slot, None)


def _other_stamps(batch: LogBatch, *, is_first: bool) -> list[float | None]:
    """Time stamps of lines that are no facts."""
    stamps = [tally.last_s for tally in batch.warnings if not tally.lives_ago]
    if is_first and batch.tail and batch.age_s is not None:
        # A log that is read from its beginning may end with a long time of lines that say nothing.
        from specdash.llama.log_prefix import own_seconds

        stamps.append(own_seconds(batch.tail[-1]))
    return stamps


def _with_tasks(tally: WarningTally, before: dict[int, int], facts: Sequence[LogFact]) -> WarningTally:
    """The tally with the tasks of its slots while its lines were written, where the lines themselves name none."""
    if tally.tasks.ids or not tally.slots.ids:
        return tally
    tasks = {slot: [before[slot]] if slot in before else [] for slot in tally.slots.ids}
    for fact in facts:
        if not isinstance(fact, TaskLaunched) or fact.slot not in tasks:
            continue
        if fact.at_s is not None and tally.last_s is not None and fact.at_s > tally.last_s:
            continue
        if fact.at_s is not None and tally.first_s is not None and fact.at_s <= tally.first_s:
            tasks[fact.slot].clear()
        tasks[fact.slot].append(fact.task)
    found = dict.fromkeys(task for of_slot in tasks.values() for task in of_slot)
    return replace(tally, tasks=Touched(tuple(found)[-TOUCHED_KEPT:], tally.slots.more or len(found) > TOUCHED_KEPT))


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
    elif isinstance(fact, PromptTiming) and speed(fact.tokens, fact.ms, PREFILL):
        fresh.prompt_tokens += fact.tokens
        fresh.prompt_ms += fact.ms
    elif isinstance(fact, DecodeTiming) and speed(fact.tokens, fact.ms, DECODE):
        fresh.decode_tokens += fact.tokens
        fresh.decode_ms += fact.ms
