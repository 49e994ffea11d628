"""Backends and proxies that were started by hand: their settings can be applied, starting and stopping is their
terminal's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

from specdash.collect.run_records import live_backends, live_proxies
from specdash.control.services.services import BY_HAND, ServiceState, ServiceStatus
from specdash.core.changes import Role
from specdash.core.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from specdash.core.records import ProxyRecord, RunRecord


def _records(role: Role, env: Mapping[str, str]) -> list[RunRecord] | list[ProxyRecord]:
    return live_backends(env) if role is Role.BACKEND else live_proxies(env)


def running_env_files(role: Role, env: Mapping[str, str]) -> list[str]:
    """The env files of everything of this role that runs."""
    return [record.env_file for record in _records(role, env) if record.env_file is not None]


class ByHand:
    """The `ServiceManager` of what has none."""

    kind = BY_HAND

    def __init__(self, role: Role, env_file: Path, env: Mapping[str, str]) -> None:
        self._role = role
        self._env_file = env_file
        self._env = env

    def bring_up(self) -> None:
        """It can always be asked."""

    def status(self, name: str) -> ServiceStatus:
        """The service now, by its run record."""
        for record in _records(self._role, self._env):
            if record.env_file is not None and os.path.realpath(record.env_file) == os.path.realpath(self._env_file):
                pid = getattr(record, "runner_pid", None) or record.pid
                return ServiceStatus(name, ServiceState.RUNNING, pid)
        return ServiceStatus(name, ServiceState.STOPPED, detail="it does not run")

    def start(self, name: str) -> None:
        """Raises `ServiceError`."""
        self._refuse(name)

    def stop(self, name: str) -> None:
        """Raises `ServiceError`."""
        self._refuse(name)

    def restart(self, name: str) -> None:
        """Raises `ServiceError`."""
        self._refuse(name)

    def reload(self, name: str) -> None:
        """Raises `ServiceError`."""
        self._refuse(name)

    def log_tail(self, name: str, lines: int = 20) -> tuple[str, ...]:  # noqa: ARG002 - of every manager
        """Its terminal has them."""
        return ()

    def _refuse(self, name: str) -> NoReturn:
        command = "specdash backend run" if self._role is Role.BACKEND else "specdash proxy run"
        raise ServiceError(
            f"{name} is no service: it is started and stopped by hand, with `{command} --env-file {self._env_file}`; "
            "`specdash services install` makes it one"
        )
