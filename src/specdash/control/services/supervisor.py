"""The built-in service manager: runs services as child processes, restarts them, and leaves none behind.

For the demo, and for machines without systemd. Every service has a thread of its own that starts, watches and stops its
process; the public methods only ask that thread and wait, with a bound. The processes die with us: in an orderly way
when the supervisor is closed (context manager, `atexit`, SIGTERM, SIGHUP), by the kernel's hand when we are killed (see
`backend.child`; what a service starts itself must then take care of its own children, as `specdash backend run` does).
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from specdash.backend.child import SECOND_SIGNAL_WAIT_S, Child, describe_exit
from specdash.control.services.services import ServiceState, ServiceStatus
from specdash.core.errors import ExitCode, PortInUseError, ServiceError, SpecdashError, UsageError
from specdash.system import files
from specdash.system.data import dataclass
from specdash.system.sockets import open_listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType, TracebackType


# The file that a supervised service writes its output to: private, bounded, read from its end.

LIMIT_BYTES = 16 * 1024 * 1024
_LINE_BYTES = 2048
"""What is kept of one line when the tail is read."""
_TAIL_BYTES = 1024 * 1024


def open_log(path: Path) -> IO[bytes]:
    """Open for appending, mode 0600, after moving a file that is too long to `.1`. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    bound_log(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "wb", buffering=0)


def bound_log(path: Path) -> None:
    """Copy a log over 16 MiB to `.1` and empty it, also while a process appends to it; never fails.

    It is copied because the process keeps its descriptor; what it writes during the copy is lost.
    """
    with contextlib.suppress(OSError):
        if not path.is_file() or path.stat().st_size <= LIMIT_BYTES:
            return
        with contextlib.suppress(OSError):
            draft = path.with_name(f"{path.name}.1.new")
            try:
                os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
                shutil.copyfile(path, draft)
                files.put(draft, path.with_name(f"{path.name}.1"))
            finally:
                draft.unlink(missing_ok=True)
        os.truncate(path, 0)


def tail(path: str | None, lines: int) -> tuple[str, ...]:
    """The last lines, oldest first, without line ends and blank ones; empty where there is no file."""
    if path is None or lines <= 0:
        return ()
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            data = file.read(_TAIL_BYTES)
    except OSError:
        return ()
    found = [line[:_LINE_BYTES] for line in data.splitlines() if line.strip()]
    return tuple(line.decode("utf-8", "replace").rstrip() for line in found[-lines:])


def last_line(path: str | None) -> str:
    """The last line, to say why a service ended; empty where there is none."""
    return next(iter(tail(path, 1)), "").strip()


# Listening sockets that the manager holds for a service, so that a restart of it refuses no connection.

_BACKLOG = 1024


class HeldSockets:
    """The sockets of one service: opened before its first start, kept over restarts and crashes."""

    def __init__(self) -> None:
        self._address: tuple[str, int] | None = None
        self._sockets: list[socket.socket] = []

    @property
    def held(self) -> bool:
        """Whether any socket is open."""
        return bool(self._sockets)

    def descriptors(self, address: tuple[str, int] | None) -> tuple[int, ...]:
        """The descriptors that listen on `address`; opened where they are not, and none for None.

        Raises `SpecdashError` when that cannot be listened on; the sockets held before are then still open.
        """
        if address != self._address:
            before = self._address
            if before is not None and address is not None and before[1] == address[1]:
                # The same port on another address: ours would be in the way.
                self.close()
            try:
                opened = [] if address is None else _opened(*address)
            except SpecdashError:
                if before is not None and not self._sockets:
                    with contextlib.suppress(SpecdashError):
                        self._sockets, self._address = _opened(*before), before
                raise
            self.close()
            self._sockets, self._address = opened, address
        return tuple(item.fileno() for item in self._sockets)

    def close(self) -> None:
        """Stop listening."""
        for item in self._sockets:
            item.close()
        self._sockets, self._address = [], None


