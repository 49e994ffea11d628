"""The dashboard's hand on the services: everything it may ask or do, behind one object that knows no screen.

Every method may block (systemctl, files, processes): call it from a thread. `start` alone returns at once.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdash.core.changes import ChangeSet, Role
from specdash.core.errors import SpecdashError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.control.apply import ApplyPlan
    from specdash.control.profiles import Profile
    from specdash.control.services import Deployment, ServiceStatus
    from specdash.core.applies import ApplyRecord, Progress


@dataclass(frozen=True, slots=True)
class ServiceView:
    """One service now. `values` is its env file, `last_good` the env before the last apply that is in force: what
    a rollback goes back to; None when nothing was applied yet. Both hold secrets: mask before showing."""

    role: Role
    name: str
    manager: str
    env_file: str
    status: ServiceStatus
    values: Mapping[str, str] = field(repr=False)
    last_good: Mapping[str, str] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ServicesView:
    """All services. `problems` say why one is missing; `unfinished` that an apply was cut short."""

    services: tuple[ServiceView, ...] = ()
    problems: tuple[str, ...] = ()
    unfinished: str | None = None

    def of(self, role: Role) -> ServiceView | None:
        """The service of a role."""
        return next((one for one in self.services if one.role is role), None)


class Running:
    """An apply in its own thread. Reports and result may be read from any thread at any time."""

    def __init__(self, work: Callable[[Callable[[Progress], None]], ApplyRecord], cancel: Callable[[], bool]) -> None:
        self.reports: list[Progress] = []
        self.record: ApplyRecord | None = None
        self.error: SpecdashError | None = None
        self._work = work
        self._cancel = cancel
        self._thread = threading.Thread(target=self._run, name="specdash-apply", daemon=False)

    @property
    def busy(self) -> bool:
        """Whether it has not ended yet."""
        return self._thread.is_alive()

    def start(self) -> Running:
        """Begin."""
        self._thread.start()
        return self

    def cancel(self) -> bool:
        """Roll back and end; returns at once: False when it goes on to its end all the same."""
        return self._cancel()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end; False when it has not come in time."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.record = self._work(self.reports.append)
        except SpecdashError as error:
            self.error = error


class Console:
    """What the tune screen may do. `find` looks the services up; it is asked anew each time."""

    def __init__(
        self,
        find: Callable[[], Deployment],
        *,
        drain_timeout_s: float,
        health_timeout_s: float,
        settle_s: float = 15.0,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        self._find = find
        self._patience = drain_timeout_s, health_timeout_s, settle_s
        self._env = env
        self._running: Running | None = None

    def look(self) -> ServicesView:
        """The services as they are now. Raises nothing: what cannot be read is among the problems."""
        from specdash.control.env_store import read_env

        try:
            deployment = self._find()
        except SpecdashError as error:
            return ServicesView(problems=(str(error),), unfinished=self.unfinished())
        found: list[ServiceView] = []
        problems = list(deployment.problems)
        for role in Role:
            service = deployment.service(role)
            if service is None:
                continue
            try:
                values, status = read_env(service.env_file).values, service.status()
            except SpecdashError as error:
                problems.append(str(error))
                continue
            last_good = self._last_good(role)
            found.append(
                ServiceView(role, service.name, service.manager.kind, str(service.env_file), status, values, last_good)
            )
        return ServicesView(tuple(found), tuple(problems), self.unfinished())

    def plan(self, changes: ChangeSet, profile: str | None = None) -> ApplyPlan:
        """What applying would do, with preflight's findings. Raises `SpecdashError`."""
        from specdash.control.apply import plan_apply

        return plan_apply(self._find(), changes, profile=profile, env=self._env)

    def plan_rollback(self) -> ApplyPlan:
        """What going back to before the last good apply would do. Raises `SpecdashError`."""
        from specdash.control.apply import plan_rollback

        return plan_rollback(self._find(), env=self._env)

    def start(self, plan: ApplyPlan) -> Running:
        """Apply in a thread. One at a time: raises `SpecdashError` while another of this dashboard runs."""
        from specdash.control.apply import Apply, ApplyOptions

        if self.busy:
            raise SpecdashError("an apply is running; wait for its end")
        options = ApplyOptions(*self._patience)

        apply = Apply(plan, options, lambda progress: running.reports.append(progress), self._env)
        self._running = running = Running(lambda _: apply.run(), apply.cancel)
        return running.start()

    def recover(self, *, finish: bool) -> Running:
        """Finish or roll back the apply that was cut short, in a thread; what was left on trial is put back, whatever
        `finish` says. Raises `SpecdashError` when there is neither."""
        from specdash.control.apply import ApplyOptions
        from specdash.control.recover import recover, unfinished
        from specdash.control.trial import abandoned
        from specdash.control.trial_end import restore_abandoned

        journal, trial = unfinished(self._env), abandoned(self._env)
        if journal is None and trial is None:
            raise SpecdashError("no apply was cut short: there is nothing to recover")
        deployment = self._find()

        def work(report: Callable[[Progress], None]) -> ApplyRecord:
            record: ApplyRecord | None = None
            if journal is not None:
                go_on = finish and trial is None
                record = recover(deployment, journal, finish=go_on, on_progress=report, env=self._env)
            if trial is not None:
                record = restore_abandoned(trial, deployment, ApplyOptions(), report, self._env) or record
            if record is None:
                raise SpecdashError("the settings from before the trial are in force: there is nothing to recover")
            return record

        self._running = Running(work, lambda: False)
        return self._running.start()

    def profiles(self) -> tuple[Profile, ...]:
        """The named sets, shipped and the user's own."""
        from specdash.control.profiles import all_profiles

        return tuple(all_profiles(self._env))

    @property
    def busy(self) -> bool:
        """Whether an apply of this dashboard runs."""
        return self._running is not None and self._running.busy

    def close(self, timeout: float) -> bool:
        """Cancel a running apply and wait for its rollback; False when it has not ended in time: its journal stays, and
        the next start offers to recover."""
        if self._running is None or not self._running.busy:
            return True
        self._running.cancel()
        return self._running.join(timeout)

    def unfinished(self) -> str | None:
        """In words, the apply or the trial that was cut short by the death of its specdash; None when there is none."""
        from specdash.control.journal import unfinished
        from specdash.core.paths import trial_file

        with contextlib.suppress(SpecdashError):
            journal = unfinished(self._env)
            if journal is not None:
                return journal.words
            if trial_file(self._env).exists():
                # Every dashboard asks; what reads a trial takes 15 MB to import, and hardly ever is there one.
                from specdash.control.trial import abandoned

                trial = abandoned(self._env)
                return None if trial is None else trial.words
        return None

    def _last_good(self, role: Role) -> Mapping[str, str] | None:
        from specdash.control.apply_plan import undone_stack
        from specdash.control.env_store import Backups
        from specdash.control.records import read_records
        from specdash.core.envfile import read_values
        from specdash.core.paths import applies_file, backups_dir

        backups = Backups(backups_dir(self._env))
        try:
            in_force = undone_stack(read_records(applies_file(self._env)), backups)
            last = next((one for one in reversed(in_force) if str(role) in one.backups), None)
            if last is None:
                return None
            number = last.backups[str(role)]
            return read_values(backups.read(role, number), f"backup {number} of the {role}'s env")
        except SpecdashError:
            return None
