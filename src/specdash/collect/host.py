"""The machine and the backend's process, through psutil."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from specdash.core.masking import masked_command
from specdash.core.readings import FailureKind, Host, ProcessTree, Reading, Source
from specdash.core.target import local_port
from specdash.system.processes import is_alive, listening_pid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from specdash.core.target import Target

FIND_AGAIN_S = 5.0
"""Finding the process that owns a port reads every process's file descriptors."""

CHILDREN_TTL_S = 10.0
"""Listing a process's descendants reads all of /proc, and they hardly ever change."""

FIRST_PAUSE_S = 0.25
"""CPU figures need two looks; the second follows the first soon."""


def swap_memory() -> Any:
    """As psutil has it; None where the kernel does not tell what is swapped, of which psutil would print a warning."""
    return psutil.swap_memory() if Path("/proc/vmstat").exists() else None


class HostCollector:
    """Publishes HOST and PROCESS readings. `step` is to be called again after the seconds it returns."""

    def __init__(
        self,
        target: Target,
        publish: Callable[[Reading[Any]], None],
        *,
        memory: Callable[[], Any] = psutil.virtual_memory,
        swap: Callable[[], Any] = swap_memory,
        clock: Callable[[], float] = time.monotonic,
        find_pid: Callable[[int], int | None] = listening_pid,
    ) -> None:
        self._port = local_port(target.url)
        self._publish = publish
        self._clock = clock
        self._find_pid = find_pid
        self._memory, self._swap = memory, swap
        self._swapped: tuple[float, int, int] | None = None
        self._cpu = CpuTimes()
        self._watch: ProcessWatch | None = None
        self._given_pid = target.pid
        self._sought_at = -math.inf

    def backend_pids(self) -> frozenset[int]:
        """The backend's process and its descendants, as far as known."""
        watch = self._watch
        return frozenset(watch.pids) if watch is not None else frozenset()

    def step(self, interval_s: float) -> float:
        """Publish one reading of the machine and one of the backend's process."""
        host = self._host()
        self._publish(Reading.known(Source.HOST, self._clock(), host))
        self._publish(self._process())
        return min(interval_s, FIRST_PAUSE_S) if host.cpu_utilisation is None else interval_s

    def _host(self) -> Host:
        memory, swap, disk = self._memory(), self._swap(), shutil.disk_usage("/")
        now = self._clock()
        before, self._swapped = self._swapped, (now, swap.sin, swap.sout) if swap is not None else None
        swap_in = swap_out = None
        if before is not None and swap is not None and now > before[0]:
            swap_in, swap_out = (swap.sin - before[1]) / (now - before[0]), (swap.sout - before[2]) / (now - before[0])
        return Host(
            cpu_utilisation=self._cpu.utilisation(),
            cpu_count=os.cpu_count(),
            load_1m=os.getloadavg()[0],
            memory_total_bytes=memory.total,
            memory_used_bytes=memory.total - memory.available,
            swap_total_bytes=swap.total if swap is not None else None,
            swap_used_bytes=swap.used if swap is not None else None,
            disk_free_bytes=disk.free,
            disk_total_bytes=disk.total,
            swap_in_bytes_per_s=swap_in,
            swap_out_bytes_per_s=swap_out,
        )

    def _process(self) -> Reading[ProcessTree]:
        had_one = self._watch is not None
        self._watch = self._watch or self._find()
        tree = self._watch.sample() if self._watch is not None else None
        if tree is not None:
            return Reading.known(Source.PROCESS, self._clock(), tree)
        why = f"no process of this user listens on port {self._port}"
        if self._port is None:
            why = "the server runs on another machine"
        if had_one:
            # What serves the port next is another process, to be looked for at once.
            why, self._sought_at = "the process has ended", -math.inf
        self._watch = None
        return Reading.unknown(Source.PROCESS, self._clock(), FailureKind.UNAVAILABLE, why)

    def _find(self) -> ProcessWatch | None:
        now = self._clock()
        if now - self._sought_at < FIND_AGAIN_S:
            return None
        self._sought_at = now
        # The pid that the target came with is good once: after its end it may be anybody's.
        given, self._given_pid = self._given_pid, None
        if given is not None and (watch := _watch(given, self._clock)) is not None:
            return watch
        found = self._find_pid(self._port) if self._port is not None else None
        return _watch(found, self._clock) if found is not None else None


