"""What a specdash tells one on another machine of its services, before and after it changes them: without secrets, read
by type hints, and checked."""

from __future__ import annotations

import json
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from specdash.control.apply.journal import Edit
from specdash.control.apply.plan import ApplyPlan
from specdash.control.profiles import Profile
from specdash.control.services.services import Deployment
from specdash.core.changes import ApplyKind, Change, Role
from specdash.core.codec import NOT_READABLE, UnreadableError, check_of, codec_of
from specdash.core.errors import Finding  # noqa: TC001 - the codec reads the hints
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.core.changes import WantedValues

Told = TypeVar("Told")


def written(value: Any) -> Any:
    """A data class as JSON knows it."""
    codec = codec_of(cast("Any", type(value)))
    return codec.write(value) if codec is not None else value


def read_as(kind: type[Told], data: Any) -> Told:
    """What `written` made. Raises `UnreadableError` for what is none."""
    codec = codec_of(cast("Any", kind))
    try:
        value = codec.read(data) if codec is not None else data
    except NOT_READABLE as error:
        raise UnreadableError(f"no {kind.__name__}: {error}") from error
    if not check_of(cast("Any", kind))(value):
        raise UnreadableError(f"{kind.__name__}: a field of another type than it should be")
    return cast("Told", value)


@dataclass(frozen=True, slots=True)
class EditOutline:
    """An `Edit` without the bytes of its file, and its changes masked."""

    role: Role
    service: str
    manager: str
    env_file: str
    existed: bool
    changes: tuple[Change, ...]
    needs_restart: bool
    digest: str
    """SHA-256 of the file that was planned on."""


@dataclass(frozen=True, slots=True)
class PlanOutline:
    """An `ApplyPlan`, likewise."""

    kind: ApplyKind
    edits: tuple[EditOutline, ...]
    findings: tuple[Finding, ...]
    profile: str | None = None

    @classmethod
    def of(cls, plan: ApplyPlan) -> PlanOutline:
        """What may be told of a plan."""
        edits = tuple(
            EditOutline(
                edit.role,
                edit.service,
                edit.manager,
                edit.env_file,
                edit.existed,
                edit.masked.changes,
                edit.needs_restart,
                edit.old_digest,
            )
            for edit in plan.edits
        )
        return cls(plan.kind, edits, plan.findings, plan.profile)

    def plan(self, wanted: WantedValues) -> FarPlan:
        """The plan as it is shown here."""
        edits = tuple(
            Edit(
                edit.role,
                edit.service,
                edit.manager,
                edit.env_file,
                b"",
                b"",
                edit.existed,
                edit.changes,
                edit.needs_restart,
            )
            for edit in self.edits
        )
        digests = {edit.role: edit.digest for edit in self.edits}
        return FarPlan(Deployment(), edits, self.findings, self.profile, self.kind, False, wanted, digests)


@dataclass(frozen=True, slots=True)
class FarPlan(ApplyPlan):
    """A plan that was made on another machine, and is carried out there."""

    wanted: WantedValues = field(default_factory=dict, repr=False)
    """What was asked for, secrets included; nothing of a rollback."""
    digests: Mapping[Role, str] = field(default_factory=dict)
    """The versions of the env files that it was planned on."""

    @property
    def argv(self) -> list[str]:
        """The command that carries it out there, if the env files are as they were."""
        expected = [word for role, digest in self.digests.items() for word in ("--expect", f"{role}={digest}")]
        if self.kind is ApplyKind.ROLLBACK:
            return ["rollback", "--yes", "--json", *expected]
        profile = ["--profile", self.profile] if self.profile is not None else []
        return ["apply", "--yes", "--json", "--from-stdin", *profile, *expected]

    @property
    def input(self) -> str:
        """What that command reads: the values, which are not for a command line."""
        return "" if self.kind is ApplyKind.ROLLBACK else json.dumps(self.wanted) + "\n"


@dataclass(frozen=True, slots=True)
class FarProfile:
    """A `Profile` as it is told."""

    name: str
    summary: str
    source: str
    values: dict[str, dict[str, str]]
    notes: tuple[str, ...]
    origin: str
    replaces: bool

    @classmethod
    def of(cls, profile: Profile) -> FarProfile:
        """All of it: no value of a profile is secret."""
        values = {str(role): dict(entries) for role, entries in profile.values.items()}
        parts = (profile.name, profile.summary, profile.source, values, profile.notes, profile.origin, profile.replaces)
        return cls(*parts)

    @property
    def profile(self) -> Profile:
        """The profile. Raises ValueError for services that nobody knows here."""
        values = {Role(role): entries for role, entries in self.values.items()}
        return Profile(self.name, self.summary, self.source, values, self.notes, self.origin, self.replaces)


def wanted_values(data: Any) -> dict[Role, dict[str, str | None]]:
    """`WantedValues` of a JSON object. Raises ValueError for what is none."""
    if not isinstance(data, dict) or not all(isinstance(values, dict) for values in data.values()):
        raise ValueError("wants an object of services, each an object of keys")
    wanted = {Role(role): dict(values) for role, values in data.items()}
    if not all(value is None or isinstance(value, str) for values in wanted.values() for value in values.values()):
        raise ValueError("wants texts as values, or null for a key to remove")
    return wanted
