"""An apply whose specdash was killed: found by its journal, and rolled back or finished. May itself be killed and run
again, any number of times."""

from __future__ import annotations

import contextlib
import os
import time
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.control.apply import steps
from specdash.control.apply.forward import (
    bring_proxy,
    forward,
    in_force,
    restart,
    start_backend,
    stop,
    write_edit,
)
from specdash.control.apply.journal import (
    ApplyLock,
    ApplyPhase,
    Journal,
    append_record,
    journal_file,
    next_number,
    read_records,
    unfinished,
)
from specdash.control.apply.steps import EngineSwap, StepFailedError, Steps
from specdash.control.apply.transaction import Transaction, resume_all
from specdash.control.env_store import read_env
from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, ApplyStep, Role
from specdash.core.errors import ConflictError, InputError, NotWrittenError, SpecdashError
from specdash.core.paths import applies_file
from specdash.system.data import dataclass
from specdash.system.files import locked
from specdash.system.processes import own_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from specdash.control.apply.journal import Edit
    from specdash.control.services.services import Deployment
    from specdash.core.changes import ApplyProgress


# Undoes an apply: the old bytes back, the services running them, and that verified. Never gives up half-way.
#
# Every part is tried whatever became of the part before; what could not be undone is said in words for the operator.

_DRAIN_S = 15.0
_WRITE_TRIES = 5
_TRIES_APART_S = 0.3
_PATIENCE_S = 120.0
"""How long the old version may take at least: the patience with the new one may have been short on purpose."""
_SICK_BEFORE_S = 20.0
"""How long a service is waited for that was not healthy before either."""


@dataclass(slots=True)
class UndoResult:
    """How it went. `problems` are what a person must still do; `unwritten` that old bytes could not be put back."""

    problems: list[str] = field(default_factory=list)
    unwritten: bool = False
    log_lines: tuple[str, ...] = ()

    @property
    def outcome(self) -> ApplyOutcome:
        """What the record says."""
        return ApplyOutcome.ROLLBACK_FAILED if self.problems else ApplyOutcome.ROLLED_BACK


def undo(work: Transaction) -> UndoResult:
    """Bring everything back to how the journal says it was."""
    undone = UndoResult()
    work.steps.undoing = True
    with work.steps.step(ApplyStep.ROLLBACK, "putting the old settings back"):
        work.note_if_possible(phase=ApplyPhase.ROLLING_BACK)
        kept = _restore_files(work, undone)
        for service in work.services.values():
            # Only now: a supervisor that was killed starts its services anew, with what their files say.
            with _collecting(undone):
                service.manager.bring_up()
        backend, proxy = work.journal.edit(Role.BACKEND), work.journal.edit(Role.PROXY)
        # A proxy that does not run cannot be held; and if its manager starts it again while the engine is swapped, its
        # clients find nobody behind it. So it comes back first, in front of the engine that still serves.
        ended = proxy is not None and proxy.needs_restart and Role.PROXY in work.journal.touched
        if proxy is not None and ended and proxy in kept:
            work.open_gate()
            with _collecting(undone):
                _proxy(work, proxy)
        if backend is not None and backend in kept:
            with _collecting(undone):
                _backend(work, backend)
                # From here on, a recovery need not ask for another restart to be sure.
                work.note_if_possible(step=ApplyStep.ROLLBACK)
        # A proxy that must be restarted has to let its waiting requests through first.
        if proxy is None or proxy.needs_restart:
            work.open_gate()
        if proxy is not None and not ended and proxy in kept:
            with _collecting(undone):
                _proxy(work, proxy)
        work.open_gate()
        work.steps.say("a person is needed" if undone.problems else "everything is as it was before")
    return undone


def _restore_files(work: Transaction, undone: UndoResult) -> list[Edit]:
    """Old bytes back wherever ours are; the edits whose file is as it was."""
    kept = []
    for edit in work.journal.edits:
        try:
            _sweep(edit)
            _restore(edit)
            kept.append(edit)
        except ConflictError:
            undone.problems.append(
                f"{edit.env_file} was changed by somebody else after the apply had written it; their version was left "
                f"as it is, and {edit.service} may run another one: the version from before is backup {edit.backup} "
                "of `specdash env history`"
            )
        except SpecdashError as error:
            undone.unwritten = True
            undone.problems.append(f"{error}; then run `specdash recover` (backup {edit.backup} is the old version)")
    return kept


def _restore(edit: Edit) -> None:
    for attempt in range(_WRITE_TRIES):
        try:
            write_edit(edit, new=False)
        except ConflictError:
            raise
        except SpecdashError:
            if attempt == _WRITE_TRIES - 1:
                raise
            time.sleep(_TRIES_APART_S)
        else:
            return


def _sweep(edit: Edit) -> None:
    """What a killed write left beside the file goes with the next look at its directory."""
    directory = read_env(Path(edit.env_file)).target.parent
    if directory.is_dir():
        with locked(directory):
            pass


