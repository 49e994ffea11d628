"""Where configurations are tried: the service itself, through applies, or an engine beside it. See `samples.Bed`.

However a trial ends, the service ends as it was before the first: a trial is a connection to the runner, which
puts the original back as soon as it ends, also by `kill -9`.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.backend.auto import settings_of
from specdash.backend.env_store import read_env
from specdash.bench.load.samples import BootFailedError, EngineAddress
from specdash.control.change import Apply, Trial
from specdash.control.deployment import start_command
from specdash.control.plan import ApplyOptions, service_of
from specdash.core.changes import ApplyOutcome, ApplyStep, Role
from specdash.core.errors import ConflictError, ExitCode, ServiceError, SpecdashError, errors
from specdash.core.records import Drafting
from specdash.llama.start_failures import out_of_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from specdash.backend.launch import LaunchPlan
    from specdash.control.deployment import Deployment
    from specdash.control.plan import ApplyPlan
    from specdash.core.changes import ApplyProgress, ApplyRecord

    Guard = Callable[[Any], AbstractContextManager[object]]
    """What is around an apply of a trial: signals that cancel it, and end nothing once it undoes."""

_OWN_FAULT = (
    ApplyStep.PREFLIGHT,
    ApplyStep.RESTART,
    ApplyStep.HEALTH,
    ApplyStep.SPECULATION,
    ApplyStep.PROBE,
    ApplyStep.REQUEST,
    ApplyStep.SETTLE,
)
"""The steps at which an apply fails because of what it applies."""
_START_S = 600.0
_NOTICED_S = 0.5
"""From the note of a trial to its first restart: dashboards look for it more often than that, and know whose it is."""


class NotRestoredError(SpecdashError):
    """The service could not be brought back: a person is needed."""

    exit_code = ExitCode.ROLLBACK_FAILED


class ServiceBed:
    """Configurations on the real service, one apply each; clients that come through the proxy wait meanwhile.

    Every boot is a restart, also of what runs already. Not for several threads.
    """

    def __init__(
        self,
        deployment: Deployment,
        options: ApplyOptions | None = None,
        on_progress: Callable[[ApplyProgress], None] = lambda _: None,
        env: Mapping[str, str] = os.environ,
        *,
        what: str = "bench",
        guard: Guard = lambda _: nullcontext(),
        restore_guard: Guard = lambda _: nullcontext(),
    ) -> None:
        """`what` is the command, named while the service is on trial. Nothing is touched before the first boot."""
        self._deployment = deployment
        self._options = options or ApplyOptions()
        self._on_progress = on_progress
        self._env = env
        self._what = what
        self._guard = guard
        self._restore_guard = restore_guard
        self._trial: Trial | None = None
        self._step: tuple[int | None, int | None] = (None, None)
        self.records: list[ApplyRecord] = []
        """The applies so far, those that failed and the one that restored too."""

    @property
    def values(self) -> dict[str, str]:
        """The settings over which configurations are laid: the service's own. Holds secrets."""
        if self._trial is not None:
            return self._trial.original.file.values
        return read_env(service_of(self._deployment, Role.BACKEND).env_file).values

    @property
    def file(self) -> str:
        return str(service_of(self._deployment, Role.BACKEND).env_file)

    @property
    def words(self) -> str:
        service = service_of(self._deployment, Role.BACKEND)
        return f"the service {service.name}"

    def check(self) -> None:
        """Raise `SpecdashError` where no trial can be made: no service, not running, another apply or trial."""
        service = service_of(self._deployment, Role.BACKEND)
        if not service.status().alive:
            raise ServiceError(
                f"{service.name} does not run, so it could not be put back as it is; start it with "
                f"`{start_command(Role.BACKEND, service.env_file, service.env)}`, or leave --service out"
            )

    @contextmanager
    def boot(self, configuration: Mapping[str, str]) -> Iterator[EngineAddress]:
        """See `samples.Bed`. What was booted goes on serving until the next boot, or until `restore`."""
        if self._trial is None:
            self.check()
            self._trial = Trial(self._deployment, self._what, self._env)
            time.sleep(_NOTICED_S)
        self._trial.boot, self._trial.planned = self._step
        try:
            plan = self._trial.plan(configuration)
        except ConflictError:
            self._trial.connection.close()
            self._trial = None
            raise
        if plan.refused:
            from specdash.backend.rules.machine import MEMORY_RULES

            refusals = errors(plan.findings)
            short = any(refusal.rule in MEMORY_RULES for refusal in refusals)
            raise BootFailedError("; ".join(refusal.line for refusal in refusals), out_of_memory=short)
        self._judge(*self._run(plan))
        yield self._place()

    def announce(self, number: int | None, planned: int | None = None) -> None:
        """See `samples.Bed`. Dashboards on the service show it."""
        self._step = number, planned

    def restore(self) -> None:
        """Put the original back, and verify it. Raises `NotRestoredError` when it does not come back, `ConflictError`
        when the env file was edited meanwhile, which is left as it is then."""
        on_trial, self._trial = self._trial, None
        if on_trial is None:
            return
        with self._restore_guard(None):
            record = on_trial.end()
        if record is None:
            return
        self.records.append(record)
        if record.outcome is not ApplyOutcome.APPLIED:
            raise NotRestoredError(
                f"the service does not run the settings from before: {record.reason}; mend that, and restart it"
            )

    def _run(self, plan: ApplyPlan) -> tuple[ApplyRecord, Apply]:
        apply = Apply(plan, self._options, self._on_progress, self._env, trial=self._trial)
        with self._guard(apply):
            record = apply.run()
            self.records.append(record)
        return record, apply

    def _judge(self, record: ApplyRecord, apply: Apply) -> None:
        """Raise what an apply that did not go well means, or that someone asked for the end meanwhile."""
        if record.outcome is ApplyOutcome.ROLLBACK_FAILED:
            raise NotRestoredError(record.reason)
        if apply.cancelled:
            # Also where it came too late for this apply: the trial goes on with nothing.
            raise KeyboardInterrupt
        if record.outcome is ApplyOutcome.APPLIED:
            return
        error = apply.error
        if record.failed_step in _OWN_FAULT and not isinstance(error, ConflictError):
            lines = f" ({'; '.join(record.log_lines[-2:])})" if record.log_lines else ""
            raise BootFailedError(f"{record.reason}{lines}", out_of_memory=out_of_memory(record.log_lines))
        raise error or SpecdashError(record.reason)

    def _place(self) -> EngineAddress:
        from specdash.backend.start_check import server_key

        service = service_of(self._deployment, Role.BACKEND)
        settings, engine = settings_of(read_env(service.env_file).values, self._env), service.record()
        url, log = (engine.url, engine.log) if engine is not None else (settings.url, settings.log_path(self._env))
        return EngineAddress(url, server_key(settings), log=log)


