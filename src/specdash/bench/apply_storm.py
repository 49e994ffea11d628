"""The apply storm: one apply after the other, good, bad and crashing ones mixed, while clients never stop asking.

It passes when no client saw an error, every apply ended as it must, and the env files are, byte for byte, those of the
last good apply.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdash.bench.clients import Clients, RequestSeen
from specdash.core.applies import Outcome
from specdash.core.changes import Role
from specdash.core.errors import RefusedError, SpecdashError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from specdash.bench.storm_cases import Case
    from specdash.control.apply import ApplyOptions
    from specdash.control.services import Deployment

WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One apply. `fault` says in one line how it differs from what it must be, None when it does not; times are
    seconds."""

    number: int
    name: str
    outcome: Outcome | None
    duration_s: float
    downtime_s: float | None = None
    engine_load_s: float | None = None
    failed_step: str | None = None
    fault: str | None = None

    @property
    def overhead_s(self) -> float | None:
        """Downtime beyond what the engine itself needed to load."""
        if self.downtime_s is None or self.engine_load_s is None:
            return None
        return self.downtime_s - self.engine_load_s


@dataclass(frozen=True, slots=True)
class StormReport:
    """All of it."""

    manager: str
    engine: str
    attempts: tuple[Attempt, ...]
    requests: tuple[RequestSeen, ...]

    @property
    def errors(self) -> tuple[RequestSeen, ...]:
        """Requests that failed."""
        return tuple(one for one in self.requests if one.error is not None)

    @property
    def passed(self) -> bool:
        """Whether nothing at all went wrong."""
        return bool(self.requests) and not self.errors and all(one.fault is None for one in self.attempts)

    def of(self, outcome: Outcome) -> tuple[Attempt, ...]:
        """The attempts that ended so."""
        return tuple(one for one in self.attempts if one.outcome is outcome)

    def spread(self, values: Sequence[float]) -> dict[str, float | None]:
        """Median and largest."""
        return {"p50": statistics.median(values) if values else None, "max": max(values, default=None)}

    def as_json(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        applied = self.of(Outcome.APPLIED)
        swaps = [one for one in applied if one.downtime_s is not None]
        return {
            "passed": self.passed,
            "manager": self.manager,
            "engine": self.engine,
            "applies": len(self.attempts),
            "outcomes": {str(kind): len(self.of(kind)) for kind in Outcome},
            "requests": len(self.requests),
            "errors": [{"way": one.way, "at": one.at, "error": one.error} for one in self.errors],
            "downtime_s": self.spread([one.downtime_s for one in swaps if one.downtime_s is not None]),
            "engine_load_s": self.spread([one.engine_load_s for one in swaps if one.engine_load_s is not None]),
            "overhead_s": self.spread([one.overhead_s for one in swaps if one.overhead_s is not None]),
            "longest_request_s": max((one.duration_s for one in self.requests), default=None),
            "attempts": [
                {
                    "number": one.number,
                    "case": one.name,
                    "outcome": str(one.outcome) if one.outcome else None,
                    "failed_step": one.failed_step,
                    "duration_s": one.duration_s,
                    "downtime_s": one.downtime_s,
                    "engine_load_s": one.engine_load_s,
                    "fault": one.fault,
                }
                for one in self.attempts
            ],
        }


def storm(
    deployment: Deployment,
    proxy_url: str,
    cases: Iterator[Case],
    applies: int,
    clients: int,
    options: ApplyOptions,
    env: Mapping[str, str],
    *,
    engine: str = "",
    on_attempt: Callable[[Attempt], None] | None = None,
) -> StormReport:
    """Apply `applies` cases in a row while `clients` clients ask through the proxy at `proxy_url`."""
    attempts: list[Attempt] = []
    with Clients(proxy_url, clients) as load:
        time.sleep(WARM_UP_S)
        for number in range(1, applies + 1):
            attempts.append(_attempt(number, next(cases), deployment, options, env))
            if on_attempt is not None:
                on_attempt(attempts[-1])
        time.sleep(WARM_UP_S)
    manager = deployment.backend.manager.kind if deployment.backend is not None else ""
    return StormReport(manager, engine, tuple(attempts), tuple(load.seen))


def _attempt(number: int, case: Case, deployment: Deployment, options: ApplyOptions, env: Mapping[str, str]) -> Attempt:
    from specdash.control.apply import Apply, plan_apply

    before = _files(deployment)
    started = time.perf_counter()
    try:
        plan = plan_apply(deployment, case.changes, env=env)
        if plan.empty:
            return Attempt(number, f"{case.name} (as it is)", case.outcome, time.perf_counter() - started)
        wanted = before | {edit.role: edit.data for edit in plan.edits}
        record = Apply(plan, options, lambda _: None, env).run()
    except RefusedError:
        return _judged(
            case, Attempt(number, case.name, Outcome.REFUSED, time.perf_counter() - started), deployment, before
        )
    except SpecdashError as error:
        return Attempt(number, case.name, None, time.perf_counter() - started, fault=str(error))
    attempt = Attempt(
        number,
        case.name,
        record.outcome,
        time.perf_counter() - started,
        record.downtime_s,
        record.step_seconds.get("engine load"),
        str(record.failed_step) if record.failed_step else None,
    )
    return _judged(case, attempt, deployment, wanted if record.outcome is Outcome.APPLIED else before, record.reason)


def _judged(
    case: Case, attempt: Attempt, deployment: Deployment, expected: Mapping[Role, bytes], reason: str = ""
) -> Attempt:
    from dataclasses import replace

    if attempt.outcome is not case.outcome:
        return replace(attempt, fault=f"ended {attempt.outcome}, must be {case.outcome}: {reason}")
    if _files(deployment) != expected:
        return replace(attempt, fault=f"{attempt.outcome}, and the env file is not what it must be")
    return attempt


def _files(deployment: Deployment) -> dict[Role, bytes]:
    services = ((role, deployment.service(role)) for role in Role)
    return {role: service.env_file.read_bytes() for role, service in services if service is not None}