def _backend(work: Transaction, edit: Edit) -> None:
    """The backend runs the old version, or is stopped, as before."""
    service = work.services[Role.BACKEND]
    if not edit.before.running:
        _stopped(work, edit)
        return
    if not work.unsettled and _as_before(work, edit):
        work.steps.say(f"{service.name} runs the old settings")
        return
    _make_room(work)
    swap = _started(work, edit)
    _verify(work, edit, swap)


def _stopped(work: Transaction, edit: Edit) -> None:
    """The service is the one from before, and does not run."""
    service = work.services[edit.role]
    if service.status().alive:
        stop(work, service)


def _as_before(work: Transaction, edit: Edit) -> bool:
    """Whether the old version runs already, and is well: nothing was restarted yet, or an earlier recovery did it."""
    engine = work.engine(edit)
    if engine is None:
        return False
    if engine.digest is not None and in_force(work, edit, new=False):
        return steps.healthy(engine.url)
    if Role.BACKEND in work.journal.touched:
        return False
    # Not asked to restart yet: the same process is proof enough, where no record tells the version.
    same = engine.pid == edit.before.engine_pid
    return same and (engine.digest is None or engine.digest == edit.before.digest)


def _make_room(work: Transaction) -> None:
    """Nobody is to be cut off by the second restart either."""
    if work.gate is not None:
        return
    work.close_gate()
    deadline = time.monotonic() + min(_DRAIN_S, work.journal.drain_timeout_s)
    while work.requests() and time.monotonic() < deadline:
        time.sleep(_TRIES_APART_S / 3)


def _started(work: Transaction, edit: Edit) -> EngineSwap:
    """A swap where that works, else a restart."""
    service = work.services[Role.BACKEND]
    try:
        return start_backend(work, edit, new=False)
    except SpecdashError as error:
        work.steps.say(f"{error}; restarting {service.name} instead")
    try:
        restart(work, service, alive=service.status().alive)
        return _watching(work, edit)
    except SpecdashError as error:
        raise StepFailedError(
            f"the old settings are back in {edit.env_file}, but {service.name} could not be restarted: {error}; "
            "mend that, then start it with `specdash services start backend`"
        ) from None


def _watching(work: Transaction, edit: Edit) -> EngineSwap:
    """Look at a service that was just restarted, with nothing known of what ran before."""
    service = work.services[edit.role]
    swap = EngineSwap(service, work.env, work.steps, edit.old_digest, work.promise(edit, new=False), None)
    swap.watch_main()
    return swap


def _verify(work: Transaction, edit: Edit, swap: EngineSwap) -> None:
    limit = max(work.journal.health_timeout_s, _PATIENCE_S)
    began = time.monotonic()
    try:
        try:
            engine = swap.until_healthy(limit if edit.before.healthy else min(limit, _SICK_BEFORE_S))
        except StepFailedError:
            if not edit.before.healthy or time.monotonic() - began > limit / 2:
                raise
            # A service that was in the middle of a crash, or whose port was not free yet, gets one whole new start.
            service = work.services[Role.BACKEND]
            restart(work, service, alive=service.status().alive)
            swap = _watching(work, edit)
            engine = swap.until_healthy(limit)
    except SpecdashError as error:
        if not edit.before.healthy:
            work.warn(f"{edit.service} was not healthy before, and is not now: {error}")
            return
        lines = getattr(error, "log_lines", ())
        raise StepFailedError(
            f"the old settings are back in {edit.env_file}, but {edit.service} does not come back with them: {error}; "
            "see `specdash services logs backend`, mend the cause, and start it with `specdash services start backend`",
            lines,
        ) from None
    work.up(swap.first_ok)
    before = edit.before.speculative
    now = steps.speculative(engine.url, work.promise(edit, new=False)) if before is not None else None
    if before is not None and now is not None and now is not before:
        raise StepFailedError(
            f"the old settings are back and {edit.service} is healthy, but it "
            f"{'does not speculate' if before else 'speculates'}, other than before; see its log",
            swap.explained(),
        )


def _proxy(work: Transaction, edit: Edit) -> None:
    """The proxy runs the old version, or is stopped, as before."""
    service = work.services[Role.PROXY]
    if not edit.before.running:
        _stopped(work, edit)
        return
    if in_force(work, edit, new=False) or (Role.PROXY not in work.journal.touched and service.status().alive):
        return
    try:
        bring_proxy(work, edit, new=False)
    except SpecdashError:
        try:
            bring_proxy(work, edit, new=False, may_reload=False)
        except SpecdashError as error:
            raise StepFailedError(
                f"the old settings are back in {edit.env_file}, but {edit.service} does not run with them: {error}; "
                "see `specdash services logs proxy`, and start it with `specdash services start proxy`",
                getattr(error, "log_lines", ()),
            ) from None


@contextmanager
def _collecting(undone: UndoResult) -> Iterator[None]:
    try:
        yield
    except SpecdashError as error:
        undone.problems.append(str(error))
        undone.log_lines += getattr(error, "log_lines", ())


# The end of a transaction: its record, and the journal gone.


