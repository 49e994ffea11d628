"""The end of a trial: the original in force and verified, and its note gone. See `control.trial`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from specdash.control import safe_file, trial
from specdash.control.apply import Apply, ApplyOptions
from specdash.core.applies import Outcome
from specdash.core.errors import ConflictError, ExitCode, SpecdashError
from specdash.core.paths import tune_runs_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.control.apply_plan import ApplyPlan
    from specdash.control.services import Deployment
    from specdash.core.applies import ApplyRecord, Progress

_TRIES = 2


class NotRestoredError(SpecdashError):
    """The service could not be brought back: a person is needed."""

    exit_code = ExitCode.ROLLBACK_FAILED


def restored(
    noted: trial.Trial,
    deployment: Deployment,
    run: Callable[[ApplyPlan], ApplyRecord],
    env: Mapping[str, str] = os.environ,
) -> ApplyRecord | None:
    """Bring the original of a trial back into force, by `run`, and take its note away; the record, None where there was
    nothing to do. Raises `NotRestoredError` when it does not come back, `ConflictError` when somebody else changed the
    env file: that version stays, and the trial is over."""
    reason = ""
    for _ in range(_TRIES):
        try:
            plan = trial.plan_restore(noted, deployment, env)
        except ConflictError:
            trial.end(env)
            raise
        if plan.empty:
            trial.end(env)
            return None
        try:
            record = run(plan)
        except SpecdashError as error:
            reason = str(error)
            continue
        if record.outcome is Outcome.APPLIED:
            trial.end(env)
            return record
        reason = record.reason
    raise NotRestoredError(
        f"{noted.service} does not run the settings from before: {reason}; mend that, then `specdash recover` puts "
        f"them back (backup {noted.backup} of `specdash env history`)"
    )


def restore_abandoned(
    noted: trial.Trial,
    deployment: Deployment,
    options: ApplyOptions,
    on_progress: Callable[[Progress], None],
    env: Mapping[str, str] = os.environ,
) -> ApplyRecord | None:
    """Put back what a dead process left on trial. Raises as `restored`; an apply that was cut short meanwhile must be
    recovered first."""
    mine = trial.adopt(noted, env)
    record = restored(mine, deployment, lambda plan: Apply(plan, options, on_progress, env).run(), env)
    for directory in tune_runs_dir(env).glob("*/"):
        safe_file.sweep(directory)
    return record
