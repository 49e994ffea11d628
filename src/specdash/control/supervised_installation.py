"""Makes specdash's services known to the built-in supervisor, and takes them away; other entries stay."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from specdash.control.supervisor_client import SupervisorClient
from specdash.control.supervisor_services import FROM_ENV, ServiceEntry, read_services, write_services
from specdash.core import paths
from specdash.core.changes import Role
from specdash.core.errors import NotWrittenError, ServiceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

NAMES = {Role.BACKEND: "specdash-backend", Role.PROXY: "specdash-proxy"}
"""What our services are called there."""
RECORDER = "specdash-record"


def planned(env: Mapping[str, str], env_files: Mapping[Role, Path], roles: Iterable[Role]) -> tuple[ServiceEntry, ...]:
    """services.json as it will be: what is there, with these services added or renewed. Raises `InputError`."""
    fresh = {
        NAMES[role]: ServiceEntry(NAMES[role], role, env_files[role], FROM_ENV if role is Role.PROXY else None)
        for role in roles
    }
    kept = [fresh.pop(one.name, one) for one in read_services(paths.services_file(env))]
    return (*kept, *fresh.values())


def install(env: Mapping[str, str], entries: Iterable[ServiceEntry]) -> None:
    """Write services.json, and let a running supervisor read it. Raises `ServiceError` or `NotWrittenError`."""
    write_services(paths.services_file(env), tuple(entries))
    client = SupervisorClient(paths.supervisor_socket(env))
    if client.available():
        client.rescan()


def uninstall(env: Mapping[str, str]) -> tuple[str, ...]:
    """Stop our services and take them out of services.json; the names that went. A supervisor without services ends."""
    file = paths.services_file(env)
    entries = read_services(file)
    ours = tuple(one.name for one in entries if one.name in (*NAMES.values(), RECORDER))
    rest = tuple(one for one in entries if one.name not in ours)
    if not ours:
        return ()
    client = SupervisorClient(paths.supervisor_socket(env))
    running = client.available()
    if running:
        for name in sorted(ours, reverse=True):
            client.stop(name)
    if rest:
        write_services(file, rest)
    else:
        try:
            file.unlink()
        except OSError as error:
            raise NotWrittenError(f"{file} cannot be removed: {error.strerror}") from None
    if running:
        with contextlib.suppress(ServiceError):
            client.rescan() if rest else client.shutdown()
    return ours
