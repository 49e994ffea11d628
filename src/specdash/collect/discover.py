"""Finds llama-servers on this machine: by run records, by processes, and at the ports where they usually are."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil

from specdash.collect.command_line import EMBEDDED_MODULE, is_llama_server, server_arguments
from specdash.collect.processes import local_port
from specdash.core import envfile, paths
from specdash.core.errors import SpecdashError
from specdash.core.run_record import RunRecord
from specdash.core.target import Target, is_local
from specdash.llama.address import normalise_url
from specdash.llama.bodies import ParseError
from specdash.llama.health import parse_health

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from specdash.core.run_record import ProxyRecord

USUAL_PORTS: tuple[int, ...] = (8080, 9931)
"""llama-server's default port, and the one announced as its next."""

PROBE_S = 0.3

_SAME_START_S = 2.0
"""Start times of one process as read by two programs differ by rounding."""


def discover(env: Mapping[str, str] = os.environ, ports: Iterable[int] = USUAL_PORTS) -> list[Target]:
    """Every server found, best first: those that left a run record, then processes, the newest first, then ports."""
    found: dict[tuple[str, int], Target] = {}
    for target in (*_recorded(env), *_running()):
        found.setdefault(place(target.url), target)
    for port in ports:
        url = f"http://127.0.0.1:{port}"
        if place(url) not in found and answers_like_llama_server(port):
            found[place(url)] = Target(url, origin=f"answers on port {port}")
    return list(found.values())


def target_for_url(url: str, env: Mapping[str, str] = os.environ, origin: str = "--url") -> Target:
    """The target at an address that the user named, with what this machine knows of it: log, process, parameters."""
    if local_port(url) is not None:
        for target in (*_recorded(env), *_running()):
            if place(target.url) == place(url):
                return replace(target, url=url, origin=f"{origin}; {target.origin}")
    return Target(url, origin=origin)


def recorded_target(url: str, env: Mapping[str, str] = os.environ) -> Target | None:
    """The server at a local address as its own run record has it; None when it left none."""
    if local_port(url) is None:
        return None
    return next((target for target in _recorded(env) if place(target.url) == place(url)), None)


def recorded_env_file(url: str, env: Mapping[str, str] = os.environ) -> str | None:
    """The env file that a server at a local address was started from, as its run record has it."""
    if local_port(url) is None:
        return None
    return next((record.env_file for found, record in _records(env) if place(found) == place(url)), None)


def ended_run(url: str | None = None, env: Mapping[str, str] = os.environ) -> RunRecord | None:
    """What the backend that ran last left of itself, at this local address or at any where none runs now."""
    notes = [*_notes(paths.run_records_dir(env)), *_notes(paths.ended_records_dir(env))]
    places: dict[tuple[str, int], list[tuple[float, RunRecord]]] = {}
    for file, record in notes:
        with contextlib.suppress(OSError, ValueError):
            alive = record.ended is None and is_alive(record)
            when = float("inf") if alive else record.ended or file.stat().st_mtime
            places.setdefault(place(record.url), []).append((when, record))
    newest = [max(found, key=lambda one: one[0]) for found in places.values()]
    ended = [one for one in newest if one[0] != float("inf") and (url is None or place(one[1].url) == place(url))]
    return max(ended, key=lambda one: one[0])[1] if ended else None


def answers_like_llama_server(port: int, timeout_s: float = PROBE_S) -> bool:
    """Whether GET /health on a local port is answered as llama-server does, loading or not."""
    deadline = time.monotonic() + timeout_s
    answer = bytearray()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            while len(answer) < 16384 and (left := deadline - time.monotonic()) > 0:
                connection.settimeout(left)
                data = connection.recv(4096)
                answer += data
                if not data:
                    break
    except OSError:
        # What came before a timeout may be the whole answer of a server that keeps the connection.
        pass
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if not head.startswith(b"HTTP/1.") or not status or status[0] not in (b"200", b"503"):
        return False
    try:
        parse_health(int(status[0]), body)
    except ParseError:
        return False
    # Others answer {"status":"ok"} as well; llama-server names itself, and while loading its error is its own.
    return b"llama.cpp" in head or (status[0] == b"503" and b"oading" in body)


