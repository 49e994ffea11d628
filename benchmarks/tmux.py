"""A program in a real tmux of the benchmark's own: start, wait for a mark on the screen, read CPU and memory, end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Pane:
    """One program on one screen."""

    def __init__(self, command: Sequence[str], columns: int, rows: int) -> None:
        self._tmux = ["tmux", "-L", f"specdash-bench-{os.getpid()}-{time.monotonic_ns()}", "-f", "/dev/null"]
        self.started = time.perf_counter()
        self.call("new-session", "-d", "-x", str(columns), "-y", str(rows), *command)
        self.pid = int(self.call("display-message", "-p", "#{pane_pid}"))

    def call(self, *arguments: str) -> str:
        """Run one tmux command and return what it prints."""
        return subprocess.run([*self._tmux, *arguments], check=True, capture_output=True, text=True, timeout=20).stdout

    def screen(self) -> str:
        """What is on the screen."""
        return self.call("capture-pane", "-p")

    def wait_for(self, mark: str, timeout: float = 30.0) -> float:
        """Seconds from the start until `mark` is on the screen."""
        while time.perf_counter() - self.started < timeout:
            if mark in self.screen():
                return time.perf_counter() - self.started
            time.sleep(0.005)
        raise TimeoutError(f"{mark!r} did not appear within {timeout} s; the screen shows:\n{self.screen()}")

    def cpu_seconds(self) -> float:
        """User and system time of the program so far."""
        return sum(psutil.Process(self.pid).cpu_times()[:2])

    def rss_mb(self) -> float:
        """Resident memory."""
        return psutil.Process(self.pid).memory_info().rss / 2**20

    def cpu_percent(self, seconds: float) -> float:
        """Share of one core over the next `seconds`."""
        before, at = self.cpu_seconds(), time.perf_counter()
        time.sleep(seconds)
        return (self.cpu_seconds() - before) / (time.perf_counter() - at) * 100


@contextlib.contextmanager
def pane(command: Sequence[str], columns: int = 120, rows: int = 36) -> Iterator[Pane]:
    """A running program, ended in the end."""
    running = Pane(command, columns, rows)
    try:
        yield running
    finally:
        with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):
            running.call("kill-server")
