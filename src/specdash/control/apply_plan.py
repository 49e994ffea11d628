"""What an apply is about to do: which env files it will change, how, and what preflight says of that."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdash.collect.discover import place
from specdash.control import key_reach
from specdash.control.apply_engine import family, live_proxies, recorded_engine, recorded_proxy, service_promise
from specdash.control.env_store import Backups, read_env
from specdash.control.preflight import PreflightContext, check, pair
from specdash.control.preflight.context import Findings
from specdash.control.profiles import means_the_same
from specdash.control.records import read_records
from specdash.control.service_command import running_values
from specdash.core.applies import ApplyKind, Outcome
from specdash.core.changes import KeyChange, Role
from specdash.core.env_edit import with_changes
from specdash.core.envfile import read_values
from specdash.core.errors import InputError, ServiceError, SpecdashError
from specdash.core.findings import Finding, Severity, errors
from specdash.core.paths import applies_file, backups_dir
from specdash.core.proxy_parameters import NEEDS_RESTART

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.control.env_store import EnvSnapshot
    from specdash.control.services import Deployment, ManagedService
    from specdash.core.applies import ApplyRecord
    from specdash.core.changes import ChangeSet


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """How patient an apply is. `settle_s` is how long what was changed must stand, with its clients served, before it
    counts; `force` restarts although requests are still running when the drain's time is up."""

    drain_timeout_s: float = 120
    health_timeout_s: float = 600
    settle_s: float = 15
    force: bool = False


@dataclass(frozen=True, slots=True)
class Edit:
    """One env file and its new bytes. `needs_restart` says that a running service cannot take the change over."""

    role: Role
    service: ManagedService
    snapshot: EnvSnapshot = field(repr=False)
    data: bytes = field(repr=False)
    changes: tuple[KeyChange, ...]
    needs_restart: bool

    @property
    def values(self) -> dict[str, str]:
        """Key to value after the change. Holds secrets."""
        return read_values(self.data, str(self.service.env_file))


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """Everything an apply will do, and what speaks against it."""

    deployment: Deployment
    edits: tuple[Edit, ...]
    findings: tuple[Finding, ...] = ()
    profile: str | None = None
    kind: ApplyKind = ApplyKind.APPLY
    trial: bool = False
    """Whether it is a step of the trial that is noted (`control.trial`), which keeps all other applies away."""

    @property
    def changes(self) -> tuple[KeyChange, ...]:
        """All changed keys."""
        return tuple(change for edit in self.edits for change in edit.changes)

    @property
    def refused(self) -> bool:
        """Whether preflight found an error."""
        return bool(errors(self.findings))

    @property
    def empty(self) -> bool:
        """Whether everything is as wanted already."""
        return not self.edits


def plan_apply(
    deployment: Deployment,
    changes: ChangeSet,
    *,
    profile: str | None = None,
    env: Mapping[str, str] = os.environ,
) -> ApplyPlan:
    """Plan a change; services that have the wanted values already are left out. Nothing is touched.

    Raises `ServiceError` for a service that is not there, `InputError` for an env file that cannot be read or edited.
    """
    edits = []
    for role in changes.roles:
        service = service_of(deployment, role)
        snapshot = read_env(service.env_file)
        changed = changes.changes(role, snapshot.values)
        if profile is not None:
            # A profile says 0.80 where the file says 0.8: no reason to restart anything.
            changed = tuple(
                one for one in changed if one.before is None or not means_the_same(role, one.key, one.before, one.after)
            )
        if changed:
            data = with_changes(snapshot.file, {one.key: one.after for one in changed}).encode()
            edits.append(Edit(role, service, snapshot, data, changed, _needs_restart(service, changed)))
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
    for role, backup in sorted(_backups_before(records, number, backups).items()):
        service = service_of(deployment, role)
        snapshot = read_env(service.env_file)
        data = backups.read(role, backup)
        changed = differences(role, snapshot.values, read_values(data, f"backup {backup} of the {role}'s env"))
        if data != snapshot.data:
            edits.append(Edit(role, service, snapshot, data, changed, _needs_restart(service, changed)))
    return ApplyPlan(deployment, tuple(edits), findings(edits, deployment, env, back=True), None, ApplyKind.ROLLBACK)


def service_of(deployment: Deployment, role: Role) -> ManagedService:
    """The service of a role. Raises `ServiceError` saying why there is none."""
    service = deployment.service(role)
    if service is not None:
        return service
    why = "; ".join(deployment.about(role) or deployment.problems)
    raise ServiceError(f"no {role} service to change{f': {why}' if why else ''}; nothing was changed")


def findings(
    edits: list[Edit] | tuple[Edit, ...], deployment: Deployment, env: Mapping[str, str], *, back: bool = False
) -> tuple[Finding, ...]:
    """What preflight says of every edit, and of how they fit the services that are not changed; errors first.

    `back` is for going back to a version from before, which needs no effect to be wanted.
    """
    found = _moved(edits, deployment, env)
    for edit in edits:
        beside = other_service(deployment, edit.role)
        other = next((one.values for one in edits if one.role is not edit.role), None)
        context = PreflightContext(
            env_file=edit.service.env_file,
            changed=frozenset(change.key for change in edit.changes),
            service=edit.service,
            own_pids=own_pids(edit.service, env),
            base=env,
            other=_running(beside, other if other is not None else _values_of(beside)),
            running=running_values(edit.service, edit.values) if edit.service.command is not None else None,
            other_pids=own_pids(beside, env) if beside is not None else frozenset(),
        )
        found += check(edit.role, edit.values, context)
        if not back:
            found += key_reach.findings(edit.service, edit.snapshot.file.values, edit.values, edit.changes)
    # What two services do not agree on is found from both sides.
    found = list(dict.fromkeys(found))
    refusals = errors(found)
    return (*refusals, *(one for one in found if one not in refusals))


