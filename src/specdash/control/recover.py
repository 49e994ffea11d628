"""An apply whose specdash was killed: found by its journal, and rolled back or finished. May itself be killed and run
again, any number of times."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil

from specdash.control import faults
from specdash.control.apply_end import applied, as_recovery, conclude, roll_back
from specdash.control.apply_forward import forward
from specdash.control.apply_lock import ApplyLock
from specdash.control.apply_steps import StepFailedError, Steps
from specdash.control.apply_work import Work
from specdash.control.journal import Journal, Phase, journal_file, unfinished
from specdash.control.proxy_gate import resume_all
from specdash.control.records import read_records
from specdash.core.applies import ApplyRecord, Outcome, Step
from specdash.core.errors import InputError, SpecdashError
from specdash.core.paths import applies_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.control.services import Deployment
    from specdash.core.applies import Progress

__all__ = ["Journal", "recover", "unfinished"]


def recover(
    deployment: Deployment,
    journal: Journal,
    *,
    finish: bool,
    on_progress: Callable[[Progress], None],
    env: Mapping[str, str] = os.environ,
) -> ApplyRecord:
    """Roll the apply back, or take it to its end; one that cannot be finished is rolled back.

    Raises `ConflictError` when another process is at it, `InputError` when it was recovered meanwhile, `ServiceError`
    when its services are not there.
    """
    with ApplyLock(f"recover {journal.what}", env):
        now = journal_file(env).read()
        if now is None:
            raise InputError("the apply was recovered meanwhile: there is nothing to do")
        return _recover(deployment, now, finish=finish, on_progress=on_progress, env=env)


def _recover(
    deployment: Deployment,
    journal: Journal,
    *,
    finish: bool,
    on_progress: Callable[[Progress], None],
    env: Mapping[str, str],
) -> ApplyRecord:
    faults.reach(faults.RECOVER_BEFORE)
    over = _recorded(journal, env)
    if over is not None:
        resume_all(journal.held, env)
        journal_file(env).remove()
        return over
    steps = Steps(on_progress)
    steps.current = journal.failed_step or journal.step
    work = Work(deployment, journal, steps, env)
    work.note_if_possible(pid=os.getpid(), pid_started=psutil.Process().create_time())
    faults.reach(faults.RECOVER_ADOPTED)
    error: BaseException = StepFailedError(f"specdash was killed at step {journal.step}")
    try:
        if finish and journal.phase is Phase.APPLYING:
            try:
                return _finish(work)
            except SpecdashError as failed:
                error = failed
        return _back(work, error)
    finally:
        work.open_gate()
        for warning in resume_all(work.journal.held, env):
            work.warn(warning)


def _finish(work: Work) -> ApplyRecord:
    forward(work)
    for warning in resume_all(work.journal.held, work.env):
        work.warn(warning)
    with work.steps.step(Step.RECORD):
        work.note(step=Step.RECORD)
        work.warn("finished by `specdash recover --finish` after its specdash was killed")
        return conclude(work, applied(work))


def _back(work: Work, error: BaseException) -> ApplyRecord:
    record, undone = roll_back(work, error)
    for warning in resume_all(work.journal.held, work.env):
        work.warn(warning)
    return conclude(work, as_recovery(record), keep_journal=undone.unwritten)


def _recorded(journal: Journal, env: Mapping[str, str]) -> ApplyRecord | None:
    """The record that says that this apply is over, and only its journal was left."""
    for one in read_records(applies_file(env)):
        if one.number == journal.number and one.outcome is not Outcome.ROLLBACK_FAILED:
            return one
    return None