def roll_back(work: Transaction, error: BaseException) -> tuple[ApplyRecord, UndoResult]:
    """Undo everything because of `error`, and record that."""
    failed = work.steps.current
    reason = str(error) or type(error).__name__
    lines = tuple(work.scrub(line) for line in getattr(error, "log_lines", ()))
    if work.journal.failed_step is not None:
        # A recovery of an apply that had begun to roll back: the first cause is the one that counts.
        failed, reason, lines = work.journal.failed_step, work.journal.reason, work.journal.log_lines
    work.steps.undoing = True
    work.note_if_possible(failed_step=failed, reason=work.scrub(reason), log_lines=lines)
    try:
        undone = undo(work)
    finally:
        work.open_gate()
    record = _record(work, undone.outcome, reason=_reason(reason, undone), failed_step=failed)
    return record, undone


def conclude(work: Transaction, record: ApplyRecord, *, keep_journal: bool = False) -> ApplyRecord:
    """Append the record and remove the journal. A record that cannot be written becomes a warning: what it tells of is
    done either way."""
    try:
        append_record(applies_file(work.env), record)
    except NotWrittenError as error:
        work.warn(str(error))
        record = replace(record, warnings=tuple(work.warnings))
    if keep_journal:
        # Nobody works on it any more, also while this process lives on.
        work.note_if_possible(pid=0, pid_started=0.0)
    else:
        with contextlib.suppress(OSError):
            work.file.remove()
    return record


def applied(work: Transaction) -> ApplyRecord:
    """The record of an apply that went well."""
    return _record(work, ApplyOutcome.APPLIED)


def _reason(reason: str, undone: UndoResult) -> str:
    return " ".join((f"{reason}; and it could not be undone:", *undone.problems)) if undone.problems else reason


def _record(
    work: Transaction, outcome: ApplyOutcome, *, reason: str = "", failed_step: ApplyStep | None = None
) -> ApplyRecord:
    journal = work.journal
    taken = read_records(applies_file(work.env))
    number = journal.number if all(record.number != journal.number for record in taken) else next_number(taken)
    return ApplyRecord(
        number=number,
        at=journal.at,
        ended_at=time.time(),
        kind=journal.kind,
        outcome=outcome,
        changes=tuple(change.masked for edit in journal.edits for change in edit.changes),
        profile=journal.profile,
        failed_step=failed_step,
        reason=work.scrub(reason),
        log_lines=journal.log_lines if failed_step is not None else (),
        warnings=tuple(work.warnings),
        downtime_s=None if work.downtime_s is None else round(work.downtime_s, 4),
        step_seconds=dict(work.steps.seconds),
        backups={str(edit.role): edit.backup for edit in journal.edits},
        digests=_digests(work),
        url=journal.url,
    )


def _digests(work: Transaction) -> dict[str, str]:
    found = {}
    for edit in work.journal.edits:
        with contextlib.suppress(SpecdashError):
            found[str(edit.role)] = read_env(work.services[edit.role].env_file).digest
    return found


__all__ = ["Journal", "recover", "unfinished"]


def recover(
    deployment: Deployment,
    journal: Journal,
    *,
    finish: bool,
    on_progress: Callable[[ApplyProgress], None],
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
    on_progress: Callable[[ApplyProgress], None],
    env: Mapping[str, str],
) -> ApplyRecord:
    over = _recorded(journal, env)
    if over is not None:
        resume_all(journal.held, env)
        journal_file(env).remove()
        return over
    steps = Steps(on_progress)
    steps.current = journal.failed_step or journal.step
    work = Transaction(deployment, journal, steps, env)
    work.note_if_possible(pid=os.getpid(), pid_started=own_start())
    error: BaseException = StepFailedError(f"specdash was killed at step {journal.step}")
    try:
        if finish and journal.phase is ApplyPhase.APPLYING:
            try:
                return _finish(work)
            except SpecdashError as failed:
                error = failed
        return _back(work, error)
    finally:
        work.open_gate()
        for warning in resume_all(work.journal.held, env):
            work.warn(warning)


def _finish(work: Transaction) -> ApplyRecord:
    forward(work)
    for warning in resume_all(work.journal.held, work.env):
        work.warn(warning)
    with work.steps.step(ApplyStep.RECORD):
        work.note(step=ApplyStep.RECORD)
        work.warn("finished by `specdash recover --finish` after its specdash was killed")
        return conclude(work, applied(work))


def _back(work: Transaction, error: BaseException) -> ApplyRecord:
    record, undone = roll_back(work, error)
    for warning in resume_all(work.journal.held, work.env):
        work.warn(warning)
    return conclude(work, replace(record, kind=ApplyKind.RECOVER), keep_journal=undone.unwritten)


def _recorded(journal: Journal, env: Mapping[str, str]) -> ApplyRecord | None:
    """The record that says that this apply is over, and only its journal was left."""
    for read_record in read_records(applies_file(env)):
        if read_record.number == journal.number and read_record.outcome is not ApplyOutcome.ROLLBACK_FAILED:
            return read_record
    return None
