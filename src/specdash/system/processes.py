"""Whether a process lives, since when, what it started and where it listens: judged here and nowhere else. And how
this one listens.

A zombie has ended: it serves no client, and all it held is free. A pid alone names no process, as it is used again:
record its start beside it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

import psutil

_SAME_START_S = 2.0
"""Start times of one process as read by two programs differ by rounding: the boot time is known to a second."""
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_UNKNOWN = (psutil.Error, OSError, ValueError, OverflowError)


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
    with contextlib.suppress(*_UNKNOWN):
        return psutil.Process(pid).create_time()
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
    with contextlib.suppress(*_UNKNOWN):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def name_of(pid: int) -> str | None:
    """The name of a process; None when there is none."""
    with contextlib.suppress(*_UNKNOWN):
        return psutil.Process(pid).name()
    return None


def listening_pid(port: int) -> int | None:
    """The process that listens on a TCP port; None when there is none or it belongs to another user."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
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


def open_listening(host: str, port: int) -> list[socket.socket]:
    """A listening socket on every address of `host`. Raises `socket.gaierror` for a name that is none, and the OSError
    of the address that cannot be had."""
    rows = socket.getaddrinfo(host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found: list[socket.socket] = []
    failed = OSError(errno.EADDRNOTAVAIL, "it has no address")
    for family, place in dict.fromkeys((row[0], row[4]) for row in rows):
        try:
            found.append(socket.create_server(place, family=family, backlog=1024))
        except OSError as error:
            failed = OSError(error.errno, os.strerror(error.errno or 0))
            if error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                break
    else:
        if found:
            return found
    for opened in found:
        opened.close()
    raise failed