def _recorded(env: Mapping[str, str]) -> Iterator[Target]:
    for url, record in _records(env):
        yield Target(
            url,
            api_key=recorded_key(record, env),
            log=record.log,
            pid=record.pid,
            engine=record.engine,
            parameters=record.parameters,
            start_check=record.start_check,
            origin=f"run record of process {record.pid}",
        )


def _records(env: Mapping[str, str]) -> Iterator[tuple[str, RunRecord]]:
    """The records of backends that run, with their addresses, the newest first."""
    for _, record in _notes(paths.run_records_dir(env)):
        with contextlib.suppress(SpecdashError):
            url = normalise_url(record.url)
            if is_alive(record):
                yield url, record


def _notes(directory: Path) -> Iterator[tuple[Path, RunRecord]]:
    """The records in a directory, the newest first."""
    try:
        files = sorted(directory.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    except OSError:
        return
    for file in files:
        try:
            record = RunRecord.from_json(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if record is not None:
            yield file, record


def is_alive(record: RunRecord | ProxyRecord) -> bool:
    """Whether the process that left the record still runs, and is the same."""
    try:
        return abs(psutil.Process(record.pid).create_time() - record.pid_started) <= _SAME_START_S
    except (psutil.Error, ValueError, OverflowError):
        return False


def recorded_key(record: RunRecord | ProxyRecord, env: Mapping[str, str]) -> str | None:
    """The key from the variable that the record names, in this environment or in the program's own env file."""
    if record.api_key_env is None:
        return None
    if key := env.get(record.api_key_env):
        return key
    if record.env_file is None:
        return None
    try:
        text = Path(record.env_file).read_text(encoding="utf-8")
        return envfile.parse(text).values.get(record.api_key_env) or None
    except (OSError, ValueError, SpecdashError):
        return None


def _running() -> Iterator[Target]:
    processes = [(process, command) for process, command in _commands() if is_llama_server(command)]
    for process, command in sorted(processes, key=lambda found: _started(found[0]), reverse=True):
        try:
            target = _target_of(process, command)
        except psutil.Error:
            continue
        if target is not None:
            yield target


def _commands() -> Iterator[tuple[psutil.Process, list[str]]]:
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            yield process, process.cmdline()


def _started(process: psutil.Process) -> float:
    try:
        return process.create_time()
    except psutil.Error:
        return 0.0


def _target_of(process: psutil.Process, command: list[str]) -> Target | None:
    arguments = server_arguments(command, _environment(process), _cwd(process))
    port = arguments.port
    if port is None:
        port = _listening_port(process)
        if port is None and EMBEDDED_MODULE in command:
            return None
    url = arguments.url(port)
    if url is None:
        return None
    origin = f"process {process.pid} ({Path(command[0]).name})"
    if arguments.needs_key:
        origin += ", which wants an API key"
    return Target(
        normalise_url(url),
        log=arguments.log or _redirected_log(process.pid),
        pid=process.pid,
        parameters=arguments.speculation,
        origin=origin,
    )


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def _cwd(process: psutil.Process) -> str | None:
    try:
        return process.cwd()
    except (psutil.Error, OSError):
        return None


def _listening_port(process: psutil.Process) -> int | None:
    try:
        connections = process.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    ports = [connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN]
    return min(ports) if ports else None


def _redirected_log(pid: int) -> str | None:
    """The file that the server's standard error goes to, when that is one."""
    link = Path(f"/proc/{pid}/fd/2")
    try:
        path = link.readlink()
        return str(path) if path.is_absolute() and path.is_file() else None
    except OSError:
        return None


def place(url: str) -> tuple[str, int]:
    """Host and port for comparison; all names of this machine are one."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    local = is_local(host)
    return "localhost" if local else host, parts.port or (443 if parts.scheme == "https" else 80)


def concerns(url: str | None, here: tuple[str, int]) -> bool:
    """Whether what tells this address is about the server at that place; what tells none is about every server."""
    try:
        return url is None or place(url) == here
    except ValueError:
        return False
