"""One run of a server in the foreground: its output, our signals, and engines that take each other's place.

A swap is planned first, in a thread, while the old engine goes on: the env file is read, models are checked and the
engine is asked for its version there, so that between the old engine's end and the new one's start nothing is left to
do but to start it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import select
import signal
import sys
import threading
import time
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec.structs

from specdash.backend.child import SECOND_SIGNAL_WAIT_S, Child, describe_exit
from specdash.backend.control_socket import ControlSocket
from specdash.backend.env_store import Backups, read_env
from specdash.backend.launch import (
    check_port,
    end_run_record,
    is_listening,
    plan_from_file,
    write_run_record,
)
from specdash.backend.output import CHUNK, Echo, LogFile, Tail
from specdash.backend.settings import FREE_PORT
from specdash.backend.start_check import line, pending, watch_start
from specdash.backend.steps import RunnerStoppedError
from specdash.core.changes import Role
from specdash.core.errors import ExitCode, InputError, PortInUseError, SpecdashError
from specdash.core.masking import without_secrets
from specdash.core.paths import backend_env_file, backups_dir, run_records_dir
from specdash.core.records import Drafting
from specdash.llama.start_failures import MOST_GENERAL
from specdash.system.files import file_digest, reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.backend.launch import LaunchPlan
    from specdash.backend.start_check import StartWatch
    from specdash.backend.trial import Repaired
    from specdash.core.records import StartCheck

SWAP_SIGNAL = signal.SIGUSR1
SWAP_GRACE_S = 1.0
"""The longest wait between the two SIGTERMs of a swap: no client is served any more when one is asked for."""
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PROBE_S = 0.015
_PLAN_POLL_S = 0.02
_IDLE_S = 1.0
_DRAIN_S = 0.5
_RECORD_AGAIN_S = 2.0
_COULD_NOT_BIND = b"couldn't bind HTTP server socket"


class BackendSession:
    """A single loop over the engine's output, our signals and the clock.

    `replan` plans the engine that takes the place of the one that runs, from the env file or from bytes that are to
    be written there; it raises `SpecdashError` when it would not run. It is called in threads. `received` are signals
    that came before this object.

    A change (`Transaction`, in a thread of its own) asks for its swaps through `quiet` and `swap`; while one is under
    way, an engine that ends does not end the session.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        child: Child,
        log: LogFile,
        replan: Callable[[LaunchPlan, bytes | None], LaunchPlan],
        received: list[int],
        control: str | None = None,
    ) -> None:
        """`control` is the socket through which changes are asked for, for the run record."""
        self.plan = plan
        self.child = child
        self.control = control
        self.log = log
        self.replan = replan
        self.received = received
        self.echo = Echo(sys.stderr.fileno())
        self.tail = Tail()
        self.serves = False
        """Whether the engine listens."""
        self.record: Path | None = None
        self.unrecorded_at: float | None = None
        """When the run record is tried again that could not be written."""
        self.known_faults: set[str] = set()
        """What cannot be recorded, each sentence shown once."""
        self.watch: StartWatch | None = None
        """Looks whether the engine that has just started speculates; None while none has."""
        self.verdict = ""
        """What it found, until it is shown."""
        self.first_signal: int | None = None
        self.signals_sent = 0
        self.deadline: float | None = None
        self.reload_wanted = False
        """SIGUSR1 came, and nothing was done about it yet."""
        self.planning: tuple[str | None, Future[LaunchPlan]] | None = None
        """Digest of the env file, and the plan of it in the making."""
        self.next: LaunchPlan | None = None
        """What starts once the engine has ended; None while no swap is under way."""
        self.fallback: LaunchPlan | None = None
        """The last good plan, until the engine of a reload has answered."""
        self.unproven = True
        """The engine was started by an env file, not by a change, and has not answered yet."""
        self.changing = 0
        """Changes under way: 0 or 1."""
        self._orders: queue.SimpleQueue[_Swap | None] = queue.SimpleQueue()
        """What a change asks for: a swap, or None for `quiet`."""
        self._swap: _Swap | None = None
        self._ended = threading.Event()
        self.engine = RunningChild(child.pid, plan, time.monotonic(), self.tail)
        """The engine that runs, or the last one that did."""
        self._waker = -1

    # What a change asks of the session, from its own thread.

    def planned(self, data: bytes) -> LaunchPlan:
        """Plan the engine for these bytes of the env file. Raises `SpecdashError` for what would not run."""
        return self.replan(self.plan, data)

    def quiet(self) -> None:
        """End the look at the engine that runs: its requests would delay the change."""
        self._order(None)

    def swap(self, plan: LaunchPlan) -> tuple[RunningChild, float]:
        """Stop the engine and start the one of `plan`; it, and the moment at which the old one was stopped.

        Raises `SpecdashError` when its log cannot be opened (the old engine goes on then), `RunnerStoppedError` when
        the runner itself ends.
        """
        order = _Swap(plan)
        self._order(order)
        while not self._ended.is_set() and not wait([order.started], _PLAN_POLL_S * 5).done:
            pass
        if not order.started.done():
            raise RunnerStoppedError("the runner was stopped")
        return order.started.result(), order.stopped_at

    @property
    def stopping(self) -> bool:
        """Whether the runner was asked to end, or has."""
        return self.first_signal is not None or self._ended.is_set()

    def begin_change(self) -> None:
        """From now on an engine that ends leaves the session waiting for what the change does next."""
        self.changing += 1

    def end_change(self) -> None:
        """The change is over."""
        self.changing -= 1
        self._order(None)

    def _order(self, order: _Swap | None) -> None:
        self._orders.put(order)
        with contextlib.suppress(OSError):
            os.write(self._waker, b"!")

    def run(self) -> int:
        """Serve until the engine ends without a successor; the exit code. Raises `SpecdashError` when it failed."""
        wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        os.set_blocking(wake, False)
        before = {
            number: signal.signal(number, lambda given, _: self.received.append(given))
            for number in (*_STOP_SIGNALS, SWAP_SIGNAL)
        }
        old_waker = signal.set_wakeup_fd(self._waker)
        try:
            self._loop(wake)
            while self._successor(wake):
                self._loop(wake)
        finally:
            self._ended.set()
            code = self._clear_away()
            signal.set_wakeup_fd(old_waker)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(wake)
            os.close(self._waker)
        if self.first_signal is not None:
            return ExitCode.INTERRUPTED if self.first_signal == signal.SIGINT else ExitCode.OK
        if code == 0:
            return ExitCode.OK
        if any(_COULD_NOT_BIND in line for line in self.tail.lines):
            raise PortInUseError(f"port {self.plan.settings.port} is in use; stop its owner, or set another LLAMA_PORT")
        # Only now: its tables take time that a start does not have.
        from specdash.llama.start_failures import explain

        words = "; ".join(self.tail.errors()) or "it printed nothing"
        cause = explain(self.tail.texts(), code)
        if cause is not None and cause.id != MOST_GENERAL:
            words = f"{words}; cause: {cause.because}; {cause.fix}"
        raise SpecdashError(f"{self.plan.engine.kind} ended with {describe_exit(code)}: {words} (log: {self.plan.log})")

    def close(self) -> None:
        """Close the log."""
        self.log.close()

    # One engine, from its start to its end.

    def _loop(self, wake: int) -> None:
        output = self.child.process.stdout
        if output is None:
            raise ValueError("the child was started without a pipe for its output")
        pipe = output.fileno()
        os.set_blocking(pipe, False)
        watched = [pipe, wake, self.child.pidfd]
        while True:
            seconds = _IDLE_S if self.serves or self.next is not None else _PROBE_S
            if self.watch is not None or self.planning is not None:
                seconds = min(seconds, _PLAN_POLL_S)
            if self.deadline is not None:
                seconds = min(seconds, max(0.0, self.deadline - time.monotonic()))
            slow = [self.echo.descriptor] if self.echo.pending and not self.echo.gone else []
            readable = select.select(watched, slow, [], seconds)[0]
            if wake in readable:
                _emptied(wake)
            if pipe in readable and not self._copy(pipe):
                watched.remove(pipe)
            self.echo.drain()
            self._signals()
            if self.child.exited():
                # What it wrote before it ended; a grandchild that holds the pipe is not waited for.
                until = time.monotonic() + _DRAIN_S
                while time.monotonic() < until and select.select([pipe], [], [], 0)[0] and self._copy(pipe):
                    pass
                self.echo.drain()
                self.engine.code = self.child.finish()
                return
            self._take_orders()
            self._reload()
            self._started()
            if self.log.lost:
                self.fault(f"the log {self.log.path} cannot be written: output is lost")

    def _copy(self, output: int) -> bool:
        try:
            data = os.read(output, CHUNK)
        except BlockingIOError:
            return True
        if data:
            self.log.write(data)
            self.echo.feed(data)
            self.tail.feed(data)
        return bool(data)

    def _say(self, text: str) -> None:
        line = f"specdash: {text}\n".encode()
        self.log.write(line)
        self.echo.feed(line)

    def fault(self, text: str) -> None:
        """Say once what cannot be recorded."""
        if text not in self.known_faults:
            self.known_faults.add(text)
            self.echo.feed(f"specdash: warning: {text}\n".encode())

    def _started(self) -> None:
        """See that the engine listens, then what the look at its start shows."""
        if self.next is not None or self.first_signal is not None:
            return
        if not self.serves:
            if is_listening(self.plan.settings):
                self.serves = True
                self._write_record(pending())
                self.watch = watch_start(self.plan, self.tail)
            return
        if self.unrecorded_at is not None and time.monotonic() >= self.unrecorded_at:
            self._write_record(self.engine.check or pending())
        while self.watch is not None and (check := self.watch.take()) is not None:
            if not check.pending and check.probe_tokens != 0:
                # A probe that broke off is most likely the engine's end, which is about to be seen.
                self._proven()
            before = self.engine.check
            self._write_record(check)
            # Another verdict may differ in the tasks that it names alone.
            known = before is not None and not before.pending and line(before) == line(check)
            if not check.pending and check.drafting is not Drafting.OFF and not known:
                self.verdict = line(check)
        if self.verdict and not self.tail.open:
            # Between two lines of the engine's, which it may write in pieces.
            self._say(self.verdict)
            self.verdict = ""
        if self.watch is not None and self.watch.done and not self.verdict:
            self.watch = None

    def _proven(self) -> None:
        """The engine has answered: what it was started by is the last good version of the env file from now on."""
        unproven, self.fallback, self.unproven = self.unproven, None, False
        if self.plan.env_file is None or not unproven:
            return
        try:
            snapshot = read_env(Path(self.plan.env_file))
            if snapshot.digest == self.plan.env_digest:
                Backups(backups_dir()).keep_good(Role.BACKEND, snapshot.path, snapshot.data)
        except SpecdashError as error:
            self.fault(f"the settings that run now cannot be kept as the last good ones: {error}")

    def _write_record(self, check: StartCheck) -> None:
        self.engine.check = check
        try:
            self.record = write_run_record(self.plan, self.child.pid, check, self.control)
            self.unrecorded_at = None
        except OSError as error:
            # The server serves all the same.
            self.unrecorded_at = time.monotonic() + _RECORD_AGAIN_S
            why, _ = reason(run_records_dir() / "record", error)
            self.fault(f"no run record can be written, by which dashboards and applies know this server: {why}")

    def _signals(self) -> None:
        """Do what signals ask; then escalate: a second SIGTERM after the grace, and SIGKILL after that."""
        while self.received:
            number = self.received.pop(0)
            if number == SWAP_SIGNAL:
                self.reload_wanted = True
                continue
            self.first_signal = self.first_signal or number
            self.next = self.planning = None
            self._send(number, self.plan.settings.stop_timeout)
            return
        if self.deadline is not None and time.monotonic() >= self.deadline:
            if self.signals_sent >= 2:
                self.child.kill_group()
                self.deadline = time.monotonic() + _IDLE_S
            else:
                self._send(signal.SIGTERM, SECOND_SIGNAL_WAIT_S)

    def _send(self, number: int, grace: float) -> None:
        self._unwatch()
        self.child.signal(signal.SIGTERM if number == signal.SIGHUP else number)
        self.signals_sent += 1
        self.deadline = time.monotonic() + (grace if self.signals_sent == 1 else SECOND_SIGNAL_WAIT_S)

    def _unwatch(self) -> None:
        if self.watch is not None:
            self.watch.cancel()
            self.watch, self.verdict = None, ""

    # What takes the place of the engine that runs.

    def _take_orders(self) -> None:
        """Do what a change has asked for, once no reload is under way."""
        while self.next is None and self.planning is None:
            try:
                order = self._orders.get_nowait()
            except queue.Empty:
                return
            if self.first_signal is not None:
                continue
            if order is None:
                check = self.engine.check
                if self.changing:
                    self._unwatch()
                elif self.serves and self.watch is None and check is not None and check.pending:
                    self.watch = watch_start(self.plan, self.tail)
                continue
            try:
                self._take_log(order.plan)
            except SpecdashError as error:
                order.started.set_exception(error)
                continue
            self._swap, self.next, self.fallback, self.unproven = order, order.plan, None, False
            order.stopped_at = time.monotonic()
            if self.engine.ended is None:
                self._send(signal.SIGTERM, min(order.plan.settings.stop_timeout, SWAP_GRACE_S))

    def _reload(self) -> None:
        """Plan the env file in a thread that is not waited for at the end, and swap when the plan is made."""
        if self.planning is None:
            wanted = self.reload_wanted and self.next is None and not self.changing and self.first_signal is None
            self.reload_wanted = self.reload_wanted and not wanted
            digest = file_digest(self.plan.env_file) if wanted else None
            if wanted and (self.serves or digest != self.plan.env_digest):
                made: Future[LaunchPlan] = Future()

                def work() -> None:
                    try:
                        made.set_result(self.replan(self.plan, None))
                    except SpecdashError as error:
                        made.set_exception(error)
                    except Exception as error:  # noqa: BLE001 - a fault in planning must not end the engine that serves
                        made.set_exception(SpecdashError(f"unexpected {type(error).__name__}: {error}"))

                self.planning = digest, made
                threading.Thread(target=work, name="swap-plan", daemon=True).start()
            return
        digest, made = self.planning
        if not made.done():
            return
        self.planning = None
        digest = made.result().env_digest if made.exception() is None else digest
        again, self.reload_wanted = self.reload_wanted, False
        if again and file_digest(self.plan.env_file) != digest:
            self.reload_wanted = True
            self._reload()
            return
        try:
            plan = made.result()
            self._take_log(plan)
        except SpecdashError as error:
            self._say(f"reload refused (env {short(digest)}): {error}")
            self.plan = self.engine.plan = refused(self.plan, error)
            if self.engine.check is not None:
                self._write_record(self.engine.check)
            return
        for warning in plan.warnings:
            self.echo.feed(f"specdash: warning: {warning}\n".encode())
        self.next = plan
        self.fallback = self.plan if self.engine.check is not None else self.fallback
        self.unproven = True
        self._send(signal.SIGTERM, min(self.plan.settings.stop_timeout, SWAP_GRACE_S))

    def _take_log(self, plan: LaunchPlan) -> None:
        if plan.log == self.plan.log:
            self.log.bound(plan.settings.log_max_mib)
            return
        fresh = LogFile(plan.log, plan.settings.log_max_mib)
        self._say(f"the log goes on in {plan.log}")
        self.log.close()
        self.log = fresh

    def _successor(self, wake: int) -> bool:
        """Start what takes the place of the engine that ended; False when nothing does."""
        while self.next is None and self.changing and self.first_signal is None:
            self._clear_away()
            select.select([wake], [], [], _IDLE_S)
            _emptied(wake)
            self._signals()
            self._take_orders()
        if self.next is None and self.unproven and self.first_signal is None:
            how = describe_exit(self._clear_away())
            error = SpecdashError(f"its engine ended with {how}: {'; '.join(self.tail.errors())}")
            with contextlib.suppress(SpecdashError):
                self.next = self._last_good(error)
                self._take_log(self.next)
                self.say_refused(self.next)
        plan = self.next
        if plan is None:
            return False
        self._clear_away()
        self._say(f"engine swapped: {difference(self.plan, plan)}")
        order, self._swap = self._swap, None
        try:
            self.child = Child.start(plan.argv, plan.environment())
        except SpecdashError as error:
            if order is None:
                raise
            self.next = None
            order.started.set_exception(error)
            return self._successor(wake)
        self.plan, self.next = plan, None
        self.tail = Tail()
        self.engine = RunningChild(self.child.pid, plan, time.monotonic(), self.tail)
        self.signals_sent, self.deadline = 0, None
        if order is not None:
            order.started.set_result(self.engine)
        return True

    def _last_good(self, error: SpecdashError) -> LaunchPlan:
        """What runs where the engine of the env file ended before it answered. Raises `error` where nothing can."""
        good, self.fallback, self.unproven = self.fallback, None, False
        data = last_good(self.plan.env_file, self.plan.env_digest) if good is None else None
        if good is None and data is None:
            raise error
        return refused(good or self.replan(self.plan, data), error)

    def say_refused(self, plan: LaunchPlan) -> None:
        """Say that the last good version of the env file runs, and why."""
        self._say(
            f"warning: {plan.env_file} as it was edited does not start: {plan.refused}; the last good settings run "
            f"again (env {short(plan.env_digest)}), the file was left as it is"
        )

    def _clear_away(self) -> int:
        self._unwatch()
        code = self.child.finish()
        self.serves, self.unrecorded_at = False, None
        if self.record is not None:
            crashed = code != 0 and self.first_signal is None and self.next is None and not self.changing
            end_run_record(self.record, describe_exit(code), crashed=crashed)
            self.record = None
        return code


