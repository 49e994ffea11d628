"""The built-in service manager: runs services as child processes, restarts them, and leaves none behind.

For the demo, and for machines without systemd. Every service has a thread of its own that starts, watches and stops its
process; the public methods only ask that thread and wait, with a bound. The processes die with us: in an orderly way
when the supervisor is closed (context manager, `atexit`, SIGTERM, SIGHUP), by the kernel's hand when we are killed (see
`backend.child`; what a service starts itself must then take care of its own children, as `specdash backend run` does).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from specdash.backend.child import SECOND_SIGNAL_WAIT_S, Child, describe_exit
from specdash.core.errors import ExitCode, SpecdashError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType, TracebackType

_READY_POLL_S = 0.05
_FOREVER_S = 3600.0
_SLACK_S = 10.0
"""On top of a service's own stop timeout, for the kernel to reap what was killed."""
_LOG_LIMIT_BYTES = 16 * 1024 * 1024


class Restart(StrEnum):
    """When a service that ended by itself is started again."""

    NEVER = "never"
    ON_FAILURE = "on-failure"
    ALWAYS = "always"


class State(StrEnum):
    """Where a service is in its life."""

    STOPPED = "stopped"
    STARTING = "starting"
    """The process runs, and is not ready yet."""
    READY = "ready"
    STOPPING = "stopping"
    WAITING = "waiting to restart"
    FAILED = "failed"
    """It ended, and will not be started again by itself."""


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
    """Its stdout and stderr are appended here, mode 0600; None discards them. Over 16 MiB it moves to `.1` at start."""
    restart: Restart = Restart.ON_FAILURE
    ready: Callable[[], bool] | None = None
    ready_timeout: float = 60.0
    stop_timeout: float = 5.0
    backoff: float = 0.25
    backoff_limit: float = 8.0
    crash_limit: int = 5
    crash_window: float = 60.0


@dataclass(frozen=True, slots=True)
class Status:
    """A service at one moment. `restarts` counts the starts after the first; `detail` says why it is not running."""

    name: str
    state: State
    pid: int | None = None
    restarts: int = 0
    exit_code: int | None = None
    detail: str = ""


class Supervisor:
    """Runs services until it is closed. Thread-safe; use it as a context manager."""

    def __init__(self, *, handle_signals: bool = True) -> None:
        self._runners: dict[str, _Runner] = {}
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._handle_signals = handle_signals
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
                self._runners[service.name] = _Runner(service)

    def start(self, name: str) -> Status:
        """Start a service that is not running. Returns at once; see `wait_ready`."""
        return self._runner(name).ask(run=True)

    def stop(self, name: str) -> Status:
        """Stop a service and wait until nothing of it runs any more."""
        runner = self._runner(name)
        runner.ask(run=False)
        return runner.wait(lambda s: s.state in (State.STOPPED, State.FAILED), runner.stop_bound())

    def restart(self, name: str) -> Status:
        """Stop a service, then start it."""
        self.stop(name)
        return self.start(name)

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
            runner.ask(run=False, leave=True)
        for runner in runners:
            runner.join()

    def _runner(self, name: str) -> _Runner:
        with self._lock:
            runner = self._runners.get(name)
            known = ", ".join(self._runners) or "none"
        if runner is None:
            raise UsageError(f"no service {name!r}; known: {known}")
        return runner


