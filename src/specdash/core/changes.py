"""Changes of the services' settings, as data: what is wanted of which service, and what that makes other."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct, field

from specdash.core.errors import UsageError
from specdash.core.masking import MASK, without_secrets
from specdash.core.parameter_catalogue import BY_KEY as BACKEND_KEYS
from specdash.core.parameter_catalogue import PASSED_ON
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS
from specdash.core.records import JsonRecord
from specdash.core.structs import Masked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    WantedValues: TypeAlias = "Mapping[Role, Mapping[str, str | None]]"
    """What shall be set: per service, key to value; None removes the key."""


_SECRET = re.compile(r"(?:(?:KEY|TOKEN|CREDENTIAL)S?|SECRET|PASSWORD|PASSWD|OTLP_(?:TRACES_|METRICS_)?HEADERS)\Z")
_NO_SECRET = re.compile(r"(?:_FILE|_ENV|_MAX_TOKENS)\Z")


class Role(StrEnum):
    """What a service is for."""

    BACKEND = "backend"
    """llama.cpp's server."""
    PROXY = "proxy"
    """The Anthropic proxy in front of it."""


class Change(Masked, Struct, frozen=True):
    """One key of one service. None stands for a key that is not set. Plans hold the values as they are, which are never
    printed; records hold them `masked`."""

    hidden = ("before", "after")

    role: Role
    key: str
    before: str | None
    after: str | None

    @property
    def pending(self) -> bool:
        """Whether it makes a difference."""
        return self.before != self.after

    @property
    def masked(self) -> Change:
        """The change as it may be printed and stored: without secrets."""
        return Change(self.role, self.key, shown_value(self.key, self.before), shown_value(self.key, self.after))


def changes_to(role: Role, before: Mapping[str, str], wanted: Mapping[str, str | None]) -> tuple[Change, ...]:
    """What of `wanted` differs from `before`, in its order: a key that has its value already is no change."""
    pairs = (Change(role, key, before.get(key), value) for key, value in wanted.items())
    return tuple(change for change in pairs if change.pending)


def differences(role: Role, before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Change, ...]:
    """What differs between two versions of an env, key by key."""
    return changes_to(role, before, {**dict.fromkeys(before), **after})


def changed_values(before: Mapping[str, str], wanted: Mapping[str, str | None]) -> dict[str, str]:
    """The values of a service with those that are wanted in place of its own."""
    merged = {key: value for key, value in before.items() if key not in wanted}
    return merged | {key: value for key, value in wanted.items() if value is not None}


def role_of(key: str) -> Role | None:
    """The service that reads the key, None when neither is known to."""
    if key in PROXY_KEYS or key.startswith("PROXY_"):
        return Role.PROXY
    if key in BACKEND_KEYS or key.startswith("LLAMA_"):
        return Role.BACKEND
    return None


def is_secret(key: str) -> bool:
    """Whether the value of an env key must not be shown."""
    plain = key.replace("LLAMA_ARG_NO_", "LLAMA_ARG_", 1)
    declared = BACKEND_KEYS.get(plain) or PASSED_ON.get(plain) or PROXY_KEYS.get(key)
    if declared is not None:
        return declared.secret
    if key.startswith("LLAMA_ARG_") and key.endswith("_TOKENS"):
        return False  # llama.cpp counts tokens there
    return bool(_SECRET.search(key)) and not _NO_SECRET.search(key)


def shown_value(key: str, value: str | None) -> str | None:
    """The value as it may be printed and stored: a secret masked, also one inside a value that is none itself."""
    if not value:
        return value
    return MASK if is_secret(key) else without_secrets(value)


def parse_assignments(words: list[str], role: Role | None = None) -> dict[Role, dict[str, str | None]]:
    """`KEY=VALUE` words as `WantedValues`; `KEY=` sets the empty value, `-KEY` or `!KEY` removes a key.

    `role` names the service for keys that neither service is known to read, and must be the right one for those that
    are; but any key in a service's file can be removed from it. Raises `UsageError` naming the word.
    """
    values: dict[Role, dict[str, str | None]] = {}
    for word in words:
        key, equals, value = word.partition("=")
        removed = not equals and word[:1] in "-!"
        key = word[1:] if removed else key
        if not key or not (equals or removed):
            raise UsageError(f"{word!r}: write KEY=VALUE, or -KEY to remove a key")
        owner = role if removed and role is not None else role_of(key) or role
        if owner is None:
            raise UsageError(f"{key}: neither the backend nor the proxy reads it; add --service backend or proxy")
        if role is not None and owner is not role:
            raise UsageError(f"{key}: belongs to the {owner}, not to the {role}; leave --service out")
        if key in values.get(owner, {}):
            raise UsageError(f"{key}: given twice; give it once")
        values.setdefault(owner, {})[key] = value if equals else None
    return values


# An apply: its steps, what it reports on the way, and the record it leaves, a line of JSON in `paths.applies_file`.


class ApplyStep(StrEnum):
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


STEPS = tuple(step for step in ApplyStep if step is not ApplyStep.ROLLBACK)
"""The steps of an apply that goes well."""


class StepState(StrEnum):
    """How a step stands."""

    RUNNING = "running"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


class ApplyProgress(Struct, frozen=True):
    """One report of a running apply. `fraction` is 0 to 1 where it is known (loading); `seconds` the step's time so
    far, or in all once it is no longer running."""

    step: ApplyStep
    state: StepState
    detail: str = ""
    fraction: float | None = None
    seconds: float = 0.0


class ApplyOutcome(StrEnum):
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


class ApplyRecord(JsonRecord, Struct, frozen=True):
    """One finished apply. Times are Unix times in seconds, durations seconds."""

    number: int
    """Counts from 1; `specdash rollback N` goes back to before apply N."""
    at: float
    ended_at: float
    kind: ApplyKind
    outcome: ApplyOutcome
    changes: tuple[Change, ...] = ()
    """Secrets masked."""
    profile: str | None = None
    failed_step: ApplyStep | None = None
    reason: str = ""
    """Why it failed, one line."""
    log_lines: tuple[str, ...] = ()
    """The lines of the service's log that show why."""
    warnings: tuple[str, ...] = ()
    downtime_s: float | None = None
    """How long the backend did not answer; None when it never stopped."""
    longest_stall_s: float | None = None
    """The longest that a request had waited in a held proxy; None where none did, or the proxy does not say."""
    step_seconds: dict[str, float] = field(default_factory=dict)
    backups: dict[str, int] = field(default_factory=dict)
    """Per service, the number of the backup that holds the env as it was before."""
    digests: dict[str, str] = field(default_factory=dict)
    """Per service, the SHA-256 of the env file after the apply."""
    url: str | None = None
    """Base address of the backend that was changed."""
