"""The dashboard's hand on the services: everything it may ask or do, behind one object that knows no screen.

Every method may block (systemctl, files, processes): call it from a thread. `start` alone returns at once.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from specdash.core.errors import SpecdashError
from specdash.core.structs import Masked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.control.deployment import Deployment, ServiceStatus
    from specdash.control.plan import ApplyPlan
    from specdash.control.profiles import Profile
    from specdash.control.slots import SlotChange, SlotPlan
    from specdash.core.changes import ApplyProgress, ApplyRecord, Role, WantedValues
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


class RunningApply(threading.Thread):
    """An apply in its own thread, from the beginning. Reports and result may be read from any thread at any time."""

    def __init__(
        self, work: Callable[[], ApplyRecord], cancel: Callable[[], bool], reports: list[ApplyProgress]
    ) -> None:
        super().__init__(name="specdash-apply", daemon=False)
        self.cancel = cancel
        """Roll back and end; returns at once: False when it goes on to its end all the same."""
        self.reports = reports
        self.record: ApplyRecord | None = None
        self.error: SpecdashError | None = None
        self._work = work
        self.start()

    def run(self) -> None:
        """The thread."""
        try:
            self.record = self._work()
        except SpecdashError as error:
            self.error = error


class Console:
    """What the tune screen may do. `find` looks the services up, each time; `patience` is that of `ApplyOptions`."""

    def __init__(self, find: Callable[[], Deployment], env: Mapping[str, str] = os.environ, **patience: Any) -> None:
        self._find = find
        self._patience = patience
        self._env = env
        self._running: RunningApply | None = None

    def look(self) -> ServicesView:
        """The services as they are now. Raises nothing: what cannot be read is among the problems."""
        from specdash.backend.env_store import read_env
        from specdash.control.plan import before_last_apply

        try:
            deployment = self._find()
        except SpecdashError as error:
            return ServicesView(problems=(str(error),))
        found: list[ServiceView] = []
        problems = [f"{role}: {why}" for role, why in deployment.missing.items()]
        for service in filter(None, (deployment.backend, deployment.proxy)):
            try:
                values = read_env(service.env_file).values
            except SpecdashError as error:
                problems.append(str(error))
                continue
            problems += filter(None, [service.refusal()])
            last_good = before_last_apply(service.role, self._env)
            found.append(ServiceView(service.role, service.manager(), service.status(), values, last_good))
        return ServicesView(tuple(found), tuple(problems))

    def plan(self, wanted: WantedValues, profile: str | None = None) -> ApplyPlan:
        """What applying would do, with preflight's findings. Raises `SpecdashError`."""
        from specdash.control.plan import plan_apply

        return plan_apply(self._find(), wanted, profile=profile, env=self._env)

    def plan_rollback(self) -> ApplyPlan:
        """What going back to before the last good apply would do. Raises `SpecdashError`."""
        from specdash.control.plan import plan_rollback

        return plan_rollback(self._find(), env=self._env)

    def start(self, plan: ApplyPlan) -> RunningApply:
        """Apply in a thread. One at a time: raises `SpecdashError` while another of this dashboard runs."""
        from specdash.control.change import Apply
        from specdash.control.plan import ApplyOptions

        if self.busy:
            raise SpecdashError("an apply is running; wait for its end")
        reports: list[ApplyProgress] = []
        apply = Apply(plan, ApplyOptions(**self._patience), reports.append, self._env)
        self._running = RunningApply(apply.run, apply.cancel, reports)
        return self._running

    def profiles(self) -> tuple[Profile, ...]:
        """The named sets, shipped and the user's own, that can be applied."""
        from specdash.control.profiles import all_profiles

        return tuple(profile for profile in all_profiles(self._env) if not profile.broken)

    @property
    def busy(self) -> bool:
        """Whether an apply of this dashboard runs."""
        return self._running is not None and self._running.is_alive()

    def close(self, timeout: float) -> bool:
        """Cancel a running apply and wait for its rollback; False when it has not ended in time: the runner goes on
        with it."""
        if self._running is not None and self.busy:
            self._running.cancel()
            self._running.join(timeout)
        return not self.busy


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
        from specdash.system.text import number

        target = self.target()
        report = measure_unasked(target.url, target.api_key, target.engine, env=self.env)
        measured = ", ".join(
            f"{number(baseline.decode_rate, 1)} tok/s (context {baseline.context}, {baseline.concurrency} at once)"
            for baseline in report.measured
        )
        left_out = "".join(f"; left out: {why}" for why in report.left_out)
        return f"decode without speculation: {measured or 'not measured'}{left_out}"

    def carry_out(self, plan: SlotPlan) -> SlotChange:
        """See `control.slots.carry_out`."""
        from specdash.control import slots

        return slots.carry_out(plan)