def _emptied(wake: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(wake, 512)


class RunningChild:
    """One process of the engine. `began` is a monotonic moment, `check` what the look at its start has shown so far."""

    def __init__(self, pid: int, plan: LaunchPlan, began: float, tail: Tail) -> None:
        self.pid = pid
        self.plan = plan
        self.began = began
        self.check: StartCheck | None = None
        self.code: int | None = None
        """Its exit code, once it has ended."""
        self._tail = tail

    @property
    def ended(self) -> str | None:
        """How the process ended, in words; None while it runs."""
        return describe_exit(self.code) if self.code is not None else None

    def lines(self) -> list[str]:
        """What it has printed since its start, as far as it is kept."""
        return self._tail.texts()

    def errors(self) -> tuple[str, ...]:
        """The last lines of it that look like errors, else the last one; without secrets."""
        return tuple(map(without_secrets, self._tail.errors()))


class _Swap:
    """A swap that a change has asked for."""

    def __init__(self, plan: LaunchPlan) -> None:
        self.plan = plan
        self.stopped_at = 0.0
        self.started: Future[RunningChild] = Future()


def short(digest: str | None) -> str:
    """A digest as messages show it."""
    return digest[:12] if digest is not None else "unreadable"


def difference(before: LaunchPlan, after: LaunchPlan) -> str:
    """What the next engine speculates with that the last one did not, and what it is, in a line."""
    old, new = dict(before.speculation), dict(after.speculation)
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    changed = ", ".join(f"{name} {old.get(name, 'unset')} -> {new.get(name, 'unset')}" for name in names)
    return f"{after.engine.words}, env {short(after.env_digest)}, {changed or 'speculation unchanged'}"


def run(
    plan: LaunchPlan,
    *,
    engine: str | None = None,
    log: str | None = None,
    received: list[int] | None = None,
    check: Callable[[LaunchPlan], None] = lambda _: None,
    repaired: Repaired | None = None,
) -> int:
    """Run the server until it ends or a signal stops it. Must be called from the main thread.

    SIGUSR1 reads the env file again and, when what it says can be run, puts a new server in the place of the old;
    `engine` and `log` go on overriding their keys then. `received` are signals that came before this call. `check`
    raises `SpecdashError` for a plan that must not be started, now or later. `repaired` is what the runner before left
    behind: its holds are lifted once the server answers.

    Returns 0 after SIGTERM or SIGHUP and when the server ends well by itself, 130 after Ctrl-C. Raises `SpecdashError`
    with the last errors of its log when it fails.
    """
    check_port(plan.settings)
    kept = LogFile(plan.log, plan.settings.log_max_mib)
    try:
        child = Child.start(plan.argv, plan.environment())
    except BaseException:
        kept.close()
        raise

    def next_plan(now: LaunchPlan, data: bytes | None) -> LaunchPlan:
        made = replan(now, engine, log, data)
        check(made)
        return made

    control = ControlSocket()
    session = BackendSession(plan, child, kept, next_plan, received if received is not None else [], control.path)
    if control.problem:
        session.fault(control.problem)
    if plan.refused:
        session.say_refused(plan)
    if repaired is not None:
        threading.Thread(target=repaired.resume, args=(plan.settings.url,), name="resume", daemon=True).start()
    control.serve(session, plan.env_file)
    try:
        return session.run()
    finally:
        control.close()
        session.close()


def replan(current: LaunchPlan, engine: str | None, log: str | None, data: bytes | None = None) -> LaunchPlan:
    """What the env file of `current` asks for now, or `data` in its place. A port of 0 keeps the port that `current`
    has, and with it the default log, which is named after the port.

    Raises `SpecdashError` when it cannot be run, or would listen on a port that another process has.
    """
    if current.env_file is None:
        raise InputError("the settings come from the environment; start with --env-file to have a file to read again")
    plan = plan_from_file(current.env_file, data=data, engine=engine, log=log)
    if plan.settings.parameters["port"].note == FREE_PORT:
        settings = plan.settings.with_value("port", current.settings.port, "the port it has")
        kept = plan.log if log or settings.log_file else current.log
        plan = msgspec.structs.replace(plan, settings=settings, log=kept)
    if plan.settings.port != current.settings.port:
        check_port(plan.settings)
    return plan


def first_plan(env_file: str | None, make: Callable[[bytes | None], LaunchPlan]) -> LaunchPlan:
    """What `make` plans of the env file, or of its last good version where that cannot be run as it was edited.

    Raises what speaks against the file where no other version of it has served.
    """
    try:
        plan = make(None)
        check_port(plan.settings)
    except SpecdashError as error:
        file = env_file or str(backend_env_file())
        good = last_good(file, file_digest(file))
        if good is not None:
            with contextlib.suppress(SpecdashError):
                return refused(make(good), error)
        raise
    return plan


def last_good(env_file: str | None, digest: str | None) -> bytes | None:
    """The version of the env file that served last, where that is another one than that of `digest`."""
    if env_file is None or digest is None:
        return None
    data = Backups(backups_dir()).good(Role.BACKEND, Path(env_file))
    return None if data is None or hashlib.sha256(data).hexdigest() == digest else data


def refused(plan: LaunchPlan, error: SpecdashError) -> LaunchPlan:
    """The plan that runs although the env file holds another version, with what speaks against that one."""
    return msgspec.structs.replace(plan, refused=without_secrets(str(error)))
