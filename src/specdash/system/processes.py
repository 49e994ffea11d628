"""Whether a process lives, since when, what it started and where it listens: judged here and nowhere else.

A zombie has ended: it serves no client, and all it held is free. A pid alone names no process, as it is used again:
record its start beside it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

_SAME_START_S = 2.0
"""Start times of one process as read by two programs differ by rounding: the boot time is known to a second."""
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_UNKNOWN = (psutil.Error, OSError, ValueError, OverflowError)


class ProcessUsage(Struct, frozen=True):
    """What a process that lives has used so far, by one look."""

    cpu_s: float
    resident_bytes: int
    threads: int
    stopped: bool
    started: float
    """Unix time in seconds: the same as long as it is the same process."""


def usage_of(pid: int) -> ProcessUsage | None:
    """What a process has used; None when it has ended."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            state = process.status()
            if state in _ENDED:
                return None
            times, stopped = process.cpu_times(), state == psutil.STATUS_STOPPED
            return ProcessUsage(
                times.user + times.system,
                process.memory_info().rss,
                process.num_threads(),
                stopped,
                process.create_time(),
            )
    except _UNKNOWN:
        return None


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return psutil.Process(pid).status() not in _ENDED
    except psutil.AccessDenied:
        return True
    except _UNKNOWN:
        return False


def began(pid: int) -> float | None:
    """Unix time of a process's start in seconds; None when there is none, or it is not to be seen."""
    try:
        return psutil.Process(pid).create_time()
    except _UNKNOWN:
        return None


def own_start() -> float:
    """Unix time of this process's start in seconds."""
    return psutil.Process().create_time()


def same_process(pid: int, started: float) -> bool:
    """Whether the process with this pid is the one that started then (Unix time), and has not ended."""
    start = began(pid)
    return start is not None and abs(start - started) <= _SAME_START_S and is_alive(pid)


def family(pid: int) -> list[psutil.Process]:
    """A process and everything it started; empty when there is none."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except _UNKNOWN:
        return []


def resident_bytes(pids: Iterable[int]) -> int:
    """Memory that the processes hold and no file backs, in bytes."""
    total = 0
    for pid in pids:
        with contextlib.suppress(*_UNKNOWN):
            memory = psutil.Process(pid).memory_info()
            total += memory.rss - memory.shared
    return total


def name_of(pid: int) -> str | None:
    """The name of a process; None when there is none."""
    try:
        return psutil.Process(pid).name()
    except _UNKNOWN:
        return None


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


def listener_owners(port: int) -> set[int] | None:
    """The users whose programs listen on a TCP port of this machine; None where that is not known."""
    owners: set[int] = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:]
        except FileNotFoundError:
            # A kernel without IPv6 has no tcp6.
            continue
        except (OSError, ValueError):
            return None
        for line in lines:
            words = line.split()  # "0A" is LISTEN in include/net/tcp_states.h
            if len(words) > 7 and words[3] == "0A" and words[1].rpartition(":")[2] == f"{port:04X}":
                owners.add(int(words[7]))
    return owners


def is_own_listener(port: int) -> bool:
    """Whether all that listens on a TCP port of this machine runs as our own user; False where that is not known."""
    return listener_owners(port) == {os.geteuid()}
