"""What a service wrote since a moment, and which of it says why it failed."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil

from specdash.backend import auto
from specdash.backend.launch import settings_of
from specdash.backend.settings import MACHINE_KEYS, ROUTER_KEYS
from specdash.backend.start_check import ServerPromise, promise_of
from specdash.collect.run_records import live_backends, live_proxies
from specdash.control.services.service_command import running_values
from specdash.core.errors import SpecdashError
from specdash.core.masking import without_secrets
from specdash.llama.gguf import GgufError
from specdash.system.data import dataclass
from specdash.system.processes import began, family, same_process
from specdash.system.text import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdash.control.services.services import ManagedService, ServiceStatus
    from specdash.core.records import ProxyRecord, StartCheck
    from specdash.core.speculation import SpecType


# The engine behind a backend service: what its settings promise, and which process serves them now.

_DEFAULT_URL = "http://127.0.0.1:8080"


def promise(values: Mapping[str, str], base: Mapping[str, str] = os.environ) -> ServerPromise:
    """What `values` promise. Never fails: what they do not tell is unknown."""
    machine = {key: base[key] for key in MACHINE_KEYS if base.get(key) and key not in values}
    router = any(values.get(key) for key in ROUTER_KEYS)
    try:
        settings = settings_of({**values, **machine}, base, _detect)
    except SpecdashError:
        host, port = values.get("LLAMA_HOST") or "127.0.0.1", values.get("LLAMA_PORT") or "8080"
        return ServerPromise(f"http://{host}:{port}" if port.isdigit() else _DEFAULT_URL, router=router)
    return promise_of(settings, base)


def _detect(path: str) -> SpecType | None:
    with contextlib.suppress(SpecdashError, GgufError):
        return auto.detect(path)
    return None


def service_promise(
    service: ManagedService, values: Mapping[str, str], base: Mapping[str, str] = os.environ
) -> ServerPromise:
    """What a service promises when its env file holds `values`."""
    return promise(running_values(service, values), base)


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """The process that serves. `digest` is the version of the env file it runs, where its run record tells;
    `recorded` says that it left one."""

    pid: int
    started: float
    url: str
    digest: str | None = None
    log: str | None = None
    recorded: bool = False

    @property
    def alive(self) -> bool:
        """Whether it is still there, and no zombie."""
        return same_process(self.pid, self.started)

    @property
    def name(self) -> str:
        """What it is called."""
        return f"process {self.pid}"


def recorded_engine(
    service: ManagedService, env: Mapping[str, str], main_pid: int | None = None
) -> ServingEngine | None:
    """The youngest live engine that left a record naming this service's env file."""
    wanted = _real(service.env_file)
    found = [
        backend
        for backend in live_backends(env)
        if backend.env_file is not None
        and _real(backend.env_file) == wanted
        and (main_pid is None or backend.runner_pid in (None, main_pid) or backend.pid == main_pid)
    ]
    if not found:
        return None
    best = max(found, key=lambda run_record: run_record.pid_started)
    return ServingEngine(best.pid, best.pid_started, best.url, best.env_digest, best.log, recorded=True)


def engine_check(pid: int, env: Mapping[str, str]) -> StartCheck | None:
    """What the runner of this engine found out about its start; None where it left no record, or has not looked."""
    return next((backend.start_check for backend in live_backends(env) if backend.pid == pid), None)


def running_engine(
    service: ManagedService, status: ServiceStatus, env: Mapping[str, str], expected_url: str
) -> ServingEngine | None:
    """The engine that serves for this service now: by its run record, else the listening process of the service."""
    return recorded_engine(service, env, status.pid) or main_engine(status, expected_url)


def main_engine(status: ServiceStatus, expected_url: str) -> ServingEngine | None:
    """The listening process of the service."""
    return listening_engine(status.pid, expected_url) if status.pid is not None else None


def listening_engine(main_pid: int, expected_url: str) -> ServingEngine | None:
    """The main process of a service or its child that listens, at the expected port first."""
    expected = port_of(expected_url)
    best: tuple[bool, ServingEngine] | None = None
    for process in family(main_pid):
        with contextlib.suppress(psutil.Error, OSError):
            listening = [
                connection for connection in process.net_connections("tcp") if connection.status == psutil.CONN_LISTEN
            ]
            ports = {pconn.laddr.port for pconn in listening}
            if not ports:
                continue
            exact = expected in ports
            port = expected if exact else min(ports)
            url = expected_url if exact else f"{urlsplit(expected_url).scheme}://127.0.0.1:{port}"
            if best is None or (exact and not best[0]):
                best = exact, ServingEngine(process.pid, began(process.pid) or 0.0, url)
    return best[1] if best is not None else None


