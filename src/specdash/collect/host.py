"""The machine and the backend's process, through psutil."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from specdash.collect.processes import ProcessWatch, listening_pid, local_port
from specdash.core.config import JOURNAL
from specdash.core.observations import Disk, Host, ProcessTree
from specdash.core.paths import state_dir
from specdash.core.readings import FailureKind, Reading, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from specdash.core.target import Target

MEMINFO = Path("/proc/meminfo")
VMSTAT = Path("/proc/vmstat")

DISKS_S = 2.0
"""Disks do not fill faster than this can tell, and a look at a network's may be slow."""

FIND_AGAIN_S = 5.0
"""Finding the process that owns a port reads every process's file descriptors."""

FIRST_PAUSE_S = 0.25
"""CPU figures need two looks; the second follows the first soon."""


class HostCollector:
    """Publishes HOST and PROCESS readings. `step` is to be called again after the seconds it returns."""

    def __init__(
        self,
        target: Target,
        publish: Callable[[Reading[Any]], None],
        *,
        disk: str = "/",
        places: Callable[[], Iterable[tuple[str, str]]] = tuple,
        meminfo: Path = MEMINFO,
        vmstat: Path = VMSTAT,
        clock: Callable[[], float] = time.monotonic,
        find_pid: Callable[[int], int | None] = listening_pid,
    ) -> None:
        """`places` tells the folders that are written to: what for, and the path."""
        self._target = target
        self._publish = publish
        self._clock = clock
        self._find_pid = find_pid
        self._disk = disk
        self._places = places
        self._disks: tuple[Disk, ...] = ()
        self._disks_at: float | None = None
        self._meminfo, self._vmstat = meminfo, vmstat
        self._swapped: tuple[float, int, int] | None = None
        self._cpu: tuple[float, float] | None = None
        self._watch: ProcessWatch | None = None
        self._given_pid = target.pid
        self._sought_at: float | None = None

    def backend_pids(self) -> frozenset[int]:
        """The backend's process and its descendants, as far as known."""
        watch = self._watch
        return frozenset(watch.pids) if watch is not None else frozenset()

    def step(self, interval_s: float) -> float:
        """Publish one reading of the machine and one of the backend's process."""
        first = self._cpu is None
        host = self._host()
        self._publish(Reading.known(Source.HOST, self._clock(), host))
        self._publish(self._process())
        return min(interval_s, FIRST_PAUSE_S) if first else interval_s

    def _host(self) -> Host:
        swap_in, swap_out = self._swap_rates()
        return Host(
            cpu_utilisation=self._cpu_utilisation(),
            cpu_count=os.cpu_count(),
            load_1m=os.getloadavg()[0],
            disks=self._disks_now(),
            **memory_figures(self._meminfo),
            **disk_figures(self._disk),
            swap_in_bytes_per_s=swap_in,
            swap_out_bytes_per_s=swap_out,
        )

    def _disks_now(self) -> tuple[Disk, ...]:
        now = self._clock()
        if self._disks_at is None or now - self._disks_at >= DISKS_S:
            self._disks_at = now
            self._disks = tuple(disk for use, path in self._places() if (disk := disk_of(use, path)) is not None)
        return self._disks

    def _swap_rates(self) -> tuple[float | None, float | None]:
        pages = swapped_pages(self._vmstat)
        now = self._clock()
        before, self._swapped = self._swapped, (now, *pages) if pages is not None else None
        if before is None or self._swapped is None or now <= before[0]:
            return None, None
        per_s = os.sysconf("SC_PAGE_SIZE") / (now - before[0])
        return max(0, self._swapped[1] - before[1]) * per_s, max(0, self._swapped[2] - before[2]) * per_s

    def _cpu_utilisation(self) -> float | None:
        times = psutil.cpu_times()
        # Guest time is part of user time already.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        idle = times.idle + getattr(times, "iowait", 0.0)
        before, self._cpu = self._cpu, (total, idle)
        if before is None or total <= before[0]:
            return None
        busy = 1.0 - (idle - before[1]) / (total - before[0])
        return min(1.0, max(0.0, busy))

    def _process(self) -> Reading[ProcessTree]:
        if self._watch is None:
            self._watch = self._find()
        tree = self._watch.sample() if self._watch is not None else None
        now = self._clock()
        if tree is not None:
            return Reading.known(Source.PROCESS, now, tree)
        if self._watch is not None:
            # It ended: whatever serves the port next is another process, to be looked for at once.
            self._watch, self._sought_at = None, None
            return Reading.unknown(Source.PROCESS, now, FailureKind.UNAVAILABLE, "the process has ended")
        return Reading.unknown(Source.PROCESS, now, FailureKind.UNAVAILABLE, self._why_none())

    def _find(self) -> ProcessWatch | None:
        now = self._clock()
        if self._sought_at is not None and now - self._sought_at < FIND_AGAIN_S:
            return None
        self._sought_at = now
        # The pid that the target came with is good once: after its end it may be anybody's.
        given, self._given_pid = self._given_pid, None
        if given is not None and (watch := _watch(given, self._clock)) is not None:
            return watch
        port = local_port(self._target.url)
        found = self._find_pid(port) if port is not None else None
        return _watch(found, self._clock) if found is not None else None

    def _why_none(self) -> str:
        port = local_port(self._target.url)
        if port is None:
            return "the server runs on another machine"
        return f"no process of this user listens on port {port}"


