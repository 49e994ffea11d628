"""The processes of the supervisor's services on the disk, so that none of a killed supervisor outlives the next one.

The kernel kills them with the supervisor; but a large engine may take a while to end, and holds its port and memory
until then, and what a service started itself may not be tied to it. Each is known by its pid and its start time.
"""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.control.supervisor_services import write_private
from specdash.core.errors import SpecdashError
from specdash.core.paths import run_records_dir, state_dir
from specdash.core.run_record import RunRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import psutil

    from specdash.control.supervisor import Status

GONE_S = 30.0
"""How long the next supervisor waits for what was killed before it starts anything all the same."""
_START_TIME = 19
"""Place of `starttime` in /proc/PID/stat after the name, see proc(5)."""


def children_file(env: Mapping[str, str]) -> Path:
    """Which processes run for which service."""
    return state_dir(env) / "supervisor-children.json"


class Children:
    """The children of this supervisor, and before that of the one before it. Never fails: whatever cannot be written or
    read is said."""

    def __init__(self, env: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._env = env
        self._say = say
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, int]] = {}

    def note(self, status: Status) -> None:
        """Keep which process a service has now, on the disk, too."""
        began = _started(status.pid) if status.pid is not None else None
        with self._lock:
            before = self._known.pop(status.name, None)
            if status.pid is not None and began is not None:
                self._known[status.name] = status.pid, began
            if self._known.get(status.name) == before:
                return
            text = json.dumps({"version": 1, "boot": _boot_id(), "children": self._known}) + "\n"
            try:
                write_private(children_file(self._env), text)
            except SpecdashError as error:
                self._say(f"{error}; the next supervisor will not know what this one has left")

    def end_left(self) -> None:
        """End what a supervisor before this one has left running, and wait for it."""
        left: list[psutil.Process] = []
        for name, pid, began in self._read():
            found = [one for root in self._roots(pid, began) for one in (root, *_descendants(root))]
            if found:
                pids = ", ".join(str(one.pid) for one in found)
                self._say(f"{name}: ending what the supervisor before this one has left, pid {pids}")
            left += found
        if not left:
            return
        import psutil

        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        still = psutil.wait_procs(left, timeout=GONE_S)[1]
        if still:
            self._say(f"pid {', '.join(str(one.pid) for one in still)} of the supervisor before has not ended yet")

    def _roots(self, pid: int, began: int) -> list[psutil.Process]:
        """The service itself and its engine, where they are still there."""
        import psutil

        found: list[psutil.Process] = []
        if _started(pid) == began:
            with contextlib.suppress(psutil.Error):
                found.append(psutil.Process(pid))
        for record in self._records():
            # An engine has a session of its own, and another parent once its runner is gone.
            if record.runner_pid == pid and record.pid != pid:
                with contextlib.suppress(psutil.Error):
                    engine = psutil.Process(record.pid)
                    if abs(engine.create_time() - record.pid_started) < 1.0:
                        found.append(engine)
        return found

    def _records(self) -> list[RunRecord]:
        found = []
        for file in run_records_dir(self._env).glob("*.json"):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                found.append(RunRecord.from_json(file.read_text(encoding="utf-8")))
        return [one for one in found if one is not None]

    def _read(self) -> list[tuple[str, int, int]]:
        path = children_file(self._env)
        try:
            content = json.loads(path.read_bytes())
            if content["boot"] != _boot_id():
                return []
            return [(str(name), int(pid), int(began)) for name, (pid, began) in content["children"].items()]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._say(f"{path} cannot be read ({error}); what the supervisor before has left is not known")
            return []


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    import psutil

    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _started(pid: int) -> int | None:
    """When the process started, in ticks since the machine did; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[_START_TIME])
    except (OSError, ValueError, IndexError):
        return None


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
