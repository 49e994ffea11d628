"""State read from the log so far: totals, warnings, finished requests, live steps, and the raw tail."""

from __future__ import annotations

from collections import Counter, deque
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from specdash.core import log_facts
from specdash.core.speculation import SPEC_TYPES
from specdash.insight.log.counter_log import KEEP_S
from specdash.insight.picture import WarningPicture
from specdash.insight.request import NO_DRAFTS, DraftTally, RequestAssembler
from specdash.insight.windowed import Windowed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.insight.request import ServedRequest

    Facts = Sequence[log_facts.LogFact]
    Clock = float | None
    """Seconds since a server's start, None where its lines have no time stamps."""


# When the lines of a log were written: each server's own clock against the moment at which they were read.


def _lives(facts: Facts) -> list[Sequence[log_facts.LogFact]]:
    """The facts by the server that wrote them, in order; there is one at least."""
    starts = [
        index
        for index, fact in enumerate(facts)
        if isinstance(fact, log_facts.ServerEvent) and fact.name == "restarted"
    ]
    return [facts[start:end] for start, end in zip([0, *starts], [*starts, len(facts)], strict=True)]


def _newest(facts: Facts, *others: float | None) -> Clock:
    """The newest time stamp of these facts; `others` are further stamps of that server."""
    stamp = next((fact.at_s for fact in reversed(facts) if fact.at_s is not None), None)
    return max((known for known in (stamp, *others) if known is not None), default=None)


def _at_reading(newest: Sequence[Clock], age_s: float | None) -> list[Clock]:
    """What each server's clock would have shown when the lines were read, of those it showed in its newest lines.

    The newest line of the last server was `age_s` old then, where that is known. A server that another one followed
    ended when that one began.
    """
    clocks: list[Clock] = []
    after = age_s or 0.0
    for stamp in reversed(newest):
        clocks.append(stamp + after if stamp is not None else None)
        after += stamp or 0.0
    return clocks[::-1]


# Warnings by class: counted, rated, dated, and with the slots and tasks that they touched; in O(1) memory per class,
# however many lines come.

MINUTE = 60.0


class Storm:
    """Lines of one class; times are monotonic seconds."""

    def __init__(self, tally: log_facts.WarningTally, first_at: float) -> None:
        self.seen = WarningPicture(tally.warning, sample=tally.sample, is_former=True)
        """What it comes to, without what the grammar says of the class, and without ages."""
        self.first_at, self.last_at = first_at, -inf
        self._recent = Windowed(0, MINUTE, 1.0)

    def per_minute(self, now: float) -> float:
        """Lines of the last minute."""
        return float(self._recent.since(now - MINUTE))

    def add(self, at: float, last_at: float, tally: log_facts.WarningTally) -> None:
        """Count lines that were read at `at`; the last of them was written at `last_at`."""
        seen, is_former = self.seen, tally.lives_ago > 0
        self.last_at = max(self.last_at, last_at)
        if at - last_at < MINUTE:
            self._recent.add(at, tally.count)
        tasks = seen.tasks if is_former else seen.tasks.and_then(tally.tasks)
        others = len(tally.tasks.ids) if is_former else len(tasks.ids) - len(seen.tasks.ids)
        self.seen = replace(
            seen,
            count=seen.count + tally.count,
            slots=seen.slots.and_then(tally.slots),
            tasks=tasks,
            tasks_touched=seen.tasks_touched + others,
            peak_per_minute=max(seen.peak_per_minute, self.per_minute(at)),
            is_former=seen.is_former and is_former,
        )

    def new_server(self) -> None:
        """A new server process writes from here on: its tasks are others."""
        self.seen = replace(self.seen, tasks=log_facts.Touched((), self.seen.tasks.more), is_former=True)


class StormBook:
    """All warning classes seen."""

    def __init__(self) -> None:
        self._storms: dict[str, Storm] = {}

    def add(self, at: float, tally: log_facts.WarningTally, uptime_s: float | None = None) -> None:
        """Count a tally that was read at `at`.

        With the server's `uptime_s` known, the lines' own time stamps date them, so that a log read from its beginning
        does not look like a storm of this minute.
        """
        first_at, last_at = at, at
        if uptime_s is not None and tally.first_s is not None and tally.last_s is not None:
            first_at = at - max(0.0, uptime_s - tally.first_s)
            last_at = at - max(0.0, uptime_s - tally.last_s)
        self._storms.setdefault(tally.warning, Storm(tally, first_at)).add(at, last_at, tally)

    def count(self, warning: str) -> int:
        """How many lines of that class came."""
        return self._storms[warning].seen.count if warning in self._storms else 0

    @property
    def newest_first(self) -> list[Storm]:
        """Every class, the most recently seen first."""
        return sorted(self._storms.values(), key=lambda storm: -storm.last_at)

    def new_server(self) -> None:
        """A new server process writes from here on."""
        for storm in self._storms.values():
            storm.new_server()


