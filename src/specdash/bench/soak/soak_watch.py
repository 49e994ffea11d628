"""Memory and descriptors of the processes under a soak, looked at in a thread of its own while it runs."""

from __future__ import annotations

import threading
import time
from dataclasses import field, replace
from enum import StrEnum
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING, Any, Self

import psutil

from specdash.collect.discover import place, recorded_target, running_proxies
from specdash.core.errors import SpecdashError
from specdash.core.target import local_port
from specdash.system.data import dataclass
from specdash.system.processes import began, listening_pid, same_process
from specdash.system.stats import student

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from specdash.core.records import ProxyRecord


# Does a quantity grow, such as the memory of a process over hours? A slope with its interval, and what that shows.
#
# Looks at a process follow each other closely and are alike, so a plain regression would be far too sure. They are
# averaged into `_BINS` equal spans, and the residuals' own correlation widens the interval (effective sample size of
# a first-order autoregression, its known small-sample bias corrected). Memory that jumps once, or wanders, then has a
# wide interval: it is said that nothing can be told, not that it leaks.

LEAST_S = 60.0
LEAST_LOOKS = 20
WARM_UP_SHARE = 0.2
"""The beginning is left out: pools and caches fill."""
_BINS = 40
_MOST_CORRELATION = 0.97


class GrowthVerdict(StrEnum):
    GROWING = "growing"
    FLAT = "flat"
    """It stayed within what matters, or even the upper end of the interval is less than that."""
    UNCLEAR = "cannot tell"
    SHORT = "too short to tell"


@dataclass(frozen=True, slots=True)
class GrowthTrend:
    """A quantity over time. Slopes are per hour, with a 95 % interval; None where there is too little to tell."""

    looks: int
    span_s: float
    """Of the part that the slope is of."""
    first: float
    last: float
    most: float
    slope: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: GrowthVerdict = GrowthVerdict.SHORT


def growth_of(looks: Sequence[tuple[float, float]], *, matters: float, share: float = 0.0) -> GrowthTrend | None:
    """The growth of values at times in seconds, in their order; None without any.

    Growth within the looked-at span matters from `matters` on, and from `share` of the mean on, whichever is more.
    """
    if not looks:
        return None
    begin, end = looks[0][0], looks[-1][0]
    since = begin + WARM_UP_SHARE * (end - begin)
    kept = [(at, value) for at, value in looks if at >= since]
    values = [value for _, value in looks]
    plain = GrowthTrend(len(looks), end - since, values[0], values[-1], max(values))
    if len(kept) < LEAST_LOOKS or end - begin < LEAST_S:
        return plain
    bins = _binned(kept, since, end)
    fit = _fitted(bins)
    if fit is None:
        return plain
    slope, reach = fit
    span = end - since
    bar = max(matters, share * sum(value for _, value in bins) / len(bins))
    inside = max(value for _, value in bins) - min(value for _, value in bins) < bar
    whole = replace(
        plain, span_s=span, slope=slope * 3600.0, verdict=GrowthVerdict.FLAT if inside else GrowthVerdict.UNCLEAR
    )
    if reach is None:
        return whole
    low, high = slope - reach, slope + reach
    verdict = whole.verdict
    if low > 0 and slope * span >= bar:
        verdict = GrowthVerdict.GROWING
    elif high * span < bar:
        verdict = GrowthVerdict.FLAT
    return replace(whole, low=low * 3600.0, high=high * 3600.0, verdict=verdict)


def _binned(looks: Sequence[tuple[float, float]], begin: float, end: float) -> list[tuple[float, float]]:
    count = min(_BINS, len(looks))
    sums: dict[int, list[float]] = {}
    for at, value in looks:
        number = min(count - 1, int((at - begin) / max(end - begin, 1e-9) * count))
        row = sums.setdefault(number, [0.0, 0.0, 0.0])
        row[0] += at
        row[1] += value
        row[2] += 1
    return [(row[0] / row[2], row[1] / row[2]) for _, row in sorted(sums.items())]