def _opened(host: str, port: int) -> list[socket.socket]:
    """Raises `SpecdashError` naming host and port."""
    where = f"{host}:{port}"
    try:
        return open_listening(host, port)
    except socket.gaierror as error:
        raise SpecdashError(f"{where} is not an address of this machine ({error.strerror or error})") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(f"port {port} of {host} is in use; stop its owner, or choose another port") from None
        raise SpecdashError(f"cannot listen on {where}: {error.strerror or error}") from None


# One supervised service: what it is, and the thread that alone touches its process.
#
# Whoever wants something gives an order: a number that grows with every start, stop and restart asked for. A process
# belongs to the order it was started under, and is stopped when there is a newer one; so no order is lost or done
# twice, however many come at once.


_POLL_S = 0.05
_PORT_WAIT_S = 3.0
_LOG_CHECK_S = 60.0
_SLACK_S = 10.0
"""On top of a service's own stop timeout, for the kernel to reap what was killed."""
HELD_AFTER_END_S = 60.0
"""How long the listening socket of a service that ended by itself is kept, for whoever mends it."""


class Restart(StrEnum):
    """When a service that ended by itself is started again."""

    NEVER = "never"
    ON_FAILURE = "on-failure"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Service:
    """What to run. `env` is the whole environment; times are in seconds.

    `ready` is asked again and again until it returns True; it must answer quickly and may raise. A service that is
    not ready within `ready_timeout` counts as failed. It starts again after `backoff`, doubled with each failure up to
    `backoff_limit`; after `crash_limit` failures within `crash_window` it is given up.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: str | None = None
    log: str | None = None
    """Its stdout and stderr are appended here, mode 0600; None discards them. Over 16 MiB it moves to `.1`."""
    restart: Restart = Restart.ON_FAILURE
    ready: Callable[[], bool] | None = None
    ready_timeout: float = 60.0
    stop_timeout: float = 5.0
    backoff: float = 0.25
    backoff_limit: float = 8.0
    crash_limit: int = 5
    crash_window: float = 60.0
    final_codes: frozenset[int] = frozenset()
    """Exit codes after which it is given up at once: the next start would end the same way."""
    reload_signal: int | None = None
    """The signal that tells it to read its settings again; None: it cannot."""
    listen: tuple[str, int] | None = None
    """Host and port that the supervisor listens on for it, from before its first start until it is stopped on purpose.

    The service finds the sockets as descriptors from 3 on, with LISTEN_FDS: sd_listen_fds(3)."""


class Runner:
    """One service and its thread. Thread-safe."""

    def __init__(self, service: Service, on_change: Callable[[ServiceStatus], None] | None = None) -> None:
        self.service = service
        self._on_change = on_change
        self.status = ServiceStatus(service.name, ServiceState.STOPPED, since=time.time())
        self._changed = threading.Condition()
        self._order = 0
        self._wanted = False
        self._leave = False
        self._running: int | None = None
        """The order of the process that runs or is about to."""
        self._launched = 0
        """The order of the last process that was started, or could not be."""
        self._running_service = service
        self._signals: list[tuple[int, threading.Event]] = []
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._waker, False)
        self._closed = False
        self._starts = 0
        self._crashes: deque[float] = deque()
        self._sockets = HeldSockets()
        self._thread = threading.Thread(target=self._live, name=f"service {service.name}", daemon=True)
        self._thread.start()

    def start(self) -> int:
        """Order a start, unless the service runs; a pause before a restart is cut short. Returns the order."""
        with self._changed:
            if self._wanted and self.status.state is not ServiceState.WAITING:
                return self._order
            return self._order_run()

    def restart(self) -> int:
        """Order that what runs now ends, and a new process starts. Returns the order."""
        with self._changed:
            return self._order_run()

    def stop(self, *, leave: bool = False) -> int:
        """Order a stop; with `leave`, the thread ends too. Returns the order."""
        with self._changed:
            self._wanted = False
            self._leave = self._leave or leave
            if self._running is None and self.status.state in (ServiceState.STARTING, ServiceState.WAITING):
                self._set(ServiceState.STOPPED, code=self.status.exit_code)
            return self._next_order()

    def _order_run(self) -> int:
        self._wanted = not self._leave
        self._starts = 0
        self._crashes.clear()
        if self._running is None and self._wanted:
            self._set(ServiceState.STARTING)
        return self._next_order()

    def _next_order(self) -> int:
        self._order += 1
        self._wake_up()
        self._changed.notify_all()
        return self._order

    def signal(self, number: int, timeout: float) -> bool:
        """Send a signal to the running process once it has a handler for it; False when it never did.

        A process that is still starting would be killed by it.
        """
        sent = threading.Event()
        with self._changed:
            self._signals.append((number, sent))
            self._wake_up()
        done = sent.wait(timeout)
        with self._changed, contextlib.suppress(ValueError):
            self._signals.remove((number, sent))
        return done

    def wait(self, done: Callable[[ServiceStatus], bool], timeout: float) -> ServiceStatus:
        """The status as soon as `done` says so, at most `timeout` seconds later."""
        with self._changed:
            self._changed.wait_for(lambda: done(self.status), timeout)
            return self.status

    def wait_launched(self, order: int, timeout: float) -> tuple[bool, ServiceStatus]:
        """Wait until a process was started by `order` or a newer one; False when none was, in time or at all."""
        with self._changed:
            self._changed.wait_for(lambda: self._launched >= order or self._at_rest(), timeout)
            return self._launched >= order, self.status

    def wait_stopped(self, order: int, timeout: float) -> tuple[bool, ServiceStatus]:
        """Wait until nothing runs or listens that is older than `order`; False when it still does."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_gone(order), timeout), self.status

    def _is_gone(self, order: int) -> bool:
        if self._running is None:
            return self._wanted or not self._sockets.held
        return self._running >= order

    def _at_rest(self) -> bool:
        return not self._wanted and self._running is None

    def stop_bound(self) -> float:
        """How long a stop takes at most."""
        return self._stop_timeout() + SECOND_SIGNAL_WAIT_S + _SLACK_S

    def join(self) -> None:
        """Wait for the end of the thread after a stop with `leave`."""
        self._thread.join(self.stop_bound())
        if not self._thread.is_alive():
            with self._changed:
                if not self._closed:
                    self._closed = True
                    os.close(self._wake)
                    os.close(self._waker)

    def _stop_timeout(self) -> float:
        """The longer of what counted when the process was started and what counts now: it may have reloaded."""
        return max(self._running_service.stop_timeout, self.service.stop_timeout)

    def _wake_up(self) -> None:
        if not self._closed:
            with contextlib.suppress(BlockingIOError):
                os.write(self._waker, b"x")

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 512)

    def _set(self, state: ServiceState, *, pid: int | None = None, code: int | None = None, detail: str = "") -> None:
        with self._changed:
            before = self.status
            since = before.since if state is before.state else time.time()
            self.status = ServiceStatus(self.service.name, state, pid, max(0, self._starts - 1), code, detail, since)
            self._changed.notify_all()
            if self._on_change is not None and (state, pid) != (before.state, before.pid):
                self._on_change(self.status)

    def _live(self) -> None:
        try:
            while (order := self._next_run()) is not None:
                self._run_once(order)
        finally:
            self._sockets.close()

    def _next_run(self) -> int | None:
        """Wait until the service shall run: the order for it, None when the thread shall end."""
        with self._changed:
            self._running = None
            self._changed.notify_all()
            until = time.monotonic() + HELD_AFTER_END_S
            while not self._wanted:
                if self._leave:
                    return None
                self._rest(until)
            self._running = self._order
            self._running_service = self.service
            self._drain_wake()
            return self._order

    def _rest(self, until: float) -> None:
        """Sleep until something is asked for; listen no longer than is of use."""
        asked_to_stop = self._order > self._launched
        left = 0.0 if asked_to_stop else until - time.monotonic()
        if self._sockets.held and left <= 0:
            self._sockets.close()
            self._changed.notify_all()
        self._changed.wait(left if self._sockets.held else None)

    def _run_once(self, order: int) -> None:
        service = self._running_service
        self._starts += 1
        started = time.monotonic()
        try:
            child = self._start(order, service)
        except (SpecdashError, OSError) as error:
            self._give_up(order, None, str(error))
            return
        with self._changed:
            self._launched = order
            self._set(ServiceState.RUNNING if service.ready is None else ServiceState.STARTING, pid=child.pid)
        in_time = self._watch(order, child, service)
        ended_by_itself = child.exited()
        if not ended_by_itself:
            self._set(ServiceState.STOPPING, pid=child.pid)
        code = child.stop(self._stop_timeout())
        reason = describe_exit(code) if ended_by_itself else f"not ready within {service.ready_timeout:g} s"
        said = last_line(service.log)
        detail = f"{reason}: {said}" if said else reason
        with self._changed:
            if self._order != order:
                self._set(ServiceState.STARTING if self._wanted else ServiceState.STOPPED, code=code)
            else:
                failed = code != 0 or not in_time
                self._after_end(order, service, code, detail, failed=failed, ran_for=time.monotonic() - started)

    def _listen(self, order: int, service: Service) -> tuple[int, ...]:
        """The descriptors of its sockets; a port whose owner is just dying is waited for, for a moment."""
        until = time.monotonic() + _PORT_WAIT_S
        while True:
            try:
                return self._sockets.descriptors(service.listen)
            except PortInUseError:
                with self._changed:
                    if time.monotonic() >= until or self._changed.wait_for(lambda: self._order != order, _POLL_S):
                        raise

    def _start(self, order: int, service: Service) -> Child:
        sockets = self._listen(order, service)
        with contextlib.ExitStack() as stack:
            output = subprocess.DEVNULL if service.log is None else stack.enter_context(open_log(Path(service.log)))
            return Child.start(
                service.argv, service.env, cwd=service.cwd, output=output, sockets=sockets, sockets_name=service.name
            )

    def _watch(self, order: int, child: Child, service: Service) -> bool:
        """Return when the process ended, when it shall stop, or, with False, when it did not become ready in time."""
        deadline = time.monotonic() + service.ready_timeout
        ready = service.ready is None
        while self._order == order:
            if not ready and _is_ready(service):
                ready = True
                self._set(ServiceState.RUNNING, pid=child.pid)
            if not ready and time.monotonic() >= deadline:
                return False
            unsent = self._send_signals(child)
            if service.log is not None:
                bound_log(Path(service.log))
            if child.exited(_LOG_CHECK_S if ready and not unsent else _POLL_S, self._wake):
                return True
            self._drain_wake()
        return True

    def _send_signals(self, child: Child) -> bool:
        """Send what can be sent; whether anything is left."""
        with self._changed:
            for number, sent in list(self._signals):
                if child.handles(number):
                    child.signal(number)
                    self._signals.remove((number, sent))
                    sent.set()
            return bool(self._signals)

    def _after_end(self, order: int, service: Service, code: int, detail: str, *, failed: bool, ran_for: float) -> None:
        """It ended and nobody asked for that: pause before the next start, or give it up. The lock is held."""
        again = service.restart is Restart.ALWAYS or (failed and service.restart is Restart.ON_FAILURE)
        if not again or code in service.final_codes:
            self._give_up(
                order, code, detail if failed else "", ServiceState.FAILED if failed else ServiceState.STOPPED
            )
            return
        now = time.monotonic()
        if ran_for > service.crash_window:
            self._crashes.clear()
        self._crashes.append(now)
        while now - self._crashes[0] > service.crash_window:
            self._crashes.popleft()
        count = len(self._crashes)
        if count >= service.crash_limit:
            self._give_up(order, code, f"ended {count} times within {now - self._crashes[0]:.1f} s; last: {detail}")
            return
        self._running = None
        self._set(ServiceState.WAITING, code=code, detail=detail)
        pause = min(service.backoff_limit, service.backoff * 2.0 ** (count - 1))
        self._changed.wait_for(lambda: self._order != order, pause)

    def _give_up(self, order: int, code: int | None, detail: str, state: ServiceState = ServiceState.FAILED) -> None:
        with self._changed:
            self._launched = order
            if self._order == order:
                self._wanted = False
                self._set(state, code=code, detail=detail)
            else:
                self._set(ServiceState.STARTING if self._wanted else ServiceState.STOPPED, code=code)


