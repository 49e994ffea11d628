"""A plan as an operator wants to see it before saying yes: the diff, the engine's arguments, what will be done."""

from __future__ import annotations

import contextlib
import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.backend.env_store import Backups, read_env
from specdash.backend.journal import Edit, read_records
from specdash.backend.launch import make_plan
from specdash.backend.plan import Circumstances, judge
from specdash.control.profiles import means_the_same
from specdash.core.changes import ApplyKind, ApplyOutcome, Role, changes_to, differences
from specdash.core.env_edit import key_help, masked_diff, with_changes
from specdash.core.envfile import encode, read_values
from specdash.core.errors import Finding, InputError, ServiceError, Severity, SpecdashError, errors
from specdash.core.masking import without_secrets
from specdash.core.paths import applies_file, backups_dir
from specdash.core.proxy_parameters import NEEDS_RESTART
from specdash.core.structs import Masked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.backend.env_store import EnvSnapshot
    from specdash.control.deployment import Deployment, Service
    from specdash.core.changes import ApplyRecord, Change, WantedValues


class ApplyOptions(Struct, frozen=True):
    """How patient an apply is. `settle_s` is how long what was changed must stand, with its clients served, before it
    counts; `force` restarts although requests are still running when the drain's time is up."""

    drain_timeout_s: float = 120
    health_timeout_s: float = 600
    settle_s: float = 15
    force: bool = False


