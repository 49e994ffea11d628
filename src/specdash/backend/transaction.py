"""A change of settings in production: the new settings in force and verified, or everything as it was.

`Transaction.run` is the whole of it, from top to bottom, and `undo` is the way back; docs/apply.md describes the steps
and what each failure leaves. It runs in a thread of the runner, which owns the engine; where no backend runs, in the
process that asked.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from specdash.backend.engine_change import EngineChange
from specdash.backend.env_store import Backups, check_writable, read_env
from specdash.backend.journal import (
    append_record,
    apply_lock,
    next_number,
    read_records,
    remove_note,
    unfinished,
    write_note,
)
from specdash.backend.proxies import ProxyChange
from specdash.backend.steps import CancelledApplyError, StepFailedError, Steps
from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, ApplyStep, Role
from specdash.core.errors import ConflictError, NotWrittenError, SpecdashError
from specdash.core.paths import applies_file, apply_journal_file, backups_dir
from specdash.system.processes import own_start
from specdash.system.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdash.backend.journal import Journal
    from specdash.backend.session import BackendSession

_RECORDED = ("number", "at", "kind", "profile", "failed_step", "reason", "log_lines", "warnings")
"""Fields of the record as the journal has them."""
_POLL_S = 0.05
_SETTLE_LOOK_S = 0.25
_ROOM_S = 15.0
"""How long requests may go on upstream before the engine is swapped back."""


class Outcome(Struct, frozen=True):
    """The end of a change. `error` is what stood in the way; `changed` says whether anything was touched meanwhile."""

    record: ApplyRecord
    error: SpecdashError | None = None
    changed: bool = False


class Transaction:
    """One change of the backend's env file, the proxy's, or both."""

    def __init__(
        self,
        wanted: Journal,
        runner: BackendSession | None,
        steps: Steps,
        env: Mapping[str, str] = os.environ,
        *,
        locked: bool = False,
    ) -> None:
        """`wanted` holds the edits and the options; `locked`: the caller holds the lock, for a whole trial."""
        self.steps = steps
        self.journal = replace(wanted, pid=os.getpid(), pid_started=own_start())
        """What is noted of the change, on the disk before anything of it is done."""
        self.env = env
        self.proxies = ProxyChange(self)
        self.engine: EngineChange | None = None
        """None where the backend is not changed, or does not run."""
        self._runner = runner
        self._locked = locked

    def run(self) -> Outcome:
        """Make the change, or put everything back; never raises for what a change can meet.

        Raises `ConflictError` when another change runs, `NotWrittenError` when the lock cannot be made or the change of
        a dead process not be undone, and `InputError` for a journal that cannot be read: nothing was touched then, and
        nothing is recorded.
        """
        with contextlib.ExitStack() as lock:
            try:
                with self.steps.step(ApplyStep.LOCK):
                    if not self._locked:
                        lock.enter_context(apply_lock(f"{self.journal.kind} {self.journal.what}", self.env))
                        # The journal of a dead process is the only one: its change goes back first.
                        if (left := unfinished(self.env)) is not None:
                            self.warn(*undo_dead(left, self.env))
                        if unfinished(self.env) is not None:
                            raise NotWrittenError(f"{self.journal.warnings[-1]}; nothing was changed")
            except CancelledApplyError as error:
                return self.refused(error)
            try:
                with self.steps.step(ApplyStep.PREFLIGHT):
                    self._preflight()
                with self.steps.step(ApplyStep.BACKUP):
                    self._backup()
            except SpecdashError as error:
                remove_note(apply_journal_file(self.env))
                return self.refused(error)
            try:
                self._forward()
                with self._step(ApplyStep.RECORD):
                    self.steps.keep()
                    backend = self.journal.edit(Role.BACKEND)
                    if self.engine is not None and backend is not None and not self.journal.trial:
                        # What was verified is what the next start of the runner falls back to.
                        try:
                            good = Backups(backups_dir(self.env))
                            good.keep_good(Role.BACKEND, Path(backend.env_file), backend.new)
                        except NotWrittenError as error:
                            self.warn(str(error))
                    record = self._conclude(ApplyOutcome.APPLIED)
                    return Outcome(record, changed=True)
            except Exception as error:  # noqa: BLE001 - after any failure everything goes back first
                return self.undo(error)
            finally:
                self.proxies.resume()

    def _preflight(self) -> None:
        """Raises what stands against the change: of the env files as they are, and of what the runner would run."""
        for edit in self.journal.edits:
            now = read_env(Path(edit.env_file))
            if now.data != edit.old or now.exists is not edit.existed:
                raise ConflictError(f"{edit.env_file} was changed since it was read; run the command again")
            check_writable(now)
        backend = self.journal.edit(Role.BACKEND)
        if self._runner is not None and backend is not None:
            self.engine = EngineChange(self, self._runner, backend)
        count = len(self.journal.warnings)
        self.steps.say(counted(count, "warning") if count else "no problems found")

    def _backup(self) -> None:
        """Keep the old bytes, then note on the disk what is going to be done."""
        backups = Backups(backups_dir(self.env))
        edits = tuple(
            replace(edit, backup=backups.save(edit.role, read_env(Path(edit.env_file))).number)
            for edit in self.journal.edits
        )
        if self.engine is not None:
            self.engine.look()
        self.note(
            step=ApplyStep.BACKUP,
            number=next_number(read_records(applies_file(self.env))),
            edits=edits,
            url=self.engine.planned.settings.url if self.engine is not None else None,
        )
        self.steps.say(", ".join(f"{edit.role} backup {edit.backup}" for edit in edits))

    # The way forward.

    def _forward(self) -> None:
        """Every step that touches anything, in its order."""
        engine, proxies, journal = self.engine, self.proxies, self.journal
        proxy = journal.edit(Role.PROXY)
        unheld = "the backend goes on" if journal.edit(Role.BACKEND) is None else "the backend does not run"
        if engine is not None:
            with self._step(ApplyStep.HOLD):
                proxies.hold_clients(engine.urls)
                count = len(proxies.held)
                self.steps.say({0: "no proxy to hold", 1: "1 proxy held"}.get(count, f"{count} proxies held"))
            with self._step(ApplyStep.DRAIN):
                began = time.monotonic()
                proxies.drain()
                engine.drain_direct(journal.drain_timeout_s)
                self.steps.say(f"after {time.monotonic() - began:.1f} s")
        else:
            self.steps.skip(unheld, ApplyStep.HOLD, ApplyStep.DRAIN)
        with self._step(ApplyStep.WRITE):
            for edit in journal.edits:
                before = self.journal.written
                self.note(written=(*before, edit.role))
                try:
                    edit.write()
                except ConflictError:
                    # It does not go back: an edit that others made stays.
                    self.note_if_possible(written=before)
                    raise
            self.steps.say(", ".join(Path(edit.env_file).name for edit in journal.edits))
        if engine is not None:
            with self._step(ApplyStep.RESTART, touched=(Role.BACKEND,)):
                engine.swap(engine.planned)
            with self._step(ApplyStep.HEALTH):
                engine.until_healthy(journal.health_timeout_s, proxies)
            with self._step(ApplyStep.SPECULATION):
                engine.check_speculation()
            with self._step(ApplyStep.PROBE):
                engine.probe()
        elif proxy is not None:
            with self._step(ApplyStep.RESTART, touched=(Role.PROXY,)):
                self.steps.say(f"the proxy {proxies.take_over(proxy, proxy.new_digest)}")
        else:
            self.steps.skip(f"{unheld}: it counts at the next start", ApplyStep.RESTART)
        if engine is None:
            self.steps.skip(unheld, ApplyStep.HEALTH, ApplyStep.SPECULATION, ApplyStep.PROBE)
            proxy = None
        with self._step(ApplyStep.RESUME, touched=self.journal.touched if proxy is None else tuple(Role)):
            if proxy is not None and not proxy.needs_restart:
                proxies.take_over(proxy, proxy.new_digest)
            proxies.resume()
            if proxy is not None and proxy.needs_restart:
                # Only now: requests that wait in the old process must be let through before it ends.
                proxies.take_over(proxy, proxy.new_digest)
            self.steps.say("everything passes again" if engine is not None else "nothing was held")
        asked = proxies.to_ask(engine)
        if isinstance(asked, str):
            self.steps.skip(asked, ApplyStep.REQUEST)
        else:
            with self._step(ApplyStep.REQUEST, asked.url):
                proxies.request(asked, engine)
        if journal.trial:
            self.steps.skip("it is on trial, and measured next", ApplyStep.SETTLE)
        else:
            self._settle(journal.settle_s if self.journal.touched else 0.0)

    def _settle(self, period: float) -> None:
        """Wait for the settle period. Raises `StepFailedError` as soon as what was changed does not go on."""
        engine, proxy = self.engine, self.proxies.record
        with self._step(ApplyStep.SETTLE, f"settling {period:g} s, clients are served"):
            began = time.monotonic()
            while True:
                left = began + period - time.monotonic()
                self.proxies.check_alive(proxy)
                if (engine is None or engine.stands(at_last=left <= 0)) and left <= 0:
                    break
                share = min(1.0, 1 - left / period) if period else None
                self.steps.say(f"settling {max(0.0, left):.0f} s, clients are served", share)
                self.steps.wait(min(_SETTLE_LOOK_S, max(0.01, left)))
            self.steps.say(f"stood for {period:g} s")

    # The way back.

    def undo(self, error: Exception, *, at_start: bool = False) -> Outcome:
        """Put everything back as it was, however far the change got, and record that.

        `at_start` is for the change of a dead process: no engine runs, and the start of the next waits for nothing.
        """
        reason = self.journal.scrub("the runner was stopped" if self._stopping else str(error) or type(error).__name__)
        lines = tuple(self.journal.scrub(line) for line in getattr(error, "log_lines", ()))
        failed, self.steps.undoing = self.steps.current, True
        changed, unwritten = bool(self.journal.touched), False
        self.note_if_possible(failed_step=failed, reason=reason, log_lines=lines)
        problems: list[str] = []
        with self.steps.step(ApplyStep.ROLLBACK, "putting the old settings back"):
            back = []
            for edit in self.journal.edits:
                # A journal of 0.1 does not say what was written.
                if edit.role not in self.journal.written and not at_start:
                    continue
                try:
                    changed |= edit.put_back()
                    back.append(edit.role)
                except ConflictError as conflict:
                    changed = True
                    self.warn(f"{conflict}{'' if at_start else '; what runs is the one from before'}")
                except SpecdashError as wrong:
                    unwritten = True
                    problems.append(f"{wrong}; the next start of the backend tries again (backup {edit.backup})")
            proxy = self.journal.edit(Role.PROXY) if Role.PROXY in back and Role.PROXY in self.journal.touched else None
            # Requests that wait in a proxy must be let through before it ends.
            proxy_first = proxy is not None and (at_start or proxy.needs_restart)
            for role in sorted(Role, reverse=proxy_first):
                try:
                    if role is Role.BACKEND:
                        self._engine_back()
                    elif proxy is not None:
                        if proxy.needs_restart:
                            self.proxies.resume()
                        self.proxies.take_over(proxy, proxy.old_digest, wait=not at_start)
                except SpecdashError as wrong:
                    file = proxy.env_file if proxy is not None and role is Role.PROXY else None
                    back_in = f"the old settings are back in {file}, but the proxy does not run them: "
                    problems.append(f"{back_in if file else ''}{wrong}")
            self.proxies.resume()
            self.steps.say("a person is needed" if problems else "everything is as it was before")
        if problems:
            reason = " ".join((f"{reason}; and it could not be undone:", *problems))
            self.journal = replace(self.journal, reason=self.journal.scrub(reason))
        outcome = ApplyOutcome.ROLLBACK_FAILED if problems else ApplyOutcome.ROLLED_BACK
        record = self._conclude(outcome, keep_journal=unwritten)
        known = error if isinstance(error, SpecdashError) else SpecdashError(f"unexpected {type(error).__name__}")
        return Outcome(record, known, changed)

    def _engine_back(self) -> None:
        """The last good plan runs, and is verified. Raises `SpecdashError`."""
        engine = self.engine
        if engine is None or Role.BACKEND not in self.journal.touched or self._stopping:
            return
        if engine.child.plan is engine.last_good and engine.child.ended is None:
            return
        if not self.proxies.held:
            self.proxies.hold_clients(engine.urls)
            deadline = time.monotonic() + min(_ROOM_S, self.journal.drain_timeout_s)
            while self.proxies.total("active") and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        engine.back(self.proxies)

    @property
    def _stopping(self) -> bool:
        return self._runner is not None and self._runner.stopping

    # Notes and the record.

    def note(self, **changes: Any) -> None:
        """Write down what is about to be done. Raises `NotWrittenError`."""
        self.journal = replace(self.journal, **changes)
        write_note(apply_journal_file(self.env), self.journal)

    def note_if_possible(self, **changes: Any) -> None:
        """The same; a warning where it cannot be written."""
        try:
            self.note(**changes)
        except NotWrittenError as error:
            self.warn(str(error))

    def warn(self, *texts: str) -> None:
        """Add warnings to the record, each once."""
        known = (*self.journal.warnings, *map(self.journal.scrub, texts))
        self.journal = replace(self.journal, warnings=tuple(dict.fromkeys(known)))

    @contextlib.contextmanager
    def _step(self, step: ApplyStep, detail: str = "", **changes: Any) -> Iterator[None]:
        """One step, written down before anything of it is done."""
        with self.steps.step(step, detail):
            self.note(step=step, **changes)
            yield

    def refused(self, error: SpecdashError) -> Outcome:
        """Nothing was touched: record that it was tried."""
        self.journal = replace(
            self.journal,
            number=next_number(read_records(applies_file(self.env))),
            failed_step=self.steps.current,
            reason=self.journal.scrub(str(error)),
        )
        return Outcome(self._conclude(ApplyOutcome.REFUSED), error)

    def _conclude(self, outcome: ApplyOutcome, *, keep_journal: bool = False) -> ApplyRecord:
        """Append the record, with the digests that the env files have now, and remove the journal. A record that cannot
        be written becomes a warning: what it says was done either way. A refusal is without what it would have touched,
        and its journal, if there is one, not its own."""
        self.proxies.resume()
        journal, digests = self.journal, {}
        edits = journal.edits if outcome is not ApplyOutcome.REFUSED else ()
        for edit in edits:
            with contextlib.suppress(SpecdashError):
                digests[str(edit.role)] = read_env(Path(edit.env_file)).digest
        down_s = self.engine.down_s if self.engine is not None else None
        stall_s = self.proxies.longest_stall_s
        known = {name: getattr(journal, name) for name in _RECORDED}
        record = ApplyRecord(
            **known,
            ended_at=time.time(),
            outcome=outcome,
            changes=tuple(change.masked for change in journal.changes),
            downtime_s=None if down_s is None else round(down_s, 4),
            longest_stall_s=None if stall_s is None else round(stall_s, 3),
            step_seconds=dict(self.steps.seconds),
            backups={str(edit.role): edit.backup for edit in edits},
            digests=digests,
            url=journal.url if edits else None,
        )
        try:
            append_record(applies_file(self.env), record)
        except NotWrittenError as error:
            self.warn(str(error))
            record = replace(record, warnings=self.journal.warnings)
        if keep_journal:
            # This process does not work on it any more, although it lives on.
            self.note_if_possible(pid=0, pid_started=0.0)
        elif edits:
            with contextlib.suppress(OSError):
                remove_note(apply_journal_file(self.env))
        return record


def undo_dead(journal: Journal, env: Mapping[str, str]) -> list[str]:
    """Undo the change of a dead process, under the lock; sentences on it. Where that fails, its journal stays."""
    taken = {record.number: record.outcome for record in read_records(applies_file(env))}
    if taken.get(journal.number, ApplyOutcome.ROLLBACK_FAILED) is not ApplyOutcome.ROLLBACK_FAILED:
        # It was recorded, and only its journal is left.
        remove_note(apply_journal_file(env))
        return []
    steps = Steps(lambda _: None)
    steps.current = journal.failed_step or journal.step
    number = max(taken) + 1 if journal.number in taken else journal.number
    reason = journal.reason or f"specdash was killed at step {steps.current}"
    change = Transaction(replace(journal, number=number, kind=ApplyKind.RECOVER), None, steps, env)
    record = change.undo(StepFailedError(reason, journal.log_lines), at_start=True).record
    back = record.outcome is ApplyOutcome.ROLLED_BACK
    return [f"{journal.words}: {'the settings from before are back' if back else record.reason}", *record.warnings]
