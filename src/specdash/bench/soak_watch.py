"""Memory and descriptors of the processes under a soak, looked at in a thread of its own while it runs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import psutil

from specdash.bench.growth import Growth, Verdict, growth_of
from specdash.collect.discover import is_alive, place, recorded_target
from specdash.collect.processes import listening_pid, local_port
from specdash.core import paths
from specdash.core.errors import SpecdashError
from specdash.core.run_record import ProxyRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

INTERVAL_S = 2.0
_MOST_LOOKS = 8000
_MEMORY_MATTERS = 1024.0 * 1024.0
_MEMORY_SHARE = 0.005
_DESCRIPTORS_MATTER = 2.0
PROXY, BACKEND = "proxy", "backend"


@dataclass(frozen=True, slots=True)
class Look:
    """One look. Times are Unix seconds, memory is resident bytes; descriptors are None where they may not be seen."""

    at: float
    memory: int
    descriptors: int | None
    threads: int


@dataclass(slots=True)
class Watched:
    """One process and what was seen of it. After a restart only the new process counts."""

    role: str
    pid: int
    started: float
    looks: list[Look] = field(default_factory=list)
    restarts: int = 0
    gone: bool = False

    @property
    def memory(self) -> Growth | None:
        """Of resident memory, bytes."""
        looks = [(one.at, float(one.memory)) for one in self.looks]
        return growth_of(looks, matters=_MEMORY_MATTERS, share=_MEMORY_SHARE)

    @property
    def descriptors(self) -> Growth | None:
        """Of open descriptors; None where they may not be seen."""
        looks = [(one.at, float(one.descriptors)) for one in self.looks if one.descriptors is not None]
        return growth_of(looks, matters=_DESCRIPTORS_MATTER)

    @property
    def leaks(self) -> bool:
        """Whether it grows where it must not: an engine's memory may, up to what its prompt cache is allowed."""
        memory, descriptors = self.memory, self.descriptors
        if descriptors is not None and descriptors.verdict is Verdict.GROWING:
            return True
        return self.role != BACKEND and memory is not None and memory.verdict is Verdict.GROWING


class SoakWatch:
    """Looks at processes every few seconds while it is a context. `find` names them by role, again when one ended."""

    def __init__(self, find: Callable[[], Mapping[str, int]], interval_s: float = INTERVAL_S) -> None:
        self._find = find
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="soak watch", daemon=True)
        self._watched: dict[str, Watched] = {}

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(10)

    @property
    def watched(self) -> tuple[Watched, ...]:
        """What was seen so far."""
        return tuple(self._watched.values())

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._look()

    def _look(self) -> None:
        if not self._watched or any(one.gone for one in self._watched.values()):
            self._find_them()
        for one in self._watched.values():
            seen = None if one.gone else _seen(one)
            if seen is None:
                one.gone = True
                continue
            one.looks.append(seen)
            if len(one.looks) > _MOST_LOOKS:
                del one.looks[1::2]
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
            try:
                started = psutil.Process(pid).create_time()
            except (psutil.Error, ValueError):
                continue
            if before is None or (pid, started) != (before.pid, before.started):
                self._watched[role] = Watched(role, pid, started, restarts=before.restarts + 1 if before else 0)


def _seen(one: Watched) -> Look | None:
    try:
        process = psutil.Process(one.pid)
        with process.oneshot():
            if process.create_time() != one.started or process.status() == psutil.STATUS_ZOMBIE:
                return None
            return Look(time.time(), process.memory_info().rss, _descriptors(process), process.num_threads())
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
    try:
        files = sorted(paths.proxy_records_dir(env).glob("*.json"))
    except OSError:
        return None
    for file in files:
        try:
            record = ProxyRecord.from_json(file.read_text(encoding="utf-8"))
            if record is not None and is_alive(record) and place(record.url) == place(url):
                return record
        except (OSError, ValueError, SpecdashError):
            continue
    return None