def other_service(deployment: Deployment, role: Role) -> ManagedService | None:
    """The service beside the one of `role`."""
    return deployment.service(Role.PROXY if role is Role.BACKEND else Role.BACKEND)


def disagreements(deployment: Deployment, env: Mapping[str, str]) -> tuple[Finding, ...]:
    """What speaks against running backend and proxy together as their env files are now."""
    backend = _running(deployment.backend, _values_of(deployment.backend))
    proxy = _values_of(deployment.proxy)
    if deployment.backend is None or deployment.proxy is None or backend is None or proxy is None:
        return ()
    context = PreflightContext(
        deployment.backend.env_file,
        service=deployment.backend,
        own_pids=own_pids(deployment.backend, env),
        base=env,
        other_pids=own_pids(deployment.proxy, env),
    )
    out = Findings({**proxy, **backend})
    pair.check(backend, proxy, context, out)
    return out.sorted()


def _running(service: ManagedService | None, values: dict[str, str] | None) -> dict[str, str] | None:
    return running_values(service, values) if service is not None and values is not None else values


def _values_of(service: ManagedService | None) -> dict[str, str] | None:
    """What the env file of a service that is not changed says; None where there is none, or it cannot be read."""
    if service is None:
        return None
    with contextlib.suppress(SpecdashError):
        snapshot = read_env(service.env_file)
        return snapshot.values if snapshot.exists else None
    return None


def _moved(edits: list[Edit] | tuple[Edit, ...], deployment: Deployment, env: Mapping[str, str]) -> list[Finding]:
    """A backend that moves to another address takes its proxies along, or loses them."""
    edit = next((one for one in edits if one.role is Role.BACKEND), None)
    if edit is None:
        return []
    before, after = edit.snapshot.file.values, edit.values
    old, new = (service_promise(edit.service, values, env).url for values in (before, after))
    if place(old) == place(new):
        return []
    proxy = next((one for one in edits if one.role is Role.PROXY), None)
    follows = proxy is not None and place(proxy.values.get("LLAMA_CPP_BASE") or "") == place(new)
    ours = recorded_proxy(deployment.proxy, env) if deployment.proxy is not None else None
    found = []
    for one in live_proxies(env):
        if place(one.upstream) != place(old):
            continue
        mine = ours is not None and one.pid == ours.pid
        message = f"the backend moves from {old} to {new}, and the proxy at {one.url} asks at {old}"
        if mine and follows:
            message = (
                f"the backend moves from {old} to {new}: requests that wait in the proxy meanwhile are turned away"
            )
            found.append(Finding("proxy-upstream", Severity.WARNING, message, "LLAMA_CPP_BASE"))
            continue
        if not mine:
            fix = "point it to the new address"
            found.append(Finding("proxy-upstream", Severity.WARNING, message, "LLAMA_CPP_BASE", fix))
    return found


def own_pids(service: ManagedService, env: Mapping[str, str]) -> frozenset[int]:
    """The processes of a service: what they hold is free for what takes their place."""
    try:
        main = service.status().pid
    except SpecdashError:
        main = None
    engine = recorded_engine(service, env, main) if service.role is Role.BACKEND else None
    pids = {process.pid for process in family(main)} if main is not None else set()
    return frozenset(pids | ({engine.pid} if engine is not None else set()))


def undone_stack(records: tuple[ApplyRecord, ...], backups: Backups) -> list[ApplyRecord]:
    """The applies that are in force, oldest first: those that went well and were not rolled back since."""
    digests = {role: {one.number: one.digest for one in backups.list(role)} for role in Role}

    def before(record: ApplyRecord) -> dict[str, str]:
        return {role: digests[Role(role)].get(number, "") for role, number in record.backups.items() if role in digests}

    stack: list[ApplyRecord] = []
    for record in records:
        if record.outcome is not Outcome.APPLIED:
            continue
        if record.kind is not ApplyKind.ROLLBACK:
            stack.append(record)
            continue
        for index in range(len(stack) - 1, -1, -1):
            had = before(stack[index])
            shared = had.keys() & record.digests.keys()
            if shared and all(had[role] == record.digests[role] for role in shared):
                del stack[index:]
                break
    return stack


def _backups_before(records: tuple[ApplyRecord, ...], number: int | None, backups: Backups) -> dict[Role, int]:
    """Per service, the backup that holds its env as it was before apply `number`."""
    if number is None:
        stack = undone_stack(records, backups)
        if not stack:
            raise InputError("no apply is in force that could be rolled back; `specdash applies` lists them")
        return {Role(role): backup for role, backup in stack[-1].backups.items()}
    if all(one.number != number for one in records):
        raise InputError(f"there is no apply {number}; `specdash applies` lists them")
    found: dict[Role, int] = {}
    for record in records:
        if record.number >= number:
            for role, backup in record.backups.items():
                found.setdefault(Role(role), backup)
    if not found:
        raise InputError(f"apply {number} was refused and nothing was changed since: there is nothing to go back to")
    return found


def differences(role: Role, before: Mapping[str, str], after: Mapping[str, str]) -> tuple[KeyChange, ...]:
    """What differs between two versions of an env, key by key."""
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return tuple(KeyChange(role, key, before.get(key), after.get(key)) for key in keys)


def _needs_restart(service: ManagedService, changed: tuple[KeyChange, ...]) -> bool:
    if service.role is Role.BACKEND or not service.reloads:
        return True
    return any(change.key in NEEDS_RESTART for change in changed)
