"""Measures one boot: the same prompts every time, with forced length and no cache, and all that shows their cost."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil
from msgspec import Struct, field
from msgspec.structs import replace

from specdash.backend.proxies import figure, fronts
from specdash.bench.engines import last_said
from specdash.bench.load.contact import counters_told
from specdash.bench.load.drive import MeasureOptions, measure
from specdash.bench.load.figures import usable
from specdash.core.errors import SpecdashError
from specdash.core.speculation import SPEC_TYPES
from specdash.llama.chat import ChatFault
from specdash.llama.log import WARNING_CLASSES
from specdash.llama.log.parser import LogParser
from specdash.system.processes import family, listening_pid
from specdash.system.stats import mean, median
from specdash.system.text import MIB, percent, size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from specdash.bench.load.drive import MeasuredRun
    from specdash.bench.load.samples import BenchSample, EngineAddress, WorkloadPrompt
    from specdash.collect.gpu import GpuLooks
    from specdash.core.flag import Flag
    from specdash.tune.model.problem import BootResult, Point
    from specdash.tune.run.status import Boot


# What else went on while a boot was measured: other users of the engine and of the machine, memory.
#
# All of it is optional: what cannot be looked at is None, and decides nothing.

_ANSWER_S = 5.0
_EXACT_BELOW = 1e6
"""Tokens up to which /metrics counts exactly."""
BUSY_CORES = 0.3
BUSY_SHARE = 0.1
"""Others may use so many cores, or this share of all, whichever is more."""
BUSY_GPU = 0.2
"""Utilisation of a GPU on which our engine does nothing, from which someone else does."""


def allowed_cores(cores: int | None = None) -> float:
    """How many cores others may use, of so many (None: of this machine's)."""
    return max(BUSY_CORES, BUSY_SHARE * (cores or os.cpu_count() or 1))


class Surroundings(Struct, frozen=True):
    """What was seen beside the measurement."""

    others_cores: float | None = None
    """CPU cores that neither the engine nor we used, on average."""
    foreign_tokens: int | None = None
    """Tokens that the engine generated for someone else."""
    gpu_before: float | None = None
    """Utilisation of the busiest GPU, 0 to 1, before we asked anything."""
    memory_free_bytes: int | None = None
    """Of the GPU with the least room, with the engine loaded and used."""
    memory_used_bytes: int | None = None
    """Of all GPUs."""
    temperature: float | None = None
    clock_mhz: int | None = None

    def disturbance(self, cores: int | None = None) -> str:
        """Who else used the engine or the machine, in words; empty when no one did."""
        allowed = allowed_cores(cores)
        if self.foreign_tokens:
            return f"the engine generated {self.foreign_tokens} tokens for other clients"
        if self.others_cores is not None and self.others_cores > allowed:
            return f"other programs used {self.others_cores:.1f} CPU cores"
        if self.gpu_before is not None and self.gpu_before > BUSY_GPU:
            return f"the GPU was {percent(self.gpu_before)} busy before anything was asked"
        return ""


class Watch:
    """Begins to look when it is made, with the engine up and idle."""

    def __init__(self, place: EngineAddress, gpus: GpuLooks | None = None) -> None:
        self._place = place
        self._gpus = gpus
        self._engine = engine_pid(place.url)
        self._counters = counters_told(place.client(_ANSWER_S))
        self._before = gpus.look() if gpus is not None else None
        self._cpu = self._cpu_seconds()
        self._began = time.monotonic()

    def end(self, own_tokens: int | None) -> Surroundings:
        """What was seen since. `own_tokens`: how many the engine generated for us, None where that is not known."""
        took = max(time.monotonic() - self._began, 1e-6)
        cpu = self._cpu_seconds()
        others = None if cpu is None or self._cpu is None else max(0.0, cpu - self._cpu) / took
        before, now = self._before, self._gpus.look() if self._gpus is not None else None
        return Surroundings(
            others_cores=others,
            foreign_tokens=self._foreign(own_tokens),
            gpu_before=before.utilisation if before is not None else None,
            memory_free_bytes=now.free_bytes if now is not None else None,
            memory_used_bytes=now.used_bytes if now is not None else None,
            temperature=now.celsius if now is not None else None,
            clock_mhz=now.clock_mhz if now is not None else None,
        )

    def _foreign(self, own: int | None) -> int | None:
        before, now = self._counters, counters_told(self._place.client(_ANSWER_S))
        if own is None or before is None or now is None:
            return None
        if before.predicted_tokens is None or now.predicted_tokens is None or now.predicted_tokens >= _EXACT_BELOW:
            return None
        return max(0, round(now.predicted_tokens - before.predicted_tokens) - own)

    def _cpu_seconds(self) -> float | None:
        """CPU time of everybody but the engine and us, since the machine was started."""
        if self._engine is None:
            return None
        try:
            times = psutil.cpu_times()
            ours = [*family(self._engine), psutil.Process()]
            own = sum(sum(process.cpu_times()[:2]) for process in {process.pid: process for process in ours}.values())
        except psutil.Error:
            return None
        steal = getattr(times, "steal", 0.0)
        irq = getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0)
        return float(times.user + getattr(times, "nice", 0.0) + times.system + irq + steal - own)


