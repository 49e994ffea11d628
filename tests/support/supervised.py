"""The built-in supervisor's daemon in a home of its own, for tests, with services that run any command."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from specdash.control.services.supervisor_client import SupervisorClient
from specdash.control.services.supervisor_daemon import daemon_log
from specdash.control.services.supervisor_services import ServiceEntry, read_services, write_services
from specdash.core.changes import Role
from specdash.core.paths import services_file, supervisor_socket
from specdash.system.processes import is_alive
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WAIT_S = 20.0


@dataclass(slots=True)
class RunningDaemon:
    """A daemon. `environment` has what leads to it, and is what its services run in."""

    home: Path
    environment: dict[str, str]
    client: SupervisorClient

    @property
    def pid(self) -> int:
        """The daemon's process."""
        return self.client.daemon()[0]

    @property
    def socket(self) -> Path:
        """Where it takes commands."""
        return supervisor_socket(self.environment)

    @property
    def said(self) -> str:
        """Its log."""
        return daemon_log(self.environment).read_text(encoding="utf-8")

    def add(
        self,
        name: str,
        argv: Sequence[str],
        *,
        role: Role = Role.BACKEND,
        listen: str | None = None,
        stop_timeout: float = 5.0,
    ) -> None:
        """Make a service known that runs `argv`, or replace it for its next start; its env file is HOME/NAME.env."""
        path = services_file(self.environment)
        kept = [entry for entry in read_services(path) if entry.name != name]
        entry = ServiceEntry(name, role, self.home / f"{name}.env", listen, tuple(argv), stop_timeout)
        write_services(path, [*kept, entry])
        self.client.rescan()

    def remove(self, name: str) -> None:
        """Take a service out of the file; the daemon stops it."""
        path = services_file(self.environment)
        write_services(path, [entry for entry in read_services(path) if entry.name != name])
        self.client.rescan()

    def clear(self) -> None:
        """No service is left, nor what one has said; it runs."""
        self.start_again()
        write_services(services_file(self.environment), [])
        self.client.rescan()
        for log in (self.socket.parent.parent / "logs").glob("service-*.log*"):
            log.unlink()

    def kill(self) -> None:
        """SIGKILL to the daemon; returns when it and its children are gone."""
        process = psutil.Process(self.pid)
        family = [process, *process.children(recursive=True)]
        process.send_signal(signal.SIGKILL)
        until(lambda: all(gone(process.pid) for process in family))

    def start_again(self) -> None:
        """What the next specdash does."""
        self.client = SupervisorClient.ensure_running(self.environment)


@contextlib.contextmanager
def running_daemon(home: Path | None = None, **variables: str) -> Iterator[RunningDaemon]:
    """Start one whose home is `home`, by default a new directory with a short name; it ends with its services."""
    with contextlib.ExitStack() as stack:
        if home is None:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sd-sv-")))
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "SPECDASH_"))}
        environment["HOME"] = str(home)
        environment |= variables
        daemon = RunningDaemon(home, environment, SupervisorClient.ensure_running(environment))
        try:
            yield daemon
        finally:
            if daemon.client.available():
                pid = daemon.pid
                daemon.client.shutdown()
                until(lambda: gone(pid))


@contextlib.contextmanager
def zombie() -> Iterator[int]:
    """The pid of a process that has ended, and that its parent has not reaped yet."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield process.pid


def gone(pid: int) -> bool:
    """Whether the process has ended; an orphan may be a zombie for a while, until this machine's init looks."""
    return not is_alive(pid)
