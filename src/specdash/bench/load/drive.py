"""Asks an engine a workload and measures every request.

Latencies count from when a request should have been sent, not from when it was: at a given rate, a server that lags
behind is not excused for those that wait (coordinated omission). The speeds are the server's own, of prompt and answer
apart, and held against the client's clock (`bench.plausible`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from specdash.bench.load.samples import (
    BenchSample,
    Job,
    MeasureOptions,
    WorkloadPrompt,
    body_of,
    flags_of,
    jobs,
    length,
)
from specdash.core.errors import InputError, SpecdashError, UnreachableError, UsageError
from specdash.core.flag import Flag
from specdash.core.log_facts import SpeculativeStatistics
from specdash.llama import chat
from specdash.llama.chat import ChatAnswer, ChatFault
from specdash.llama.client import BlockingClient
from specdash.llama.log.parser import LogParser
from specdash.llama.server_answers import ParseError, parse_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from specdash.bench.load.samples import EngineAddress
    from specdash.core.log_facts import LogFact
    from specdash.core.readings import Counters


# Steps and acceptance per position of single requests, from what /metrics counted between them.
#
# The counters move when a request ends. What they moved by is the request's only if it agrees with what the request
# says of itself; where others use the server at the same time, it does not, and nothing is reported.

_ANSWER_S = 5.0
_PATIENCE_S = 0.5
_PAUSE_S = 0.01
_EXACT_BELOW = 1e6
"""llama.cpp prints six significant digits."""


class CounterWatch:
    """Looks at /metrics after each request that ran alone. Not for several threads at once."""

    def __init__(self, place: EngineAddress) -> None:
        self._place = place
        self._client = place.client(_ANSWER_S)
        self.why = ""
        """Why it is not usable."""
        self._last = self._look()

    @property
    def usable(self) -> bool:
        """Whether /metrics answers and counts speculation at all."""
        if self._last is not None and self._last.draft_tokens is None:
            self.why = "this build's /metrics does not count drafts"
            return False
        return self._last is not None

    def after(self, sample: BenchSample) -> tuple[int | None, tuple[int, ...]]:
        """Verification steps and accepted tokens per position of the request that has just ended."""
        before, deadline = self._last, time.monotonic() + _PATIENCE_S
        while True:
            now = self._look()
            if now is None or before is None:
                self._last = now
                return None, ()
            moved = _moved(before, now)
            if sample.accepted is not None and sum(moved) == sample.accepted and _has_moved(before, now, sample):
                self._last = now
                return _steps(before, now), moved if sample.drafted else ()
            if time.monotonic() > deadline:
                self._last = now
                return None, ()
            time.sleep(_PAUSE_S)

    def _look(self) -> Counters | None:
        try:
            reply = self._client.get("/metrics")
        except OSError as error:
            self.why = f"/metrics does not answer ({error})"
            return None
        if reply.status != 200:
            hint = "; start the server with --metrics" if reply.status == 501 else ""
            self.why = f"/metrics answers HTTP {reply.status}{hint}"
            return None
        try:
            return parse_metrics(reply.body)
        except ParseError as error:
            self.why = f"/metrics: {error}"
            return None


def _moved(before: Counters, now: Counters) -> tuple[int, ...]:
    old, new = before.accepted_per_position or (), now.accepted_per_position or ()
    padded = (*old, *[0] * (len(new) - len(old)))
    moved = [later - earlier for later, earlier in zip(new, padded, strict=False)]
    while moved and moved[-1] == 0:
        moved.pop()
    return tuple(moved)


def _has_moved(before: Counters, now: Counters, sample: BenchSample) -> bool:
    """Whether the request is counted already, and no other one is."""
    if before.predicted_tokens is None or now.predicted_tokens is None or sample.predicted_tokens is None:
        return False
    rounding = 0.5 if now.predicted_tokens < _EXACT_BELOW else 10.0 ** (len(str(int(now.predicted_tokens))) - 6)
    return abs(now.predicted_tokens - before.predicted_tokens - sample.predicted_tokens) <= rounding


def _steps(before: Counters, now: Counters) -> int | None:
    if before.verification_steps is None or now.verification_steps is None or now.verification_steps >= _EXACT_BELOW:
        return None
    return round(now.verification_steps - before.verification_steps)


# What drafting cost while something was measured, from the `statistics` lines of the server's log.
#
# They are totals since the server's start, one for each way to draft, printed at the end of a request from log level
# 4 on.

_LOOKED_BACK = 1024 * 1024
_DRAFT_TIME_PATIENCE_S = 1.0
_DRAFT_TIME_PAUSE_S = 0.05


class DraftTime:
    """Begins when it is made."""

    def __init__(self, log: str) -> None:
        self._path = Path(log)
        self.why = ""
        """Why nothing is known."""
        self._begin: dict[str, SpeculativeStatistics] = {}
        try:
            self._size = self._path.stat().st_size
            with self._path.open("rb") as file:
                file.seek(max(0, self._size - _LOOKED_BACK))
                self._note(self._begin, LogParser().feed(file.read(_LOOKED_BACK)).every_fact)
        except OSError as error:
            self._size = 0
            self.why = f"{log}: {error.strerror}"

    def begin_again(self, drafted: int) -> None:
        """Leave out what was drafted since it was made: these tokens, of a warm-up. The log comes late, so it waits."""
        latest = self._once_drafted(drafted) if drafted else None
        if latest is not None:
            self._begin |= latest
        self.why = ""

    def seconds(self, drafted: int) -> float | None:
        """Since it began, in which `drafted` tokens were drafted; None when the log reports others, or nothing."""
        if not drafted:
            return 0.0
        latest = self._once_drafted(drafted)
        if latest is None:
            return None
        spent = sum(sum(statistics.durations_ms) - self._before_ms(statistics) for statistics in latest.values())
        return spent / 1000.0 if spent > 0 else None

    def _once_drafted(self, drafted: int) -> dict[str, SpeculativeStatistics] | None:
        """The totals, once they have grown by so many tokens."""
        deadline = time.monotonic() + _DRAFT_TIME_PATIENCE_S
        while True:
            latest, error = self._latest()
            if latest is None:
                self.why = error
                return None
            moved = sum(statistics.tokens_generated - self._before(statistics) for statistics in latest.values())
            if moved == drafted:
                return latest
            if time.monotonic() > deadline:
                self.why = (
                    f"{self._path} has no statistics lines (they come from --log-verbosity 4 on)"
                    if not latest
                    else f"{self._path} counts {moved} drafted tokens where {drafted} were measured"
                )
                return None
            time.sleep(_DRAFT_TIME_PAUSE_S)

    def _latest(self) -> tuple[dict[str, SpeculativeStatistics] | None, str]:
        found: dict[str, SpeculativeStatistics] = {}
        try:
            with self._path.open("rb") as file:
                file.seek(self._size)
                parser = LogParser()
                while block := file.read(_LOOKED_BACK):
                    self._note(found, parser.feed(block).every_fact)
        except OSError as error:
            return None, f"{self._path}: {error.strerror}"
        return found, ""

    @staticmethod
    def _note(found: dict[str, SpeculativeStatistics], facts: Iterable[LogFact]) -> None:
        for fact in facts:
            if isinstance(fact, SpeculativeStatistics):
                found[fact.type] = fact

    def _before(self, statistics: SpeculativeStatistics) -> int:
        before = self._begin.get(statistics.type)
        return before.tokens_generated if before is not None else 0

    def _before_ms(self, statistics: SpeculativeStatistics) -> float:
        before = self._begin.get(statistics.type)
        return sum(before.durations_ms) if before is not None else 0.0


__all__ = ["Interrupted", "MeasureOptions", "MeasuredRun", "measure"]

MOST_AT_ONCE = 512
WARM_UP_TOKENS = 32
_WARM_UP = WorkloadPrompt(
    "warm-up",
    "warm-up",
    ({"role": "user", "content": "Describe in a few sentences how a lighthouse works and why ships still need one."},),
)
_POLL_S = 0.2


class MeasuredRun(Struct, frozen=True):
    """What was measured. `samples` are in the order they ended in."""

    samples: tuple[BenchSample, ...]
    planned: int
    started_at: float
    """Unix time."""
    duration_s: float
    warm_up: BenchSample | None = None
    draft_s: float | None = None
    """Time that went into drafting, of all samples together; None where no log has it."""
    notes: tuple[str, ...] = ()
    """What could not be measured, and why."""

    @property
    def answered(self) -> tuple[BenchSample, ...]:
        """Those that did not fail."""
        return tuple(sample for sample in self.samples if not sample.failed)

    @property
    def complete(self) -> bool:
        """Whether all that was planned was asked."""
        return len(self.samples) >= self.planned


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or `stop`: `run` holds what was measured by then."""

    def __init__(self, run: MeasuredRun) -> None:
        super().__init__("stopped")
        self.run = run


