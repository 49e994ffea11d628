"""The engine behind a backend service: what its settings promise, and which process serves them now."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from specdash.backend import model_files
from specdash.backend.launch import settings_of
from specdash.backend.promise import Promise, promise_of
from specdash.backend.settings import MACHINE_KEYS, ROUTER_KEYS
from specdash.collect.processes import same_process
from specdash.control.service_command import running_values
from specdash.core.errors import SpecdashError
from specdash.core.paths import proxy_records_dir, run_records_dir
from specdash.core.run_record import ProxyRecord, RunRecord
from specdash.llama.gguf import GgufError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdash.control.services import ManagedService, ServiceStatus
    from specdash.core.speculation import SpecType
    from specdash.core.start_check import StartCheck

_START_TIME = 19
"""Place of `starttime` in /proc/PID/stat after the name, see proc(5)."""
_DEFAULT_URL = "http://127.0.0.1:8080"


def promise(values: Mapping[str, str], base: Mapping[str, str] = os.environ) -> Promise:
    """What `values` promise. Never fails: what they do not tell is unknown."""
    machine = {key: base[key] for key in MACHINE_KEYS if base.get(key) and key not in values}
    router = any(values.get(key) for key in ROUTER_KEYS)
    try:
        settings = settings_of({**values, **machine}, base, _detect)
    except SpecdashError:
        host, port = values.get("LLAMA_HOST") or "127.0.0.1", values.get("LLAMA_PORT") or "8080"
        return Promise(f"http://{host}:{port}" if port.isdigit() else _DEFAULT_URL, router=router)
    return promise_of(settings, base)


def _detect(path: str) -> SpecType | None:
    with contextlib.suppress(SpecdashError, GgufError):
        return model_files.detect(path)
    return None


def service_promise(
    service: ManagedService, values: Mapping[str, str], base: Mapping[str, str] = os.environ
) -> Promise:
    """What a service promises when its env file holds `values`."""
    return promise(running_values(service, values), base)


@dataclass(frozen=True, slots=True)
class Engine:
    """The process that serves. `digest` is the version of the env file it runs, where its run record tells;
    `recorded` says that it left one."""

    pid: int
    started: float
    url: str
    digest: str | None = None
    log: str | None = None
    runner_pid: int | None = None
    recorded: bool = False

    @property
    def alive(self) -> bool:
        """Whether it is still there, and no zombie."""
        return same_process(self.pid, self.started)


def age_s(pid: int) -> float | None:
    """How long ago the process was started, in seconds and to a hundredth; None where the system does not tell.

    psutil's create_time is no help: it counts from a boot time that is known to a second only.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def recorded_engine(service: ManagedService, env: Mapping[str, str], main_pid: int | None = None) -> Engine | None:
    """The youngest live engine that left a record naming this service's env file."""
    wanted = _real(service.env_file)
    found = [
        one
        for one in _run_records(env)
        if one.env_file is not None
        and _real(one.env_file) == wanted
        and (main_pid is None or one.runner_pid in (None, main_pid) or one.pid == main_pid)
        and same_process(one.pid, one.pid_started)
    ]
    if not found:
        return None
    best = max(found, key=lambda one: one.pid_started)
    return Engine(best.pid, best.pid_started, best.url, best.env_digest, best.log, best.runner_pid, recorded=True)


def engine_check(pid: int, env: Mapping[str, str]) -> StartCheck | None:
    """What the runner of this engine found out about its start; None where it left no record, or has not looked."""
    return next((one.start_check for one in _run_records(env) if one.pid == pid), None)


def running_engine(
    service: ManagedService, status: ServiceStatus, env: Mapping[str, str], expected_url: str
) -> Engine | None:
    """The engine that serves for this service now: by its run record, else the listening process of the service."""
    found = recorded_engine(service, env, status.pid)
    if found is not None or status.pid is None:
        return found
    return listening_engine(status.pid, expected_url)


def listening_engine(main_pid: int, expected_url: str) -> Engine | None:
    """The main process of a service or its child that listens, at the expected port first."""
    expected = port_of(expected_url)
    best: tuple[bool, Engine] | None = None
    for process in family(main_pid):
        with contextlib.suppress(psutil.Error, OSError):
            listening = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
            ports = {one.laddr.port for one in listening}
            if not ports:
                continue
            exact = expected in ports
            port = expected if exact else min(ports)
            url = expected_url if exact else f"http://127.0.0.1:{port}"
            if best is None or (exact and not best[0]):
                best = exact, Engine(process.pid, process.create_time(), url)
    return best[1] if best is not None else None


def owns_port(engine: Engine) -> bool | None:
    """Whether it is this process that listens at its address, or one that it started, as a script that stands in for
    the server does; None where the system does not tell."""
    port = port_of(engine.url)
    if port is None or ".sock" in engine.url:
        return None
    hidden = False
    for process in family(engine.pid):
        try:
            found = process.net_connections("tcp")
        except psutil.NoSuchProcess:
            continue
        except (psutil.Error, OSError):
            hidden = True
            continue
        if any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in found):
            return True
    return None if hidden else False


def family(main_pid: int) -> list[psutil.Process]:
    """A process and everything it started."""
    try:
        process = psutil.Process(main_pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def port_of(url: str) -> int | None:
    """The port in an address."""
    tail = url.rsplit(":", 1)[-1].strip("/")
    return int(tail) if tail.isdigit() else None


def recorded_proxy(service: ManagedService, env: Mapping[str, str]) -> ProxyRecord | None:
    """The youngest live proxy that left a record naming this service's env file."""
    wanted = _real(service.env_file)
    found = [one for one in live_proxies(env) if one.env_file is not None and _real(one.env_file) == wanted]
    return max(found, key=lambda one: one.pid_started, default=None)


def live_proxies(env: Mapping[str, str]) -> list[ProxyRecord]:
    """Every proxy of this machine that left a record and still runs."""
    records = (ProxyRecord.from_json(text) for text in _texts(proxy_records_dir(env)))
    return [one for one in records if one is not None and same_process(one.pid, one.pid_started)]


def _run_records(env: Mapping[str, str]) -> Iterator[RunRecord]:
    for text in _texts(run_records_dir(env)):
        record = RunRecord.from_json(text)
        if record is not None:
            yield record


def _texts(directory: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for file in directory.glob("*.json"):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                yield file.read_text(encoding="utf-8")


def _real(path: str | Path) -> str:
    return os.path.realpath(os.path.expanduser(path))  # noqa: PTH111 - one call, for paths and texts alike
