"""The end of a transaction: its record, and the journal gone."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from specdash.control import faults
from specdash.control.apply_undo import undo
from specdash.control.env_store import read_env
from specdash.control.records import append_record, next_number, read_records
from specdash.core.applies import ApplyKind, ApplyRecord, Outcome, Step, StoredChange
from specdash.core.errors import NotWrittenError, SpecdashError
from specdash.core.paths import applies_file

if TYPE_CHECKING:
    from specdash.control.apply_undo import Undone
    from specdash.control.apply_work import Work
    from specdash.core.changes import KeyChange


def stored(change: KeyChange) -> StoredChange:
    """A change as records keep it."""
    before, after = change.shown
    return StoredChange(str(change.role), change.key, before, after)


def roll_back(work: Work, error: BaseException) -> tuple[ApplyRecord, Undone]:
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


def conclude(work: Work, record: ApplyRecord, *, keep_journal: bool = False) -> ApplyRecord:
    """Append the record and remove the journal. A record that cannot be written becomes a warning: what it tells of is
    done either way."""
    try:
        append_record(applies_file(work.env), record)
    except NotWrittenError as error:
        work.warn(str(error))
        record = _with_warnings(record, work)
    point = faults.ROLLBACK_RECORDED if work.steps.undoing else faults.RECORD_APPENDED
    faults.reach(point)
    if keep_journal:
        # Nobody works on it any more, also while this process lives on.
        work.note_if_possible(pid=0, pid_started=0.0)
    else:
        with contextlib.suppress(OSError):
            work.file.remove()
    return record


def applied(work: Work) -> ApplyRecord:
    """The record of an apply that went well."""
    return _record(work, Outcome.APPLIED)


def _reason(reason: str, undone: Undone) -> str:
    return " ".join((f"{reason}; and it could not be undone:", *undone.problems)) if undone.problems else reason


def _record(work: Work, outcome: Outcome, *, reason: str = "", failed_step: Step | None = None) -> ApplyRecord:
    journal = work.journal
    taken = read_records(applies_file(work.env))
    number = journal.number if all(one.number != journal.number for one in taken) else next_number(taken)
    return ApplyRecord(
        number=number,
        at=journal.at,
        ended_at=time.time(),
        kind=journal.kind,
        outcome=outcome,
        changes=tuple(change for edit in journal.edits for change in edit.changes),
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


def _digests(work: Work) -> dict[str, str]:
    found = {}
    for edit in work.journal.edits:
        with contextlib.suppress(SpecdashError):
            found[str(edit.role)] = read_env(work.services[edit.role].env_file).digest
    return found


def _with_warnings(record: ApplyRecord, work: Work) -> ApplyRecord:
    from dataclasses import replace

    return replace(record, warnings=tuple(work.warnings))


def as_recovery(record: ApplyRecord) -> ApplyRecord:
    """The record of an apply that a recovery undid."""
    from dataclasses import replace

    return replace(record, kind=ApplyKind.RECOVER)
