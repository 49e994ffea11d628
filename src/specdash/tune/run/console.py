"""The dashboard's hand on the tuner: runs that anyone started, and runs of its own, behind one object that knows no
screen. Every method may block (files, processes): call it from a thread.

A run is a child process in a session of its own, so that it survives the dashboard and its terminal; it is stopped as
Ctrl-C stops it, and puts the original back.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct, field

from specdash.core.errors import ConflictError, SpecdashError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from specdash.tune.model.gains import Gain
    from specdash.tune.model.problem import Budget
    from specdash.tune.run.status import RunPlan, TuneRun

_PLAN_S = 60.0
_BEGIN_S = 60.0
_PAUSE_S = 0.1
_LAST_WORDS = 600
LOG = "tune-screen.log"


class NewestRun(Struct, frozen=True):
    """The newest run, and what its boots gain over its start, by number."""

    run: TuneRun | None = None
    gains: Mapping[int, Gain] = field(default_factory=dict)


class TunerConsole:
    """Runs of the tuner on the services of this machine. All methods raise `SpecdashError`."""

    def __init__(
        self, env: Mapping[str, str] = os.environ, *, options: Sequence[str] = (), is_ours: bool = False
    ) -> None:
        """`env` is that of `specdash tune`, and says which service, where that is not the usual one; `options` are more
        of its options; a run that `is_ours` ends with this program, as the demo's services do."""
        self._is_ours = is_ours
        self._env = env
        self._options = tuple(options)
        self._process: subprocess.Popen[bytes] | None = None

    def look(self) -> NewestRun:
        """The newest run; one that goes on comes first."""
        from specdash.tune.run.status import gains_of, newest_run

        run = newest_run(self._env)
        if run is None:
            return NewestRun()
        return NewestRun(run, gains_of(run))

    def plan(self, budget: Budget) -> RunPlan:
        """What a run would do; touches nothing."""
        from specdash.tune.run.status import RunPlan, decode

        command, nothing = [*self._command(budget), "--dry-run", "--json"], subprocess.DEVNULL
        try:
            done = subprocess.run(
                command, env=dict(self._env), capture_output=True, timeout=_PLAN_S, check=False, stdin=nothing
            )
            plan: RunPlan | None = decode(RunPlan, done.stdout)
        except subprocess.TimeoutExpired:
            raise SpecdashError(f"`specdash tune --dry-run` took longer than {_PLAN_S:g} s") from None
        except OSError as error:
            raise SpecdashError(f"`specdash tune --dry-run` cannot be run: {error.strerror or error}") from None
        if plan is None:
            raise SpecdashError(_words(done.stderr.decode("utf-8", "replace")) or "`specdash tune` did not say a plan")
        return plan

    def start(self, budget: Budget) -> TuneRun:
        """Begin a run, and return once it is written down that it has begun."""
        from specdash.core.paths import tune_runs_dir
        from specdash.system.files import make_directories

        before = self.look().run
        if before is not None and before.alive:
            raise ConflictError(f"a run goes on already (pid {before.head.pid})")
        log = tune_runs_dir(self._env) / LOG
        try:
            make_directories(log.parent)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SpecdashError(f"{log}: {error.strerror or error}") from None
        started: Future[subprocess.Popen[bytes]] = Future()
        # The parent of a process has to take note of its end, however late that is; and the kernel's promise to end
        # one with its parent holds for as long as the thread lives that started it.
        command = [*self._command(budget), "--yes"]
        threading.Thread(
            target=self._attend, args=(command, output, started), name="specdash-tune", daemon=True
        ).start()
        self._process = started.result()
        until = time.monotonic() + _BEGIN_S
        while time.monotonic() < until:
            run = self.look().run
            if run is not None and run.head.pid == self._process.pid:
                return run
            if (code := self._process.poll()) is not None:
                raise SpecdashError(f"the tuner did not begin: {_said(log) or f'exit code {code}'}")
            time.sleep(_PAUSE_S)
        raise SpecdashError(f"the tuner has not begun after {_BEGIN_S:g} s (pid {self._process.pid}); see {log}")

    def _attend(self, command: Sequence[str], output: int, started: Future[subprocess.Popen[bytes]]) -> None:
        """Start the run and wait for its end."""
        try:
            if self._is_ours:
                from specdash.backend.child import Child

                process = Child(command, self._env, output=output).process
            else:
                process = subprocess.Popen(
                    command,
                    env=dict(self._env),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except (OSError, SpecdashError) as error:
            started.set_exception(SpecdashError(f"`specdash tune` cannot be run: {error}"))
            return
        finally:
            os.close(output)
        started.set_result(process)
        process.wait()

    def stop(self, run: TuneRun) -> None:
        """Ask a run to stop, as Ctrl-C does. It then puts the original back, which takes a while.

        By SIGTERM: what a shell put into the background without job control does not hear SIGINT.
        """
        pid = run.head.pid
        if not self.alive(run):
            raise ConflictError("the run has ended meanwhile: there is nothing to stop")
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            raise ConflictError("the run has ended meanwhile: there is nothing to stop") from None
        except PermissionError:
            raise SpecdashError(f"the run is another user's (pid {pid}); stop it there, with Ctrl-C") from None

    @staticmethod
    def alive(run: TuneRun) -> bool:
        """Whether its process is there."""
        from specdash.system.processes import same_process

        return same_process(run.head.pid, run.head.pid_started)

    def _command(self, budget: Budget) -> list[str]:
        minutes = ["--minutes", f"{budget.minutes:g}"] if budget.minutes is not None else []
        return [
            sys.executable, "-m", "specdash", "tune", "--restarts", str(budget.restarts), *minutes, *self._options
        ]  # fmt: skip

    def close(self) -> None:
        """End a run whose services end now: nothing is left to be put back."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _said(log: Path) -> str:
    try:
        return _words(log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""


def _words(text: str) -> str:
    """The last line that says something, without the program's name."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("specdash: ")[:_LAST_WORDS] if lines else ""