def measure(
    place: EngineAddress,
    prompts: Sequence[WorkloadPrompt],
    options: MeasureOptions = MeasureOptions(),  # noqa: B008 - frozen
    on_sample: Callable[[BenchSample], None] = lambda _: None,
    *,
    stop: Flag | None = None,
) -> MeasuredRun:
    """Ask every prompt `options.runs` times, in an order drawn from the seed.

    `on_sample` is called in the caller's thread as soon as a request has ended. Failed requests are samples, too; a
    failed warm-up raises `SpecdashError` (`UnreachableError` when no one answers), as nothing could be measured. Raises
    `InputError` without prompts, and `Interrupted` with what there is by then at Ctrl-C or when `stop` is set.
    """
    if not prompts:
        raise InputError("no prompts to measure with")
    if options.runs < 1 or options.concurrency < 1 or options.max_tokens < 2:
        raise UsageError("runs and concurrency want 1 or more, answers 2 tokens or more")
    drive = _Drive(place, options, on_sample, stop or Flag(), len(prompts) * options.runs)
    return drive.run(jobs(prompts, options))


class _Inbox:
    """What the threads that ask have to tell the one that waits, which signals may interrupt (see `Flag`)."""

    def __init__(self) -> None:
        self._told: deque[BenchSample | BaseException] = deque()
        self._filled = Flag()

    def put(self, bench_sample: BenchSample | BaseException) -> None:
        self._told.append(bench_sample)
        self._filled.set()

    def get(self, seconds: float) -> BenchSample | BaseException | None:
        """The oldest; None when nothing comes for so long."""
        if not self._told and self._filled.wait(seconds):
            self._filled.clear()
        return self._told.popleft() if self._told else None


