"""A plan as an operator wants to see it before saying yes: the diff, the engine's arguments, what will be done."""

from __future__ import annotations

import contextlib
import difflib
import os
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.backend.env_store import Backups, read_env
from specdash.backend.journal import Edit, read_records
from specdash.backend.launch import make_plan, settings_of
from specdash.backend.plan import Circumstances, judge
from specdash.backend.settings import MACHINE_KEYS, ROUTER_KEYS
from specdash.backend.start_check import ServerPromise, promise_of
from specdash.collect.discover import place
from specdash.collect.run_records import live_proxies
from specdash.control.profiles import means_the_same
from specdash.core.changes import ApplyKind, ApplyOutcome, Role, changes_to, differences
from specdash.core.env_edit import key_help, masked_diff, with_changes
from specdash.core.envfile import read_values
from specdash.core.errors import Finding, InputError, ServiceError, Severity, SpecdashError, errors
from specdash.core.masking import without_secrets
from specdash.core.paths import applies_file, backups_dir
from specdash.core.proxy_parameters import NEEDS_RESTART
from specdash.core.structs import Masked
from specdash.system.processes import family

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from specdash.backend.env_store import EnvSnapshot
    from specdash.control.deployment import Deployment, Service
    from specdash.core.changes import ApplyRecord, Change, WantedValues

# What an apply is about to do: which env files it will change, how, and what preflight says of that.


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

    @property
    def empty(self) -> bool:
        """Whether everything is as wanted already."""
        return not self.edits


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
            data = with_changes(snapshot.file, {change.key: change.after for change in changed}).encode()
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
    for role, backup in sorted(_backups_before(records, number, backups).items()):
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
    why = "; ".join(deployment.about(role))
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
            own_pids=own_pids(service),
            base=env,
            other=other.values if other is not None else None,
            other_pids=own_pids(other.service) if other is not None else frozenset(),
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
        service = service_of(deployment, edit.role)
        changed = frozenset(change.key for change in edit.changes)
        files.append(Wanted(edit.role, service.env_file, edit.values(new=True), changed, service))
    for role in Role:
        unchanged, values = deployment.service(role), None
        if unchanged is not None:
            with contextlib.suppress(SpecdashError):
                snapshot = read_env(unchanged.env_file)
                values = snapshot.values if snapshot.exists else None
        if unchanged is not None and values is not None:
            beside.append(Wanted(role, unchanged.env_file, values, service=unchanged))
    rows = (row for _, rows in findings_of(files, beside, env, back=back) for row in rows)
    found = list(dict.fromkeys((*_moved(edits, deployment, env), *rows)))
    return tuple(sorted(found, key=lambda finding: finding.severity is not Severity.ERROR))


def promise(values: Mapping[str, str], base: Mapping[str, str] = os.environ) -> ServerPromise:
    """What `values` promise. Never fails: what they do not tell is unknown."""
    machine = {key: base[key] for key in MACHINE_KEYS if base.get(key) and key not in values}
    router = any(values.get(key) for key in ROUTER_KEYS)
    try:
        settings = settings_of({**values, **machine}, base)
    except SpecdashError:
        host, port = values.get("LLAMA_HOST") or "127.0.0.1", values.get("LLAMA_PORT") or "8080"
        return ServerPromise(f"http://{host}:{port}" if port.isdigit() else "http://127.0.0.1:8080", router=router)
    return promise_of(settings, base)


def _moved(edits: Sequence[Edit], deployment: Deployment, env: Mapping[str, str]) -> list[Finding]:
    """A backend that moves to another address takes its proxies along, or loses them."""
    edit = next((edit for edit in edits if edit.role is Role.BACKEND), None)
    if edit is None:
        return []
    old, new = (promise(edit.values(new=which), env).url for which in (False, True))
    if place(old) == place(new):
        return []
    proxy = next((edit for edit in edits if edit.role is Role.PROXY), None)
    follows = proxy is not None and place(proxy.values(new=True).get("LLAMA_CPP_BASE") or "") == place(new)
    ours = deployment.proxy.record() if deployment.proxy is not None else None
    found = []
    for live_proxy in live_proxies(env):
        if place(live_proxy.upstream) != place(old):
            continue
        mine = ours is not None and live_proxy.pid == ours.pid
        message = f"the backend moves from {old} to {new}, and the proxy at {live_proxy.url} asks at {old}"
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


