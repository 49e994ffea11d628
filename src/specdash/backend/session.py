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
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec.structs

from specdash.backend.child import SECOND_SIGNAL_WAIT_S, Child, describe_exit
from specdash.backend.control_socket import ControlSocket
from specdash.backend.env_store import Backups, read_env
from specdash.backend.launch import check_port, end_run_record, write_run_record
from specdash.backend.output import CHUNK, Echo, LogFile, Tail
from specdash.backend.settings import FREE_PORT
from specdash.backend.start_check import StartWatch, line
from specdash.backend.trial import resume
from specdash.core.changes import Role
from specdash.core.errors import ExitCode, InputError, PortInUseError, SpecdashError
from specdash.core.masking import without_secrets
from specdash.core.paths import backups_dir, run_records_dir
from specdash.core.records import Drafting
from specdash.llama.start_failures import MOST_GENERAL
from specdash.system.files import file_digest, reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdash.backend.journal import HeldProxy
    from specdash.backend.launch import LaunchPlan
    from specdash.core.records import StartCheck

SWAP_SIGNAL = signal.SIGUSR1
SWAP_GRACE_S = 1.0
"""The longest wait between the two SIGTERMs of a swap: no client is served any more when one is asked for."""
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_IDLE_S = 1.0
_DRAIN_S = 1.0
_COULD_NOT_BIND = b"couldn't bind HTTP server socket"


class EngineRun:
    """One process of the engine, from its start to its end."""

    def __init__(self, plan: LaunchPlan, on_output: Callable[[bytes], None]) -> None:
        """Start it, from the main thread, as the kernel ends it with that. Raises `SpecdashError`."""
        self.plan = plan
        self.child = Child(plan.argv, plan.environment())
        self.pid = self.child.pid
        self.began = time.monotonic()
        self.tail = Tail()
        """What it has printed since its start, as far as it is kept."""
        self.check: StartCheck | None = None
        """What the look at its start has shown so far; None while it does not listen."""
        self.code: int | None = None
        """Its exit code, once it has ended."""
        self.stopped_at = 0.0
        """The monotonic moment at which it was first asked to end."""

        def copy(pipe: IO[bytes]) -> None:
            with pipe:
                while data := pipe.read(CHUNK):
                    on_output(data)
                    self.tail.feed(data)

        self._copying = threading.Thread(target=copy, args=(self.child.process.stdout,), name="output", daemon=True)
        self._copying.start()

    def read_up(self, limit_s: float) -> None:
        """Wait until all that it has printed was read, which it is once the process has ended; not longer for one that
        runs, or has left the pipe to a process that does."""
        self._copying.join(limit_s)

    def finish(self) -> int:
        """Clear away what is left of it once it has ended, or end it; its exit code."""
        code = self.child.finish()
        # Before others see the end: they look for its cause in what it printed.
        self.read_up(_DRAIN_S)
        self.code = code
        return code

    @property
    def ended(self) -> str | None:
        """How the process ended, in words; None while it runs."""
        return describe_exit(self.code) if self.code is not None else None