class _Runner:
    """One service and its thread, which alone touches the process."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.status = Status(service.name, State.STOPPED)
        self._changed = threading.Condition()
        self._wanted = False
        self._leave = False
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._waker, False)
        self._starts = 0
        self._crashes: deque[float] = deque()
        self._thread = threading.Thread(target=self._live, name=f"service {service.name}", daemon=True)
        self._thread.start()

    def ask(self, *, run: bool, leave: bool = False) -> Status:
        with self._changed:
            if run and not self._wanted:
                self._starts = 0
                self._crashes.clear()
                self.status = Status(self.service.name, State.STARTING)
            self._wanted = run
            self._leave = self._leave or leave
            if self._thread.is_alive():
                with contextlib.suppress(BlockingIOError):
                    os.write(self._waker, b"x")
            self._changed.notify_all()
            return self.status

    def wait(self, done: Callable[[Status], bool], timeout: float) -> Status:
        with self._changed:
            self._changed.wait_for(lambda: done(self.status), timeout)
            return self.status

    def stop_bound(self) -> float:
        return self.service.stop_timeout + SECOND_SIGNAL_WAIT_S + _SLACK_S

    def join(self) -> None:
        self._thread.join(self.stop_bound())
        if not self._thread.is_alive():
            os.close(self._wake)
            os.close(self._waker)

    def _set(self, state: State, *, pid: int | None = None, code: int | None = None, detail: str = "") -> None:
        with self._changed:
            restarts = max(0, self._starts - 1)
            self.status = Status(self.service.name, state, pid, restarts, code, detail)
            self._changed.notify_all()

    def _live(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._leave or self._wanted or self.status.state is State.STARTING)
                if not self._wanted:
                    self._set(State.STOPPED)
                if self._leave:
                    return
            if self._wanted:
                self._drain_wake()
                self._run_once()

    def _run_once(self) -> None:
        service = self.service
        self._starts += 1
        started = time.monotonic()
        try:
            child = _start(service)
        except (SpecdashError, OSError) as error:
            self._give_up(None, str(error))
            return
        self._set(State.STARTING, pid=child.pid)
        in_time = self._watch(child, service)
        asked = not self._wanted
        ended_by_itself = child.exited()
        if asked or not in_time:
            self._set(State.STOPPING, pid=child.pid)
        code = child.stop(service.stop_timeout)
        if asked:
            self._set(State.STOPPED, code=code)
            return
        reason = describe_exit(code) if ended_by_itself else f"not ready within {service.ready_timeout:g} s"
        self._after_end(service, code, reason, failed=code != 0 or not in_time, ran_for=time.monotonic() - started)

    def _watch(self, child: Child, service: Service) -> bool:
        """Return when the process ended, when it shall stop, or, with False, when it did not become ready in time."""
        deadline = time.monotonic() + service.ready_timeout
        ready = False
        while self._wanted:
            if not ready and _is_ready(service):
                ready = True
                self._set(State.READY, pid=child.pid)
            if not ready and time.monotonic() >= deadline:
                return False
            if child.exited(_FOREVER_S if ready else _READY_POLL_S, self._wake):
                return True
            self._drain_wake()
        return True

    def _after_end(self, service: Service, code: int, reason: str, *, failed: bool, ran_for: float) -> None:
        again = service.restart is Restart.ALWAYS or (failed and service.restart is Restart.ON_FAILURE)
        said = _last_line(service.log)
        detail = f"{reason}: {said}" if said else reason
        if not again:
            if failed:
                self._give_up(code, detail)
            else:
                self._wanted = False
                self._set(State.STOPPED, code=code)
            return
        now = time.monotonic()
        if ran_for > service.crash_window:
            self._crashes.clear()
        self._crashes.append(now)
        while self._crashes and now - self._crashes[0] > service.crash_window:
            self._crashes.popleft()
        count = len(self._crashes)
        if count >= service.crash_limit:
            self._give_up(code, f"ended {count} times within {now - self._crashes[0]:.1f} s; last: {detail}")
            return
        self._set(State.WAITING, code=code, detail=detail)
        pause = min(service.backoff_limit, service.backoff * 2.0 ** (count - 1))
        with self._changed:
            if self._changed.wait_for(lambda: not self._wanted, pause):
                self._set(State.STOPPED, code=code)

    def _give_up(self, code: int | None, detail: str) -> None:
        with self._changed:
            self._wanted = False
            self._set(State.FAILED, code=code, detail=detail)

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 512)


def _exit(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(int(ExitCode.INTERRUPTED))


def _is_ready(service: Service) -> bool:
    if service.ready is None:
        return True
    try:
        return service.ready()
    except Exception:  # noqa: BLE001 - whatever a probe raises, the service is not ready
        return False


def _start(service: Service) -> Child:
    if service.log is None:
        return Child.start(service.argv, service.env, cwd=service.cwd, output=subprocess.DEVNULL)
    with _open_log(Path(service.log)) as log:
        return Child.start(service.argv, service.env, cwd=service.cwd, output=log)


def _open_log(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.is_file() and path.stat().st_size > _LOG_LIMIT_BYTES:
        path.replace(f"{path}.1")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "wb", buffering=0)


def _last_line(log: str | None) -> str:
    """The last line the service wrote, to say why it ended."""
    if log is None:
        return ""
    try:
        with Path(log).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""
