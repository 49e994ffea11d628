"""Processes that have ended."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from specdash.system.processes import is_alive


@contextlib.contextmanager
def zombie() -> Iterator[int]:
    """The pid of a process that has ended, and that its parent has not reaped yet."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield process.pid


def gone(pid: int) -> bool:
    """Whether the process has ended; an orphan may be a zombie for a while, until this machine's init looks."""
    return not is_alive(pid)
