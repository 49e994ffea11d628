"""Asks an engine a workload and measures every request.

Latencies count from when a request should have been sent, not from when it was: at a given rate, a server that lags
behind is not excused for those that wait (coordinated omission). The speeds are the server's own, of prompt and answer
apart, and held against the client's clock (`bench.plausible`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from specdash.bench.chat import Chat, Fault, Heard
from specdash.bench.counters import CounterWatch
from specdash.bench.draft_time import DraftTime
from specdash.bench.plausible import flags_of
from specdash.bench.samples import Prompt, Sample
from specdash.bench.schedule import Job, Options, body_of, jobs, length
from specdash.core.errors import InputError, SpecdashError, UnreachableError, UsageError
from specdash.core.flag import Flag

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.bench.samples import Place

__all__ = ["Interrupted", "Options", "Run", "measure"]

MOST_AT_ONCE = 512
WARM_UP_TOKENS = 32
_WARM_UP = Prompt(
    "warm-up",
    "warm-up",
    ({"role": "user", "content": "Describe in a few sentences how a lighthouse works and why ships still need one."},),
)
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Run:
    """What was measured. `samples` are in the order they ended in."""

    samples: tuple[Sample, ...]
    planned: int
    started_at: float
    """Unix time."""
    duration_s: float
    warm_up: Sample | None = None
    draft_s: float | None = None
    """Time that went into drafting, of all samples together; None where no log tells."""
    notes: tuple[str, ...] = ()
    """What could not be measured, and why."""

    @property
    def answered(self) -> tuple[Sample, ...]:
        """Those that did not fail."""
        return tuple(one for one in self.samples if not one.failed)

    @property
    def complete(self) -> bool:
        """Whether all that was planned was asked."""
        return len(self.samples) >= self.planned


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or `stop`: `run` holds what was measured by then."""

    def __init__(self, run: Run) -> None:
        super().__init__("stopped")
        self.run = run


def measure(
    place: Place,
    prompts: Sequence[Prompt],
    options: Options = Options(),  # noqa: B008 - frozen
    on_sample: Callable[[Sample], None] = lambda _: None,
    *,
    stop: Flag | None = None,
) -> Run:
    """Ask every prompt `options.runs` times, in an order drawn from the seed.

    `on_sample` is called in the caller's thread as soon as a request has ended. Failed requests are samples, too; a
    failed warm-up raises `SpecdashError` (`UnreachableError` when nobody answers), as nothing could be measured. Raises
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
        self._told: deque[Sample | BaseException] = deque()
        self._filled = Flag()

    def put(self, one: Sample | BaseException) -> None:
        self._told.append(one)
        self._filled.set()

    def get(self, seconds: float) -> Sample | BaseException | None:
        """The oldest; None when nothing comes for so long."""
        if not self._told and self._filled.wait(seconds):
            self._filled.clear()
        return self._told.popleft() if self._told else None


@dataclass(slots=True)
class _Drive:
    place: Place
    options: Options
    on_sample: Callable[[Sample], None]
    stop: Flag
    planned: int
    chat: Chat = field(init=False)
    samples: list[Sample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: int = 0
    """In a row."""
    started_at: float = field(default_factory=time.time)
    began_s: float = field(default_factory=time.monotonic)
    warm_up: Sample | None = None
    counters: CounterWatch | None = None
    draft_time: DraftTime | None = None

    def __post_init__(self) -> None:
        self.chat = Chat(self.place, silence_s=self.options.silence_s, limit_s=self.options.limit_s)

    def run(self, planned: list[Job]) -> Run:
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
            self.chat.cancel()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return self._end(pool)

    def _gather(self, done: _Inbox, wanted: int) -> None:
        while len(self.samples) < wanted:
            if self.stop.is_set():
                raise KeyboardInterrupt
            one = done.get(_POLL_S)
            if one is None:
                continue
            if isinstance(one, BaseException):
                raise one
            if one.fault == Fault.CANCELLED:
                continue
            self.samples.append(one)
            if not one.failed:
                self.failures = 0
            elif one.fault != Fault.REFUSED:  # that one is about the request: too long, mostly
                self.failures += 1
            self.on_sample(one)
            if self.failures >= self.options.give_up and len(self.samples) < wanted:
                self.notes.append(f"given up after {self.failures} failures in a row: {one.error}")
                return

    def _end(self, pool: ThreadPoolExecutor) -> Run:
        duration = time.monotonic() - self.began_s
        self.chat.cancel()
        pool.shutdown(wait=False, cancel_futures=True)
        draft_s = None
        if self.draft_time is not None:
            drafted = sum(one.drafted or 0 for one in self.samples)
            draft_s = self.draft_time.seconds(drafted)
            if draft_s is None and drafted:
                self.notes.append(f"what drafting cost is unknown: {self.draft_time.why}")
        return Run(
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
        said = f"{self.place.url}: {self.warm_up.error}"
        if self.warm_up.fault == Fault.UNREACHABLE:
            raise UnreachableError(f"{said}; start the server, or name another one")
        raise SpecdashError(f"the first request failed, so nothing was measured: {said}")

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
        while not self.chat.cancelled:
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
                if self.chat.cancelled:
                    return
                time.sleep(min(left, _POLL_S))
            with contextlib.suppress(RuntimeError):  # the pool was shut down meanwhile
                pool.submit(self._one, job, due, done)

    def _one(self, job: Job, intended_s: float, done: _Inbox) -> None:
        try:
            done.put(self._sample(job, intended_s, self.options))
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits for it
            done.put(error)

    def _sample(self, job: Job, intended_s: float, options: Options) -> Sample:
        heard = self.chat.ask(body_of(job, options, self.place))
        sample = sample_of(heard, job, intended_s)
        flags = flags_of(sample, wanted=length(job.prompt, options), alone=options.alone, cache=options.cache)
        sample = replace(sample, flags=flags)
        if self.counters is not None and job.number >= 0 and not self.chat.cancelled:
            steps, accepted = self.counters.after(sample)
            sample = replace(sample, steps=steps, accepted_per_position=accepted)
        return sample


def sample_of(heard: Heard, job: Job, intended_s: float) -> Sample:
    """What was heard as a sample."""
    timings = heard.timings
    return Sample(
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
        # Left out when nothing was drafted; without timings nobody knows.
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
