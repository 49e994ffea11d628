"""Undoes an apply: the old bytes back, the services running them, and that verified. Never gives up half-way.

Every part is tried whatever became of the part before; what could not be undone is said in words for the operator.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.control import faults, verify
from specdash.control.apply_forward import write_edit
from specdash.control.apply_services import bring_proxy, in_force, restart, start_backend, stop
from specdash.control.apply_steps import StepFailedError
from specdash.control.apply_wait import Passage
from specdash.control.env_store import read_env
from specdash.control.journal import Phase
from specdash.control.safe_file import locked
from specdash.core.applies import Outcome, Step
from specdash.core.changes import Role
from specdash.core.errors import ConflictError, SpecdashError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdash.control.apply_work import Work
    from specdash.control.journal import JournalEdit

_DRAIN_S = 15.0
_WRITE_TRIES = 5
_TRIES_APART_S = 0.3
_PATIENCE_S = 120.0
"""How long the old version may take at least: the patience with the new one may have been short on purpose."""
_SICK_BEFORE_S = 20.0
"""How long a service is waited for that was not healthy before either."""


@dataclass(slots=True)
class Undone:
    """How it went. `problems` are what a person must still do; `unwritten` that old bytes could not be put back."""

    problems: list[str] = field(default_factory=list)
    unwritten: bool = False
    log_lines: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """What the record says."""
        return Outcome.ROLLBACK_FAILED if self.problems else Outcome.ROLLED_BACK


def undo(work: Work) -> Undone:
    """Bring everything back to how the journal says it was."""
    undone = Undone()
    work.steps.undoing = True
    with work.steps.step(Step.ROLLBACK, "putting the old settings back"):
        work.note_if_possible(phase=Phase.ROLLING_BACK)
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
                work.note_if_possible(step=Step.ROLLBACK)
        faults.reach(faults.ROLLBACK_VERIFIED)
        # A proxy that must be restarted has to let its waiting requests through first.
        if proxy is None or proxy.needs_restart:
            work.open_gate()
        if proxy is not None and not ended and proxy in kept:
            with _collecting(undone):
                _proxy(work, proxy)
        work.open_gate()
        faults.reach(faults.ROLLBACK_RESUMED)
        work.steps.say("a person is needed" if undone.problems else "everything is as it was before")
    return undone


def _restore_files(work: Work, undone: Undone) -> list[JournalEdit]:
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
        faults.reach(faults.ROLLBACK_WRITTEN)
    return kept


def _restore(edit: JournalEdit) -> None:
    for attempt in range(_WRITE_TRIES):
        try:
            write_edit(edit, new=False, point=faults.ROLLBACK_TEMP)
        except ConflictError:
            raise
        except SpecdashError:
            if attempt == _WRITE_TRIES - 1:
                raise
            time.sleep(_TRIES_APART_S)
        else:
            return


def _sweep(edit: JournalEdit) -> None:
    """What a killed write left beside the file goes with the next look at its directory."""
    directory = read_env(Path(edit.env_file)).target.parent
    if directory.is_dir():
        with locked(directory):
            pass


def _backend(work: Work, edit: JournalEdit) -> None:
    """The backend runs the old version, or is stopped, as before."""
    service = work.services[Role.BACKEND]
    if not edit.before.running:
        if service.status().alive:
            stop(work, service)
        return
    if not work.unsettled and _as_before(work, edit):
        work.steps.say(f"{service.name} runs the old settings")
        return
    _make_room(work)
    passage = _started(work, edit)
    faults.reach(faults.ROLLBACK_RESTARTED)
    _verify(work, edit, passage)


def _as_before(work: Work, edit: JournalEdit) -> bool:
    """Whether the old version runs already, and is well: nothing was restarted yet, or an earlier recovery did it."""
    engine = work.engine(edit)
    if engine is None:
        return False
    if engine.digest is not None and in_force(work, edit, new=False):
        return verify.healthy(engine.url)
    if Role.BACKEND in work.journal.touched:
        return False
    # Not asked to restart yet: the same process is proof enough, where no record tells the version.
    same = engine.pid == edit.before.engine_pid
    return same and (engine.digest is None or engine.digest == edit.before.digest)


def _make_room(work: Work) -> None:
    """Nobody is to be cut off by the second restart either."""
    if work.gate is not None:
        return
    work.close_gate()
    deadline = time.monotonic() + min(_DRAIN_S, work.journal.drain_timeout_s)
    while work.requests() and time.monotonic() < deadline:
        time.sleep(_TRIES_APART_S / 3)


def _started(work: Work, edit: JournalEdit) -> Passage:
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


def _watching(work: Work, edit: JournalEdit) -> Passage:
    """Look at a service that was just restarted, with nothing known of what ran before."""
    service = work.services[edit.role]
    passage = Passage(service, work.env, work.steps, edit.old_digest, work.promise(edit, new=False), None)
    passage.watch_main()
    return passage


def _verify(work: Work, edit: JournalEdit, passage: Passage) -> None:
    limit = max(work.journal.health_timeout_s, _PATIENCE_S)
    began = time.monotonic()
    try:
        try:
            engine = passage.until_healthy(limit if edit.before.healthy else min(limit, _SICK_BEFORE_S))
        except StepFailedError:
            if not edit.before.healthy or time.monotonic() - began > limit / 2:
                raise
            # A service that was in the middle of a crash, or whose port was not free yet, gets one whole new start.
            service = work.services[Role.BACKEND]
            restart(work, service, alive=service.status().alive)
            passage = _watching(work, edit)
            engine = passage.until_healthy(limit)
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
    work.up(passage.first_ok)
    before = edit.before.speculative
    now = verify.speculative(engine.url, work.promise(edit, new=False)) if before is not None else None
    if before is not None and now is not None and now is not before:
        raise StepFailedError(
            f"the old settings are back and {edit.service} is healthy, but it "
            f"{'does not speculate' if before else 'speculates'}, other than before; see its log",
            passage.explained(),
        )


def _proxy(work: Work, edit: JournalEdit) -> None:
    """The proxy runs the old version, or is stopped, as before."""
    service = work.services[Role.PROXY]
    if not edit.before.running:
        if service.status().alive:
            stop(work, service)
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
def _collecting(undone: Undone) -> Iterator[None]:
    try:
        yield
    except SpecdashError as error:
        undone.problems.append(str(error))
        undone.log_lines += getattr(error, "log_lines", ())
