"""The transaction that changes settings in production: the change in force and verified, or everything as it was.

`plan_apply` and `plan_rollback` say what would be done; `Apply` does it. docs/apply.md tells the steps and what each
failure leaves.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from specdash.control.apply import steps, trial
from specdash.control.apply.engine import running_engine, service_promise
from specdash.control.apply.forward import check_can_run, forward
from specdash.control.apply.journal import (
    ApplyLock,
    Edit,
    Journal,
    ServiceBefore,
    append_record,
    describe,
    journal_file,
    next_number,
    read_records,
)
from specdash.control.apply.plan import ApplyOptions, ApplyPlan, findings, plan_apply, plan_rollback, service_of
from specdash.control.apply.steps import CancelledApplyError, Steps
from specdash.control.apply.transaction import Transaction
from specdash.control.apply.trial import refuse_during_trial
from specdash.control.apply.undo import applied, conclude, roll_back
from specdash.control.env_store import Backups, check_writable, read_env
from specdash.core.changes import ApplyOutcome, ApplyRecord, ApplyStep, Role
from specdash.core.errors import (
    ConflictError,
    ExitCode,
    NotWrittenError,
    RefusedError,
    Severity,
    SpecdashError,
    UnfinishedApplyError,
    errors,
)
from specdash.core.paths import applies_file, backups_dir, tune_runs_dir
from specdash.system import files
from specdash.system.processes import own_start
from specdash.system.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.control.env_store import EnvSnapshot
    from specdash.control.services.services import Deployment
    from specdash.core.changes import ApplyProgress
    from specdash.core.errors import Finding


__all__ = ["Apply", "ApplyOptions", "ApplyPlan", "plan_apply", "plan_rollback"]

_ASKED = 3
"""How often an engine is asked for its health before it counts as not well: a busy machine lets it answer late."""


class Apply:
    """One run of a plan. `error` is what stood in the way, for its exit code; None when it went well."""

    def __init__(
        self,
        plan: ApplyPlan,
        options: ApplyOptions,
        on_progress: Callable[[ApplyProgress], None],
        env: Mapping[str, str] = os.environ,
    ) -> None:
        self.plan = plan
        self.options = options
        self.error: SpecdashError | None = None
        self.findings: tuple[Finding, ...] = plan.findings
        self.changed = False
        """Whether anything was changed, undone or not."""
        self._env = env
        self._steps = Steps(on_progress)
        self._at = time.time()
        self._warnings: list[str] = []

    @property
    def undoing(self) -> bool:
        """Whether it is rolling back: nothing stops that."""
        return self._steps.undoing

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked for the end, in time or not."""
        return self._steps.cancelled

    def cancel(self) -> bool:
        """Roll back and end. Safe from any thread and from a signal handler; returns at once: False when it is too
        late, and the change stays."""
        return self._steps.cancel()

    def run(self) -> ApplyRecord:
        """Do it, and return the record however it ends.

        Raises `ConflictError` when another apply runs, `UnfinishedApplyError` when one was cut short, and
        `NotWrittenError` when the lock cannot be made: nothing was touched then, and nothing is recorded.
        """
        lock = ApplyLock(f"{self.plan.kind} {describe(self.plan.changes)}", self._env)
        try:
            with self._steps.step(ApplyStep.LOCK):
                lock.acquire()
                refuse_unfinished(self._env)
                if not self.plan.trial:
                    refuse_during_trial(self._env)
            return self._locked()
        except CancelledApplyError as error:
            if self._steps.current is not ApplyStep.LOCK:
                raise
            return self._refused(error)
        finally:
            lock.release()

    def _locked(self) -> ApplyRecord:
        try:
            with self._steps.step(ApplyStep.PREFLIGHT):
                before = self._preflight()
            with self._steps.step(ApplyStep.BACKUP):
                work = self._backup(before)
        except BaseException as error:
            journal_file(self._env).remove()
            if not isinstance(error, SpecdashError):
                raise
            return self._refused(error)
        try:
            forward(work)
            with self._steps.step(ApplyStep.RECORD):
                work.note(step=ApplyStep.RECORD)
                work.steps.keep()
                record = conclude(work, applied(work))
        except BaseException as error:  # noqa: BLE001 - whatever went wrong, first everything goes back
            return self._undo(work, error)
        self.changed = True
        return record

    def _undo(self, work: Transaction, error: BaseException) -> ApplyRecord:
        self.changed = _was_written(work)
        record, undone = roll_back(work, error)
        record = conclude(work, record, keep_journal=undone.unwritten)
        if not isinstance(error, SpecdashError):
            raise error
        self.error = error
        return record

    def _preflight(self) -> dict[Role, tuple[EnvSnapshot, ServiceBefore]]:
        """Raise `SpecdashError` for whatever speaks against it; the env files and the services as they are."""
        snapshots = {}
        for edit in self.plan.edits:
            service = service_of(self.plan.deployment, edit.role)
            check_can_run(service)
            snapshots[edit.role] = snapshot = read_env(service.env_file)
            if snapshot.data != edit.old:
                raise ConflictError(f"{edit.env_file} was changed since it was read; run the command again")
            check_writable(snapshot)
        self.findings = findings(self.plan.edits, self.plan.deployment, self._env)
        refusals = errors(self.findings)
        if refusals:
            raise RefusedError("; ".join(finding.line for finding in refusals))
        self._warnings = [finding.line for finding in self.findings if finding.severity is Severity.WARNING]
        count = len(self._warnings)
        self._steps.say(f"{counted(count, 'warning')}" if count else "no problems found")
        return {edit.role: (snapshots[edit.role], self._before(edit)) for edit in self.plan.edits}

    def _before(self, edit: Edit) -> ServiceBefore:
        service = service_of(self.plan.deployment, edit.role)
        status = service.status()
        if edit.role is not Role.BACKEND or not status.alive:
            return ServiceBefore(status.alive, healthy=status.alive)
        promised = service_promise(service, edit.values(new=False), self._env)
        engine = running_engine(service, status, self._env, promised.url)
        if engine is None:
            return ServiceBefore(running=True)
        if engine.digest is not None and engine.digest != edit.old_digest:
            words = f"was edited since {edit.service} was started: those edits come into force too"
            self._warnings.append(f"{edit.env_file} {words}")
        well = any(steps.healthy(engine.url) for _ in range(_ASKED))
        return ServiceBefore(
            running=True,
            healthy=well,
            speculative=steps.speculative(engine.url, promised) if well else None,
            engine_pid=engine.pid,
            digest=engine.digest,
        )

    def _backup(self, before: dict[Role, tuple[EnvSnapshot, ServiceBefore]]) -> Transaction:
        """Keep the old bytes, then announce on the disk what is going to be done."""
        backups = Backups(backups_dir(self._env))
        edits = []
        for edit in self.plan.edits:
            snapshot, service_before = before[edit.role]
            edits.append(replace(edit, backup=backups.save(edit.role, snapshot).number, before=service_before))
        journal = Journal(
            number=next_number(read_records(applies_file(self._env))),
            kind=self.plan.kind,
            at=self._at,
            pid=os.getpid(),
            pid_started=own_start(),
            step=ApplyStep.BACKUP,
            edits=tuple(edits),
            profile=self.plan.profile,
            drain_timeout_s=self.options.drain_timeout_s,
            health_timeout_s=self.options.health_timeout_s,
            settle_s=self.options.settle_s,
            trial=self.plan.trial,
            force=self.options.force,
            warnings=tuple(self._warnings),
        )
        work = Transaction(self.plan.deployment, journal, self._steps, self._env)
        backend = journal.edit(Role.BACKEND)
        work.note(url=work.promise(backend, new=True).url if backend is not None else None)
        self._steps.say(", ".join(f"{edit.role} backup {edit.backup}" for edit in edits))
        return work

    def _refused(self, error: SpecdashError) -> ApplyRecord:
        """Nothing was touched: say so, and keep that it was tried."""
        self.error = error
        path = applies_file(self._env)
        record = ApplyRecord(
            number=next_number(read_records(path)),
            at=self._at,
            ended_at=time.time(),
            kind=self.plan.kind,
            outcome=ApplyOutcome.REFUSED,
            changes=tuple(change.masked for change in self.plan.changes),
            profile=self.plan.profile,
            failed_step=self._steps.current,
            reason=str(error),
            warnings=tuple(self._warnings),
            step_seconds=dict(self._steps.seconds),
        )
        # Where the disk is what stands in the way, `error` says so already.
        with contextlib.suppress(NotWrittenError):
            append_record(path, record)
        return record


