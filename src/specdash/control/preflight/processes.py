"""Which processes are this service's own, and which of all holds a socket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.core.errors import ServiceError
from specdash.core.paths import proxy_records_dir, run_records_dir
from specdash.core.run_record import ProxyRecord, RunRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdash.control.preflight.context import PreflightContext


class Own:
    """Tells the processes of the checked service from others, asking no more than it must."""

    def __init__(self, context: PreflightContext) -> None:
        self._context = context
        self._asked: frozenset[int] | None = None

    def __contains__(self, pid: int) -> bool:
        family = (pid, *ancestors(pid))
        return any(one in self._context.own_pids for one in family) or any(one in self._others() for one in family)

    def pids(self) -> frozenset[int]:
        """The processes that are known to be the service's, without their children."""
        return self._context.own_pids | self._others()

    def _others(self) -> frozenset[int]:
        if self._asked is None:
            self._asked = frozenset(self._ask())
        return self._asked

    def _ask(self) -> Iterator[int]:
        service = self._context.service
        if service is not None:
            if self._context.own_pids:
                return
            try:
                pid = service.status().pid
            except ServiceError:
                pid = None
            if pid is not None:
                yield pid
            return
        # No manager knows this env file: what runs from it in the foreground is still its own.
        wanted = str(self._context.env_file.absolute())
        for record in records(self._context):
            if record.env_file == wanted:
                yield record.pid


def records(context: PreflightContext) -> Iterator[RunRecord | ProxyRecord]:
    """The notes of running backends and proxies."""
    kinds = ((run_records_dir(context.base), RunRecord), (proxy_records_dir(context.base), ProxyRecord))
    for folder, kind in kinds:
        try:
            files = sorted(folder.glob("*.json"))
        except OSError:
            continue
        for file in files:
            try:
                found = kind.from_json(file.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            if found is not None and Path(f"/proc/{found.pid}").exists():
                yield found


def ancestors(pid: int) -> Iterator[int]:
    """The parents of a process, nearest first."""
    seen = {pid}
    while True:
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            pid = int(text.rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return
        if pid <= 1 or pid in seen:
            return
        seen.add(pid)
        yield pid


def owner_of(inode: str, own: Own) -> tuple[int | None, str | None]:
    """Pid and name of the process that holds a socket; the service's own processes are looked at first."""
    first = [pid for known in own.pids() for pid in (known, *_children(known))]
    for pid in dict.fromkeys((*first, *_all_pids())):
        if _holds(pid, inode):
            return pid, _name(pid)
    return None, None


def tree(pids: frozenset[int]) -> frozenset[int]:
    """The processes and all their descendants."""
    found, left = set(pids), list(pids)
    while left:
        for child in _children(left.pop()):
            if child not in found:
                found.add(child)
                left.append(child)
    return frozenset(found)


def resident_bytes(pids: frozenset[int]) -> int:
    """Memory that the processes hold and no file backs, in bytes."""
    total = 0
    page = os.sysconf("SC_PAGE_SIZE")
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
            total += (int(words[1]) - int(words[2])) * page
        except (OSError, ValueError, IndexError):
            continue
    return total


def _children(pid: int) -> list[int]:
    try:
        lists = [path.read_text(encoding="ascii") for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(word) for text in lists for word in text.split()]


def _all_pids() -> Iterator[int]:
    try:
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                yield int(entry.name)
    except OSError:
        return


def _holds(pid: int, inode: str) -> bool:
    wanted = f"socket:[{inode}]"
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                try:
                    if os.readlink(entry.path) == wanted:  # noqa: PTH115 - thousands of them
                        return True
                except OSError:
                    continue
    except OSError:
        return False
    return False


def _name(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
