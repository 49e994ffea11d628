"""The built-in service manager: runs services as child processes, restarts them, and leaves none behind.

For the demo, and for machines without systemd. Every service has a thread of its own that starts, watches and stops its
process; the public methods only ask that thread and wait, with a bound. The processes die with us: in an orderly way
when the supervisor is closed (context manager, `atexit`, SIGTERM, SIGHUP), by the kernel's hand when we are killed (see
`backend.child`; what a service starts itself must then take care of its own children, as `specdash backend run` does).
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from typing import TYPE_CHECKING, Self

from specdash.control.supervisor_runner import Restart, Runner, Service, State, Status
from specdash.core.errors import ExitCode, SpecdashError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

__all__ = ["Restart", "Service", "State", "Status", "Supervisor"]

_START_BOUND_S = 10.0
_SIGNAL_BOUND_S = 5.0


class Supervisor:
    """Runs services until it is closed. Thread-safe; use it as a context manager.

    `on_change` is told of every new state or process, from the service's thread: it must return quickly, never raise,
    and ask nothing of the supervisor.
    """

    def __init__(self, *, handle_signals: bool = True, on_change: Callable[[Status], None] | None = None) -> None:
        self._runners: dict[str, Runner] = {}
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._handle_signals = handle_signals
        self._on_change = on_change
        self._replaced: dict[int, object] = {}
        atexit.register(self.close)

    def __enter__(self) -> Self:
        """End in an orderly way on SIGTERM and SIGHUP too, unless the program has handlers of its own."""
        if self._handle_signals and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._replaced[number] = signal.signal(number, _exit)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything, whatever the reason for leaving."""
        self.close()
        for number in self._replaced:
            signal.signal(number, signal.SIG_DFL)
        self._replaced.clear()

    def add(self, service: Service) -> None:
        """Make a service known, or replace its description for the next start. Nothing is started."""
        with self._lock:
            known = self._runners.get(service.name)
            if known is not None:
                known.service = service
            else:
                self._runners[service.name] = Runner(service, self._on_change)

    def remove(self, name: str) -> None:
        """Stop a service and forget it."""
        runner = self._runner(name)
        with self._lock:
            self._runners.pop(name, None)
        runner.stop(leave=True)
        runner.join()

    def start(self, name: str) -> Status:
        """Start a service that is not running. Returns at once; see `launch` and `wait_ready`."""
        runner = self._runner(name)
        runner.start()
        return runner.status

    def launch(self, name: str) -> Status:
        """Start a service that is not running, and wait until its process has been started.

        Raises `SpecdashError` when it cannot be. A process that ends right after is no error here.
        """
        runner = self._runner(name)
        return self._wait_launched(runner, runner.start())

    def stop(self, name: str) -> Status:
        """Stop a service and wait until nothing of it runs any more; raises `SpecdashError` when it still does."""
        runner = self._runner(name)
        bound = runner.stop_bound()
        stopped, status = runner.wait_stopped(runner.stop(), bound)
        if not stopped:
            raise SpecdashError(f"{name} did not stop within {bound:g} s; its process {status.pid} is still there")
        return status

    def restart(self, name: str) -> Status:
        """Stop a service, then start it; returns when the new process has been started. Raises as `launch`."""
        runner = self._runner(name)
        return self._wait_launched(runner, runner.restart())

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a service's process. Raises `SpecdashError` when it does not run, or has no handler."""
        runner = self._runner(name)
        if runner.status.pid is None:
            raise SpecdashError(f"{name} does not run ({runner.status.state})")
        if not runner.signal(number, _SIGNAL_BOUND_S):
            raise SpecdashError(
                f"{name} was not sent {signal.Signals(number).name}: it has no handler for it and would end"
            )

    def service(self, name: str) -> Service:
        """The description of a service that counts for its next start."""
        return self._runner(name).service

    def stop_bound(self, name: str) -> float:
        """How long stopping the service takes at most, in seconds."""
        return self._runner(name).stop_bound()

    def _wait_launched(self, runner: Runner, order: int) -> Status:
        bound = runner.stop_bound() + _START_BOUND_S
        launched, status = runner.wait_launched(order, bound)
        name = runner.service.name
        if launched and status.state is State.FAILED and status.exit_code is None:
            raise SpecdashError(f"{name} cannot be started: {status.detail}")
        if not launched:
            why = "it was stopped meanwhile" if status.state is State.STOPPED else f"it is {status.state}"
            raise SpecdashError(f"{name} was not started: {why}")
        return status

    def status(self, name: str) -> Status:
        """The service as it is now."""
        return self._runner(name).status

    def statuses(self) -> tuple[Status, ...]:
        """All services, in the order they were added."""
        with self._lock:
            return tuple(runner.status for runner in self._runners.values())

    def wait_ready(self, name: str, timeout: float) -> Status:
        """Wait until the service is ready, failed or stopped, at most `timeout` seconds."""
        return self._runner(name).wait(lambda s: s.state in (State.READY, State.FAILED, State.STOPPED), timeout)

    def close(self) -> None:
        """Stop every service, all at the same time, and forget them. May be called again, and from any thread."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            runners = list(self._runners.values())
            self._runners.clear()
        atexit.unregister(self.close)
        for runner in runners:
            runner.stop(leave=True)
        for runner in runners:
            runner.join()

    def _runner(self, name: str) -> Runner:
        with self._lock:
            runner = self._runners.get(name)
            known = ", ".join(self._runners) or "none"
        if runner is None:
            raise UsageError(f"no service {name!r}; known: {known}")
        return runner


def _exit(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(int(ExitCode.INTERRUPTED))
