"""Measures one boot: the same prompts every time, with forced length and no cache, and all that tells their cost."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import field, fields, replace
from math import exp, log, sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from specdash.bench.engines import last_said
from specdash.bench.load.contact import counters_told
from specdash.bench.load.drive import WARM_UP_TOKENS, Interrupted, MeasureOptions, measure
from specdash.bench.load.figures import usable
from specdash.control.apply.engine import port_of
from specdash.control.apply.transaction import fronts
from specdash.core.errors import SpecdashError
from specdash.core.flag import Flag
from specdash.core.speculation import SPEC_TYPES
from specdash.llama.chat import ChatFault
from specdash.llama.log_grammar import WARNING_CLASSES
from specdash.llama.log_parser import LogParser
from specdash.system.data import dataclass
from specdash.system.processes import family, listening_pid
from specdash.system.stats import mean, median, pooled_deviation
from specdash.system.text import MIB, percent, size
from specdash.tune.run.status import Forecast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from specdash.bench.load.drive import MeasuredRun
    from specdash.bench.load.samples import BenchSample, EngineAddress, WorkloadPrompt
    from specdash.collect.gpu import GpuLooks
    from specdash.tune.model.problem import BootResult, Point
    from specdash.tune.run.status import Boot


# What else went on while a boot was measured: other users of the engine and of the machine, memory, energy.
#
# All of it is optional: what cannot be looked at is None, and decides nothing.

_ANSWER_S = 5.0
_EXACT_BELOW = 1e6
"""Tokens up to which /metrics counts exactly."""
BUSY_CORES = 0.3
BUSY_SHARE = 0.1
"""Others may use so many cores, or this share of all, whichever is more."""
BUSY_GPU = 0.2
"""Utilisation of a GPU on which our engine does nothing, from which somebody else does."""


def allowed_cores(cores: int | None = None) -> float:
    """How many cores others may use, of so many (None: of this machine's)."""
    return max(BUSY_CORES, BUSY_SHARE * (cores or os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What was seen beside the measurement."""

    others_cores: float | None = None
    """CPU cores that neither the engine nor we used, on average."""
    foreign_tokens: int | None = None
    """Tokens that the engine generated for somebody else."""
    gpu_before: float | None = None
    """Utilisation of the busiest GPU, 0 to 1, before we asked anything."""
    memory_free_bytes: int | None = None
    """Of the GPU with the least room, with the engine loaded and used."""
    memory_used_bytes: int | None = None
    """Of all GPUs."""
    watts: float | None = None
    """All GPUs together, on average."""
    temperature: float | None = None
    clock_mhz: int | None = None

    def disturbance(self, cores: int | None = None) -> str:
        """Who else used the engine or the machine, in words; empty when nobody did."""
        allowed = allowed_cores(cores)
        if self.foreign_tokens:
            return f"the engine generated {self.foreign_tokens} tokens for somebody else"
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
        energy_before = before.energy_joules if before is not None else None
        energy = now.energy_joules if now is not None else None
        watts = None if energy is None or energy_before is None else (energy - energy_before) / took
        return Surroundings(
            others_cores=others,
            foreign_tokens=self._foreign(own_tokens),
            gpu_before=before.utilisation if before is not None else None,
            memory_free_bytes=now.free_bytes if now is not None else None,
            memory_used_bytes=now.used_bytes if now is not None else None,
            watts=watts if watts is None or watts > 0 else None,
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
    port = port_of(url)
    return listening_pid(port) if port is not None else None


# How long a run takes: before it by what is known of the machine (`tune.pace`), from the first boot on by its boots.
#
# A boot costs its start, one warm-up, and every prompt; before it, other programs are waited for; where they do not
# leave the machine alone, it is made again. Comparing texts comes on top where something better is found, and putting
# the original back always does.


LOOK_S = 1.0
"""The least time that the wait for an idle machine takes."""
LONGEST_WAIT_S = 120.0
"""The longest; the boot is judged afterwards anyway."""
REQUEST_S = 0.02
"""What a request costs beside its tokens: connecting, and reading the counters after it."""
_QUIET_S = 5.0
"""How long a busy machine is left alone at a time, as far as anybody knows before."""
_CHECK_TOKENS = 4 * 128
_CHECK_BOOTS = 2.5
"""Starts that comparing the texts takes, on average: two, and one or two more where they differ."""
_FOUND = 0.5
"""How likely there will be texts to compare, before anything was measured."""


@dataclass(frozen=True, slots=True)
class MachinePace:
    """What is known of a machine before a run: seconds of a start, tokens a second of decode and of prompts, and, where
    that is not known, seconds until the first token."""

    start_s: float
    decode: float
    prefill: float | None = None
    first_s: float = 0.0


def before(
    pace: MachinePace,
    requests: int,
    tokens: int,
    prompt_tokens: float,
    *,
    load: float | None,
    repeats: int,
    checks: bool,
) -> Forecast:
    """Of boots with so many requests, tokens to generate and to read. `load` is how many other processes want a core,
    on average; None where nobody is waited for. `repeats` is how often a disturbed boot is made again, `checks` whether
    texts will be compared."""
    asking = tokens + WARM_UP_TOKENS
    once = pace.start_s + asking / pace.decode + requests * REQUEST_S
    once += prompt_tokens / pace.prefill if pace.prefill else requests * pace.first_s
    check_s = _CHECK_BOOTS * (pace.start_s + _CHECK_TOKENS / pace.decode) if checks else 0.0
    if load is None:
        return Forecast(once, 0.0, check_s, pace.start_s)
    busy = busy_share(load)
    turns = sum(busy**turn for turn in range(repeats + 1))
    waited = turns * (LOOK_S + min(LONGEST_WAIT_S, _QUIET_S * busy**2 / max(1 - busy, 1e-9)))
    return Forecast(once, waited + (turns - 1) * once, check_s, pace.start_s)


def busy_share(load: float) -> float:
    """The share of the time in which others use more of the machine than they may, if they come independently."""
    return 1 - exp(-load) if load > allowed_cores() else 0.0


def total_s(forecast: Forecast, restarts: int) -> float:
    """All of it, before anything is known of the outcome."""
    return restarts * (forecast.boot_s + forecast.wait_s) + _FOUND * forecast.check_s + forecast.restore_s


def boot_seconds(boots: Sequence[Boot], forecast: Forecast | None = None) -> float | None:
    """What one boot more will take, by those that were made, else as foretold; None where neither tells.

    Starts and measurements are alike, but for one that hung: their median. Waits and discarded boots come now and then:
    their mean, the foretold one among them. A boot that did not come up tells nothing of one that does.
    """
    told = [boot.seconds for boot in boots if boot.seconds is not None and boot.result.prompts]
    waited = [boot.waited_s for boot in boots if boot.waited_s is not None]
    if forecast is not None:
        waited.append(forecast.wait_s)
        told = told or [forecast.boot_s]
    usual = median(told)
    return None if usual is None else usual + (mean(waited) or 0.0)


def left_s(
    boots: Sequence[Boot],
    restarts: int,
    forecast: Forecast | None,
    *,
    elapsed_s: float,
    better: bool,
    comparing: bool = False,
) -> float | None:
    """Seconds until the run has ended; None where nobody knows yet.

    `elapsed_s` is how long the present boot, or comparing the texts, has been under way; `better` whether something
    better than the start is seen now, so that there will be texts to compare.
    """
    each = boot_seconds(boots, forecast)
    if each is None:
        return None
    check_s = forecast.check_s if forecast is not None else 0.0
    restore_s = forecast.restore_s if forecast is not None else 0.0
    if comparing:
        return max(0.0, check_s - elapsed_s) + restore_s
    more = max(0, restarts - len(boots))
    # A boot that takes longer than usual ends soon, as far as anybody knows; those after it are not shorter for that.
    own = max(0.0, each - elapsed_s) + (more - 1) * each if more else 0.0
    return own + (check_s if better else 0.0 if boots else _FOUND * check_s) + restore_s


_MOST_LOG = 64 << 20
_OWN_LINES = frozenset(name for spec_kind in SPEC_TYPES for name in spec_kind.log_classes)
"""Line classes that only one way to speculate writes: new ones come with a new way, and mean no trouble."""


class UnmeasuredError(SpecdashError):
    """The engine was up and could not be measured."""


@dataclass(frozen=True, slots=True)
class MeasuredBoot:
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


# Tuning while users are served: restarts when nobody waits, and measurements that step aside for everybody.
#
# Each prompt is asked when no other request runs. One during which somebody else came is asked again later; when
# requests queue, at the engine or at the proxy, nothing of ours is asked until they are through.


QUIET_S = 5.0
"""So long must nobody ask anything before a restart."""
_POLL_S = 0.25
_LEAST_SHARE = 0.6
"""Of the prompts of a boot, without which it is done again."""
_FRESH_S = 1.0


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Who uses the engine now, us included; None: not told."""

    processing: int | None = None
    queued: int | None = None
    waiting: int | None = None
    """At the proxies."""
    active: int | None = None
    """Upstream of the proxies."""

    @property
    def queues(self) -> bool:
        """Whether somebody waits."""
        return bool(self.queued) or bool(self.waiting)

    @property
    def idle(self) -> bool:
        """Whether nobody asks anything."""
        return not self.queues and not self.processing and not self.active


def load_of(place: EngineAddress, env: Mapping[str, str] = os.environ) -> EngineLoad:
    """What the engine and the proxies in front of it say."""
    told = counters_told(place.client(_ANSWER_S))
    found = proxies_load(place, env)
    if told is None:
        return found
    running, waiting = (
        None if value is None else round(value) for value in (told.requests_processing, told.requests_deferred)
    )
    return replace(found, processing=running, queued=waiting)


def proxies_load(place: EngineAddress, env: Mapping[str, str] = os.environ) -> EngineLoad:
    """What the proxies in front of an engine say, which is itself not asked: a measurement is not disturbed by it, and
    an engine that is being restarted could not answer."""
    waiting = active = None
    for front in fronts([place.url], env):
        try:
            state = front.state()
        except OSError:
            continue
        waiting = (waiting or 0) + int(state.get("waiting") or 0)
        active = (active or 0) + int(state.get("active") or 0)
    return EngineLoad(waiting=waiting, active=active)


@dataclass(slots=True)
class QuietMoments:
    """Waits for moments at which nobody is disturbed."""

    place: Callable[[], EngineAddress]
    stop: Flag
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    quiet_s: float = QUIET_S
    look: Callable[[EngineAddress, Mapping[str, str]], EngineLoad] = load_of
    _last: tuple[float, EngineLoad] = (float("-inf"), EngineLoad())

    def now(self) -> EngineLoad:
        """Who uses the engine."""
        found = self.look(self.place(), self.env)
        self._last = time.monotonic(), found
        return found

    def lately(self) -> EngineLoad:
        """The same, as it was seen within the last second: whoever only shows it costs the engine nothing more."""
        at, found = self._last
        return found if time.monotonic() - at < _FRESH_S else self.now()

    def wait(self, say: Callable[[str], None], seconds: float | None = None) -> None:
        """Until nobody asked anything for so long. Raises KeyboardInterrupt when a stop is asked for."""
        wanted = self.quiet_s if seconds is None else seconds
        since: float | None = None
        said = ""
        while True:
            load = self.now()
            # Between two looks nobody looked: what counts begins with the first one that saw nobody.
            since = None if not load.idle else since if since is not None else time.monotonic()
            if since is not None and time.monotonic() - since >= wanted:
                return
            words = _words(load)
            if words != said:
                say(words)
                said = words
            if self.stop.wait(_POLL_S):
                raise KeyboardInterrupt


def _words(load: EngineLoad) -> str:
    if load.queues:
        return f"{(load.queued or 0) + (load.waiting or 0)} requests of users wait"
    return "requests of users run" if not load.idle else "waiting for a quiet moment"


class GentleRunner:
    """The same, one prompt at a time, when nobody else asks."""

    def __init__(
        self,
        prompts: Sequence[WorkloadPrompt],
        options: MeasureOptions,
        calm: QuietMoments,
        gpus: GpuLooks | None = None,
        say: Callable[[str], None] = lambda _: None,
        *,
        busy_ok: bool = False,
    ) -> None:
        """`busy_ok`: other programs may use the machine."""
        self._busy_ok = busy_ok
        self.prompts = tuple(prompts)
        self._options = replace(options, cache=False, force_length=True, positions=True, runs=1)
        self._calm = calm
        self._gpus = gpus
        self._say = say

    def __call__(self, place: EngineAddress, on_done: Callable[[int, int], None]) -> MeasuredBoot:
        """Raises `SpecdashError`, and KeyboardInterrupt when a stop is asked for."""
        kept: list[MeasuredBoot] = []
        lost = 0
        for number, prompt in enumerate(self.prompts):
            found = self._told(place, prompt, warm_up=not number)
            if found is None:
                lost += 1
            else:
                kept.append(found)
            on_done(number + 1, len(self.prompts))
        return self._added(kept, lost)

    def _told(self, place: EngineAddress, prompt: WorkloadPrompt, *, warm_up: bool) -> MeasuredBoot | None:
        """One prompt, asked at most once: n-gram tables remember it. None when users came meanwhile, which it steps
        aside for where they queue."""
        self._calm.wait(self._say, 0.5)
        aside, done = Flag(), Flag()
        watcher = threading.Thread(target=self._look_out, args=(aside, done), name="queue", daemon=True)
        watch = Watch(place, self._gpus)
        watcher.start()
        try:
            run = measure(place, (prompt,), replace(self._options, log=place.log, warm_up=warm_up), stop=aside)
            around = watch.end(own_tokens(run))
        except Interrupted:
            if self._calm.stop.is_set() or not aside.is_set():
                raise
            return None
        finally:
            done.set()
            watcher.join(2.0)
        return None if around.foreign_tokens else measured(run, around, place.log)

    def _added(self, kept: Sequence[MeasuredBoot], lost: int) -> MeasuredBoot:
        """All prompts together. Where users came too often, the boot counts as disturbed."""
        samples = tuple(sample for measured_boot in kept for sample in measured_boot.samples)
        drafted = [measured_boot.draft_s for measured_boot in kept]
        seen = together([measured_boot.seen for measured_boot in kept])
        if self._busy_ok:
            seen = replace(seen, others_cores=None)
        missing = {prompt.kind for prompt in self.prompts} - {sample.kind for sample in samples if not sample.failed}
        if missing or len(kept) < _LEAST_SHARE * len(self.prompts):
            seen = replace(seen, foreign_tokens=max(1, seen.foreign_tokens or 0))
        problem = next((measured_boot.problem for measured_boot in kept if measured_boot.problem), "")
        if missing and not problem:
            problem = f"users came whenever {', '.join(sorted(missing))} was asked"
        notes = [note for measured_boot in kept for note in measured_boot.notes]
        if lost:
            notes.append(f"{lost} of {len(self.prompts)} prompts left out because users came")
        return MeasuredBoot(
            samples=samples,
            draft_s=sum(value for value in drafted if value is not None) if drafted and None not in drafted else None,
            warnings=frozenset().union(*(boot.warnings for boot in kept)),
            seen=seen,
            notes=tuple(dict.fromkeys(notes)),
            problem=problem,
        )

    def _look_out(self, aside: Flag, done: Flag) -> None:
        while not done.wait(_POLL_S):
            if self._calm.stop.is_set() or self._calm.now().queues:
                aside.set()
                return


def together(seen: Sequence[Surroundings]) -> Surroundings:
    """Of several measurements of one boot: means, and the tightest memory."""
    known = {
        field.name: [value for around in seen if (value := getattr(around, field.name)) is not None]
        for field in fields(Surroundings)
    }
    return Surroundings(
        others_cores=mean(known["others_cores"]),
        foreign_tokens=sum(known["foreign_tokens"]) if known["foreign_tokens"] else None,
        memory_free_bytes=min(known["memory_free_bytes"], default=None),
        memory_used_bytes=max(known["memory_used_bytes"], default=None),
        watts=mean(known["watts"]),
        temperature=mean(known["temperature"]),
    )


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
# Judged against the start as it was measured in the same run. A limit is *hard* where one look settles it: a GPU
# without room, a draft that drafts nothing. Time to first token and warnings are *soft*: a busy moment breaks them,
# too. So a time counts only beyond what boots of one point differ by, no point is ruled out by one boot, and the
# start, which the limits are taken from, by none.


_SURE = 2.0
"""Standard deviations of the difference of two boots from which a time is longer than chance makes it."""
_CONFIRMED = 2
"""Boots that have to break a soft limit before it counts."""


@dataclass(slots=True)
class StartFigures:
    """What the start does, as far as it was measured."""

    ttfts: list[float] = field(default_factory=list)
    warnings: frozenset[str] | None = None
    by_point: dict[Point, list[float]] = field(default_factory=dict)
    """Logarithms of the times to first token of every point's boots."""

    def learn(self, result: BootResult, start: Point, warnings: frozenset[str] | None = None) -> None:
        """Take in a boot. The norm is the start's; how much times differ from boot to boot, all points tell."""
        if result.ttft_s is not None and result.ttft_s > 0 and result.prompts:
            self.by_point.setdefault(result.point, []).append(log(result.ttft_s))
        if result.point != start or result.failure:
            return
        if result.ttft_s is not None:
            self.ttfts.append(result.ttft_s)
        if warnings is not None:
            self.warnings = (self.warnings or frozenset()) | warnings

    def longest(self, share: float, slack_s: float, point: Point | None = None) -> float:
        """The longest time to first token of one boot of this point that keeps the limit, in seconds: what is allowed,
        and as much more as boots of one point may differ by, as all the others' show."""
        groups = [boots for key, boots in self.by_point.items() if len(boots) > 1 and key != point]
        sd, _ = pooled_deviation(groups)
        allowed = (median(self.ttfts) or 0.0) * (1 + share) + slack_s
        return allowed * exp(_SURE * (sd or 0.0) * sqrt(1 + 1 / len(self.ttfts)))


@dataclass(slots=True)
class LimitBreaches:
    """How often each point broke a soft limit."""

    boots: dict[Point, list[str]] = field(default_factory=dict)
    """One entry a boot: what it broke, in words, empty for one that kept them all."""

    def add(self, point: Point, broke: str) -> str:
        """Take in a boot; why the point is ruled out now: most of its boots broke a limit, two at least, and this one
        did. Else empty."""
        told = self.boots.setdefault(point, [])
        told.append(broke)
        bad = sum(bool(name) for name in told)
        if not broke or bad < _CONFIRMED or 2 * bad <= len(told):
            return ""
        return f"{broke} (in {bad} of {len(told)} boots a limit was broken)"

    def split(self, point: Point) -> str:
        """What was broken in half of a point's boots, or in its only one, so that one more has to decide; empty where
        it has not."""
        told = self.boots.get(point, [])
        broken = [name for name in told if name]
        return broken[-1] if broken and 2 * len(broken) >= len(told) else ""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits. None: not a limit."""

    ttft: float | None = 0.05
    """By which share the median time to first token may grow."""
    ttft_slack_s: float = 0.05
    """And this much besides, as short times vary by more than a share of them."""
    free_mib: int | None = 256
    """GPU memory that must stay free, where it can be told."""
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

    def hard(self, result: BootResult) -> str:
        """Which limit a boot breaks that rules its point out at once, in words; empty when none."""
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

    def soft(self, result: BootResult, measured: MeasuredBoot, norm: StartFigures) -> str:
        """Which limit a boot breaks that a busy moment may break, too; empty when none."""
        if self.ttft is not None and norm.ttfts and result.ttft_s is not None:
            most = norm.longest(self.ttft, self.ttft_slack_s, result.point)
            if result.ttft_s > most:
                return f"time to first token {result.ttft_s:.2f} s, at most {most:.2f} s are allowed"
        new = measured.warnings - norm.warnings if self.warnings and norm.warnings is not None else frozenset()
        return f"new in the log: {warning_titles(new)}" if new else ""