class BackendSession:
    """A single loop over the engine's output, our signals and the clock.

    Other threads change settings (`change`), or read the env file again after SIGUSR1, one at a time; what they want of
    the engine they put into `_orders`. While a change is under way, an engine that ends does not end the session.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        replan: Callable[[LaunchPlan, bytes | None], LaunchPlan],
        received: list[int],
    ) -> None:
        """Start the engine of `plan`. `replan` plans the one that takes its place, from the env file or from bytes that
        are to be written there, and raises `SpecdashError` when it would not run. `received` are signals that came
        before."""
        self.replan = replan
        self.received = received
        self.control: str | None = None
        """The socket through which changes are asked for, for the run record."""
        self.log = LogFile(plan.log, plan.settings.log_max_mib)
        self.echo = Echo(sys.stderr.fileno())
        self._writing = threading.Lock()
        self.engine = EngineRun(plan, self._output)
        """The engine that runs, or the last one that did."""
        self.record: Path | None = None
        self.known_faults: set[str] = set()
        """What cannot be recorded, each sentence shown once."""
        self.watch: StartWatch | None = None
        """Looks whether the engine speculates; None while that is put off."""
        self.verdict = ""
        """What it has found, as it was shown."""
        self.first_signal: int | None = None
        self.next: LaunchPlan | None = None
        """What starts once the engine has ended; None while no swap is under way."""
        self._next_started: Future[EngineRun] | None = None
        self.unproven = True
        """The engine was started by an env file, not by a change, and has not answered yet."""
        self.changing = False
        self._turn = threading.Lock()
        """Held by the change or the reload that is under way."""
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._wake, self._waker = os.pipe()
        for descriptor in (self._wake, self._waker):
            os.set_blocking(descriptor, False)

    # What other threads ask of the session.

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """A change: an engine that ends meanwhile leaves the session waiting for what the change does next."""
        with self._turn:
            self.changing = True
            try:
                yield
            finally:
                self.changing = False
                self._order(self._watch_again)

    def quiet(self) -> None:
        """End the look at the engine that runs: its requests would delay the change."""
        self._order(self._unwatch)

    def swap(self, plan: LaunchPlan, *, edited: bool = False) -> EngineRun:
        """Stop the engine and start the one of `plan`. `edited` where the env file was edited by hand.

        Raises `SpecdashError` when its log cannot be opened (the old engine goes on then), and when the runner ends.
        """
        started: Future[EngineRun] = Future()
        self._order(partial(self._begin_swap, plan, started, edited=edited))
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                return started.result(0.1)
        raise SpecdashError("the runner was stopped")

    @property
    def stopping(self) -> bool:
        """Whether the runner was asked to end, or has."""
        return self.first_signal is not None or self._ended.is_set()

    def _reload(self) -> None:
        """Swap in what the env file says now; nothing where the engine of that version is just starting."""
        with self._turn:
            now = self.engine.plan
            digest = file_digest(now.env_file)
            if self.stopping or (self.engine.check is None and digest == now.env_digest):
                return
            try:
                self.swap(self.replan(now, None), edited=True)
            except SpecdashError as error:
                self._order(partial(self._refuse, digest, error))

    def _order(self, do: Callable[[], None]) -> None:
        self._orders.put(do)
        with contextlib.suppress(OSError):
            os.write(self._waker, b"!")

    def run(self) -> int:
        """Serve until the engine ends without a successor; the exit code. Raises `SpecdashError` when it failed."""
        for number in (*_STOP_SIGNALS, SWAP_SIGNAL):
            signal.signal(number, lambda given, _: self.received.append(given))
        signal.set_wakeup_fd(self._waker)
        try:
            self._loop()
            while self._successor():
                self._loop()
        finally:
            self._ended.set()
            code = self._clear_away()
            self.echo.close()
        if self.first_signal is not None:
            return ExitCode.INTERRUPTED if self.first_signal == signal.SIGINT else ExitCode.OK
        if code == 0:
            return ExitCode.OK
        plan, tail = self.engine.plan, self.engine.tail
        if any(_COULD_NOT_BIND in line for line in tail.lines):
            raise PortInUseError(f"port {plan.settings.port} is in use; stop its owner, or set another LLAMA_PORT")
        # Only now: its tables take time that a start does not have.
        from specdash.llama.start_failures import explain

        words = "; ".join(tail.errors()) or "it printed nothing"
        cause = explain(tail.texts(), code)
        if cause is not None and cause.id != MOST_GENERAL:
            words = f"{words}; cause: {cause.because}; {cause.fix}"
        raise SpecdashError(f"{plan.engine.kind} ended with {describe_exit(code)}: {words} (log: {plan.log})")

    # One engine, from its start to its end.

    def _loop(self) -> None:
        engine, is_gone = self.engine, False
        self._watch_again()
        while not is_gone:
            is_gone = engine.child.exited(_IDLE_S, self._wake)
            self._signals()
            if not is_gone:
                self._take_orders()
                if self.record is None and engine.check is not None:
                    self._write_record(engine.check)
            if self.log.lost:
                self.fault(f"the log {self.log.path} cannot be written: output is lost")

    def _output(self, data: bytes) -> None:
        with self._writing:
            self.log.write(data)
            self.echo.feed(data)

    def _say(self, text: str) -> None:
        self._output(f"specdash: {text}\n".encode())

    def fault(self, text: str) -> None:
        """Say once what cannot be recorded."""
        if text not in self.known_faults:
            self.known_faults.add(text)
            self.echo.feed(f"specdash: warning: {text}\n".encode())

    def _see(self, engine: EngineRun, check: StartCheck) -> None:
        """What the look at the start of an engine has shown."""
        if engine is not self.engine or engine.code is not None:
            return
        if not check.pending and check.probe_tokens != 0:
            # A probe that broke off is most likely the engine's end, which is about to be seen.
            self._proven()
        self._write_record(check)
        if not check.pending and check.drafting is not Drafting.OFF and self.verdict != line(check):
            self.verdict = line(check)
            self._say(self.verdict)

    def _watch_again(self) -> None:
        """Look at the start of the engine, as far as that is still to be done."""
        engine, settings, check = self.engine, self.engine.plan.settings, self.engine.check
        if self.watch is None and engine.code is None and (check is None or check.pending):
            self.verdict = ""
            self.watch = StartWatch(
                settings,
                engine.tail.texts,
                lambda found: self._order(partial(self._see, engine, found)),
                probe=settings.start_probe,
                engine=engine.plan.engine.words if settings.start_probe and settings.start_baseline else None,
            )

    def _unwatch(self) -> None:
        if self.watch is not None:
            self.watch.cancel()
            self.watch = None

    def _proven(self) -> None:
        """The engine has answered: the env file that it was started by is the last good version from now on."""
        is_new, self.unproven = self.unproven, False
        plan = self.engine.plan
        try:
            snapshot = read_env(Path(plan.env_file)) if is_new and plan.env_file is not None else None
            if snapshot is not None and snapshot.digest == plan.env_digest:
                Backups(backups_dir()).keep_good(Role.BACKEND, snapshot.path, snapshot.data)
        except SpecdashError as error:
            self.fault(f"the settings that run now cannot be kept as the last good ones: {error}")

    def _write_record(self, check: StartCheck) -> None:
        self.engine.check = check
        try:
            self.record = write_run_record(self.engine.plan, self.engine.pid, check, self.control)
        except OSError as error:
            # The server serves all the same, and it is tried again.
            self.record = None
            why, _ = reason(run_records_dir() / "record", error)
            self.fault(f"no run record can be written, by which dashboards and applies know this server: {why}")

    def _signals(self) -> None:
        """Do what signals ask."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 512)
        while self.received:
            number = self.received.pop(0)
            if number == SWAP_SIGNAL:
                threading.Thread(target=self._reload, name="reload", daemon=True).start()
            else:
                self.first_signal, self.next = self.first_signal or number, None
                self._stop_engine(number, self.engine.plan.settings.stop_timeout)

    def _stop_engine(self, number: int, grace: float) -> None:
        self._unwatch()
        engine = self.engine
        asked = (
            signal.SIGTERM if number == signal.SIGHUP else number,
            SECOND_SIGNAL_WAIT_S if engine.stopped_at else grace,
        )
        engine.stopped_at = engine.stopped_at or time.monotonic()
        threading.Thread(target=engine.child.end, args=asked, name="stop", daemon=True).start()

    # What takes the place of the engine that runs.

    def _take_orders(self) -> None:
        """Do what other threads have asked for, once no swap is under way."""
        with contextlib.suppress(queue.Empty):
            while self.next is None and self.first_signal is None:
                self._orders.get_nowait()()

    def _begin_swap(self, plan: LaunchPlan, started: Future[EngineRun], *, edited: bool) -> None:
        try:
            self._take_log(plan)
        except SpecdashError as error:
            started.set_exception(error)
            return
        engine = self.engine
        for warning in plan.warnings if edited else ():
            self.echo.feed(f"specdash: warning: {warning}\n".encode())
        self.next, self._next_started, self.unproven = plan, started, edited
        if engine.code is None:
            self._stop_engine(signal.SIGTERM, min(engine.plan.settings.stop_timeout, SWAP_GRACE_S))

    def _refuse(self, digest: str | None, error: SpecdashError) -> None:
        self._say(f"reload refused (env {short(digest)}): {error}")
        self.engine.plan = refused(self.engine.plan, error)
        if self.engine.check is not None:
            self._write_record(self.engine.check)

    def _take_log(self, plan: LaunchPlan) -> None:
        if plan.log == str(self.log.path):
            self.log.max_mib = plan.settings.log_max_mib
            return
        fresh = LogFile(plan.log, plan.settings.log_max_mib)
        self._say(f"the log goes on in {plan.log}")
        with self._writing:
            self.log.close()
            self.log = fresh

    def _successor(self) -> bool:
        """Start what takes the place of the engine that ended; False when nothing does."""
        how = describe_exit(self._clear_away())
        while self.next is None and self.changing and self.first_signal is None:
            select.select([self._wake], [], [], _IDLE_S)
            self._signals()
            self._take_orders()
        before = self.engine.plan
        if self.next is None and self.unproven and self.first_signal is None:
            error = SpecdashError(f"its engine ended with {how}: {'; '.join(self.engine.tail.errors())}")
            self.unproven = False
            data = last_good(before.env_file, before.env_digest)
            with contextlib.suppress(SpecdashError):
                if data is not None:
                    self.next = refused(self.replan(before, data), error)
                    self._take_log(self.next)
                    self.say_refused(self.next)
        plan, self.next = self.next, None
        if plan is None:
            return False
        self._say(f"engine swapped: {difference(before, plan)}")
        started, self._next_started = self._next_started, None
        try:
            self.engine = EngineRun(plan, self._output)
        except SpecdashError as error:
            if started is None:
                raise
            started.set_exception(error)
            return self._successor()
        if started is not None:
            started.set_result(self.engine)
        return True

    def say_refused(self, plan: LaunchPlan) -> None:
        """Say that the last good version of the env file runs, and why."""
        self._say(
            f"warning: {plan.env_file} as it was edited does not start: {plan.refused}; the last good settings run "
            f"again (env {short(plan.env_digest)}), the file was left as it is"
        )

    def _clear_away(self) -> int:
        self._unwatch()
        code = self.engine.finish()
        if self.record is not None:
            crashed = code != 0 and self.first_signal is None and self.next is None and not self.changing
            end_run_record(self.record, describe_exit(code), crashed=crashed)
            self.record = None
        return code


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
    make: Callable[[bytes | None], LaunchPlan],
    received: list[int],
    held: tuple[HeldProxy, ...],
) -> int:
    """Run the server until it ends or a signal stops it. Must be called from the main thread.

    SIGUSR1 reads the env file again and, when what it says can be run, puts a new server in the place of the old.
    `make` plans the env file, or bytes in its place, and raises `SpecdashError` for what must not be started.
    `received` are signals that came before this call. `held` are proxies that the runner before held: they are let go
    once the server answers.

    Returns 0 after SIGTERM or SIGHUP and when the server ends well by itself, 130 after Ctrl-C. Raises `SpecdashError`
    with the last errors of its log when it fails.
    """

    def replan(now: LaunchPlan, data: bytes | None) -> LaunchPlan:
        if now.env_file is None:
            raise InputError(
                "the settings come from the environment; start with --env-file to have a file to read again"
            )
        made = make(data)
        if made.settings.parameters["port"].note == FREE_PORT:
            # It keeps the port that it has, and with it the default log, which is named after the port.
            settings = made.settings.with_value("port", now.settings.port, "the port it has")
            kept = made.log if settings.log_file else now.log
            made = msgspec.structs.replace(made, settings=settings, log=kept)
        if made.settings.port != now.settings.port:
            check_port(made.settings)
        return made

    check_port(plan.settings)
    session = BackendSession(plan, replan, received)
    control = ControlSocket(session)
    session.control = control.path
    if control.problem:
        session.fault(control.problem)
    if plan.refused:
        session.say_refused(plan)
    if held:
        threading.Thread(target=resume, args=(held, plan.settings.url), name="resume", daemon=True).start()
    control.serve()
    try:
        return session.run()
    finally:
        control.end()


def first_plan(
    env_file: str, make: Callable[[bytes | None], LaunchPlan], make_again: Callable[[bytes], LaunchPlan]
) -> LaunchPlan:
    """What `make` plans of the env file, or `make_again` of its last good version where it cannot be run as it was
    edited: what has served is not judged again. Raises what speaks against the file where no version of it has served.
    """
    try:
        plan = make(None)
        check_port(plan.settings)
    except SpecdashError as error:
        good = last_good(env_file, file_digest(env_file))
        if good is not None:
            with contextlib.suppress(SpecdashError):
                return refused(make_again(good), error)
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
