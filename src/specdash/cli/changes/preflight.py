"""`specdash preflight`: check the services' settings, as they are or with changes, before anything stops."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.cli.changes.apply import wanted_values
from specdash.cli.options import add_settings, resolved_settings
from specdash.core.changes import Role, changed_values, changes_to, role_of
from specdash.core.config import SERVICE_SETTINGS
from specdash.core.errors import ExitCode, Finding, InputError, ServiceError, Severity, UsageError
from specdash.core.paths import backend_env_file, proxy_env_file
from specdash.system.data import dataclass

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping

    from specdash.control.services.services import Deployment, ManagedService
    from specdash.core.changes import Change, WantedValues
    from specdash.core.config import Resolved

_REMOVAL = re.compile(r"-[A-Z][A-Z0-9_]*\Z")
_HEADINGS = {Severity.ERROR: "errors", Severity.WARNING: "warnings", Severity.INFO: "notes"}
_COLOURS = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.INFO: "36"}
_DEFAULT_FILES = {Role.BACKEND: backend_env_file, Role.PROXY: proxy_env_file}


@dataclass(frozen=True, slots=True)
class PreflightRequest:
    """One service to check: its env file and what shall be in it."""

    role: Role
    env_file: Path
    before: Mapping[str, str] = field(repr=False)
    after: Mapping[str, str] = field(repr=False)
    changed: frozenset[str]
    service: ManagedService | None
    changes: tuple[Change, ...] = field(default=(), repr=False)
    other: PreflightRequest | None = None
    """The service beside it, where that is not to be checked itself."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "assignments", nargs="*", metavar="KEY=VALUE", help="changes to check; -KEY or !KEY removes a key"
    )
    parser.add_argument("--service", choices=[str(role) for role in Role], help="check this service only")
    parser.add_argument("--env-file", metavar="F", help="check this file instead of the services'")
    parser.add_argument("--profile", metavar="NAME", help="check the changes of a profile; KEY=VALUE wins over it")
    parser.add_argument("--json", action="store_true", help="print one JSON object (docs/preflight.md)")
    add_settings(parser, SERVICE_SETTINGS)
    # argparse takes a word like -KEY for an option, unless it looks like what it holds to be a negative number.
    parser._negative_number_matcher = _REMOVAL  # noqa: SLF001