def owns_port(engine: ServingEngine) -> bool | None:
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
        if any(pconn.status == psutil.CONN_LISTEN and pconn.laddr.port == port for pconn in found):
            return True
    return None if hidden else False


def port_of(url: str) -> int | None:
    """The port in an address."""
    tail = url.rsplit(":", 1)[-1].strip("/")
    return int(tail) if tail.isdigit() else None


def recorded_proxy(service: ManagedService, env: Mapping[str, str]) -> ProxyRecord | None:
    """The youngest live proxy that left a record naming this service's env file."""
    wanted = _real(service.env_file)
    found = [proxy for proxy in live_proxies(env) if proxy.env_file is not None and _real(proxy.env_file) == wanted]
    return max(found, key=lambda proxy_record: proxy_record.pid_started, default=None)


def _real(path: str | Path) -> str:
    return os.path.realpath(os.path.expanduser(path))  # noqa: PTH111 - one call, for paths and texts alike


_READ_LIMIT = 512 * 1024
_TELLING = re.compile(
    r"^\s*[\d.]+\s+E\s|^specdash: |\berror\b|failed|GGML_ASSERT|terminate called|couldn't|could not|not found|invalid|"
    r"refused|exit code|signal SIG|cannot|unknown",
    re.IGNORECASE,
)
_CALM = re.compile(r"^\s*[\d.]+\s+[ID]\s|\[(?:INFO|DEBUG)\]")
_SPECULATION = re.compile(r"draft|spec|vocab|ngram", re.IGNORECASE)
_WEIGHTY = re.compile(r"^\s*[\d.]+\s+[EW]\s|error|failed|warn|incompatible|mismatch", re.IGNORECASE)
_LONGEST = 400
MOST_LINES = 8


@dataclass(frozen=True, slots=True)
class LogMark:
    """The end of a log file at one moment. `inode` tells whether it was moved away since."""

    path: Path
    inode: int
    size: int


def mark(path: str | Path | None) -> LogMark | None:
    """The end of the file now; a missing one ends at its beginning."""
    if path is None:
        return None
    file = Path(path)
    try:
        status = file.stat()
    except OSError:
        return LogMark(file, 0, 0)
    return LogMark(file, status.st_ino, status.st_size)


def lines_since(log_mark: LogMark | None) -> list[str]:
    """What was written after the mark, at most the last half MiB of it; empty when the file cannot be read."""
    if log_mark is None:
        return []
    try:
        with log_mark.path.open("rb") as file:
            end = file.seek(0, 2)
            same = log_mark.inode == log_mark.path.stat().st_ino and log_mark.size <= end
            start = max(log_mark.size if same else 0, end - _READ_LIMIT)
            file.seek(start)
            data = file.read(_READ_LIMIT)
    except OSError:
        return []
    return [line for raw in data.decode("utf-8", "replace").splitlines() if (line := raw.strip())]


def telling(lines: Iterable[str], most: int = MOST_LINES) -> tuple[str, ...]:
    """The lines that look like the cause, in their order, each once, without secrets."""
    kept = [line for line in dict.fromkeys(lines) if _TELLING.search(line) and not _CALM.match(line)]
    return _shown(kept[-most:])


def last_lines(lines: list[str]) -> tuple[str, ...]:
    """The last of them, without secrets."""
    return _shown(lines[-MOST_LINES:])


def about_speculation(lines: Iterable[str]) -> tuple[str, ...]:
    """The errors and warnings that concern drafting."""
    kept = list(dict.fromkeys(lines))
    return _shown([line for line in kept if _SPECULATION.search(line) and _WEIGHTY.search(line)][-MOST_LINES:])


def last_line(lines: list[str]) -> str:
    """The last of them, short."""
    return _shown(lines[-1:])[0][:120] if lines else ""


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    """The text without these values."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _shown(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(without_secrets(shortened(line, _LONGEST)) for line in lines)
