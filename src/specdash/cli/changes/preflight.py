"""`specdash preflight`: check the services' settings, as they are or with changes, before anything stops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdash.cli.changes.apply import wanted_values
from specdash.cli.changes.env import no_env_file, subjects, subjects_of_services
from specdash.cli.options import REMOVED_KEYS, accept_as_value, add_service, add_settings, print_answer
from specdash.core.changes import Role, changed_values, changes_to
from specdash.core.config import SERVICE_SETTINGS
from specdash.core.errors import ExitCode, InputError, Severity
from specdash.core.structs import json_of
from specdash.system.text import counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from specdash.cli.changes.env import EnvSubject
    from specdash.control.plan import Wanted
    from specdash.core.errors import Finding

_HEADINGS = {Severity.ERROR: "errors", Severity.WARNING: "warnings", Severity.INFO: "notes"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "assignments", nargs="*", metavar="KEY=VALUE", help="changes to check; -KEY or !KEY removes a key"
    )
    add_service(parser, "check this service only")
    parser.add_argument("--env-file", metavar="F", help="check this file instead of the services'")
    parser.add_argument("--profile", metavar="NAME", help="check a profile; KEY=VALUE overrides it")
    parser.add_argument("--json", action="store_true", help="print one JSON object (docs/preflight.md)")
    add_settings(parser, SERVICE_SETTINGS)
    accept_as_value(parser, REMOVED_KEYS)


def run(args: argparse.Namespace) -> int:
    """Check and print; exit 0 without errors, 7 with errors, 3 when an env file cannot be read at all."""
    from specdash.control.plan import findings_of

    found = findings_of(*_wanted(args))
    print_answer(_as_json(found), _as_text(found), as_json=args.json)
    return ExitCode.REFUSED if any(_errors(rows) for _, rows in found) else ExitCode.OK


def _wanted(args: argparse.Namespace) -> tuple[list[Wanted], list[Wanted]]:
    """The env files to check with the changes that are asked for, and what is beside them."""
    from specdash.control.plan import Wanted

    role = Role(args.service) if args.service is not None else None
    wanted = wanted_values(args.assignments, role, args.profile)

    def with_changes(subject: EnvSubject) -> Wanted:
        # Lines of the env file that cannot be read become findings, not an error here.
        before, own = subject.snapshot.file.values, wanted.get(subject.role, {})
        changed = frozenset(change.key for change in changes_to(subject.role, before, own))
        return Wanted(subject.role, subject.snapshot.path, changed_values(before, own), changed, subject.service)

    if args.env_file is not None:
        (subject,) = subjects(args)
        if not subject.snapshot.exists:
            raise InputError(f"env file {subject.snapshot.path}: no such file; name one with --env-file")
        return [with_changes(subject)], []
    roles = [role] if role is not None else [role for role in Role if wanted.get(role)] or list(Role)
    every = {subject.role: subject for subject in subjects_of_services(args, list(Role))}
    known = [every[role] for role in roles if every[role].is_known]
    if not known:
        raise no_env_file(every[role] for role in roles)
    beside = [subject for subject in every.values() if subject not in known and subject.snapshot.exists]
    return [with_changes(subject) for subject in known], [with_changes(subject) for subject in beside]


def _errors(rows: Iterable[Finding]) -> bool:
    return any(row.severity is Severity.ERROR for row in rows)


def _as_json(found: list[tuple[Wanted, tuple[Finding, ...]]]) -> dict[str, Any]:
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
        "findings": [{"service": str(request.role), **json_of(row)} for request, rows in found for row in rows],
    }


def _as_text(found: list[tuple[Wanted, tuple[Finding, ...]]]) -> str:
    lines = []
    for request, _ in found:
        name = request.service.name if request.service is not None else "no service"
        changed = f", with {', '.join(sorted(request.changed))} changed" if request.changed else ""
        lines.append(f"{request.role:<8} {request.env_file} ({name}){changed}")
    counts = []
    for severity, heading in _HEADINGS.items():
        rows = [(request.role, row) for request, findings in found for row in findings if row.severity is severity]
        lines += ["", heading] if rows else []
        for role, row in rows:
            lines += [f"  {role:<8} {row.message}", *([f"  {'':<8}   fix: {row.fix}"] if row.fix else [])]
        counts.append(counted(len(rows), heading.removesuffix("s")))
    verdict = "would be refused" if any(_errors(rows) for _, rows in found) else "no problems found"
    return "\n".join([*lines, "", f"{verdict}: {', '.join(counts)}"])
