"""What the rest of specdash may ask of whatever runs the services: systemd's user manager, or our own
supervisor."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from specdash.system.data import dataclass

if TYPE_CHECKING:
    from pathlib import Path

    from specdash.core.changes import Role


BY_HAND = "by hand"
"""The kind of manager of what has none."""


class ServiceState(StrEnum):
    """Where a service is in its life."""

    MISSING = "missing"
    """The manager knows no such service."""
    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "waiting to restart"
    FAILED = "failed"
    """It ended, and will not be started again by itself."""


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """A service at one moment. `pid` is its main process, `restarts` how often the manager restarted it by itself since
    it was last started on purpose; `detail` says in one line why it is not running."""

    name: str
    state: ServiceState
    pid: int | None = None
    restarts: int = 0
    exit_code: int | None = None
    detail: str = ""
    since: float | None = None
    """Unix time of the last change of `state`, where the manager tells."""

    @property
    def alive(self) -> bool:
        """Whether it runs, or is about to."""
        return self.state in (ServiceState.RUNNING, ServiceState.STARTING, ServiceState.WAITING)


class ServiceManager(Protocol):
    """One manager. Every method is bounded in time and raises `core.errors.ServiceError`, which names the service and
    what to do: no such service, manager not running, refused, not done in time. Safe to call from any thread."""

    @property
    def kind(self) -> str:
        """`systemd` or `supervisor`."""

    def bring_up(self) -> None:
        """Make sure that it can be asked, before something is changed: the built-in supervisor is started where it does
        not run, and with it what was running when it ended."""

    def status(self, name: str) -> ServiceStatus:
        """The service now; state MISSING, and no error, for one that the manager does not know."""

    def start(self, name: str) -> None:
        """Start it, forgetting earlier failures. Returns once its process has been started; ready is another matter."""

    def stop(self, name: str) -> None:
        """Stop it. Returns when nothing of it runs any more."""

    def restart(self, name: str) -> None:
        """Stop, then start, forgetting earlier failures."""

    def reload(self, name: str) -> None:
        """Tell the running service to read its env file again. Returns at once: what became of it is seen elsewhere."""

    def log_tail(self, name: str, lines: int = 20) -> tuple[str, ...]:
        """The last lines that the service wrote to its manager's log, oldest first; empty when there are none."""


@dataclass(frozen=True, slots=True)
class ManagedService:
    """One service that can be changed: who runs it, under which name, and the env file it reads.

    `reloads` says that its process is ours and answers a reload by reading the env file again: the proxy takes its
    settings over, the backend's runner swaps its engine.
    """

    role: Role
    name: str
    manager: ServiceManager
    env_file: Path
    reloads: bool
    origin: str
    """How it was found, in words: `config.toml`, `installed unit`, `recognised (UAP)`."""
    socket: bool = False
    """Its listening socket is held by the manager, so that a restart refuses no connection."""
    foreign: bool = False
    """Whether it runs a command that is not specdash's own."""

    @property
    def by_hand(self) -> bool:
        """Whether it has no manager: it is started and stopped in a terminal."""
        return self.manager.kind == BY_HAND

    def status(self) -> ServiceStatus:
        """Shorthand for asking the manager."""
        return self.manager.status(self.name)


@dataclass(frozen=True, slots=True)
class ServiceProblem:
    """Why a service is not there, or not as it should be; `role` None: of no single one."""

    role: Role | None
    text: str

    def __str__(self) -> str:
        return f"{self.role}: {self.text}" if self.role is not None else self.text


@dataclass(frozen=True, slots=True)
class Deployment:
    """The services of this machine that specdash may change. `missing` says why one is not there."""

    backend: ManagedService | None = None
    proxy: ManagedService | None = None
    missing: tuple[ServiceProblem, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """Why services are not there, in words."""
        return tuple(map(str, self.missing))

    def about(self, role: Role) -> tuple[str, ...]:
        """The problems of one role."""
        return tuple(str(problem) for problem in self.missing if problem.role is role)

    def service(self, role: Role) -> ManagedService | None:
        """The service of a role, None when there is none."""
        return self.backend if role == "backend" else self.proxy
