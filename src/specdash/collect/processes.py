"""Which process serves an address, and what a process and its descendants cost."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil

from specdash.collect.secrets import masked_command
from specdash.core.observations import ProcessTree
from specdash.core.target import is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CHILDREN_TTL_S = 10.0
"""Listing a process's descendants reads all of /proc, and they hardly ever change."""


def local_port(url: str) -> int | None:
    """The port of an address on this machine, None for another machine."""
    parts = urlsplit(url)
    if not is_local(parts.hostname):
        return None
    return parts.port or (443 if parts.scheme == "https" else 80)


def process_began(pid: int) -> float | None:
    """Unix time of a process's start; None when there is none, or it is not to be seen."""
    try:
        return psutil.Process(pid).create_time()
    except (psutil.Error, OSError, ValueError):
        return None


def same_process(pid: int, started: float) -> bool:
    """Whether the process with this pid is the one that started then, and has not ended."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < 2.0 and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):
        return False


def listening_pid(port: int) -> int | None:
    """The process that listens on a TCP port; None when there is none or it belongs to another user."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            return connection.pid
    return None


@dataclass(slots=True)
class _Member:
    process: psutil.Process
    cpu_s: float | None = None


class ProcessWatch:
    """Measures one process and its descendants from one `sample` to the next."""

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises psutil.NoSuchProcess when there is none."""
        self._root = psutil.Process(pid)
        self._clock = clock
        self._members: dict[int, _Member] = {pid: _Member(self._root)}
        self._listed_at: float | None = None
        self._sampled_at: float | None = None
        self._waited: dict[int, int] = {}
        """Nanoseconds that each thread was ready to run and got no CPU."""
        self._name = self._root.name()
        self._started = self._root.create_time()
        self._command = self._read_command()

    @property
    def pids(self) -> tuple[int, ...]:
        """The root and its descendants."""
        return tuple(self._members)

    def sample(self) -> ProcessTree | None:
        """What the tree costs since the last sample; None when the root has ended (also when its pid lives on)."""
        now = self._clock()
        status = _status(self._root)
        if status is None or status == psutil.STATUS_ZOMBIE:
            return None
        if self._listed_at is None or now - self._listed_at >= CHILDREN_TTL_S:
            self._list_members(now)
        elapsed = None if self._sampled_at is None else now - self._sampled_at
        self._sampled_at = now
        used_s, memory, threads, alive = 0.0, 0, 0, 0
        stopped = []
        for member in self._members.values():
            figures = _figures(member.process)
            if figures is None:
                continue
            cpu_s, rss, n_threads, state = figures
            if state == psutil.STATUS_STOPPED:
                stopped.append(member.process.pid)
            # A member seen for the first time has no earlier figure to subtract.
            used_s += cpu_s - member.cpu_s if member.cpu_s is not None else 0.0
            member.cpu_s = cpu_s
            memory, threads, alive = memory + rss, threads + n_threads, alive + 1
        waited, before = _waited(self._members), self._waited
        self._waited = waited
        waits = [ns - before[thread] for thread, ns in waited.items() if thread in before]
        return ProcessTree(
            pid=self._root.pid,
            name=self._name,
            started_wall=self._started,
            cpu_cores=max(0.0, used_s / elapsed) if elapsed else None,
            memory_bytes=memory,
            threads=threads,
            processes=alive,
            pids=self.pids,
            command=self._command,
            stopped=tuple(stopped),
            cpu_wait=round(min(1.0, max(waits) / 1e9 / elapsed), 2) if waits and elapsed else None,
        )

    def _list_members(self, now: float) -> None:
        self._listed_at = now
        try:
            children = self._root.children(recursive=True)
        except psutil.Error:
            return
        known = self._members
        current = {self._root.pid: known[self._root.pid]}
        current.update({child.pid: known.get(child.pid) or _Member(child) for child in children})
        self._members = current

    def _read_command(self) -> tuple[str, ...]:
        try:
            return masked_command(self._root.cmdline())
        except psutil.Error:
            return ()


def _status(process: psutil.Process) -> str | None:
    try:
        return process.status() if process.is_running() else None
    except psutil.Error:
        return None


def _waited(pids: Iterable[int]) -> dict[int, int]:
    """By thread of these processes, how many nanoseconds it was ready to run and got no CPU; empty where the kernel
    does not tell."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - a Path for each costs more than the look
                found[int(thread)] = int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_bytes().split()[1])
    return found


def _figures(process: psutil.Process) -> tuple[float, int, int, str] | None:
    """CPU seconds, resident bytes, threads and status of a process; None when it has ended."""
    try:
        with process.oneshot():
            times = process.cpu_times()
            return times.user + times.system, process.memory_info().rss, process.num_threads(), process.status()
    except psutil.Error:
        return None
