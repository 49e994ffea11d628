"""A change of settings, asked of the runner that owns the engine, through its control socket.

Where no backend runs, the change is made in this process: the files are written and backed up, and count at the next
start; a proxy that runs takes its settings over at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from specdash.backend.env_store import read_env
from specdash.backend.journal import Journal
from specdash.backend.steps import CancelledApplyError, Steps
from specdash.backend.transaction import Transaction
from specdash.backend.trial import read_trial
from specdash.control.connection import CONNECT_S, RemoteError, RunnerConnection, runner_of
from specdash.control.plan import ApplyPlan, edit_of, findings, service_of
from specdash.core.changes import ApplyOutcome, ApplyProgress, ApplyRecord, ApplyStep, Role, differences
from specdash.core.env_edit import with_changes
from specdash.core.envfile import encode, parse
from specdash.core.errors import ConflictError, RefusedError, ServiceError, Severity, SpecdashError, errors
from specdash.core.records import read
from specdash.system.files import file_digest
from specdash.system.processes import is_alive, own_start

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.control.deployment import Deployment
    from specdash.control.plan import ApplyOptions

_CANCEL_AGAIN_S = 0.1
_UNDOING_S = 120.0


class Apply:
    """One change. `error` is what stood in the way, for its exit code; None when it went well. `changed` is whether
    anything was touched, undone or not."""

    def __init__(
        self,
        plan: ApplyPlan,
        options: ApplyOptions,
        on_progress: Callable[[ApplyProgress], None],
        env: Mapping[str, str] = os.environ,
        *,
        trial: Trial | None = None,
    ) -> None:
        self.plan = plan
        self.error: SpecdashError | None = None
        self.changed = False
        self.cancelled = False
        """Whether the end was asked for, in time or not."""
        self.undoing = False
        """Whether it is rolling back, which nothing stops."""
        self._options = options
        self._on_progress = on_progress
        self._env = env
        self._trial = trial
        self._cancel: Callable[[], object] = lambda: None
        self._kept = False

    def cancel(self) -> bool:
        """Ask for the end. Safe from any thread and from a signal handler; returns at once: False when the change is
        kept already."""
        self.cancelled = True
        if not self._kept:
            threading.Thread(target=self._cancel, name="cancel", daemon=True).start()
        return not self._kept

    def run(self) -> ApplyRecord:
        """Make the change, and return its record however it ends.

        Raises `ConflictError` when another change runs, `ServiceError` when the runner cannot be asked or dies:
        nothing is recorded then, or by the runner's next start.
        """
        wanted = Journal(
            number=0,
            kind=self.plan.kind,
            at=time.time(),
            pid=os.getpid(),
            pid_started=own_start(),
            step=ApplyStep.LOCK,
            edits=self.plan.edits,
            profile=self.plan.profile,
            trial=self._trial is not None,
            **asdict(self._options),
            warnings=tuple(finding.line for finding in self.plan.findings if finding.severity is Severity.WARNING),
        )
        backend = self.plan.deployment.backend
        refusals = errors(self.plan.findings)
        runner = runner_of(backend.env_file, self._env) if backend is not None and not refusals else None
        if runner is None:
            steps = Steps(self._report)
            self._cancel = steps.cancel
            transaction = Transaction(wanted, None, steps, self._env)
            if refusals:
                steps.current = ApplyStep.PREFLIGHT
                outcome = transaction.refused(RefusedError("; ".join(finding.line for finding in refusals)))
            else:
                outcome = transaction.run()
            self.error, self.changed = outcome.error, outcome.changed
            if backend is not None and outcome.record.outcome is ApplyOutcome.APPLIED:
                runner = runner_of(backend.env_file, self._env)
                # It came up while its env file was written.
                if runner is not None and runner[1]["env_digest"] != file_digest(str(backend.env_file)):
                    os.kill(runner[1]["runner_pid"], signal.SIGUSR1)
            return outcome.record
        path = runner[0]
        trial = self._trial
        with nullcontext(trial.connection) if trial is not None else closing(RunnerConnection(path)) as connection:
            self._cancel = lambda: _cancel(path)
            if self.cancelled:
                raise CancelledApplyError("it was interrupted; nothing was changed")
            words = {"boot": trial.boot, "planned": trial.planned} if trial is not None else {}
            # The journal's own form, with its bytes: the socket is this user's alone.
            answer = connection.ask("apply", self._report, timeout=None, change=json.loads(wanted.to_json()), **words)
        problem = answer["problem"]
        self.error = RemoteError(problem["reason"], problem["code"]) if problem is not None else None
        self.changed = bool(answer["changed"])
        return read(ApplyRecord, answer["record"])

    def _report(self, progress: ApplyProgress) -> None:
        self.undoing = self.undoing or progress.step is ApplyStep.ROLLBACK
        self._kept = self._kept or progress.step is ApplyStep.RECORD
        # A terminal that has gone away must not end the wait: its SIGHUP asks for the change to be cancelled.
        with contextlib.suppress(OSError):
            self._on_progress(progress)


def _cancel(path: str) -> None:
    """Ask until the runner has begun what it is to cancel: the request for the change may still be on its way."""
    deadline = time.monotonic() + CONNECT_S
    with contextlib.suppress(SpecdashError), closing(RunnerConnection(path)) as connection:
        while not connection.ask("cancel")["cancelled"] and time.monotonic() < deadline:
            time.sleep(_CANCEL_AGAIN_S)


def await_trial_end(env: Mapping[str, str] = os.environ) -> None:
    """Wait while the runner puts the original back after a trial whose process is gone, for at most `_UNDOING_S`."""
    deadline = time.monotonic() + _UNDOING_S
    while time.monotonic() < deadline:
        noted = read_trial(env)
        if noted is None or is_alive(noted.client_pid):
            return
        time.sleep(_CANCEL_AGAIN_S)


class Trial:
    """Settings on trial on a service: the original goes back when it ends, and when this process dies."""

    def __init__(self, deployment: Deployment, what: str, env: Mapping[str, str] = os.environ) -> None:
        """`what` is the command. Raises `ServiceError` where no backend runs, `ConflictError` where its env file was
        edited since its start, or another change or trial is under way."""
        service = service_of(deployment, Role.BACKEND)
        runner = runner_of(service.env_file, env)
        if runner is None:
            raise ServiceError(
                f"no backend runs with {service.env_file}, so it could not be put back as it is; start it, or leave "
                "--service out"
            )
        self.boot: int | None = None
        self.planned: int | None = None
        self.original = read_env(service.env_file)
        self._versions = {self.original.digest}
        self._deployment = deployment
        self._what = what
        self._env = env
        self._count = 0
        self.connection = RunnerConnection(runner[0])
        """Hanging up puts the original back, unless the env file was edited meanwhile."""
        try:
            self._backup = self.connection.ask("trial", what=what)["backup"]
        except SpecdashError:
            self.connection.close()
            raise

    def plan(self, configuration: Mapping[str, str]) -> ApplyPlan:
        """The change that puts `configuration` over the original; an empty value unsets a key.

        Always a change, so that the same configuration twice is two starts. Raises `ConflictError` where the env file
        was edited meanwhile, `EnvFileError` for what an env file cannot hold.
        """
        service = service_of(self._deployment, Role.BACKEND)
        snapshot = read_env(service.env_file)
        wanted = {key: value or None for key, value in configuration.items()}
        if snapshot.digest not in self._versions:
            raise ConflictError(
                f"{service.env_file} was edited while settings were tried; that version was left as "
                f"it is, and the one from before is backup {self._backup} of `specdash env history`"
            )
        self._count += 1
        mark = (
            f"# On trial ({self._what}, {self._count}, {time.time():.3f}): backup {self._backup} has the settings from "
            "before, which go back when it ends.\n"
        )
        text = mark + with_changes(self.original.file, wanted)
        changed = differences(Role.BACKEND, snapshot.file.values, parse(text).values)
        edits = (edit_of(service, snapshot, encode(text), changed),)
        self._versions.add(edits[0].new_digest)
        return ApplyPlan(self._deployment, edits, findings(edits, self._deployment, self._env))

    def end(self) -> ApplyRecord | None:
        """Put the original back; the record of that, None where it was in force.

        Raises `ConflictError` when the env file was edited meanwhile: that version stays.
        """
        try:
            answer = self.connection.ask("end", timeout=None)
        finally:
            self.connection.close()
        return None if answer["record"] is None else read(ApplyRecord, answer["record"])