class CpuTimes:
    """How busy the machine's CPUs are, from one look to the next."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None

    def utilisation(self) -> float | None:
        """Share of the time since the last look that they were busy; None at the first."""
        times = psutil.cpu_times()
        # Guest time is part of user time already.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        idle = times.idle + getattr(times, "iowait", 0.0)
        before, self._before = self._before, (total, idle)
        if before is None or total <= before[0]:
            return None
        busy = 1.0 - (idle - before[1]) / (total - before[0])
        return min(1.0, max(0.0, busy))


def _watch(pid: int, clock: Callable[[], float]) -> ProcessWatch | None:
    try:
        return ProcessWatch(pid, clock)
    except psutil.Error:
        return None


class ProcessWatch:
    """Measures one process and its descendants from one `sample` to the next."""

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises psutil.NoSuchProcess when there is none."""
        self._root = psutil.Process(pid)
        self._clock = clock
        self._used: dict[int, float | None] = {pid: None}
        """By process of the tree, its CPU time at the last look, None before the first."""
        self._listed_at = -math.inf
        self._sampled_at: float | None = None
        self._waited: dict[int, int] = {}
        """Nanoseconds that each thread was ready to run and got no CPU."""
        self._name, self._started = self._root.name(), self._root.create_time()
        self._command: tuple[str, ...] = ()
        with contextlib.suppress(psutil.Error):
            self._command = masked_command(self._root.cmdline())

    @property
    def pids(self) -> tuple[int, ...]:
        """The root and its descendants."""
        return tuple(self._used)

    def sample(self) -> ProcessTree | None:
        """What the tree costs since the last sample; None when the root has ended (also when its pid lives on)."""
        now = self._clock()
        if now - self._listed_at >= CHILDREN_TTL_S:
            self._listed_at = now
            with contextlib.suppress(psutil.Error):
                members = (self._root, *self._root.children(recursive=True))
                self._used = {member.pid: self._used.get(member.pid) for member in members}
        usages: dict[int, dict[str, Any]] = {}
        for pid in filter(is_alive, self._used):
            with contextlib.suppress(psutil.Error, OSError):
                usages[pid] = psutil.Process(pid).as_dict(("status", "cpu_times", "memory_info", "num_threads"))
        usages = {pid: usage for pid, usage in usages.items() if None not in usage.values()}
        if self._root.pid not in usages or not self._root.is_running():
            return None
        elapsed = None if self._sampled_at is None else now - self._sampled_at
        self._sampled_at = now
        # A member seen for the first time has no earlier figure to subtract.
        spent = {pid: usage["cpu_times"].user + usage["cpu_times"].system for pid, usage in usages.items()}
        used_s = sum(cpu_s - before_s for pid, cpu_s in spent.items() if (before_s := self._used[pid]) is not None)
        self._used |= spent
        before, self._waited = self._waited, _waited(self._used)
        waits = [ns - before[thread] for thread, ns in self._waited.items() if thread in before]
        return ProcessTree(
            pid=self._root.pid,
            name=self._name,
            started_wall=self._started,
            cpu_cores=max(0.0, used_s / elapsed) if elapsed else None,
            memory_bytes=sum(usage["memory_info"].rss for usage in usages.values()),
            threads=sum(usage["num_threads"] for usage in usages.values()),
            processes=len(usages),
            pids=self.pids,
            command=self._command,
            stopped=tuple(pid for pid, usage in usages.items() if usage["status"] == psutil.STATUS_STOPPED),
            cpu_wait=round(min(1.0, max(waits) / 1e9 / elapsed), 2) if waits and elapsed else None,
        )


def _waited(pids: Iterable[int]) -> dict[int, int]:
    """By thread of these processes, how many nanoseconds it was ready to run and got no CPU; empty where the kernel
    does not tell."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            # A Path for each, or even a file, costs more than the look.
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                schedstat = os.open(f"/proc/{pid}/task/{thread}/schedstat", os.O_RDONLY)
                try:
                    found[int(thread)] = int(os.read(schedstat, 128).split()[1])
                finally:
                    os.close(schedstat)
    return found