def memory_figures(meminfo: Path = MEMINFO) -> dict[str, int]:
    """Memory and swap in bytes, as fields of `Host`; those that the kernel does not tell are left out.

    Read here because psutil's swap figures come with warnings on kernels that lack /proc/vmstat.
    """
    try:
        lines = meminfo.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    kib = {name: int(words[0]) for name, _, rest in (line.partition(":") for line in lines) if (words := rest.split())}
    figures = {"memory_total_bytes": kib.get("MemTotal"), "swap_total_bytes": kib.get("SwapTotal")}
    if "MemTotal" in kib and "MemAvailable" in kib:
        figures["memory_used_bytes"] = kib["MemTotal"] - kib["MemAvailable"]
    if "SwapTotal" in kib and "SwapFree" in kib:
        figures["swap_used_bytes"] = kib["SwapTotal"] - kib["SwapFree"]
    return {name: value * 1024 for name, value in figures.items() if value is not None}


def disk_figures(path: str) -> dict[str, int]:
    """Free (for this user) and total bytes of the file system that holds `path`, as fields of `Host`."""
    try:
        status = os.statvfs(path)
    except OSError:
        return {}
    return {"disk_free_bytes": status.f_bavail * status.f_frsize, "disk_total_bytes": status.f_blocks * status.f_frsize}


def written_places(target: Target, env: Mapping[str, str]) -> list[tuple[str, str]]:
    """Where the server, its proxy and specdash write, as far as it is on this machine."""
    places = [("specdash's state", str(state_dir(env)))]
    if target.log is not None:
        places.insert(0, ("server log", str(Path(target.log).resolve().parent)))
    if target.proxy_log is not None and not target.proxy_log.startswith(JOURNAL):
        places.append(("proxy events", str(Path(target.proxy_log).resolve().parent)))
    return places


def disk_of(use: str, path: str) -> Disk | None:
    """The file system of `path`, or of its nearest folder that is there; None when it cannot be looked at."""
    place = Path(path).absolute()
    for there in (place, *place.parents):
        try:
            status, device = os.statvfs(there), there.stat().st_dev
        except FileNotFoundError:
            continue
        except OSError:
            return None
        if not status.f_blocks:
            return None
        free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
        return Disk(path, use, free, total, device, status.f_favail if status.f_files else None)
    return None


def swapped_pages(vmstat: Path = VMSTAT) -> tuple[int, int] | None:
    """Pages read from the swap and written to it since the machine started; None where the kernel does not tell."""
    try:
        lines = vmstat.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    counts = dict(words for line in lines if len(words := line.split()) == 2)
    try:
        return int(counts["pswpin"]), int(counts["pswpout"])
    except (KeyError, ValueError):
        return None


def _watch(pid: int, clock: Callable[[], float]) -> ProcessWatch | None:
    try:
        return ProcessWatch(pid, clock)
    except psutil.Error:
        return None
