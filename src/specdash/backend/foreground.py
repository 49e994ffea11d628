"""Runs a planned server in the foreground: tees its output, forwards signals, leaves a run record, reports its end."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from specdash.backend.child import SECOND_SIGNAL_WAIT_S, Child, describe_exit
from specdash.backend.launch import check_port
from specdash.backend.log_file import LogFile
from specdash.core.errors import ExitCode, PortInUseError, SpecdashError
from specdash.core.paths import run_records_dir
from specdash.core.run_record import RunRecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from specdash.backend.launch import Plan

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_CHUNK = 64 * 1024
_PENDING_LIMIT = 1024 * 1024
_ATOMIC_WRITE = 4096
_PROBE_S = 0.1
_IDLE_S = 1.0
_DRAIN_S = 0.5
_ERROR_LINE = re.compile(rb"^\s*[\d.]*\s*E |error|failed|GGML_ASSERT|CUDA|terminate called|couldn't", re.IGNORECASE)
_COULD_NOT_BIND = b"couldn't bind HTTP server socket"


def run(plan: Plan) -> int:
    """Run the server until it ends or a signal stops it. Must be called from the main thread.

    Returns 0 after SIGTERM or SIGHUP and when the server ends well by itself, 130 after Ctrl-C. Raises `SpecdashError`
    with the last errors of its log when it fails.
    """
    check_port(plan.settings)
    log = LogFile(plan.log, plan.settings.log_max_mib)
    try:
        child = Child.start(plan.argv, plan.environment())
        return _Session(plan, child, log).run()
    finally:
        log.close()


def write_run_record(plan: Plan, pid: int) -> Path:
    """Leave a note that the server `pid` runs `plan`; returns the file. Written whole or not at all, mode 0600."""
    directory = run_records_dir()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory.chmod(0o700)
    record = RunRecord(
        pid=pid,
        pid_started=psutil.Process(pid).create_time(),
        url=plan.settings.url,
        engine=plan.engine.words,
        log=plan.log,
        env_file=plan.env_file,
        api_key_env="LLAMA_API_KEY" if "api-key" in plan.settings.secrets else None,
        parameters=plan.speculation,
    )
    path = directory / f"{pid}.json"
    draft = directory / f".{pid}.json.new"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(record.to_json())
    draft.replace(path)
    return path


class _Tail:
    """The last lines of the output, for the message when the server fails."""

    def __init__(self) -> None:
        self.lines: deque[bytes] = deque(maxlen=64)
        self.open = b""

    def feed(self, data: bytes) -> None:
        *whole, self.open = (self.open + data[-_CHUNK:]).split(b"\n")
        self.open = self.open[-1024:]
        self.lines.extend(line[:1024] for line in whole if line.strip())

    def errors(self) -> list[str]:
        """The last three lines that look like errors, else the last one."""
        lines = [*self.lines, *([self.open] if self.open.strip() else [])]
        found = [line for line in lines if _ERROR_LINE.search(line)] or lines[-1:]
        texts = [re.sub(r"^\s*[\d.]+\s+[A-Z]\s+", "", line.decode("utf-8", "replace")).strip() for line in found]
        return list(dict.fromkeys(texts))[-3:]


class _Echo:
    """Copies output to a descriptor that may be slow or gone, without ever waiting for it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.pending = bytearray()
        self.dropped = 0
        self.gone = False

    def feed(self, data: bytes) -> None:
        if not self.gone:
            if len(self.pending) + len(data) > _PENDING_LIMIT:
                self.dropped += len(data)
            else:
                self.pending += data
            self.drain()

    def drain(self) -> None:
        """Write what can be written now."""
        while not self.gone and (self.pending or self.dropped):
            if not select.select([], [self.descriptor], [], 0)[1]:
                return
            if not self.pending:
                self.pending += b"\nspecdash: %d bytes not shown here; the log file has them\n" % self.dropped
                self.dropped = 0
            try:
                written = os.write(self.descriptor, self.pending[:_ATOMIC_WRITE])
            except OSError:
                self.gone = True
                return
            del self.pending[:written]


