"""One supervised service: what it is, and the thread that alone touches its process.

Whoever wants something gives an order: a number that grows with every start, stop and restart asked for. A process
belongs to the order it was started under, and is stopped when there is a newer one; so no order is lost or done twice,
however many come at once.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.backend.child import SECOND_SIGNAL_WAIT_S, Child, describe_exit
from specdash.control.supervisor_log import bound_log, last_line, open_log
from specdash.control.supervisor_sockets import HeldSockets
from specdash.core.errors import PortInUseError, SpecdashError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


@dataclass(frozen=True, slots=True)
class Status:
    """A service at one moment. `restarts` counts the starts after the first since it was last started on purpose;
    `detail` says why it is not running."""

    name: str
    state: State
    pid: int | None = None
    restarts: int = 0
    exit_code: int | None = None
    detail: str = ""
    since: float = 0.0
    """Unix time of the last change of `state`."""


class Runner:
    """One service and its thread. Thread-safe."""

    def __init__(self, service: Service, on_change: Callable[[Status], None] | None = None) -> None:
        self.service = service
        self._on_change = on_change
        self.status = Status(service.name, State.STOPPED, since=time.time())
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
            if self._wanted and self.status.state is not State.WAITING:
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
            if self._running is None and self.status.state in (State.STARTING, State.WAITING):
                self._set(State.STOPPED, code=self.status.exit_code)
            return self._next_order()

    def _order_run(self) -> int:
        self._wanted = not self._leave
        self._starts = 0
        self._crashes.clear()
        if self._running is None and self._wanted:
            self._set(State.STARTING)
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

    def wait(self, done: Callable[[Status], bool], timeout: float) -> Status:
        """The status as soon as `done` says so, at most `timeout` seconds later."""
        with self._changed:
            self._changed.wait_for(lambda: done(self.status), timeout)
            return self.status

    def wait_launched(self, order: int, timeout: float) -> tuple[bool, Status]:
        """Wait until a process was started by `order` or a newer one; False when none was, in time or at all."""
        with self._changed:
            self._changed.wait_for(lambda: self._launched >= order or self._at_rest(), timeout)
            return self._launched >= order, self.status

    def wait_stopped(self, order: int, timeout: float) -> tuple[bool, Status]:
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

    def _set(self, state: State, *, pid: int | None = None, code: int | None = None, detail: str = "") -> None:
        with self._changed:
            before = self.status
            since = before.since if state is before.state else time.time()
            self.status = Status(self.service.name, state, pid, max(0, self._starts - 1), code, detail, since)
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
            self._set(State.READY if service.ready is None else State.STARTING, pid=child.pid)
        in_time = self._watch(order, child, service)
        ended_by_itself = child.exited()
        if not ended_by_itself:
            self._set(State.STOPPING, pid=child.pid)
        code = child.stop(self._stop_timeout())
        reason = describe_exit(code) if ended_by_itself else f"not ready within {service.ready_timeout:g} s"
        said = last_line(service.log)
        detail = f"{reason}: {said}" if said else reason
        with self._changed:
            if self._order != order:
                self._set(State.STARTING if self._wanted else State.STOPPED, code=code)
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
                self._set(State.READY, pid=child.pid)
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
            self._give_up(order, code, detail if failed else "", State.FAILED if failed else State.STOPPED)
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
        self._set(State.WAITING, code=code, detail=detail)
        pause = min(service.backoff_limit, service.backoff * 2.0 ** (count - 1))
        self._changed.wait_for(lambda: self._order != order, pause)

    def _give_up(self, order: int, code: int | None, detail: str, state: State = State.FAILED) -> None:
        with self._changed:
            self._launched = order
            if self._order == order:
                self._wanted = False
                self._set(state, code=code, detail=detail)
            else:
                self._set(State.STARTING if self._wanted else State.STOPPED, code=code)


def _is_ready(service: Service) -> bool:
    if service.ready is None:
        return True
    try:
        return service.ready()
    except Exception:  # noqa: BLE001 - whatever a probe raises, the service is not ready
        return False