def engine_pid(url: str) -> int | None:
    """The process that listens there, where this user may see it."""
    port = urlsplit(url).port
    return listening_pid(port) if port is not None else None


LOOK_S = 1.0
"""The least time that the wait for an idle machine takes."""
LONGEST_WAIT_S = 120.0
"""The longest; the boot is judged afterwards anyway."""


def boot_seconds(boots: Sequence[Boot]) -> float | None:
    """What one boot more will take, by those that were made; None before the first.

    Starts and measurements are alike, but for one that hung: their median. Waits and discarded boots come now and then:
    their mean. A boot that did not come up says nothing of one that does.
    """
    usual = median(boot.seconds for boot in boots if boot.seconds is not None and boot.result.prompts)
    waited = mean([boot.waited_s for boot in boots if boot.waited_s is not None])
    return None if usual is None else usual + (waited or 0.0)


def left_s(boots: Sequence[Boot], restarts: int, elapsed_s: float) -> float | None:
    """Seconds until all boots are made, the present one under way for `elapsed_s`; None before the first has ended."""
    each, more = boot_seconds(boots), max(0, restarts - len(boots))
    if each is None:
        return None
    return max(0.0, each - elapsed_s) + (more - 1) * each if more else 0.0


_MOST_LOG = 64 << 20
_OWN_LINES = frozenset(name for spec_kind in SPEC_TYPES for name in spec_kind.log_classes)
"""Line classes that only one way to speculate writes: new ones come with a new way, and mean no trouble."""


class UnmeasuredError(SpecdashError):
    """The engine was up and could not be measured."""


class MeasuredBoot(Struct, frozen=True):
    """One boot, as it was measured."""

    samples: tuple[BenchSample, ...]
    draft_s: float | None = None
    warnings: frozenset[str] = frozenset()
    """Classes of warnings and errors in the engine's log."""
    seen: Surroundings = field(default_factory=Surroundings)
    notes: tuple[str, ...] = ()
    problem: str = ""
    """Why it is not complete; empty when it is."""

    def check(self) -> None:
        """Raise `UnmeasuredError` where it is not complete."""
        if self.problem:
            raise UnmeasuredError(self.problem)

    @property
    def ttft_s(self) -> float | None:
        """The median."""
        return median(sample.ttft_s for sample in self.samples if not sample.failed)


class Measurer:
    """The measurement of every boot of a run, a `loop.PromptRunner`."""

    def __init__(
        self,
        prompts: Sequence[WorkloadPrompt],
        options: MeasureOptions,
        gpus: GpuLooks | None = None,
        stop: Flag | None = None,
    ) -> None:
        self.prompts = tuple(prompts)
        self._options = replace(options, cache=False, force_length=True, positions=True)
        self._gpus = gpus
        self._stop = stop

    def __call__(self, place: EngineAddress, on_done: Callable[[int, int], None]) -> MeasuredBoot:
        """Raises `SpecdashError`, and `bench.drive.Interrupted`."""
        watch = Watch(place, self._gpus)
        done = 0

        def count(_: BenchSample) -> None:
            nonlocal done
            done += 1
            on_done(done, len(self.prompts) * self._options.runs)

        run = measure(place, self.prompts, replace(self._options, log=place.log), count, stop=self._stop)
        return measured(run, watch.end(own_tokens(run)), place.log)


def measured(run: MeasuredRun, seen: Surroundings, log: str | None) -> MeasuredBoot:
    """What a run of requests comes to. Requests whose figures cannot be are left out."""
    good = usable(run.samples)
    odd = len(run.answered) - len(good)
    notes = list(run.notes)
    if odd:
        notes.append(f"{odd} requests with impossible figures left out")
    failed = [sample for sample in run.samples if sample.failed]
    problem = ""
    if failed:
        gone = (
            last_said(log)
            if any(sample.fault in (ChatFault.BROKEN, ChatFault.UNREACHABLE) for sample in failed)
            else ""
        )
        problem = f"{len(failed)} of {len(run.samples)} requests failed: {failed[0].error}{gone}"
    elif not good:
        problem = "no request gave figures that can be"
    elif not run.complete:
        problem = "not all requests were asked"
    return MeasuredBoot(
        samples=(*good, *failed),
        draft_s=run.draft_s,
        warnings=warning_classes(log) if log is not None else frozenset(),
        seen=seen,
        notes=tuple(notes),
        problem=problem,
    )


def own_tokens(run: MeasuredRun) -> int | None:
    """What the engine generated for us; None where an answer that broke off does not tell."""
    asked = [*run.samples, *([run.warm_up] if run.warm_up is not None else [])]
    if any(sample.failed or sample.predicted_tokens is None for sample in asked):
        return None
    return sum(bench_sample.predicted_tokens or 0 for bench_sample in asked)


