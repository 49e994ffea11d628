"""A backend on the bundled models and a proxy in front of it, in a directory of their own, under either manager."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.core.changes import Role
from specdash.core.errors import ServiceError, SpecdashError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from specdash.control.services import Deployment, ServiceManager

START_S = 60.0
_PREFIX = "specdash-storm"


@dataclass(frozen=True, slots=True)
class StormServices:
    """What a storm needs: the services, the proxy's address, and the environment that says where their state is."""

    deployment: Deployment
    proxy_url: str
    env: dict[str, str]


@contextmanager
def storm_services(manager: str, directory: Path, engine: str) -> Iterator[StormServices]:
    """Start both services under `systemd` or `supervisor`; they are gone afterwards. Raises `SpecdashError`."""
    from specdash.backend import demo
    from specdash.backend.launch import free_port

    backend_port, proxy_port = free_port("127.0.0.1"), free_port("127.0.0.1")
    files = {Role.BACKEND: directory / "backend.env", Role.PROXY: directory / "proxy.env"}
    files[Role.BACKEND].write_text(
        demo.env_text(port=backend_port, log=directory / "server.log", spec_types=(demo.DRAFT_TYPE,), engine=engine),
        encoding="utf-8",
    )
    files[Role.PROXY].write_text(
        demo.proxy_env_text(
            port=proxy_port, upstream=f"http://127.0.0.1:{backend_port}", events=directory / "events.jsonl"
        ),
        encoding="utf-8",
    )
    for file in files.values():
        file.chmod(0o600)
    env = {"XDG_STATE_HOME": str(directory), "XDG_CONFIG_HOME": str(directory), "XDG_CACHE_HOME": str(directory)}
    under = _under_systemd if manager == "systemd" else _under_supervisor
    with under(files, env, proxy_port) as (running, names):
        proxy_url = f"http://127.0.0.1:{proxy_port}"
        _wait(lambda: _answers(f"http://127.0.0.1:{backend_port}/health"), "backend", running, names[Role.BACKEND])
        _wait(lambda: _answers(f"{proxy_url}/health"), "proxy", running, names[Role.PROXY])
        yield StormServices(_deployment(running, names, files), proxy_url, {**os.environ, **env})


@contextmanager
def _under_supervisor(
    files: Mapping[Role, Path], env: Mapping[str, str], proxy_port: int
) -> Iterator[tuple[ServiceManager, dict[Role, str]]]:
    import signal

    from specdash.control.supervised import SupervisedManager
    from specdash.control.supervisor import Service, Supervisor

    names = {role: f"{_PREFIX}-{role}" for role in Role}
    with Supervisor() as supervisor:
        for role, file in files.items():
            supervisor.add(
                Service(
                    names[role],
                    _command(role, file),
                    {**os.environ, **env},
                    log=str(file.with_suffix(".out")),
                    reload_signal=signal.SIGUSR1 if role is Role.BACKEND else signal.SIGHUP,
                    listen=None if role is Role.BACKEND else ("127.0.0.1", proxy_port),
                    stop_timeout=40.0,
                )
            )
            supervisor.start(names[role])
        yield SupervisedManager(supervisor), names


@contextmanager
def _under_systemd(
    files: Mapping[Role, Path], env: Mapping[str, str], proxy_port: int
) -> Iterator[tuple[ServiceManager, dict[Role, str]]]:
    """Units in the runtime directory, which a reboot empties, under names of their own."""
    from pathlib import Path

    from specdash.control.systemctl import Systemctl
    from specdash.control.systemd import SystemdManager, available
    from specdash.control.units import UnitFacts, unit_texts

    reason = available(os.environ)
    if reason is not None:
        raise ServiceError(f"systemd's user manager cannot be used: {reason}; try --manager supervisor")
    facts = UnitFacts(
        python=sys.executable,
        backend_env=str(files[Role.BACKEND]),
        proxy_env=str(files[Role.PROXY]),
        listen=(f"127.0.0.1:{proxy_port}",),
        environment=env,
        log_dir=str(files[Role.BACKEND].parent),
    )
    folder = Path(os.environ["XDG_RUNTIME_DIR"]) / "systemd" / "user"
    folder.mkdir(parents=True, exist_ok=True)
    manager = SystemdManager(os.environ)
    texts = {_renamed(name): _renamed(text) for name, text in unit_texts(facts).items()}
    names = {role: f"{_PREFIX}-{role}.service" for role in Role}
    socket = f"{_PREFIX}-proxy.socket"
    try:
        for name, text in texts.items():
            # Ten restarts a minute are an incident anywhere else; here they are the point.
            (folder / name).write_text(text.replace("StartLimitBurst=5", "StartLimitBurst=1000"), encoding="utf-8")
        Systemctl(os.environ).run("daemon-reload")
        for name in (names[Role.BACKEND], socket, names[Role.PROXY]):
            manager.start(name)
        yield manager, names
    finally:
        for name in (socket, names[Role.PROXY], names[Role.BACKEND]):
            manager.stop(name)
        for name in texts:
            (folder / name).unlink(missing_ok=True)
        Systemctl(os.environ).run("daemon-reload")


def _renamed(text: str) -> str:
    for role in Role:
        text = text.replace(f"specdash-{role}", f"{_PREFIX}-{role}")
    return text


def _command(role: Role, file: Path) -> tuple[str, ...]:
    return (sys.executable, "-m", "specdash", str(role), "run", "--env-file", str(file))


def _deployment(manager: ServiceManager, names: Mapping[Role, str], files: Mapping[Role, Path]) -> Deployment:
    from specdash.control.services import Deployment, ManagedService

    backend, proxy = (
        ManagedService(role, names[role], manager, files[role], reloads=True, origin="storm", socket=role is Role.PROXY)
        for role in Role
    )
    return Deployment(backend, proxy)


def _wait(done: Callable[[], bool], what: str, manager: ServiceManager, name: str) -> None:
    deadline = time.monotonic() + START_S
    while not done():
        if time.monotonic() > deadline:
            said = "; ".join(manager.log_tail(name, 3)) or manager.status(name).detail
            raise SpecdashError(f"the {what} did not start within {START_S:g} s: {said}")
        time.sleep(0.05)


def _answers(url: str) -> bool:
    import httpx

    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