class _Session:
    """One run: a single loop over the child's output, our signals and the clock."""

    def __init__(self, plan: Plan, child: Child, log: LogFile) -> None:
        self.plan = plan
        self.child = child
        self.log = log
        self.echo = _Echo(sys.stderr.fileno())
        self.tail = _Tail()
        self.record: Path | None = None
        self.received: list[int] = []
        self.first_signal: int | None = None
        self.signals_sent = 0
        self.deadline: float | None = None

    def run(self) -> int:
        wake, waker = os.pipe()
        os.set_blocking(waker, False)
        os.set_blocking(wake, False)
        before = {number: signal.signal(number, self._note) for number in _STOP_SIGNALS}
        old_waker = signal.set_wakeup_fd(waker)
        try:
            self._loop(wake)
        finally:
            code = self.child.finish()
            signal.set_wakeup_fd(old_waker)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(wake)
            os.close(waker)
            if self.record is not None:
                self.record.unlink(missing_ok=True)
        return self._result(code)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(number)

    def _loop(self, wake: int) -> None:
        output = self.child.process.stdout
        if output is None:
            raise ValueError("the child was started without a pipe for its output")
        pipe = output.fileno()
        os.set_blocking(pipe, False)
        watched = [pipe, wake, *([self.child.pidfd] if self.child.pidfd is not None else [])]
        while True:
            slow = [self.echo.descriptor] if self.echo.pending and not self.echo.gone else []
            readable = select.select(watched, slow, [], self._wait())[0]
            if wake in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 512)
            if pipe in readable and not self._copy(pipe):
                watched.remove(pipe)
            self.echo.drain()
            self._signals()
            if self.child.exited():
                self._drain(pipe)
                return
            if self.record is None and self._listening():
                self.record = write_run_record(self.plan, self.child.pid)

    def _wait(self) -> float:
        wait = _IDLE_S if self.record is not None else _PROBE_S
        if self.deadline is not None:
            wait = min(wait, max(0.0, self.deadline - time.monotonic()))
        return wait

    def _copy(self, output: int) -> bool:
        """Pass one piece of output on; False when there will be no more."""
        try:
            data = os.read(output, _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        self.log.write(data)
        self.echo.feed(data)
        self.tail.feed(data)
        return True

    def _drain(self, output: int) -> None:
        """What the child wrote before it ended; a grandchild that holds the pipe is not waited for."""
        deadline = time.monotonic() + _DRAIN_S
        while time.monotonic() < deadline and select.select([output], [], [], 0)[0]:
            if not self._copy(output):
                break
        self.echo.drain()

    def _signals(self) -> None:
        """Forward what we got; then escalate: a second SIGTERM after the grace, and SIGKILL after that."""
        if self.received:
            number = self.received.pop(0)
            self.first_signal = self.first_signal or number
            self._send(number)
        elif self.deadline is not None and time.monotonic() >= self.deadline:
            if self.signals_sent >= 2:
                self.child.kill_group()
                self.deadline = time.monotonic() + _IDLE_S
            else:
                self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        self.child.signal(signal.SIGTERM if number == signal.SIGHUP else number)
        self.signals_sent += 1
        wait = self.plan.settings.stop_timeout if self.signals_sent == 1 else SECOND_SIGNAL_WAIT_S
        self.deadline = time.monotonic() + wait

    def _listening(self) -> bool:
        settings = self.plan.settings
        if settings.host.endswith(".sock"):
            return Path(settings.host).exists()
        host = settings.url.removeprefix("http://").rsplit(":", 1)[0].strip("[]")
        with contextlib.suppress(OSError), socket.create_connection((host, settings.port), timeout=_PROBE_S):
            return True
        return False

    def _result(self, code: int) -> int:
        if self.first_signal is not None:
            return ExitCode.INTERRUPTED if self.first_signal == signal.SIGINT else ExitCode.OK
        if code == 0:
            return ExitCode.OK
        if any(_COULD_NOT_BIND in line for line in self.tail.lines):
            raise PortInUseError(f"port {self.plan.settings.port} is in use; stop its owner, or set another LLAMA_PORT")
        said = "; ".join(self.tail.errors()) or "it printed nothing"
        raise SpecdashError(f"{self.plan.engine.kind} ended with {describe_exit(code)}: {said} (log: {self.plan.log})")


def report_warnings(plan: Plan, say: Callable[[str], None]) -> None:
    """Say each warning of the plan on a line of its own."""
    for warning in plan.warnings:
        say(f"specdash: warning: {warning}")