def _fitted(points: Sequence[tuple[float, float]]) -> tuple[float, float | None] | None:
    """Slope and half the width of its interval; that is None where the points are too alike to tell."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if count < 4 or spread <= 0:
        return None
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = [y - mean_y - slope * (x - mean_x) for x, y in points]
    total = sum(value * value for value in rest)
    if total <= 1e-18 * max(1.0, mean_y * mean_y) * count:
        return slope, 0.0
    told = sum(value * two for value, two in pairwise(rest)) / total
    correlation = min(_MOST_CORRELATION, max(0.0, told + (2 + 4 * told) / count))
    effective = count * (1 - correlation) / (1 + correlation)
    if effective <= 3:
        return slope, None
    error = sqrt(total / (effective - 2) / spread)
    return slope, student(effective - 2, 0.05) * error


INTERVAL_S = 2.0
_MOST_LOOKS = 8000
_MEMORY_MATTERS = 1024.0 * 1024.0
_MEMORY_SHARE = 0.005
_DESCRIPTORS_MATTER = 2.0
PROXY, BACKEND = "proxy", "backend"


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """One look. Times are Unix seconds, memory is resident bytes; descriptors are None where they may not be seen."""

    at: float
    memory: int
    descriptors: int | None
    threads: int


@dataclass(slots=True)
class WatchedProcess:
    """One process and what was seen of it. After a restart only the new process counts."""

    role: str
    pid: int
    started: float
    looks: list[ProcessLook] = field(default_factory=list)
    restarts: int = 0
    gone: bool = False

    @property
    def memory(self) -> GrowthTrend | None:
        looks = [(look.at, float(look.memory)) for look in self.looks]
        return growth_of(looks, matters=_MEMORY_MATTERS, share=_MEMORY_SHARE)

    @property
    def descriptors(self) -> GrowthTrend | None:
        """Of open descriptors; None where they may not be seen."""
        looks = [(look.at, float(look.descriptors)) for look in self.looks if look.descriptors is not None]
        return growth_of(looks, matters=_DESCRIPTORS_MATTER)

    @property
    def leaks(self) -> bool:
        """Whether it grows where it must not: an engine's memory may, up to what its prompt cache is allowed."""
        memory, descriptors = self.memory, self.descriptors
        if descriptors is not None and descriptors.verdict is GrowthVerdict.GROWING:
            return True
        return self.role != BACKEND and memory is not None and memory.verdict is GrowthVerdict.GROWING


class SoakWatch:
    """Looks at processes every few seconds while it is a context. `find` names them by role, again when one ended."""

    def __init__(self, find: Callable[[], Mapping[str, int]], interval_s: float = INTERVAL_S) -> None:
        self._find = find
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="soak watch", daemon=True)
        self._watched: dict[str, WatchedProcess] = {}

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(10)

    @property
    def watched(self) -> tuple[WatchedProcess, ...]:
        """What was seen so far."""
        return tuple(self._watched.values())

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._look()

    def _look(self) -> None:
        if not self._watched or any(process.gone for process in self._watched.values()):
            self._find_them()
        for process in self._watched.values():
            seen = None if process.gone else _seen(process)
            if seen is None:
                process.gone = True
                continue
            process.looks.append(seen)
            if len(process.looks) > _MOST_LOOKS:
                del process.looks[1::2]
                self._interval_s *= 2

    def _find_them(self) -> None:
        try:
            found = self._find()
        except (SpecdashError, OSError, psutil.Error):
            return
        for role, pid in found.items():
            before = self._watched.get(role)
            if before is not None and not before.gone:
                continue
            if (started := began(pid)) is None:
                continue
            if before is None or (pid, started) != (before.pid, before.started):
                self._watched[role] = WatchedProcess(role, pid, started, restarts=before.restarts + 1 if before else 0)


def _seen(watched_process: WatchedProcess) -> ProcessLook | None:
    if not same_process(watched_process.pid, watched_process.started):
        return None
    try:
        process = psutil.Process(watched_process.pid)
        with process.oneshot():
            return ProcessLook(time.time(), process.memory_info().rss, _descriptors(process), process.num_threads())
    except psutil.Error:
        return None


def _descriptors(process: psutil.Process) -> int | None:
    try:
        return process.num_fds()
    except (psutil.Error, OSError, AttributeError):
        return None


def processes_of(proxy_url: str, env: Mapping[str, str]) -> dict[str, int]:
    """The pids of the proxy at an address and of the backend behind it, by run records, else by who listens there.

    Whatever runs on another machine, or belongs to another user, is not among them.
    """
    found: dict[str, int] = {}
    record = _proxy_record(proxy_url, env)
    pid = record.pid if record is not None else _listening(proxy_url)
    if pid is not None:
        found[PROXY] = pid
    upstream = record.upstream if record is not None else None
    if upstream is not None:
        target: Any = recorded_target(upstream, env)
        pid = target.pid if target is not None and target.pid is not None else _listening(upstream)
        if pid is not None:
            found[BACKEND] = pid
    return found


def _listening(url: str) -> int | None:
    port = local_port(url)
    return listening_pid(port) if port is not None else None


def _proxy_record(url: str, env: Mapping[str, str]) -> ProxyRecord | None:
    return next((record for record in running_proxies(env) if place(record.url) == place(url)), None)
