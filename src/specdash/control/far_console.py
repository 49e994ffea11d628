"""The dashboard's hand on the services of another machine: a `Console` whose every question and deed is done there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specdash.control.console import Console, RunningApply, ServicesView
from specdash.control.far_host import FarCommand, FarHost, recovered
from specdash.control.far_plan import FarPlan, FarProfile, PlanOutline, read_as
from specdash.core.codec import UnreadableError
from specdash.core.errors import SpecdashError, UnreachableError
from specdash.system.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from specdash.control.apply.apply import ApplyPlan
    from specdash.control.profiles import Profile
    from specdash.core.changes import ApplyProgress, ApplyRecord, WantedValues
    from specdash.core.target import SshHost

    Read = TypeVar("Read")


class FarConsole(Console):
    """As `Console`; secrets are masked in what it gives."""

    def __init__(self, host: SshHost, services: Sequence[str] = (), patience: Sequence[str] = ()) -> None:
        """`services` are options that say which services they are there, `patience` those of an apply."""
        self._host = host
        self._services, self._patience_options = tuple(services), tuple(patience)
        self._far = FarHost(host, services)
        self._running = None

    def look(self) -> ServicesView:
        """The services there as they are now; that they cannot be seen is a problem, too."""
        try:
            return self._read(ServicesView, self._far.ask("look"))
        except SpecdashError as error:
            return ServicesView(problems=(str(error),))

    def plan(self, wanted: WantedValues, profile: str | None = None) -> FarPlan:
        """What applying would do there, with the findings of preflight there. Raises `SpecdashError`."""
        answer = self._far.ask("plan", wanted=wanted, profile=profile)
        return self._read(PlanOutline, answer).plan(wanted)

    def plan_rollback(self) -> FarPlan:
        """What going back to before the last good apply would do. Raises `SpecdashError`."""
        return self._read(PlanOutline, self._far.ask("plan_rollback")).plan({})

    def missing_values(self, key: str, values: Mapping[str, str]) -> Mapping[str, str]:
        """See `Console`; none where nobody can be asked."""
        try:
            return self._read(dict[str, str], self._far.ask("missing_values", key=key, values=dict(values)))
        except SpecdashError:
            return {}

    def profiles(self) -> tuple[Profile, ...]:
        """The named sets there. Raises `SpecdashError`."""
        try:
            return tuple(read_as(FarProfile, entry).profile for entry in self._far.ask("profiles"))
        except (ValueError, TypeError):
            raise self._unknown() from None

    def start(self, plan: ApplyPlan) -> RunningApply:
        """Have a plan carried out there. One at a time, as `Console` does."""
        if self.busy:
            raise SpecdashError("an apply is running; wait for its end")
        assert isinstance(plan, FarPlan)  # noqa: S101 - it was made here
        return self._started([*plan.argv, *self._patience_options], plan.input)

    def recover(self, *, finish: bool) -> RunningApply:
        """Finish or roll back there what was cut short."""
        return self._started(["recover", "--yes", "--json", "--finish" if finish else "--rollback"])

    def unfinished(self) -> str | None:
        """In words, what was cut short there; None where there is nothing, or nobody can be asked."""
        try:
            words = self._far.ask("unfinished")
        except SpecdashError:
            return None
        finally:
            # It is asked once, at the start of every dashboard.
            self._far.close()
        return clean(words, 1000) if isinstance(words, str) else None

    def close(self, timeout: float) -> bool:
        """As `Console`; the connection ends, too."""
        ended = super().close(timeout)
        if ended:
            self._far.close()
        return ended

    def _started(self, argv: Sequence[str], given: str = "") -> RunningApply:
        far = FarHost(self._host, self._services)
        command = FarCommand(far, (*argv, *self._services), given)
        self._running = running = RunningApply(lambda report: _record_of(command, far, report), command.cancel)
        return running.start()

    def _read(self, kind: type[Read], answer: Any) -> Read:
        try:
            return read_as(kind, answer)
        except UnreadableError:
            raise self._unknown() from None

    def _unknown(self) -> SpecdashError:
        return UnreachableError(f"the agent on {self._host.name} says what is not known here")


def _record_of(command: FarCommand, far: FarHost, report: Callable[[ApplyProgress], None]) -> ApplyRecord:
    """See a command to its end, and what it recorded. One that was killed there is rolled back there."""

    def lost(why: str) -> None:
        if command.last is not None:
            report(replace(command.last, detail=f"{why}; it goes on there" if why else "connected again"))

    command.is_of_dashboard, command.on_progress, command.on_lost = True, report, lost
    try:
        command.run()
        record = recovered(far, report) if command.unfinished else command.record or command.printed_record
    finally:
        far.close()
    if record is None:
        raise SpecdashError(command.last_words)
    return record
