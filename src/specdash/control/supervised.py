"""The built-in supervisor as a service manager: what `control.services` asks of systemd, asked of our own processes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from specdash.control.services import ServiceState, ServiceStatus
from specdash.control.supervisor import State
from specdash.control.supervisor_log import tail
from specdash.core.errors import ServiceError, SpecdashError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdash.control.supervisor import Status, Supervisor

KIND = "supervisor"
_STATES = {
    State.STOPPED: ServiceState.STOPPED,
    State.STARTING: ServiceState.STARTING,
    State.READY: ServiceState.RUNNING,
    State.STOPPING: ServiceState.STOPPING,
    State.WAITING: ServiceState.WAITING,
    State.FAILED: ServiceState.FAILED,
}


class SupervisedManager:
    """The services of a `Supervisor` of this process. A `control.services.ServiceManager`; see there."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    @property
    def kind(self) -> str:
        """`supervisor`."""
        return KIND

    def bring_up(self) -> None:
        """Nothing to do: it is in this process."""

    def status(self, name: str) -> ServiceStatus:
        """The service now; MISSING when it was never added."""
        try:
            return service_status(self._supervisor.status(name))
        except UsageError as error:
            return ServiceStatus(name, ServiceState.MISSING, detail=str(error))

    def start(self, name: str) -> None:
        """Start it, forgetting earlier failures; returns once its process has been started."""
        with _as_service_error():
            self._supervisor.launch(name)

    def stop(self, name: str) -> None:
        """Stop it, and wait until it is gone."""
        with _as_service_error():
            self._supervisor.stop(name)

    def restart(self, name: str) -> None:
        """Returns when the old process is gone and a new one has been started."""
        with _as_service_error():
            self._supervisor.restart(name)

    def reload(self, name: str) -> None:
        """Send the service its reload signal, as soon as it has a handler for it."""
        with _as_service_error():
            number = self._supervisor.service(name).reload_signal
            if number is None:
                raise ServiceError(f"{name} cannot reload its settings; restart it")
            self._supervisor.signal(name, number)

    def log_tail(self, name: str, lines: int = 20) -> tuple[str, ...]:
        """The last lines of the service's log file."""
        with _as_service_error():
            return tail(self._supervisor.service(name).log, lines)


def service_status(status: Status) -> ServiceStatus:
    """A supervisor's status in the words all managers share."""
    return ServiceStatus(
        status.name,
        _STATES[status.state],
        status.pid,
        status.restarts,
        status.exit_code,
        status.detail,
        status.since,
    )


@contextlib.contextmanager
def _as_service_error() -> Iterator[None]:
    try:
        yield
    except ServiceError:
        raise
    except SpecdashError as error:
        raise ServiceError(str(error)) from None