def run(args: argparse.Namespace) -> int:
    """Check and print; exit 0 without errors, 7 with errors, 3 when an env file cannot be read at all."""
    found = findings_of(_subjects(args))
    if args.json:
        print(json.dumps(_as_json(found), indent=1))
    else:
        print(_as_text(found, colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR")))
    return ExitCode.REFUSED if any(_errors(rows) for _, rows in found) else ExitCode.OK


def findings_of(subjects: Iterable[PreflightRequest]) -> list[tuple[PreflightRequest, tuple[Finding, ...]]]:
    """The findings about each service, each knowing what the other one shall be."""
    from specdash.control.preflight import PreflightContext, check
    from specdash.control.services import service_command
    from specdash.control.services.service_command import running_values

    every = list(subjects)
    found: list[tuple[PreflightRequest, tuple[Finding, ...]]] = []
    for request in every:
        other = next((two for two in every if two.role is not request.role), request.other)
        context = PreflightContext(request.env_file, request.changed, request.service, _own_pids(request.service))
        if other is not None:
            values = running_values(other.service, other.after) if other.service is not None else other.after
            context = replace(context, other=values, other_pids=_own_pids(other.service))
        # What two services do not agree on is found from both sides.
        said = {row for _, rows in found for row in rows}
        unit = request.service if request.service is not None and request.service.command is not None else None
        if unit is not None:
            context = replace(context, running=running_values(unit, request.after))
        rows = check(request.role, request.after, context)
        if unit is not None:
            rows = (*service_command.findings(unit, request.before, request.after, request.changes), *rows)
        found.append((request, tuple(row for row in rows if row not in said)))
    return found


def _subjects(args: argparse.Namespace) -> list[PreflightRequest]:
    role = Role(args.service) if args.service is not None else None
    if args.env_file is not None:
        path = Path(args.env_file).expanduser()
        values = _values(path, missing_ok=False)
        role = role or _role_by_keys(path, values)
        return [_subject(role, path, values, wanted_values(args.assignments, role, args.profile), None)]
    wanted = wanted_values(args.assignments, role, args.profile)
    settings = resolved_settings(args)
    roles = (role,) if role is not None else (tuple(role for role in Role if wanted.get(role)) or tuple(Role))
    deployment = _deployment(settings)
    subjects = []
    for item in roles:
        service = deployment.service(item)
        path = _path(item, service, settings)
        if service is None and not path.is_file() and len(roles) > 1:
            continue
        values = _values(path, missing_ok=service is not None)
        subjects.append(_subject(item, path, values, wanted, service))
    if len(subjects) == 1:
        beside = Role.PROXY if subjects[0].role is Role.BACKEND else Role.BACKEND
        service = deployment.service(beside)
        path = _path(beside, service, settings)
        if path.is_file():
            values = _values(path, missing_ok=True)
            subjects = [replace(subjects[0], other=_subject(beside, path, values, wanted, service))]
    if not subjects:
        places = " or ".join(str(make(os.environ)) for make in _DEFAULT_FILES.values())
        raise InputError(f"no service and no env file found; name one with --env-file, or write {places}")
    return subjects


def _deployment(settings: Mapping[str, Resolved]) -> Deployment:
    from specdash.control.services.deployment import find_deployment

    return find_deployment(settings)


def _path(role: Role, service: ManagedService | None, settings: Mapping[str, Resolved]) -> Path:
    if service is not None:
        return service.env_file
    named = settings[f"{role}_env_file"].value
    return Path(named).expanduser() if named is not None else _DEFAULT_FILES[role](os.environ)


def _values(path: Path, *, missing_ok: bool) -> dict[str, str]:
    """The values of an env file; lines that cannot be read become findings, not an error here."""
    from specdash.control.env_store import read_env

    snapshot = read_env(path)
    if not snapshot.exists and not missing_ok:
        raise InputError(f"env file {path}: no such file; name one with --env-file")
    return snapshot.file.values


def _role_by_keys(path: Path, values: Mapping[str, str]) -> Role:
    roles = [role_of(key) for key in values if key != "LLAMA_CPP_BASE"]
    counts = {role: roles.count(role) for role in Role}
    if counts[Role.BACKEND] == counts[Role.PROXY]:
        if "LLAMA_CPP_BASE" in values:
            return Role.PROXY
        raise UsageError(f"{path}: its keys do not tell whose it is; add --service backend or proxy")
    return max(counts, key=lambda role: counts[role])


def _subject(
    role: Role, path: Path, before: dict[str, str], wanted: WantedValues, service: ManagedService | None
) -> PreflightRequest:
    own = wanted.get(role, {})
    made = changes_to(role, before, own)
    changed = frozenset(change.key for change in made)
    return PreflightRequest(role, path, before, changed_values(before, own), changed, service, made)


def _own_pids(service: ManagedService | None) -> frozenset[int]:
    if service is None:
        return frozenset()
    try:
        pid = service.status().pid
    except ServiceError:
        return frozenset()
    return frozenset({pid}) if pid is not None else frozenset()


def _errors(rows: Iterable[Finding]) -> bool:
    return any(row.severity is Severity.ERROR for row in rows)


def _as_json(found: list[tuple[PreflightRequest, tuple[Finding, ...]]]) -> dict[str, Any]:
    return {
        "ok": not any(_errors(rows) for _, rows in found),
        "services": {
            str(request.role): {
                "name": request.service.name if request.service is not None else None,
                "env_file": str(request.env_file),
                "changed": sorted(request.changed),
                "ok": not _errors(rows),
            }
            for request, rows in found
        },
        "findings": [{"service": str(request.role), **row.as_json()} for request, rows in found for row in rows],
    }


def _as_text(found: list[tuple[PreflightRequest, tuple[Finding, ...]]], *, colour: bool) -> str:
    lines = []
    for request, _ in found:
        name = request.service.name if request.service is not None else "no service"
        changed = f", with {', '.join(sorted(request.changed))} changed" if request.changed else ""
        lines.append(f"{request.role:<8} {request.env_file} ({name}){changed}")
    for severity, heading in _HEADINGS.items():
        rows = [(request.role, row) for request, findings in found for row in findings if row.severity is severity]
        if rows:
            lines += ["", _painted(heading, _COLOURS[severity], colour=colour)]
        for role, row in rows:
            lines.append(f"  {role:<8} {row.message}")
            if row.fix:
                lines.append(f"  {'':<8}   fix: {row.fix}")
    counts = [sum(row.severity is severity for _, rows in found for row in rows) for severity in _HEADINGS]
    verdict = "would be refused" if counts[0] else "no problems found"
    summary = ", ".join(
        f"{n} {word if n != 1 else word[:-1]}" for n, word in zip(counts, _HEADINGS.values(), strict=True)
    )
    return "\n".join([*lines, "", f"{verdict}: {summary}"])


def _painted(text: str, code: str, *, colour: bool) -> str:
    return f"\x1b[1;{code}m{text}\x1b[0m" if colour else text