def warning_classes(log: str) -> frozenset[str]:
    """Classes of warnings and errors in a log, of the last server that wrote to it."""
    try:
        with Path(log).open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _MOST_LOG))
            batch = LogParser().feed(file.read(_MOST_LOG))
    except OSError:
        return frozenset()
    return frozenset(
        warning.warning for warning in batch.warnings if not warning.lives_ago and warning.warning not in _OWN_LINES
    )


def warning_titles(classes: frozenset[str]) -> str:
    """For people."""
    return ", ".join(sorted(WARNING_CLASSES[kind].title if kind in WARNING_CLASSES else kind for kind in classes))


def waiting_at_proxies(place: EngineAddress, env: Mapping[str, str] = os.environ) -> int | None:
    """How many requests wait at the proxies in front of an engine, which is not asked itself: a measurement is not
    disturbed by it, and an engine that is being restarted could not answer. None where no proxy answers."""
    counts = [figure(proxy, "waiting", env) for proxy in fronts([place.url], env)]
    known = [count for count in counts if count is not None]
    return int(sum(known)) if known else None


def wait_for_idle_machine(stop: Flag, limit_s: float = LONGEST_WAIT_S) -> Callable[..., None]:
    """Waits until other programs leave the processor alone, at most `limit_s`; the boot is judged afterwards anyway."""
    cores = os.cpu_count() or 1
    allowed = allowed_cores(cores)

    def wait(say: Callable[[str], None]) -> None:
        deadline = time.monotonic() + limit_s
        psutil.cpu_percent()
        while True:
            if stop.wait(LOOK_S):
                raise KeyboardInterrupt
            used = psutil.cpu_percent() / 100.0 * cores
            if used <= allowed or time.monotonic() > deadline:
                return
            say(f"other programs use {used:.1f} CPU cores")

    return wait


# What a faster configuration must keep: time to first token, room in GPU memory, a log without new warnings, drafts.
#
# Judged against the start as it was measured in the same run; a point that breaks a limit is ruled out.


class StartFigures(Struct):
    """What the start does, and how soon every point's boots answered."""

    ttfts: list[float] = field(default_factory=list)
    warnings: frozenset[str] | None = None
    by_point: dict[Point, list[float]] = field(default_factory=dict)

    def learn(self, result: BootResult, start: Point, warnings: frozenset[str] | None = None) -> None:
        """Take in a boot."""
        if result.ttft_s is not None and result.prompts:
            self.by_point.setdefault(result.point, []).append(result.ttft_s)
        if result.point != start or result.failure:
            return
        if result.ttft_s is not None:
            self.ttfts.append(result.ttft_s)
        if warnings is not None:
            self.warnings = (self.warnings or frozenset()) | warnings


class Limits(Struct, frozen=True):
    """The limits. None: not a limit."""

    ttft: float | None = 0.05
    """By which share the median time to first token may grow."""
    ttft_slack_s: float = 0.05
    """And this much besides, as short times vary by more than a share of them."""
    free_mib: int | None = 256
    """GPU memory that must stay free, where it is known."""
    warnings: bool = True
    """Whether classes of warnings that the start does not have are refused."""

    @property
    def words(self) -> tuple[str, ...]:
        """One line each."""
        found = []
        if self.ttft is not None:
            slack = f" and {self.ttft_slack_s * 1000:.0f} ms"
            found.append(f"median time to first token at most {percent(self.ttft)}{slack} above the start's")
        if self.free_mib is not None:
            found.append(f"{self.free_mib} MiB of GPU memory free, where there is a GPU")
        if self.warnings:
            found.append("no class of warnings in the log that the start does not have")
        return tuple(found)

    @staticmethod
    def drafts(result: BootResult) -> str:
        """Which way to speculate drafted nothing, in words; empty when all did."""
        drafting = [name for name in result.point.types if not name.startswith("ngram")]
        if drafting and not sum(prompt.drafted for prompt in result.prompts):
            return f"it runs, and {drafting[0]} drafted nothing"
        return ""

    def memory(self, measured: MeasuredBoot) -> str:
        """By how much too little memory a boot leaves free, in words; empty when it leaves enough."""
        free = measured.seen.memory_free_bytes
        if self.free_mib is not None and free is not None and free < self.free_mib * MIB:
            return f"only {size(free)} of GPU memory are free ({size(self.free_mib * MIB)} wanted)"
        return ""

    def beside_start(self, result: BootResult, measured: MeasuredBoot, norm: StartFigures) -> str:
        """Which limit a boot breaks that the start sets, in words; empty when none."""
        seen = median([*norm.by_point.get(result.point, ()), *([result.ttft_s] if result.ttft_s is not None else [])])
        usual = median(norm.ttfts)
        if self.ttft is not None and usual is not None and seen is not None:
            most = usual * (1 + self.ttft) + self.ttft_slack_s
            if seen > most:
                return f"time to first token {seen:.2f} s, at most {most:.2f} s are allowed"
        new = measured.warnings - norm.warnings if self.warnings and norm.warnings is not None else frozenset()
        return f"new in the log: {warning_titles(new)}" if new else ""