RECENT_REQUESTS = 50
TAIL_LINES = 5000
STEPS_GRAIN_S = 1.0
FRESH_S = 5.0
"""A line this young when it is read happened now; an older one was in the file before we looked."""


class SlotSteps(Struct):
    """Verification steps of a slot's current task.

    `last_s` is the time stamp of its last step in the log, replays included, in seconds since the server's start; None
    where the log has none.
    """

    task: int
    drafts: DraftTally = NO_DRAFTS
    last_s: float | None = None
    restored: int = 0
    """How many of its steps, replays included, went back to a checkpoint."""


class LatestBatch(Struct):
    """The current part of a batch: its verification steps; and all requests that ended with the monotonic time of their
    end, without those that cannot be dated, such as those of servers whose end was not seen."""

    drafts: DraftTally = NO_DRAFTS
    ended: list[tuple[float, ServedRequest]] = field(default_factory=list)


class LogView:
    """Takes in log batches in order; memory is bounded for any log."""

    def __init__(self) -> None:
        self.since_wall: float | None = None
        """Unix time from when on lines were counted; None when it is from the log's beginning."""
        self.lines = self.unrecognised = 0
        self.newest_at = 0.0
        """When the newest line with a time stamp was written, on the monotonic clock."""
        self.written_at: float | None = None
        """Likewise of the newest line, stamped or not; None before there is one."""
        self.finished = self.cancelled = 0
        self.recent: deque[tuple[float, ServedRequest]] = deque(maxlen=RECENT_REQUESTS)
        self.lives = 0
        """How many servers began to write since the first line."""
        self.storms = StormBook()
        self.checkpoints: Counter[str] = Counter()
        """Events of checkpoints in all of the log, by `kind action`."""
        self._live: Counter[str] = Counter()
        self._live_since = float("-inf")
        self._live_drafts = NO_DRAFTS
        self._backlog: list[ServedRequest] | None = []
        """Requests of the server whose lines are read, until the file's earlier lines are all read."""
        self._assemblers: dict[int | None, RequestAssembler] = {}
        """By port of a router's child, None for the server itself."""
        self._tail: deque[log_facts.LogLine] = deque(maxlen=TAIL_LINES)
        self._tail_end = 0
        self._begin()

    def _begin(self) -> None:
        """What is known of the server that writes now: nothing yet."""
        self.newest_s: float | None = None
        """Time stamp of the newest line that had one: seconds since the server's start."""
        self._own: frozenset[int] = frozenset()
        """Tasks that are no client's."""
        self.ended_here = 0
        """How many of the newest requests are its."""
        self.here: Counter[str] = Counter()
        """Its events of checkpoints by `kind action`, and its server events by name."""
        self.checkpoint_mib: dict[str, float] = {}
        """Size of the newest checkpoint of each kind."""
        self.events: dict[str, log_facts.ServerEvent] = {}
        self.implementations: dict[str, dict[str, str]] = {}
        """Settings that each speculative implementation printed at the start, by type."""
        self.step_totals = Windowed(NO_DRAFTS, KEEP_S, STEPS_GRAIN_S)
        """Verification steps, also of requests that run."""
        self.requests_exact = Windowed(NO_DRAFTS, KEEP_S)
        """The drafts of requests that ended."""
        self.slot_steps: dict[int, SlotSteps] = {}
        self.statistics: dict[tuple[int | None, str], log_facts.SpeculativeStatistics] = {}
        """What each speculative implementation says of itself, since the server's start; by port (of a router's child)
        and type."""
        self.cache_state: log_facts.PromptCacheState | None = None
        """What the prompt cache held at its latest line (verbosity 4)."""
        self.full_reprocessed = Windowed(0, KEEP_S, 1.0)
        """Prompts that were read from their start for want of a checkpoint."""
        self.prefill: dict[int, log_facts.PrefillProgress] = {}

    def add(self, at: float, batch: log_facts.LogBatch) -> LatestBatch:
        """Take in one batch read at monotonic `at`, and return what in it is of this moment.

        The newest line dates the others by their time stamps.
        """
        parts = _lives(batch.facts)
        if batch.restarted and len(parts) == 1:
            self._new_server()
            self._assemblers[None].feed((log_facts.ServerEvent("restarted"),))
        self.lines += batch.lines
        if batch.lines:
            self.written_at = at - (batch.age_s or 0.0)
        self.unrecognised += batch.unrecognised
        kinds = batch.tail_kinds if len(batch.tail_kinds) == len(batch.tail) else log_facts.NOTABLE * len(batch.tail)
        self._tail.extend(zip(batch.tail, map(log_facts.DETAIL.__eq__, kinds), strict=True))
        self._tail_end += len(batch.tail)
        stamps = [*map(_newest, parts[:-1]), _newest(parts[-1], *_other_stamps(batch))]
        clocks = _at_reading(stamps, batch.age_s)
        fresh = LatestBatch()
        is_live = not batch.more_follows
        for index, (facts, clock) in enumerate(zip(parts, clocks, strict=True)):
            if index:
                self._new_server()
            self._life(at, facts, clock, fresh, None, is_live=is_live)
        now_s: dict[int | None, Clock] = {None: clocks[-1]}
        for child in batch.children:
            (now_s[child.port],) = _at_reading([_newest(child.facts)], batch.age_s)
            self._life(at, child.facts, now_s[child.port], fresh, child.port, is_live=is_live)
        self._live_drafts += fresh.drafts
        if self._backlog is not None and is_live:
            # The server that writes now is known by its clock, those before it are not.
            backlog, self._backlog = self._backlog, None
            for request in backlog:
                clock = now_s.get(request.origin)
                if clock is not None and request.at_s is not None:
                    fresh.ended.append((at - max(0.0, clock - request.at_s), request))
        if stamps[-1] is not None:
            self.newest_s, self.newest_at = stamps[-1], at - (batch.age_s or 0.0)
        for tally in batch.warnings:
            clock = clocks[max(0, len(clocks) - 1 - tally.lives_ago)]
            self.storms.add(at, tally, clock)
        return fresh

    def _life(
        self, at: float, facts: Facts, clock: Clock, fresh: LatestBatch, port: int | None, *, is_live: bool
    ) -> None:
        """Take in what one server wrote. `clock` is its time stamp of the moment `at`."""
        for fact in facts:
            if self._is_own(port, getattr(fact, "task", None)):
                continue
            age = _age(clock, fact.at_s)
            self._fact(at - age, fact, port)
            if age == 0.0 and is_live:
                self._note_live(fact, fresh)
        for request in self._assemblers.setdefault(port, RequestAssembler(port=port)).feed(facts):
            if request.slot is not None:
                self.prefill.pop(request.slot, None)
            if self._is_own(port, request.task):
                continue
            self.recent.appendleft((at - _age(clock, request.at_s), request))
            self.ended_here += 1
            self.finished += not request.cancelled
            self.cancelled += request.cancelled
            if request.draft_generated:
                self.requests_exact.add(at - _age(clock, request.at_s), request.drafts)
            if self._backlog is not None:
                self._backlog.append(request)
            else:
                dated = clock is not None and request.at_s is not None
                fresh.ended.append((at - max(0.0, (clock or 0.0) - (request.at_s or 0.0)) if dated else at, request))

    @property
    def by_type(self) -> tuple[log_facts.SpeculativeStatistics, ...]:
        """The statistics per implementation, in the engine's order of priority."""
        order = {spec_kind.name: index for index, spec_kind in enumerate(SPEC_TYPES)}
        return tuple(sorted(self.statistics.values(), key=lambda fact: (order.get(fact.type, len(order)), fact.type)))

    @property
    def live(self) -> dict[str, int]:
        """What happened while we looked, the past of the log left out: see `LogPicture.live`."""
        drafts = self._live_drafts
        steps = {"steps": drafts.steps or 0, "replays": drafts.replays}
        tokens = {"drafted": drafts.drafted, "accepted": drafts.accepted}
        counted = {name: int(count) for name, count in {**steps, **tokens}.items()} if drafts.calls else {}
        return counted | self._live

    def live_steps(self, now: float, window_s: float) -> DraftTally:
        """Verification steps of the last `window_s` seconds, of the server that runs now."""
        return self.step_totals.since(max(now - window_s, self._live_since))

    def forget_process(self, at: float) -> None:
        """The counters show that another server runs since monotonic `at`."""
        self.requests_exact = Windowed(NO_DRAFTS, KEEP_S)
        self._live_since = at

    def whole(self, count: int) -> int | None:
        """A count of the log, None where the log was not read from its beginning."""
        return count if self.since_wall is None else None

    def lines_after(self, after: int, limit: int) -> tuple[int, tuple[log_facts.LogLine, ...]]:
        """Raw lines numbered above `after`, at most the last `limit`, and the newest number."""
        fresh = min(self._tail_end - after, limit, len(self._tail))
        if fresh <= 0:
            return self._tail_end, ()
        return self._tail_end, tuple(islice(self._tail, len(self._tail) - fresh, None))

    def leave_out(self, tasks: frozenset[int]) -> None:
        """Take these tasks of the server that writes now from all that is counted: they are no client's."""
        gone = min(len(tasks - self._own), self.ended_here)
        self._own = tasks
        if not gone:
            return
        self.recent = deque(
            (
                (at, request)
                for place, (at, request) in enumerate(self.recent)
                if place >= self.ended_here or not self._is_own(request.origin, request.task)
            ),
            maxlen=RECENT_REQUESTS,
        )
        self.finished -= gone
        self.ended_here -= gone
        if not self.ended_here:
            # No client's request has ended: what was drafted is no client's.
            self.requests_exact = Windowed(NO_DRAFTS, KEEP_S)

    def _is_own(self, port: int | None, task: int | None) -> bool:
        return port is None and task in self._own

    def _new_server(self) -> None:
        self.lives += 1
        if self._backlog is not None:
            self._backlog.clear()
        # Its facts begin with the restart, which the assembler counts.
        self._assemblers = {None: RequestAssembler(self.lives)}
        self.storms.new_server()
        self._begin()

    def _steps(self, at: float, fact: log_facts.VerificationSteps) -> None:
        live = self.slot_steps.get(fact.slot)
        if live is None or live.task != fact.task:
            live = self.slot_steps[fact.slot] = SlotSteps(fact.task)
        drafts = DraftTally.of_steps(fact, live.last_s)
        self.step_totals.add(at, drafts)
        live.drafts += drafts
        live.restored += fact.restored
        live.last_s = fact.at_s

    def _fact(self, at: float, fact: log_facts.LogFact, port: int | None) -> None:
        match fact:
            case log_facts.VerificationSteps():
                self._steps(at, fact)
            case log_facts.SpeculativeStatistics():
                self.statistics[(port, fact.type)] = fact
            case log_facts.PrefillProgress():
                self.prefill[fact.slot] = fact
            case log_facts.CheckpointEvent(action=action, kind=kind):
                self.checkpoints[f"{kind} {action}"] += 1
                self.here[f"{kind} {action}"] += 1
                if fact.size_mib is not None and action == "created":
                    self.checkpoint_mib[kind] = fact.size_mib
                if action == "full_reprocess":
                    self.full_reprocessed.add(at, 1)
            case log_facts.PromptCacheState():
                self.cache_state = fact
            case log_facts.ServerEvent(name=name):
                self.here[name] += 1
                self.events[name] = fact
                if name == "spec_implementation":
                    self.implementations.setdefault(fact.get("type") or "", {})
                elif name == "spec_parameters" and self.implementations:
                    self.implementations[next(reversed(self.implementations))].update(fact.fields)

    def _note_live(self, fact: log_facts.LogFact, fresh: LatestBatch) -> None:
        match fact:
            case log_facts.CheckpointEvent():
                self._live[f"{fact.kind} {fact.action}"] += 1
            case log_facts.ServerEvent():
                self._live[fact.name] += 1
            case log_facts.VerificationSteps():
                fresh.drafts += DraftTally.of_steps(fact)


def _other_stamps(batch: log_facts.LogBatch) -> list[float | None]:
    """Time stamps of lines that are no facts."""
    stamps = [tally.last_s for tally in batch.warnings if not tally.lives_ago]
    if batch.tail and batch.age_s is not None:
        from specdash.llama.log.safe import own_seconds

        stamps.append(own_seconds(batch.tail[-1]))
    return stamps


def _age(now_s: float | None, at_s: float | None) -> float:
    """How long ago a line was written, in seconds; 0 for one that is fresh or has no date."""
    if now_s is None or at_s is None:
        return 0.0
    age = now_s - at_s
    return age if age > FRESH_S else 0.0