class ApplyPlan(Struct, frozen=True):
    """Everything an apply will do, and what speaks against it."""

    deployment: Deployment
    edits: tuple[Edit, ...]
    findings: tuple[Finding, ...] = ()
    profile: str | None = None
    kind: ApplyKind = ApplyKind.APPLY

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changed keys."""
        return tuple(change for edit in self.edits for change in edit.changes)

    @property
    def refused(self) -> bool:
        """Whether preflight found an error."""
        return bool(errors(self.findings))


def plan_apply(
    deployment: Deployment, wanted: WantedValues, *, profile: str | None = None, env: Mapping[str, str] = os.environ
) -> ApplyPlan:
    """Plan a change; services that have the wanted values already are left out. Nothing is touched.

    Raises `ServiceError` for a service that is not there, `InputError` for an env file that cannot be read or edited.
    """
    edits = []
    for role in Role:
        if not wanted.get(role):
            continue
        service = service_of(deployment, role)
        snapshot = read_env(service.env_file)
        changed = changes_to(role, snapshot.values, wanted[role])
        if profile is not None:
            # A profile says 0.80 where the file says 0.8: no reason to restart anything.
            changed = tuple(
                change
                for change in changed
                if change.before is None or not means_the_same(role, change.key, change.before, change.after)
            )
        if changed:
            data = encode(with_changes(snapshot.file, {change.key: change.after for change in changed}))
            edits.append(edit_of(service, snapshot, data, changed))
    return ApplyPlan(deployment, tuple(edits), findings(edits, deployment, env), profile)


def plan_rollback(
    deployment: Deployment, number: int | None = None, *, env: Mapping[str, str] = os.environ
) -> ApplyPlan:
    """Plan to go back to the env as it was before apply `number`; without one, before the last apply that is in force.

    Raises `InputError` when there is no such apply, and what `plan_apply` raises.
    """
    backups = Backups(backups_dir(env))
    records = read_records(applies_file(env))
    edits = []
    for name, backup in sorted(_backups_before(records, number, backups).items()):
        role = Role(name)
        service = service_of(deployment, role)
        snapshot = read_env(service.env_file)
        data = backups.read(role, backup)
        changed = differences(role, snapshot.values, read_values(data, f"backup {backup} of the {role}'s env"))
        if data != snapshot.data:
            edits.append(edit_of(service, snapshot, data, changed))
    return ApplyPlan(deployment, tuple(edits), findings(edits, deployment, env, back=True), None, ApplyKind.ROLLBACK)


def edit_of(service: Service, snapshot: EnvSnapshot, data: bytes, changed: tuple[Change, ...]) -> Edit:
    """`data` in the place of what the env file of a service holds."""
    restart = service.role is Role.BACKEND or any(change.key in NEEDS_RESTART for change in changed)
    return Edit(service.role, str(service.env_file), snapshot.data, data, snapshot.exists, changed, restart)


def service_of(deployment: Deployment, role: Role) -> Service:
    """The service of a role. Raises `ServiceError` saying why there is none."""
    service = deployment.service(role)
    if service is not None:
        return service
    why = deployment.missing.get(role)
    raise ServiceError(f"no {role} to change{f': {why}' if why else ''}")


class Wanted(Masked, Struct, frozen=True):
    """The env file of a service as it shall be, and the service that reads it, where one is known."""

    hidden = ("values",)

    role: Role
    env_file: Path
    values: Mapping[str, str]
    changed: frozenset[str] = frozenset()
    service: Service | None = None


def findings_of(
    files: Sequence[Wanted], beside: Sequence[Wanted] = (), env: Mapping[str, str] = os.environ, *, back: bool = False
) -> list[tuple[Wanted, tuple[Finding, ...]]]:
    """The findings about each env file, which knows what the other one shall be, or is (`beside`).

    `back` is for going back to a version from before, which needs no effect to be wanted.
    """
    found: list[tuple[Wanted, tuple[Finding, ...]]] = []
    for file in files:
        service = file.service
        other = next((two for two in (*files, *beside) if two.role is not file.role), None)
        context = Circumstances(
            env_file=file.env_file,
            changed=file.changed,
            back=back,
            keeps_socket=service is not None and service.status().alive,
            own_pids=_pids(service),
            base=env,
            other=other.values if other is not None else None,
            other_pids=_pids(other.service if other is not None else None),
        )
        # What two services do not agree on is found from both sides.
        seen = {row for _, rows in found for row in rows}
        found.append((file, tuple(row for row in judge(file.role, file.values, context) if row not in seen)))
    return found


def findings(
    edits: Sequence[Edit], deployment: Deployment, env: Mapping[str, str], *, back: bool = False
) -> tuple[Finding, ...]:
    """What preflight says of every edit, and of how they fit the services that are not changed; errors first."""
    files, beside = [], []
    for edit in edits:
        changed = frozenset(change.key for change in edit.changes)
        service = deployment.service(edit.role)
        files.append(Wanted(edit.role, Path(edit.env_file), edit.values(new=True), changed, service))
    for service in filter(None, (deployment.backend, deployment.proxy)):
        with contextlib.suppress(SpecdashError):
            if (snapshot := read_env(service.env_file)).exists:
                beside.append(Wanted(service.role, service.env_file, snapshot.values, service=service))
    rows = [row for _, rows in findings_of(files, beside, env, back=back) for row in rows]
    return tuple(sorted(rows, key=lambda finding: finding.severity is not Severity.ERROR))


def _pids(service: Service | None) -> frozenset[int]:
    """The process of a service: what it holds, with its children, is free for what takes its place."""
    pid = service.status().pid if service is not None else None
    return frozenset() if pid is None else frozenset({pid})


def undone_stack(records: tuple[ApplyRecord, ...], backups: Backups) -> list[ApplyRecord]:
    """The applies that are in force, oldest first: those that went well and were not rolled back since."""
    digests: dict[str, dict[int, str]] = {
        role: {backup.number: backup.digest for backup in backups.list(role)} for role in Role
    }
    stack: list[ApplyRecord] = []
    for record in records:
        if record.outcome is not ApplyOutcome.APPLIED:
            continue
        if record.kind is not ApplyKind.ROLLBACK:
            stack.append(record)
            continue
        for index, past in reversed(list(enumerate(stack))):
            shared = past.backups.keys() & record.digests.keys()
            if shared and all(digests[role].get(past.backups[role]) == record.digests[role] for role in shared):
                del stack[index:]
                break
    return stack


def before_last_apply(role: Role, env: Mapping[str, str]) -> dict[str, str] | None:
    """The env of a service before the last apply in force that changed it; None when there is none. Holds secrets."""
    backups = Backups(backups_dir(env))
    try:
        stack = undone_stack(read_records(applies_file(env)), backups)
        numbers = [record.backups[role] for record in stack if role in record.backups]
        return read_values(backups.read(role, numbers[-1]), f"backup of the {role}'s env") if numbers else None
    except SpecdashError:
        return None


def _backups_before(records: tuple[ApplyRecord, ...], number: int | None, backups: Backups) -> dict[str, int]:
    """Per service, the backup that holds its env as it was before apply `number`."""
    if number is None:
        stack = undone_stack(records, backups)
        if not stack:
            raise InputError("no apply is in force that could be rolled back; `specdash applies` lists them")
        return stack[-1].backups
    if all(record.number != number for record in records):
        raise InputError(f"there is no apply {number}; `specdash applies` lists them")
    found: dict[str, int] = {}
    for record in reversed(records):
        found |= record.backups if record.number >= number else {}
    if not found:
        raise InputError(f"apply {number} was refused and nothing was changed since: there is nothing to go back to")
    return found


def preview(plan: ApplyPlan, env: Mapping[str, str] = os.environ) -> tuple[dict[str, Any], ...]:
    """What the plan will do to each service, as `specdash apply --dry-run --json` prints it, without secrets.

    `arguments` are the engine's arguments that go (`-`) and come (`+`), or why there are none (`!`); `readers` say per
    changed key which spec types read it.
    """
    found = []
    for edit in plan.edits:
        service = service_of(plan.deployment, edit.role)
        before, after = (data.decode("utf-8", "replace") for data in (edit.old, edit.new))
        backend = edit.role is Role.BACKEND
        if service.record() is None:
            lacking = "no backend runs with it" if backend else "the proxy does not run"
            action = f"write {edit.env_file}; {lacking}: it counts at its next start"
        elif backend:
            action = "swap the engine of the backend, while the proxies hold their clients"
        elif edit.needs_restart:
            action = "restart the proxy, which lets its streams end and keeps its listening socket"
        else:
            action = "reload the proxy, without dropping a stream"
        found.append(
            {
                "service": service.name,
                "role": str(edit.role),
                "env_file": edit.env_file,
                "diff": list(masked_diff(before, after, edit.env_file)),
                "action": action,
                "arguments": _arguments(edit, env) if backend else [],
                "readers": {change.key: _readers(change.key) for change in edit.changes} if backend else {},
            }
        )
    return tuple(found)


def _arguments(edit: Edit, env: Mapping[str, str]) -> list[str]:
    """The difference of the engine's arguments, each flag with its values on a line."""
    versions: list[list[str]] = []
    for new in (False, True):
        try:
            plan = make_plan(edit.values(new=new), base=env, env_file=edit.env_file)
        except SpecdashError as error:
            if new:
                return [without_secrets(f"! {error}")]
            versions.append([f"({error})"])
            continue
        embedded = plan.engine.kind == "xllamacpp"
        lines = [f"{plan.engine.kind if embedded else plan.engine.path} {plan.engine.version}"]
        for word in plan.rendered:
            if embedded or word.startswith("-") or len(lines) == 1:
                lines.append(word)
            else:
                lines[-1] += f" {word}"
        versions.append(lines)
    return [without_secrets(line) for line in difflib.ndiff(versions[0], versions[1]) if line.startswith(("- ", "+ "))]


def _readers(key: str) -> str:
    if (found := key_help(key)) is None:
        return "no key that specdash knows"
    flag = f"becomes {found.flags[0]}" if found.flags else found.meaning
    return f"read by {', '.join(found.readers)}" if found.readers else flag
