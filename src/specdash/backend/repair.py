"""What a runner finds at its start that the one before left half-done: old bytes back, holds lifted, a record written.

A change (its journal) and a trial (its note) hold both versions of the env files, so that nothing else is needed. Those
of 0.1 have the same form, and end in the same way.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.backend import trial
from specdash.backend.env_store import read_env
from specdash.backend.journal import (
    ApplyLock,
    HeldProxy,
    Journal,
    append_record,
    journal_file,
    next_number,
    read_records,
)
from specdash.backend.proxy_hold import ProxyHold, held_fronts
from specdash.backend.start_check import healthy
from specdash.backend.transaction import RESTART_SIGNAL, restore_edit, write_edit
from specdash.collect.run_records import live_proxies, started_last
from specdash.core.changes import ApplyKind, ApplyOutcome, Role
from specdash.core.errors import ConflictError, SpecdashError
from specdash.core.paths import applies_file
from specdash.system.data import dataclass
from specdash.system.files import locked
from specdash.system.processes import same_process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.backend.journal import Edit

_HOLD_S = 600.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was found and put back. `lines` are sentences for the log."""

    lines: tuple[str, ...] = ()
    held: tuple[HeldProxy, ...] = ()
    """Proxies that the dead runner held."""
    env: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def resume(self, url: str) -> None:
        """Keep the proxies held until the backend at `url` answers, then let their clients through."""
        hold = ProxyHold(held_fronts(self.held, self.env), "specdash puts the old settings back", _HOLD_S)
        hold.hold()
        deadline = time.monotonic() + _HOLD_S
        while hold.count and not healthy(url) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        hold.resume()


def repair(env_file: str | None, env: Mapping[str, str] = os.environ) -> Repaired:
    """Undo the change and the trial of a dead process on this env file, or on a proxy's alone.

    Never raises: what cannot be undone is in the sentences, and its journal stays for the next start.
    """
    lines: list[str] = []
    held: tuple[HeldProxy, ...] = ()
    file = os.path.realpath(env_file) if env_file is not None else None
    try:
        with ApplyLock("repair", env):
            journal = journal_file(env).read()
            if journal is not None and _concerns(journal, file):
                held = journal.held
                lines += _put_back(journal, env)
            noted = trial.read_trial(env)
            if noted is not None and os.path.realpath(noted.env_file) == file and not noted.alive:
                lines += _end_trial(noted, env)
    except ConflictError:
        # Another process is at it, and will finish it.
        return Repaired()
    except SpecdashError as error:
        lines.append(str(error))
    return Repaired(tuple(lines), held, env)


def _concerns(journal: Journal, file: str | None) -> bool:
    """Whether nothing else will finish it: its process is dead, and it is of this env file or of a proxy's alone."""
    if same_process(journal.pid, journal.pid_started) and journal.pid != os.getpid():
        return False
    backend = journal.edit(Role.BACKEND)
    return backend is None or os.path.realpath(backend.env_file) == file


def _put_back(journal: Journal, env: Mapping[str, str]) -> list[str]:
    path = applies_file(env)
    known = read_records(path)
    over = any(
        record.number == journal.number and record.outcome is not ApplyOutcome.ROLLBACK_FAILED for record in known
    )
    if over:
        # It was recorded, and only its journal is left.
        journal_file(env).remove()
        return []
    problems: list[str] = []
    warnings = list(journal.warnings)
    for edit in journal.edits:
        try:
            _sweep(edit)
            restored = restore_edit(edit)
        except ConflictError as error:
            warnings.append(f"{error}; the version from before is backup {edit.backup} of `specdash env history`")
            continue
        except SpecdashError as error:
            problems.append(str(error))
            continue
        if edit.role is Role.PROXY and (restored or Role.PROXY in journal.touched):
            _signal_proxy(edit, env)
    reason = journal.reason or f"specdash was killed at step {journal.failed_step or journal.step}"
    if problems:
        reason = " ".join((f"{reason}; and it could not be undone:", *problems))
    record = replace(
        journal.record(ApplyOutcome.ROLLBACK_FAILED if problems else ApplyOutcome.ROLLED_BACK),
        number=journal.number if all(record.number != journal.number for record in known) else next_number(known),
        kind=ApplyKind.RECOVER,
        failed_step=journal.failed_step or journal.step,
        reason=reason,
        warnings=tuple(warnings),
    )
    with contextlib.suppress(SpecdashError):
        append_record(path, record)
    if not problems:
        journal_file(env).remove()
    return [f"{journal.words}: {'; '.join(problems) if problems else 'the settings from before are back'}", *warnings]


def _sweep(edit: Edit) -> None:
    """Remove the draft that a killed write left beside the file."""
    directory = read_env(Path(edit.env_file)).target.parent
    if directory.is_dir():
        with locked(directory):
            pass


def _signal_proxy(edit: Edit, env: Mapping[str, str]) -> None:
    """Make the proxy of this env file take the old version over."""
    record = started_last(live_proxies(env), edit.env_file)
    if record is None or record.env_digest == edit.old_digest or (edit.needs_restart and not record.restarts_itself):
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(record.pid, RESTART_SIGNAL if edit.needs_restart else signal.SIGHUP)


def _end_trial(noted: trial.TrialJournal, env: Mapping[str, str]) -> list[str]:
    words = f"`specdash {noted.what}` was cut short while it tried settings"
    try:
        change = trial.way_back(noted, noted.digest)
        for edit in change.edits if change is not None else ():
            write_edit(edit, new=True)
    except ConflictError as error:
        trial.end(env)
        return [f"{words}: {error}"]
    trial.end(env)
    return [f"{words}: the original is back"]