class OwnBed:
    """Engines of our own, one at a time, from the settings of an env file; nothing of them is left afterwards."""

    def __init__(
        self,
        env_file: str,
        directory: Path,
        *,
        engine: str | None = None,
        force: bool = False,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        """Logs go into `directory`. `force` leaves out the question whether memory suffices. Raises `InputError` for
        an env file that cannot be read."""
        from specdash.backend.launch import read_env_file

        self.values: dict[str, str] = read_env_file(env_file)
        """The settings over which configurations are laid. Holds secrets."""
        self.file = env_file
        self._directory = directory
        self._engine = engine
        self._force = force
        self._env = env
        self._boots = 0

    @property
    def words(self) -> str:
        return f"engines of our own from {self.file}"

    @contextmanager
    def boot(self, configuration: Mapping[str, str]) -> Iterator[EngineAddress]:
        """See `samples.Bed`. The engine ends with the context; one that crashes meanwhile is a `BootFailedError`."""
        from specdash.bench.engines import own_engine

        self._boots += 1
        plan = self._planned(configuration)
        log = Path(plan.log)
        is_up = False
        try:
            with own_engine(plan, start_s=_START_S, name="the engine") as place:
                self._check_drafting(plan)
                is_up = True
                try:
                    yield place
                except SpecdashError as error:
                    raise _FromInsideError(error) from error
        except _FromInsideError as inside:
            raise inside.error from None
        except SpecdashError as error:
            # `own_engine` says so of an engine that ended by itself.
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else ()
            raise BootFailedError(str(error), out_of_memory=out_of_memory(lines)) from None
        finally:
            if is_up:
                log.unlink(missing_ok=True)

    def _check_drafting(self, plan: LaunchPlan) -> None:
        from specdash.backend.start_check import check_start
        from specdash.bench.engines import last_words

        found = check_start(plan.settings, list, probe=False)
        if found.drafting is Drafting.FAILED:
            raise SpecdashError(f"{found.because}: {last_words(plan.log)}")

    def announce(self, number: int | None, planned: int | None = None) -> None:
        """No one watches an engine of our own."""

    def restore(self) -> None:
        """Nothing was changed."""

    def _planned(self, configuration: Mapping[str, str]) -> LaunchPlan:
        from specdash.bench.engines import memory_problem, plan_beside

        values = laid_over(self.values, configuration)
        log = self._directory / f"engine-{self._boots}.log"
        try:
            plan = plan_beside(values, self.file, log, "bench", engine=self._engine, env=self._env, metrics=True)
        except SpecdashError as error:
            raise BootFailedError(str(error)) from None
        problem = None if self._force else memory_problem(values, self._env)
        if problem is not None:
            words = f"it does not fit beside what runs now: {problem}; --force tries it all the same"
            raise BootFailedError(words, out_of_memory=True)
        return plan


class _FromInsideError(SpecdashError):
    """Carries an error of anyone who uses the place past `own_engine`."""

    def __init__(self, error: SpecdashError) -> None:
        super().__init__(str(error))
        self.error = error


def laid_over(values: Mapping[str, str], configuration: Mapping[str, str]) -> dict[str, str]:
    """The settings with the configuration over them; an empty value unsets a key."""
    return {key: value for key, value in {**values, **configuration}.items() if value != "" or key not in configuration}
