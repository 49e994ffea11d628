"""The backend and the proxy of this machine that specdash may change: those that run, by their run records, else those
whose env files are known."""

from __future__ import annotations

import os
import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from msgspec import Struct, field

from specdash.collect.run_records import live_backends, live_proxies, refusal, started_last
from specdash.control.connection import runner_of, runners
from specdash.core import paths
from specdash.core.changes import Role
from specdash.core.errors import ServiceError
from specdash.core.structs import Masked
from specdash.core.target import local_port
from specdash.system.processes import listener_owners

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.core.config import Resolved
    from specdash.core.records import ProxyRecord, RunRecord

BY_SYSTEMD, BY_UP, BY_HAND = "systemd", "specdash up", "by hand"
"""What runs a service: systemd, `specdash up`, or a terminal."""


class ServiceState(StrEnum):
    """Where a service is in its life."""

    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "waiting to restart"
    FAILED = "failed"
    """It ended, and will not be started again by itself."""


class ServiceStatus(Struct, frozen=True):
    """A service at one moment. `pid` is its main process, `restarts` how often it was started again by itself; `detail`
    says why it is not running."""

    state: ServiceState
    pid: int | None = None
    restarts: int | None = None
    exit_code: int | None = None
    detail: str = ""
    since: float | None = None
    """Unix time of the last change of `state`."""

    @property
    def alive(self) -> bool:
        """Whether it runs, or is about to."""
        return self.state in (ServiceState.RUNNING, ServiceState.STARTING, ServiceState.WAITING)


class Service(Masked, Struct, frozen=True):
    """A backend or a proxy that can be changed, by the env file that it reads."""

    hidden = ("env",)

    role: Role
    env_file: Path
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """The environment that says where its run record is."""

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.role} of {self.env_file.name}"

    def status(self) -> ServiceStatus:
        """The service now, by its run record."""
        if (record := self.record()) is not None:
            return ServiceStatus(ServiceState.RUNNING, main_pid(record), since=record.pid_started)
        if self.role is Role.BACKEND and (found := runner_of(self.env_file, self.env)) is not None:
            detail = "its engine does not run just now"
            return ServiceStatus(ServiceState.STARTING, found[1]["runner_pid"], detail=detail)
        return ServiceStatus(ServiceState.STOPPED, detail="it does not run")

    def record(self) -> RunRecord | ProxyRecord | None:
        """The run record of the process that reads the env file, the last started one; None where none runs."""
        if self.role is Role.BACKEND:
            return started_last(live_backends(self.env), self.env_file)
        return started_last(live_proxies(self.env), self.env_file)

    def refusal(self) -> str:
        """Why its env file, as it was edited, is not what runs; empty where it is."""
        record = self.record()
        return refusal(record) if record is not None else ""

    def manager(self) -> str:
        """What runs it; empty where it does not run."""
        pid = self.status().pid
        return manager_of(pid) if pid is not None else ""


class Deployment(Struct, frozen=True):
    """The services of this machine that specdash may change, and why one is not there."""

    backend: Service | None = None
    proxy: Service | None = None
    missing: Mapping[Role, str] = field(default_factory=dict)

    def service(self, role: Role) -> Service | None:
        """The service of a role."""
        return self.backend if role is Role.BACKEND else self.proxy


def find_deployment(
    settings: Mapping[str, Resolved], env: Mapping[str, str] = os.environ, *, url: str | None = None
) -> Deployment:
    """The services that the settings name, else those that run, else those of the installed units or of specdash's own
    env files. `url` is the server whose backend alone is meant."""
    found: dict[Role, Service] = {}
    missing: dict[Role, str] = {}
    for role in Role:
        named = settings[f"{role}_env_file"].value
        try:
            file = Path(named).expanduser().absolute() if named is not None else _file_of(role, env, url)
        except ServiceError as error:
            missing[role] = str(error)
        else:
            found[role] = Service(role, file, env)
    return Deployment(found.get(Role.BACKEND), found.get(Role.PROXY), missing)


def default_env_file(role: Role, env: Mapping[str, str]) -> Path:
    """The env file of a service that names none."""
    return paths.backend_env_file(env) if role is Role.BACKEND else paths.proxy_env_file(env)


def start_command(role: Role, env_file: Path, env: Mapping[str, str] = os.environ) -> str:
    """The command that starts a service which does not run: of its unit, of one that is to be installed, or without
    systemd."""
    from specdash.control.services import systemd

    if _installed(role, env) == env_file:
        return f"specdash services start {role}"
    default = os.path.realpath(env_file) == os.path.realpath(default_env_file(role, env))
    named = str(role) if default else f"{role} --{role}-env {shlex.quote(str(env_file))}"
    return f"specdash up {named}" if systemd.why_not(env) else f"specdash services install {named} --start"


def main_pid(record: RunRecord | ProxyRecord) -> int:
    """The process that a service manager sees: the runner of a backend, the proxy itself."""
    return getattr(record, "runner_pid", None) or record.pid


def manager_of(pid: int) -> str:
    """What runs this process of specdash."""
    try:
        process = psutil.Process(pid)
        if process.environ().get("SYSTEMD_EXEC_PID") == str(pid):
            return BY_SYSTEMD
        parent = process.parent()
        words = parent.cmdline() if parent is not None else []
    except psutil.Error:
        return BY_HAND
    return BY_UP if any(Path(word).name == "specdash" for word in words[:5]) and "up" in words[:6] else BY_HAND


def _file_of(role: Role, env: Mapping[str, str], url: str | None) -> Path:
    """The env file that is meant where none is named. Raises `ServiceError` saying why there is none."""
    from specdash.collect.discover import place

    records = live_backends(env) if role is Role.BACKEND else live_proxies(env)
    running = [(record.env_file, record.url) for record in records if record.env_file is not None]
    if not running and role is Role.BACKEND:
        # An engine may just be between two starts.
        running = [(status["env_file"], status["url"]) for _, status in runners(env) if status["env_file"] is not None]
    if url is not None and role is Role.BACKEND:
        running = [(file, its) for file, its in running if place(its) == place(url)]
        if not running:
            raise ServiceError(f"specdash does not run {url}; {way_to(url)}")
    files = list(dict.fromkeys(os.path.realpath(file) for file, _ in running))
    default = default_env_file(role, env)
    if len(files) > 1 and os.path.realpath(default) not in files:
        raise ServiceError(f"several run ({', '.join(files)}); name one with --{role}-env-file")
    if files:
        return Path(files[0] if len(files) == 1 else os.path.realpath(default))
    installed = _installed(role, env)
    if installed is not None or default.exists():
        return installed or default
    why = f"none runs, and there is no {default}; `specdash up --model MODEL.gguf` writes it and runs both"
    adopt = ", `specdash services adopt` writes it from a llama-server that runs" if role is Role.BACKEND else ""
    raise ServiceError(why + adopt)


def way_to(url: str) -> str:
    """How a server that specdash does not run becomes one that can be changed."""
    port = local_port(url)
    if port is None:
        return "run this on its machine, there or with --on USER@HOST"
    if listener_owners(port) == set():
        return "nothing listens there; `specdash targets` lists the servers that run"
    return f"`specdash services adopt --url {url}` takes it over"


def _installed(role: Role, env: Mapping[str, str]) -> Path | None:
    """The env file of the installed unit. systemd is asked only where there is one."""
    from specdash.control.services import systemd, units

    there = (units.unit_directory(env) / units.UNIT_OF[role]).is_file()
    return systemd.env_file_of(units.UNIT_OF[role], env) if there else None