def refuse_unfinished(env: Mapping[str, str] = os.environ) -> None:
    """Raise `UnfinishedApplyError` when an apply was cut short. The lock is ours: whoever began it is gone."""
    journal = journal_file(env).read()
    if journal is not None:
        raise UnfinishedApplyError(
            f"{journal.words}; `specdash recover` rolls it back, `specdash recover --finish` completes it"
        )


def _was_written(work: Transaction) -> bool:
    """Whether a file or a service may be other than before."""
    if work.journal.touched:
        return True
    for edit in work.journal.edits:
        try:
            if read_env(work.services[edit.role].env_file).data != edit.old:
                return True
        except SpecdashError:
            return True
    return False


# The end of a trial: the original in force and verified, and its note gone. See `control.trial`.


_TRIES = 2


class NotRestoredError(SpecdashError):
    """The service could not be brought back: a person is needed."""

    exit_code = ExitCode.ROLLBACK_FAILED


def restored(
    noted: trial.Trial,
    deployment: Deployment,
    run: Callable[[ApplyPlan], ApplyRecord],
    env: Mapping[str, str] = os.environ,
) -> ApplyRecord | None:
    """Bring the original of a trial back into force, by `run`, and take its note away; the record, None where there was
    nothing to do. Raises `NotRestoredError` when it does not come back, `ConflictError` when somebody else changed the
    env file: that version stays, and the trial is over."""
    reason = ""
    for _ in range(_TRIES):
        try:
            plan = trial.plan_restore(noted, deployment, env)
        except ConflictError:
            trial.end(env)
            raise
        if plan.empty:
            trial.end(env)
            return None
        try:
            record = run(plan)
        except SpecdashError as error:
            reason = str(error)
            continue
        if record.outcome is ApplyOutcome.APPLIED:
            trial.end(env)
            return record
        reason = record.reason
    raise NotRestoredError(
        f"{noted.service} does not run the settings from before: {reason}; mend that, then `specdash recover` puts "
        f"them back (backup {noted.backup} of `specdash env history`)"
    )


def restore_abandoned(
    noted: trial.Trial,
    deployment: Deployment,
    options: ApplyOptions,
    on_progress: Callable[[ApplyProgress], None],
    env: Mapping[str, str] = os.environ,
) -> ApplyRecord | None:
    """Put back what a dead process left on trial. Raises as `restored`; an apply that was cut short meanwhile must be
    recovered first."""
    mine = trial.adopt(noted, env)
    record = restored(mine, deployment, lambda plan: Apply(plan, options, on_progress, env).run(), env)
    for directory in tune_runs_dir(env).glob("*/"):
        files.sweep(directory)
    return record
