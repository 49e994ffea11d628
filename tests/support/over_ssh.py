"""Machines behind ssh, as a test has them: a program in ssh's place that runs the command here."""

from __future__ import annotations

import shlex
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

from specdash.collect.hub import Hub
from specdash.core.readings import FailureKind, Reading, Source
from specdash.core.target import Target, ssh_host

if TYPE_CHECKING:
    from pathlib import Path

AGENT = shlex.join([sys.executable, "-m", "specdash"])
"""What the shell of the other machine calls specdash: this one."""


def local_ssh(folder: Path) -> tuple[str, ...]:
    """A program that takes ssh's arguments and runs the command here; its pid is that of the command."""
    script = folder / "ssh"
    script.write_text('#!/bin/sh\nfor last; do :; done\necho $$ >> "$0.pids"\nexec /bin/sh -c "exec $last"\n')
    script.chmod(0o755)
    return (str(script),)


def started(folder: Path) -> list[int]:
    """The pids of all that `local_ssh` started, in their order."""
    pids = folder / "ssh.pids"
    return [int(word) for word in pids.read_text().split()] if pids.exists() else []


def behind_ssh(command: tuple[str, ...], program: str = AGENT, *options: str, server: str = "127.0.0.1:9") -> Target:
    """A target on the machine `far`."""
    host = ssh_host(f"ssh://far/{server}", command=command, program=program, options=options)
    return Target(host.url, ssh=host)


class Watched:
    """A hub on a target, and all that it published."""

    def __init__(self, target: Target) -> None:
        self.readings: list[Reading[Any]] = []
        self.targets: list[Target] = []
        self._lock = threading.Lock()
        self.hub = Hub(target, [self._take], on_target=self.targets.append)

    def __enter__(self) -> Self:
        self.hub.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hub.stop()

    def _take(self, reading: Reading[Any]) -> None:
        with self._lock:
            self.readings.append(reading)

    def values(self, source: Source) -> list[Any]:
        """What is known of a source, in the order in which it came."""
        with self._lock:
            return [
                reading.value for reading in self.readings if reading.source is source and reading.value is not None
            ]

    def failure(self, source: Source = Source.HEALTH, kind: FailureKind | None = None) -> str:
        """The newest words about why a source says nothing."""
        with self._lock:
            found = [reading.failure for reading in self.readings if reading.source is source and reading.failure]
        words = [failure.detail for failure in found if kind is None or failure.kind is kind]
        return words[-1] if words else ""
