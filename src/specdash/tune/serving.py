"""Tuning while users are served: restarts when nobody waits, and measurements that step aside for everybody.

Each prompt is asked when no other request runs. One during which somebody else came is asked again later; when requests
queue, at the engine or at the proxy, nothing of ours is asked until they are through.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specdash.bench.drive import Interrupted, Options, measure
from specdash.control.proxy_gate import fronts
from specdash.core.flag import Flag
from specdash.tune.forecast import LONGEST_WAIT_S, LOOK_S
from specdash.tune.measuring import Measured, measured, own_tokens
from specdash.tune.surroundings import Surroundings, Watch, allowed_cores, counters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from specdash.bench.drive import Run
    from specdash.bench.samples import Place, Prompt
    from specdash.collect.gpu_looks import GpuLooks

QUIET_S = 5.0
"""So long must nobody ask anything before a restart."""
_POLL_S = 0.25
_LEAST_SHARE = 0.6
"""Of the prompts of a boot, without which it is done again."""
_FRESH_S = 1.0


@dataclass(frozen=True, slots=True)
class Load:
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


def load_of(place: Place, env: Mapping[str, str] = os.environ) -> Load:
    """What the engine and the proxies in front of it say."""
    told = counters(place)
    found = proxies_load(place, env)
    if told is None:
        return found
    return replace(found, processing=_whole(told.requests_processing), queued=_whole(told.requests_deferred))


def proxies_load(place: Place, env: Mapping[str, str] = os.environ) -> Load:
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
    return Load(waiting=waiting, active=active)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


@dataclass(slots=True)
class Calm:
    """Waits for moments at which nobody is disturbed."""

    place: Callable[[], Place]
    stop: Flag
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    quiet_s: float = QUIET_S
    look: Callable[[Place, Mapping[str, str]], Load] = load_of
    _last: tuple[float, Load] = (float("-inf"), Load())

    def now(self) -> Load:
        """Who uses the engine."""
        found = self.look(self.place(), self.env)
        self._last = time.monotonic(), found
        return found

    def lately(self) -> Load:
        """The same, as it was seen within the last second: whoever only shows it costs the engine nothing more."""
        at, found = self._last
        return found if time.monotonic() - at < _FRESH_S else self.now()

    def wait(self, say: Callable[[str], None], seconds: float | None = None) -> None:
        """Until nobody asked anything for so long. Raises KeyboardInterrupt when a stop is asked for."""
        wanted = self.quiet_s if seconds is None else seconds
        since = time.monotonic()
        said = ""
        while True:
            load = self.now()
            if not load.idle:
                since = time.monotonic()
            elif time.monotonic() - since >= wanted:
                return
            words = _words(load)
            if words != said:
                say(words)
                said = words
            if self.stop.wait(_POLL_S):
                raise KeyboardInterrupt


def _words(load: Load) -> str:
    if load.queues:
        return f"{(load.queued or 0) + (load.waiting or 0)} requests of users wait"
    return "requests of users run" if not load.idle else "waiting for a quiet moment"


class Trickle:
    """See `measuring.Measure`: one prompt at a time, when nobody else asks."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        options: Options,
        calm: Calm,
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

    def __call__(self, place: Place, on_done: Callable[[int, int], None]) -> Measured:
        """Raises `SpecdashError`, and KeyboardInterrupt when a stop is asked for."""
        kept: list[Measured] = []
        lost = 0
        for number, prompt in enumerate(self.prompts):
            found = self._told(place, prompt, warm_up=not number)
            if found is None:
                lost += 1
            else:
                kept.append(found)
            on_done(number + 1, len(self.prompts))
        return self._added(kept, lost)

    def _told(self, place: Place, prompt: Prompt, *, warm_up: bool) -> Measured | None:
        """One prompt, asked at most once: n-gram tables remember it. None when users came meanwhile."""
        self._calm.wait(self._say, 0.5)
        run, around = self._one(place, prompt, warm_up=warm_up)
        if run is None or around.foreign_tokens:
            return None
        return measured(run, around, place.log)

    def _added(self, kept: Sequence[Measured], lost: int) -> Measured:
        """All prompts together. Where users came too often, the boot counts as disturbed."""
        samples = tuple(sample for one in kept for sample in one.samples)
        drafted = [one.draft_s for one in kept]
        seen = together([one.seen for one in kept])
        if self._busy_ok:
            seen = replace(seen, others_cores=None)
        missing = {one.kind for one in self.prompts} - {one.kind for one in samples if not one.failed}
        if missing or len(kept) < _LEAST_SHARE * len(self.prompts):
            seen = replace(seen, foreign_tokens=max(1, seen.foreign_tokens or 0))
        problem = next((one.problem for one in kept if one.problem), "")
        if missing and not problem:
            problem = f"users came whenever {', '.join(sorted(missing))} was asked"
        notes = [note for one in kept for note in one.notes]
        if lost:
            notes.append(f"{lost} of {len(self.prompts)} prompts left out because users came")
        return Measured(
            samples=samples,
            draft_s=sum(one for one in drafted if one is not None) if drafted and None not in drafted else None,
            warnings=frozenset().union(*(one.warnings for one in kept)),
            seen=seen,
            notes=tuple(dict.fromkeys(notes)),
            problem=problem,
        )

    def _one(self, place: Place, prompt: Prompt, *, warm_up: bool) -> tuple[Run | None, Surroundings]:
        """One prompt; None when it stepped aside for users that queued."""
        aside, done = Flag(), Flag()
        watcher = threading.Thread(target=self._look_out, args=(aside, done), name="queue", daemon=True)
        watch = Watch(place, self._gpus)
        watcher.start()
        try:
            options = replace(self._options, log=place.log, warm_up=warm_up)
            run = measure(place, (prompt,), options, stop=aside)
            return run, watch.end(own_tokens(run))
        except Interrupted:
            if self._calm.stop.is_set() or not aside.is_set():
                raise
            return None, Surroundings()
        finally:
            done.set()
            watcher.join(2.0)

    def _look_out(self, aside: Flag, done: Flag) -> None:
        while not done.wait(_POLL_S):
            if self._calm.stop.is_set() or self._calm.now().queues:
                aside.set()
                return


def together(seen: Sequence[Surroundings]) -> Surroundings:
    """Of several measurements of one boot: means, and the tightest memory."""

    def mean(values: list[float | None]) -> float | None:
        known = [one for one in values if one is not None]
        return sum(known) / len(known) if known else None

    free = [one.memory_free_bytes for one in seen if one.memory_free_bytes is not None]
    used = [one.memory_used_bytes for one in seen if one.memory_used_bytes is not None]
    foreign = [one.foreign_tokens for one in seen if one.foreign_tokens is not None]
    return Surroundings(
        others_cores=mean([one.others_cores for one in seen]),
        foreign_tokens=sum(foreign) if foreign else None,
        memory_free_bytes=min(free, default=None),
        memory_used_bytes=max(used, default=None),
        watts=mean([one.watts for one in seen]),
        temperature=mean([one.temperature for one in seen]),
    )


def wait_for_idle_machine(stop: Flag, limit_s: float = LONGEST_WAIT_S) -> Callable[..., None]:
    """Waits until other programs leave the processor alone, at most `limit_s`; the boot is judged afterwards anyway."""
    cores = os.cpu_count() or 1
    allowed = allowed_cores(cores)

    def wait(say: Callable[[str], None]) -> None:
        import psutil

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