def _is_ready(service: Service) -> bool:
    if service.ready is None:
        return True
    try:
        return service.ready()
    except Exception:  # noqa: BLE001 - whatever a probe raises, the service is not ready
        return False


__all__ = ["Restart", "Service", "Supervisor"]

_START_BOUND_S = 10.0
_SIGNAL_BOUND_S = 5.0


class Supervisor:
    """Runs services until it is closed. Thread-safe; use it as a context manager.

    `on_change` is told of every new state or process, from the service's thread: it must return quickly, never raise,
    and ask nothing of the supervisor.
    """

    def __init__(
        self, *, handle_signals: bool = True, on_change: Callable[[ServiceStatus], None] | None = None
    ) -> None:
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

    def start(self, name: str) -> ServiceStatus:
        """Start a service that is not running. Returns at once; see `launch` and `wait_ready`."""
        runner = self._runner(name)
        runner.start()
        return runner.status

    def launch(self, name: str) -> ServiceStatus:
        """Start a service that is not running, and wait until its process has been started.

        Raises `SpecdashError` when it cannot be. A process that ends right after is no error here.
        """
        runner = self._runner(name)
        return self._wait_launched(runner, runner.start())

    def stop(self, name: str) -> ServiceStatus:
        """Stop a service and wait until nothing of it runs any more; raises `SpecdashError` when it still does."""
        runner = self._runner(name)
        bound = runner.stop_bound()
        stopped, status = runner.wait_stopped(runner.stop(), bound)
        if not stopped:
            raise SpecdashError(f"{name} did not stop within {bound:g} s; its process {status.pid} is still there")
        return status

    def restart(self, name: str) -> ServiceStatus:
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

    def _wait_launched(self, runner: Runner, order: int) -> ServiceStatus:
        bound = runner.stop_bound() + _START_BOUND_S
        launched, status = runner.wait_launched(order, bound)
        name = runner.service.name
        if launched and status.state is ServiceState.FAILED and status.exit_code is None:
            raise SpecdashError(f"{name} cannot be started: {status.detail}")
        if not launched:
            why = "it was stopped meanwhile" if status.state is ServiceState.STOPPED else f"it is {status.state}"
            raise SpecdashError(f"{name} was not started: {why}")
        return status

    def status(self, name: str) -> ServiceStatus:
        """The service as it is now."""
        return self._runner(name).status

    def statuses(self) -> tuple[ServiceStatus, ...]:
        """All services, in the order they were added."""
        with self._lock:
            return tuple(runner.status for runner in self._runners.values())

    def wait_ready(self, name: str, timeout: float) -> ServiceStatus:
        """Wait until the service is ready, failed or stopped, at most `timeout` seconds."""
        return self._runner(name).wait(
            lambda s: s.state in (ServiceState.RUNNING, ServiceState.FAILED, ServiceState.STOPPED), timeout
        )

    def wait_ended(self, name: str, timeout: float) -> ServiceStatus:
        """Wait until the service has ended for good, at most `timeout` seconds."""
        return self._runner(name).wait(lambda s: s.state in (ServiceState.FAILED, ServiceState.STOPPED), timeout)

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


# The built-in supervisor as a service manager: what `control.services` asks of systemd, asked of our own processes.


KIND = "supervisor"


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
            return self._supervisor.status(name)
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


@contextlib.contextmanager
def _as_service_error() -> Iterator[None]:
    try:
        yield
    except ServiceError:
        raise
    except SpecdashError as error:
        raise ServiceError(str(error)) from None
