"""The dashboard's hand on the services: everything it may ask or do, behind one object that knows no screen.

Every method may block (systemctl, files, processes): call it from a thread. `start` alone returns at once.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from specdash.core.changes import Role
from specdash.core.errors import SpecdashError
from specdash.core.structs import Masked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.control.deployment import Deployment, ServiceStatus
    from specdash.control.plan import ApplyPlan
    from specdash.control.profiles import Profile
    from specdash.control.slots import SlotChange, SlotPlan
    from specdash.core.changes import ApplyProgress, ApplyRecord, WantedValues
    from specdash.core.target import Target


class ServiceView(Masked, Struct, frozen=True):
    """One service now. `values` is its env file, `last_good` the env before the last apply that is in force: what
    a rollback goes back to; None when nothing was applied yet. Both hold secrets."""

    hidden = ("values", "last_good")

    role: Role
    manager: str
    status: ServiceStatus
    values: dict[str, str]
    last_good: dict[str, str] | None = None


class ServicesView(Struct, frozen=True):
    """All services. `problems` say why one is missing."""

    services: tuple[ServiceView, ...] = ()
    problems: tuple[str, ...] = ()

    def of(self, role: Role) -> ServiceView | None:
        """The service of a role."""
        return next((service for service in self.services if service.role is role), None)


class RunningApply:
    """An apply in its own thread. Reports and result may be read from any thread at any time."""

    def __init__(
        self, work: Callable[[Callable[[ApplyProgress], None]], ApplyRecord], cancel: Callable[[], bool]
    ) -> None:
        self.reports: list[ApplyProgress] = []
        self.record: ApplyRecord | None = None
        self.error: SpecdashError | None = None
        self._work = work
        self._cancel = cancel
        self._thread = threading.Thread(target=self._run, name="specdash-apply", daemon=False)

    @property
    def busy(self) -> bool:
        """Whether it has not ended yet."""
        return self._thread.is_alive()

    def start(self) -> RunningApply:
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
        self._running: RunningApply | None = None

    def look(self) -> ServicesView:
        """The services as they are now. Raises nothing: what cannot be read is among the problems."""
        from specdash.backend.env_store import read_env

        try:
            deployment = self._find()
        except SpecdashError as error:
            return ServicesView(problems=(str(error),))
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
            if refusal := service.refusal():
                problems.append(refusal)
            last_good = self._last_good(role)
            found.append(ServiceView(role, service.manager(), status, values, last_good))
        return ServicesView(tuple(found), tuple(problems))

    def plan(self, wanted: WantedValues, profile: str | None = None) -> ApplyPlan:
        """What applying would do, with preflight's findings. Raises `SpecdashError`."""
        from specdash.control.plan import plan_apply

        return plan_apply(self._find(), wanted, profile=profile, env=self._env)

    def plan_rollback(self) -> ApplyPlan:
        """What going back to before the last good apply would do. Raises `SpecdashError`."""
        from specdash.control.plan import plan_rollback

        return plan_rollback(self._find(), env=self._env)

    def outlook(self, plan: ApplyPlan) -> dict[str, Any] | None:
        """What clients would feel of the plan now; see `control.change.outlook`."""
        from specdash.control.change import outlook

        return outlook(plan, self._env)

    def start(self, plan: ApplyPlan) -> RunningApply:
        """Apply in a thread. One at a time: raises `SpecdashError` while another of this dashboard runs."""
        from specdash.control.change import Apply
        from specdash.control.plan import ApplyOptions

        if self.busy:
            raise SpecdashError("an apply is running; wait for its end")
        options = ApplyOptions(*self._patience)

        apply = Apply(plan, options, lambda progress: running.reports.append(progress), self._env)
        self._running = running = RunningApply(lambda _: apply.run(), apply.cancel)
        return running.start()

    def profiles(self) -> tuple[Profile, ...]:
        """The named sets, shipped and the user's own."""
        from specdash.control.profiles import all_profiles

        return tuple(all_profiles(self._env))

    @property
    def busy(self) -> bool:
        """Whether an apply of this dashboard runs."""
        return self._running is not None and self._running.busy

    def close(self, timeout: float) -> bool:
        """Cancel a running apply and wait for its rollback; False when it has not ended in time: the runner goes on
        with it."""
        if self._running is None or not self._running.busy:
            return True
        self._running.cancel()
        return self._running.join(timeout)

    def _last_good(self, role: Role) -> dict[str, str] | None:
        from specdash.backend.env_store import Backups
        from specdash.backend.journal import read_records
        from specdash.control.plan import undone_stack
        from specdash.core.envfile import read_values
        from specdash.core.paths import applies_file, backups_dir

        backups = Backups(backups_dir(self._env))
        try:
            in_force = undone_stack(read_records(applies_file(self._env)), backups)
            last = next((record for record in reversed(in_force) if str(role) in record.backups), None)
            if last is None:
                return None
            number = last.backups[str(role)]
            return read_values(backups.read(role, number), f"backup {number} of the {role}'s env")
        except SpecdashError:
            return None


class SlotConsole(Masked, Struct, frozen=True):
    """Changes to the slots of `target()`, as `Console` makes them to services. All methods raise `SpecdashError`."""

    hidden = ("env",)

    target: Callable[[], Target]
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def plan(self, action: str, slot: int, filename: str | None) -> SlotPlan:
        """See `control.slots.plan`; `action` is `save`, `restore` or `erase`."""
        from specdash.control import slots

        return slots.plan(self.target(), slots.SlotAction(action), slot, filename)

    def measure_baseline(self) -> str:
        """Measure decode without speculation in idle slots for some seconds, and keep it; what came of it, in words."""
        from specdash.backend.baseline import measure_unasked
        from specdash.system.text import counted, number

        target = self.target()
        report = measure_unasked(target.url, target.api_key, target.engine, env=self.env)
        if not report.measured:
            return f"decode without speculation was not measured: {'; '.join(report.left_out)}"
        parts = [
            f"{number(baseline.decode_rate, 1)} tok/s (context {baseline.context}, {baseline.concurrency} at once)"
            for baseline in report.measured
        ]
        more = f"; {counted(len(report.left_out), 'case')} left out" if report.left_out else ""
        return f"decode without speculation: {', '.join(parts)}{more}"

    def carry_out(self, plan: SlotPlan) -> SlotChange:
        """See `control.slots.carry_out`."""
        from specdash.control import slots

        return slots.carry_out(plan)
