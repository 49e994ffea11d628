"""Which env files `specdash env` is about: the one that is named, else those of the services, else specdash's own."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.cli.options import resolved_settings
from specdash.core.changes import Role, role_of
from specdash.core.errors import InputError, UsageError
from specdash.core.paths import backend_env_file, proxy_env_file

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from specdash.control.env_store import Backup, Backups, EnvSnapshot
    from specdash.control.services import ManagedService

_OWN = {Role.BACKEND: backend_env_file, Role.PROXY: proxy_env_file}
_EITHERS_KEY = "LLAMA_CPP_BASE"
"""The proxy's, though it begins as the backend's do."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One env file, whose it is, and the service that reads it, where one is known."""

    role: Role
    snapshot: EnvSnapshot = field(repr=False)
    service: ManagedService | None = None

    @property
    def path(self) -> Path:
        """The file as it is named."""
        return self.snapshot.path

    @property
    def words(self) -> str:
        """Whose file it is, for a heading."""
        reader = f" ({self.service.name}, {self.service.origin})" if self.service is not None else ""
        missing = "" if self.snapshot.exists else ": there is no such file yet"
        return f"{self.role}  {self.path}{reader}{missing}"

    def is_of(self, backup: Backup) -> bool:
        """Whether a backup is a version of this file."""
        return backup.original in (None, self.path.absolute(), self.snapshot.target)


def subjects(args: argparse.Namespace, roles: Iterable[Role] = ()) -> list[Subject]:
    """The files, the backend's first: of `--service`, else of `roles`, else of both.

    Raises `InputError` for a file that cannot be read, and where both are asked for and neither is there.
    """
    role = Role(args.service) if args.service is not None else None
    wanted = [role] if role is not None else [one for one in Role if one in tuple(roles)]
    if args.env_file is not None:
        return [_named(Path(args.env_file).expanduser(), wanted)]
    found = _of_services(args, wanted or list(Role))
    if wanted:
        return found
    there = [one for one in found if one.snapshot.exists or one.service is not None]
    if not there:
        places = " or ".join(str(one.path) for one in found)
        raise InputError(f"no service and no env file found; name one with --env-file, or write {places}")
    return there


def backups() -> Backups:
    """The versions that are kept."""
    from specdash.control.env_store import Backups
    from specdash.core.paths import backups_dir

    return Backups(backups_dir())


def _named(path: Path, wanted: list[Role]) -> Subject:
    from specdash.control.env_store import read_env

    snapshot = read_env(path)
    if len(wanted) > 1:
        raise UsageError(f"the keys belong to both services, and {path} to one; leave --env-file out")
    return Subject(wanted[0] if wanted else _role_by_keys(snapshot), snapshot)


def _role_by_keys(snapshot: EnvSnapshot) -> Role:
    if not snapshot.exists:
        raise InputError(f"env file {snapshot.path}: no such file; name another one with --env-file")
    values = snapshot.file.values
    roles = [role_of(key) for key in values if key != _EITHERS_KEY]
    counts = {role: roles.count(role) for role in Role}
    if counts[Role.BACKEND] == counts[Role.PROXY]:
        if _EITHERS_KEY in values:
            return Role.PROXY
        raise UsageError(f"{snapshot.path}: its keys do not tell whose it is; add --service backend or proxy")
    return max(counts, key=lambda role: counts[role])


def _of_services(args: argparse.Namespace, roles: list[Role]) -> list[Subject]:
    from specdash.control.deployment import find_deployment
    from specdash.control.env_store import read_env

    settings = resolved_settings(args)
    deployment = find_deployment(settings)
    found = []
    for role in roles:
        service, named = deployment.service(role), settings[f"{role}_env_file"].value
        if service is not None:
            path = service.env_file
        else:
            path = Path(named).expanduser() if named is not None else _OWN[role](os.environ)
        found.append(Subject(role, read_env(path), service))
    return found