def own_pids(service: Service | None) -> frozenset[int]:
    """The processes of a service: what they hold is free for what takes their place."""
    if service is None:
        return frozenset()
    try:
        main = service.status().pid
    except SpecdashError:
        main = None
    engine = service.record() if service.role is Role.BACKEND else None
    pids = {process.pid for process in family(main)} if main is not None else set()
    return frozenset(pids | ({engine.pid} if engine is not None else set()))


def undone_stack(records: tuple[ApplyRecord, ...], backups: Backups) -> list[ApplyRecord]:
    """The applies that are in force, oldest first: those that went well and were not rolled back since."""
    digests = {role: {backup.number: backup.digest for backup in backups.list(role)} for role in Role}

    def before(record: ApplyRecord) -> dict[str, str]:
        return {role: digests[Role(role)].get(number, "") for role, number in record.backups.items() if role in digests}

    stack: list[ApplyRecord] = []
    for record in records:
        if record.outcome is not ApplyOutcome.APPLIED:
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
    if all(record.number != number for record in records):
        raise InputError(f"there is no apply {number}; `specdash applies` lists them")
    found: dict[Role, int] = {}
    for record in records:
        if record.number >= number:
            for role, backup in record.backups.items():
                found.setdefault(Role(role), backup)
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
        found.append(
            {
                "service": service.name,
                "role": str(edit.role),
                "env_file": edit.env_file,
                "diff": list(masked_diff(before, after, edit.env_file)),
                "action": _action(edit, service),
                "arguments": _arguments(edit, env) if backend else [],
                "readers": {change.key: _readers(change.key) for change in edit.changes} if backend else {},
            }
        )
    return tuple(found)


def _action(edit: Edit, service: Service) -> str:
    """What happens to the service, in words."""
    if edit.role is Role.PROXY:
        if service.record() is None:
            return f"write {edit.env_file}; the proxy does not run: it counts at its next start"
        if edit.needs_restart:
            return "restart the proxy, which lets its streams end and keeps its listening socket"
        return "reload the proxy, without dropping a stream"
    if service.record() is None:
        return f"write {edit.env_file}; no backend runs with it: it counts at its next start"
    return "swap the engine of the backend, while the proxies hold their clients"


def _arguments(edit: Edit, env: Mapping[str, str]) -> list[str]:
    try:
        after = _rendered(edit, env, new=True)
    except SpecdashError as error:
        return [without_secrets(f"! {error}")]
    try:
        before = _rendered(edit, env, new=False)
    except SpecdashError as error:
        before = [f"({error})"]
    lines = difflib.ndiff(before, after)
    return [without_secrets(line) for line in lines if line.startswith(("- ", "+ "))]


def _rendered(edit: Edit, env: Mapping[str, str], *, new: bool) -> list[str]:
    """The engine's arguments, each flag with its values on a line. Raises SpecdashError where there are none."""
    plan = make_plan(edit.values(new=new), base=env, env_file=edit.env_file)
    if plan.engine.kind == "xllamacpp":
        return [f"{plan.engine.kind} {plan.engine.version}", *plan.rendered]
    lines: list[str] = []
    for word in plan.rendered:
        if word.startswith("-") or not lines:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return [f"{plan.engine.path} {plan.engine.version}", *lines]


def _readers(key: str) -> str:
    found = key_help(key)
    if found is None:
        return "no key that specdash knows"
    if found.readers:
        return f"read by {', '.join(found.readers)}"
    return f"becomes {found.flags[0]}" if found.flags else found.meaning
