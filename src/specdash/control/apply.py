"""The transaction that changes settings in production: the change in force and verified, or everything as it was.

`plan_apply` and `plan_rollback` say what would be done; `Apply` does it. docs/apply.md tells the steps and what each
failure leaves.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

import psutil

from specdash.control import faults, verify
from specdash.control.apply_end import applied, conclude, roll_back, stored
from specdash.control.apply_engine import running_engine, service_promise
from specdash.control.apply_forward import forward
from specdash.control.apply_lock import ApplyLock
from specdash.control.apply_plan import ApplyOptions, ApplyPlan, Edit, findings, plan_apply, plan_rollback
from specdash.control.apply_services import check_can_run
from specdash.control.apply_steps import CancelledApplyError, Steps
from specdash.control.apply_work import Work
from specdash.control.env_store import Backups, check_writable, read_env
from specdash.control.journal import Before, Journal, JournalEdit, describe, journal_file
from specdash.control.records import append_record, next_number, read_records
from specdash.control.trial import refuse_during_trial
from specdash.core.applies import ApplyRecord, Outcome, Step
from specdash.core.changes import Role
from specdash.core.errors import ConflictError, NotWrittenError, RefusedError, SpecdashError, UnfinishedApplyError
from specdash.core.findings import Severity, errors
from specdash.core.paths import applies_file, backups_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.core.applies import Progress
    from specdash.core.findings import Finding

__all__ = ["Apply", "ApplyOptions", "ApplyPlan", "Edit", "plan_apply", "plan_rollback"]

_ASKED = 3
"""How often an engine is asked for its health before it counts as not well: a busy machine lets it answer late."""


class Apply:
    """One run of a plan. `error` is what stood in the way, for its exit code; None when it went well."""

    def __init__(
        self,
        plan: ApplyPlan,
        options: ApplyOptions,
        on_progress: Callable[[Progress], None],
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
        changes = tuple(stored(change) for change in self.plan.changes)
        lock = ApplyLock(f"{self.plan.kind} {describe(changes)}", self._env)
        try:
            with self._steps.step(Step.LOCK):
                lock.acquire()
                refuse_unfinished(self._env)
                if not self.plan.trial:
                    refuse_during_trial(self._env)
            return self._locked()
        except CancelledApplyError as error:
            if self._steps.current is not Step.LOCK:
                raise
            return self._refused(error)
        finally:
            lock.release()

    def _locked(self) -> ApplyRecord:
        try:
            with self._steps.step(Step.PREFLIGHT):
                before = self._preflight()
            with self._steps.step(Step.BACKUP):
                work = self._backup(before)
        except BaseException as error:
            journal_file(self._env).remove()
            if not isinstance(error, SpecdashError):
                raise
            return self._refused(error)
        try:
            forward(work)
            with self._steps.step(Step.RECORD):
                work.note(step=Step.RECORD)
                work.steps.keep()
                record = conclude(work, applied(work))
        except BaseException as error:  # noqa: BLE001 - whatever went wrong, first everything goes back
            return self._undo(work, error)
        self.changed = True
        return record

    def _undo(self, work: Work, error: BaseException) -> ApplyRecord:
        self.changed = _was_written(work)
        record, undone = roll_back(work, error)
        record = conclude(work, record, keep_journal=undone.unwritten)
        if not isinstance(error, SpecdashError):
            raise error
        self.error = error
        return record

    def _preflight(self) -> dict[Role, Before]:
        """Raise `SpecdashError` for whatever speaks against it; the services as they are."""
        for edit in self.plan.edits:
            check_can_run(edit.service)
            if read_env(edit.service.env_file).data != edit.snapshot.data:
                raise ConflictError(f"{edit.service.env_file} was changed since it was read; run the command again")
            check_writable(edit.snapshot)
        self.findings = findings(self.plan.edits, self.plan.deployment, self._env)
        refusals = errors(self.findings)
        if refusals:
            raise RefusedError("; ".join(finding.line for finding in refusals))
        self._warnings = [one.line for one in self.findings if one.severity is Severity.WARNING]
        count = len(self._warnings)
        self._steps.say(f"{count} warning{'s' if count != 1 else ''}" if count else "nothing speaks against it")
        return {edit.role: self._before(edit) for edit in self.plan.edits}

    def _before(self, edit: Edit) -> Before:
        status = edit.service.status()
        if edit.role is not Role.BACKEND or not status.alive:
            return Before(status.alive, healthy=status.alive, main_pid=status.pid)
        promised = service_promise(edit.service, edit.snapshot.values, self._env)
        engine = running_engine(edit.service, status, self._env, promised.url)
        if engine is None:
            return Before(running=True, main_pid=status.pid)
        if engine.digest is not None and engine.digest != edit.snapshot.digest:
            file, name = edit.service.env_file, edit.service.name
            self._warnings.append(f"{file} was edited since {name} was started: those edits come into force too")
        well = any(verify.healthy(engine.url) for _ in range(_ASKED))
        return Before(
            running=True,
            healthy=well,
            speculative=verify.speculative(engine.url, promised) if well else None,
            main_pid=status.pid,
            engine_pid=engine.pid,
            digest=engine.digest,
        )

    def _backup(self, before: dict[Role, Before]) -> Work:
        """Keep the old bytes, then announce on the disk what is going to be done."""
        backups = Backups(backups_dir(self._env))
        edits = []
        for edit in self.plan.edits:
            kept = backups.save(edit.role, edit.snapshot)
            faults.reach(faults.BACKUP_SAVED)
            edits.append(
                JournalEdit(
                    role=edit.role,
                    service=edit.service.name,
                    manager=edit.service.manager.kind,
                    env_file=str(edit.service.env_file),
                    old=edit.snapshot.data,
                    new=edit.data,
                    existed=edit.snapshot.exists,
                    backup=kept.number,
                    changes=tuple(stored(change) for change in edit.changes),
                    needs_restart=edit.needs_restart,
                    before=before[edit.role],
                )
            )
        backend = next((edit for edit in self.plan.edits if edit.role is Role.BACKEND), None)
        journal = Journal(
            number=next_number(read_records(applies_file(self._env))),
            kind=self.plan.kind,
            at=self._at,
            pid=os.getpid(),
            pid_started=psutil.Process().create_time(),
            step=Step.BACKUP,
            edits=tuple(edits),
            profile=self.plan.profile,
            url=service_promise(backend.service, backend.values, self._env).url if backend is not None else None,
            drain_timeout_s=self.options.drain_timeout_s,
            health_timeout_s=self.options.health_timeout_s,
            settle_s=self.options.settle_s,
            trial=self.plan.trial,
            force=self.options.force,
            warnings=tuple(self._warnings),
        )
        work = Work(self.plan.deployment, journal, self._steps, self._env)
        work.note()
        faults.reach(faults.BACKUP_JOURNAL)
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
            outcome=Outcome.REFUSED,
            changes=tuple(stored(change) for change in self.plan.changes),
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


def _was_written(work: Work) -> bool:
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