@dataclasses.dataclass(slots=True)
class _Drive:
    place: EngineAddress
    options: MeasureOptions
    on_sample: Callable[[BenchSample], None]
    stop: Flag
    planned: int
    cancel: Event = dataclasses.field(default_factory=Event)
    samples: list[BenchSample] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    failures: int = 0
    """In a row."""
    started_at: float = dataclasses.field(default_factory=time.time)
    began_s: float = dataclasses.field(default_factory=time.monotonic)
    warm_up: BenchSample | None = None
    counters: CounterWatch | None = None
    draft_time: DraftTime | None = None

    def run(self, planned: list[Job]) -> MeasuredRun:
        done = _Inbox()
        workers = min(len(planned), self.options.concurrency if self.options.rate is None else MOST_AT_ONCE)
        pool = ThreadPoolExecutor(workers + 1, "bench")
        try:
            log = self.options.log or self.place.log
            self.draft_time = DraftTime(log) if log is not None else None
            if self.options.warm_up:
                self._warm_up(pool)
            self._watch()
            self.began_s = time.monotonic()
            if self.options.rate is None:
                waiting = iter(planned)
                lock = threading.Lock()
                for _ in range(workers):
                    pool.submit(self._work, waiting, lock, done)
            else:
                pool.submit(self._arrive, planned, pool, done)
            self._gather(done, len(planned))
        except KeyboardInterrupt:
            raise Interrupted(self._end(pool)) from None
        except BaseException:
            self.cancel.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return self._end(pool)

    def _gather(self, done: _Inbox, wanted: int) -> None:
        while len(self.samples) < wanted:
            if self.stop.is_set():
                raise KeyboardInterrupt
            bench_sample = done.get(_POLL_S)
            if bench_sample is None:
                continue
            if isinstance(bench_sample, BaseException):
                raise bench_sample
            if bench_sample.fault == ChatFault.CANCELLED:
                continue
            self.samples.append(bench_sample)
            if not bench_sample.failed:
                self.failures = 0
            elif bench_sample.fault != ChatFault.REFUSED:  # that one is about the request: too long, mostly
                self.failures += 1
            self.on_sample(bench_sample)
            if self.failures >= self.options.give_up and len(self.samples) < wanted:
                self.notes.append(f"given up after {self.failures} failures in a row: {bench_sample.error}")
                return

    def _end(self, pool: ThreadPoolExecutor) -> MeasuredRun:
        duration = time.monotonic() - self.began_s
        self.cancel.set()
        pool.shutdown(wait=False, cancel_futures=True)
        draft_s = None
        if self.draft_time is not None:
            drafted = sum(sample.drafted or 0 for sample in self.samples)
            draft_s = self.draft_time.seconds(drafted)
            if draft_s is None and drafted:
                self.notes.append(f"what drafting cost is unknown: {self.draft_time.why}")
        return MeasuredRun(
            tuple(self.samples), self.planned, self.started_at, duration, self.warm_up, draft_s, tuple(self.notes)
        )

    def _warm_up(self, pool: ThreadPoolExecutor) -> None:
        """The first request of an engine reads what later ones find in memory. Raises `SpecdashError` when it fails."""
        options = replace(self.options, max_tokens=WARM_UP_TOKENS, cache=False, force_length=True)
        asked = pool.submit(self._sample, Job(-1, _WARM_UP, 0), time.monotonic(), options)
        while not asked.done():
            if self.stop.wait(0.01):
                raise KeyboardInterrupt
        self.warm_up = asked.result()
        if not self.warm_up.failed:
            if self.draft_time is not None:
                self.draft_time.begin_again(self.warm_up.drafted or 0)
            return
        failure = f"{self.place.url}: {self.warm_up.error}"
        if self.warm_up.fault == ChatFault.UNREACHABLE:
            raise UnreachableError(f"{failure}; start the server, or name another one")
        raise SpecdashError(f"the first request failed, so nothing was measured: {failure}")

    def _watch(self) -> None:
        if self.options.positions:
            if self.options.alone:
                self.counters = CounterWatch(self.place)
                if not self.counters.usable:
                    self.notes.append(f"no acceptance per position: {self.counters.why}")
                    self.counters = None
            else:
                self.notes.append("no acceptance per position: requests do not run alone")

    def _work(self, waiting: Any, lock: threading.Lock, done: _Inbox) -> None:
        """One of the clients of a closed loop."""
        while not self.cancel.is_set():
            with lock:
                job = next(waiting, None)
            if job is None:
                return
            self._one(job, time.monotonic(), done)

    def _arrive(self, planned: list[Job], pool: ThreadPoolExecutor, done: _Inbox) -> None:
        """Send each request when it is due."""
        for job in planned:
            due = self.began_s + (job.due_s or 0.0)
            while (left := due - time.monotonic()) > 0:
                if self.cancel.is_set():
                    return
                time.sleep(min(left, _POLL_S))
            with contextlib.suppress(RuntimeError):  # the pool was shut down meanwhile
                pool.submit(self._one, job, due, done)

    def _one(self, job: Job, intended_s: float, done: _Inbox) -> None:
        try:
            done.put(self._sample(job, intended_s, self.options))
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits for it
            done.put(error)

    def _sample(self, job: Job, intended_s: float, options: MeasureOptions) -> BenchSample:
        server = BlockingClient(self.place.url, self.place.key, cancel=self.cancel)
        body, limits = body_of(job, options, self.place), self.options
        heard = chat.ask(server, body, silence_s=limits.silence_s, limit_s=limits.limit_s)
        sample = sample_of(heard, job, intended_s)
        flags = flags_of(sample, wanted=length(job.prompt, options), alone=options.alone, cache=options.cache)
        sample = replace(sample, flags=flags)
        if self.counters is not None and job.number >= 0 and not self.cancel.is_set():
            steps, accepted = self.counters.after(sample)
            sample = replace(sample, steps=steps, accepted_per_position=accepted)
        return sample


def sample_of(heard: ChatAnswer, job: Job, intended_s: float) -> BenchSample:
    """What was heard as a sample."""
    timings = heard.timings
    return BenchSample(
        prompt=job.prompt.id,
        kind=job.prompt.kind,
        run=job.run,
        intended_s=intended_s,
        sent_s=heard.sent_s,
        first_s=heard.first_s,
        done_s=heard.done_s,
        prompt_tokens=heard.prompt_tokens,
        cached_tokens=heard.cached_tokens,
        prompt_ms=_milliseconds(timings.get("prompt_ms")),
        predicted_tokens=heard.predicted_tokens,
        predicted_ms=_milliseconds(timings.get("predicted_ms")),
        # Left out when nothing was drafted; without timings no one knows.
        drafted=int(timings.get("draft_n") or 0) if timings else None,
        accepted=int(timings.get("draft_n_accepted") or 0) if timings else None,
        finish=heard.finish,
        empty=heard.empty,
        error=heard.error,
        fault=heard.fault.value if heard.fault is not None else "",
        chunks=heard.chunks,
    )


def _milliseconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None
