"""The vocabulary of an apply: its steps, what it reports on the way, and the record it leaves.

Records are one JSON object a line in `paths.applies_file`, mode 0600; secrets are masked before they get there.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Step(StrEnum):
    """The steps of the transaction, in their order. `ROLLBACK` stands for all of undoing."""

    LOCK = "lock"
    PREFLIGHT = "preflight"
    BACKUP = "backup"
    HOLD = "hold"
    DRAIN = "drain"
    WRITE = "write"
    RESTART = "restart"
    HEALTH = "health"
    SPECULATION = "speculation"
    PROBE = "probe"
    RESUME = "resume"
    REQUEST = "request"
    SETTLE = "settle"
    RECORD = "record"
    ROLLBACK = "rollback"


STEPS = tuple(step for step in Step if step is not Step.ROLLBACK)
"""The steps of an apply that goes well."""


class StepState(StrEnum):
    """How a step stands."""

    RUNNING = "running"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Progress:
    """One report of a running apply. `fraction` is 0 to 1 where it is known (loading); `seconds` the step's time so
    far, or in all once it is no longer running."""

    step: Step
    state: StepState
    detail: str = ""
    fraction: float | None = None
    seconds: float = 0.0


class Outcome(StrEnum):
    """How an apply ended."""

    APPLIED = "applied"
    ROLLED_BACK = "rolled back"
    """It failed, and everything is as it was before."""
    ROLLBACK_FAILED = "rollback failed"
    """It failed, and so did undoing it: a person is needed."""
    REFUSED = "refused"
    """Nothing was touched."""


class ApplyKind(StrEnum):
    """What asked for the change."""

    APPLY = "apply"
    ROLLBACK = "rollback"
    RECOVER = "recover"


@dataclass(frozen=True, slots=True)
class StoredChange:
    """One key as records keep it: secrets masked, None for a key that is not set."""

    role: str
    key: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class ApplyRecord:
    """One finished apply. Times are Unix times in seconds, durations seconds."""

    number: int
    """Counts from 1; `specdash rollback N` goes back to before apply N."""
    at: float
    ended_at: float
    kind: ApplyKind
    outcome: Outcome
    changes: tuple[StoredChange, ...] = ()
    profile: str | None = None
    failed_step: Step | None = None
    reason: str = ""
    """Why it failed, one line."""
    log_lines: tuple[str, ...] = ()
    """The lines of the service's log that show why."""
    warnings: tuple[str, ...] = ()
    downtime_s: float | None = None
    """How long the backend did not answer; None when it never stopped."""
    step_seconds: dict[str, float] = field(default_factory=dict)
    backups: dict[str, int] = field(default_factory=dict)
    """Per service, the number of the backup that holds the env as it was before."""
    digests: dict[str, str] = field(default_factory=dict)
    """Per service, the SHA-256 of the env file after the apply."""
    url: str | None = None
    """Base address of the backend that was changed."""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ApplyRecord | None:
        """The record, or None when the line is not one (half-written, or from another version)."""
        try:
            data: Any = json.loads(text)
            failed = data.get("failed_step")
            return cls(
                number=int(data["number"]),
                at=float(data["at"]),
                ended_at=float(data["ended_at"]),
                kind=ApplyKind(data["kind"]),
                outcome=Outcome(data["outcome"]),
                changes=tuple(
                    StoredChange(str(one["role"]), str(one["key"]), one.get("before"), one.get("after"))
                    for one in data.get("changes", ())
                ),
                profile=data.get("profile"),
                failed_step=Step(failed) if failed else None,
                reason=str(data.get("reason", "")),
                log_lines=tuple(str(line) for line in data.get("log_lines", ())),
                warnings=tuple(str(line) for line in data.get("warnings", ())),
                downtime_s=data.get("downtime_s"),
                step_seconds={str(k): float(v) for k, v in data.get("step_seconds", {}).items()},
                backups={str(k): int(v) for k, v in data.get("backups", {}).items()},
                digests={str(k): str(v) for k, v in data.get("digests", {}).items()},
                url=data.get("url"),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None
