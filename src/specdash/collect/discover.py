"""Finds llama-servers on this machine: by run records, then by processes."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil
from msgspec import Struct
from msgspec.structs import replace

from specdash.collect.api_key import SERVER_KEYS, first_key, first_key_of
from specdash.collect.log_source import place_of_process
from specdash.collect.run_records import is_alive, live_backends, live_proxies, notes, refusal
from specdash.core import envfile, paths
from specdash.core.errors import SpecdashError
from specdash.core.masking import flags_of, speculation
from specdash.core.parameter_catalogue import BY_KEY
from specdash.core.records import RunRecord
from specdash.core.target import Target, is_local, local_port, normalise_url
from specdash.system.processes import listener_owners

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from specdash.core.records import ProxyRecord


# What the command line and environment of a running llama-server tell about it.

EMBEDDED_MODULE = "specdash.backend.embedded"

DEFAULT_PORT = 8080

RECORD_FIELDS = ("pid", "log", "engine", "parameters", "start_check", "refused")
"""What a run record says of a target that is watched."""
PROXY_FIELDS = ("proxy_url", "proxy_key", "proxy_log", "proxy_origin", "proxy_found")
"""What the run record of a proxy says."""

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}  # noqa: S104 - named, not bound


class ServerArguments(Struct, frozen=True):
    """How a server was started, as far as arguments and `LLAMA_ARG_*` variables tell; None where they do not."""

    host: str | None = None
    port: int | None = None
    log: str | None = None
    certificate: str | None = None
    """The file that it serves TLS with."""
    prefix: str = ""
    """The path that it serves from."""
    needs_key: bool = False
    speculation: tuple[tuple[str, str], ...] = ()
    """(flag without dashes, value) of every speculation flag; a switch has an empty value."""

    def url(self, port: int | None = None) -> str | None:
        """Where it can be asked from this machine; None for a socket file."""
        host = self.host or ""
        if host.endswith(".sock") or "/" in host:
            return None
        host = _ANY_ADDRESS.get(host, host)
        shown = f"[{host}]" if ":" in host else host
        return f"http{'s' if self.certificate else ''}://{shown}:{port or self.port or DEFAULT_PORT}{self.prefix}"


def is_llama_server(command: Sequence[str]) -> bool:
    """Whether an argument vector is a llama-server: the binary, or the embedded one of `specdash backend run`."""
    if not command:
        return False
    if PurePath(command[0]).name.startswith("llama-server"):
        return True
    return any(flag == "-m" and module == EMBEDDED_MODULE for flag, module in itertools.pairwise(command))


def server_arguments(
    command: Sequence[str], environment: Mapping[str, str] | None = None, cwd: str | None = None
) -> ServerArguments:
    """What the arguments, and where they are silent the environment, say. Relative paths are taken from `cwd`."""
    given = {
        parameter.flags[0]: (parameter, value)
        for key, value in (environment or {}).items()
        if key.startswith("LLAMA_ARG_") and (parameter := BY_KEY.get(key)) is not None and parameter.flags
    }
    given = flags_of(command[1:], given)
    values = {flag: value for flag, (_, value) in given.items()}
    log, certificate, port = values.get("--log-file"), values.get("--ssl-cert-file"), values.get("--port", "")
    tls = bool(certificate and values.get("--ssl-key-file"))
    return ServerArguments(
        host=values.get("--host"),
        port=(int(port) or None) if port.isdecimal() and len(port) <= 5 else None,
        log=str(PurePath(cwd or "/", log)) if log else None,
        certificate=str(PurePath(cwd or "/", certificate)) if certificate and tls else None,
        prefix=values.get("--api-prefix", "").rstrip("/"),
        needs_key="--api-key" in values or "--api-key-file" in values or bool((environment or {}).get("LLAMA_API_KEY")),
        speculation=speculation(given),
    )


def discover(env: Mapping[str, str] = os.environ) -> list[Target]:
    """Every server found, best first: those that left a run record, then processes, the newest first."""
    found: dict[tuple[str, int], Target] = {}
    for target in (*_recorded(env), *_running()):
        found.setdefault(place(target.url), target)
    return list(found.values())


def target_for_url(url: str, env: Mapping[str, str] = os.environ, origin: str = "--url") -> Target:
    """The target at an address that the user named, with what this machine knows of it: log, process, parameters.

    Between two boots of a restart it keeps the key of what ran there last.
    """
    if local_port(url) is None:
        return Target(url, origin=origin)
    found = itertools.chain(_recorded(env), _running())
    target = next(
        (replace(here, url=url, origin=f"{origin}; {here.origin}") for here in found if place(here.url) == place(url)),
        Target(url, origin=origin),
    )
    if target.api_key is None and (last := ended_run(url, env)) is not None:
        return replace(target, api_key=_safe_key(last, env), key_is_recorded=True)
    return target


def recorded_target(url: str, env: Mapping[str, str] = os.environ) -> Target | None:
    """The server at a local address as its own run record has it; None when it left none."""
    return next((target for target in _recorded(env) if place(target.url) == place(url)), None)


def recorded_env_file(url: str, env: Mapping[str, str] = os.environ) -> str | None:
    """The env file that a server at a local address was started from, as its run record has it."""
    return next((record.env_file for found, record in _records(env) if place(found) == place(url)), None)


def ended_run(url: str | None = None, env: Mapping[str, str] = os.environ) -> RunRecord | None:
    """What the backend that ran last left of itself, at this local address or at any where none runs now."""
    newest: dict[tuple[str, int], tuple[float, RunRecord]] = {}
    """By address; a record of one that runs is the newest there is."""
    for folder in (paths.run_records_dir(env), paths.ended_records_dir(env)):
        for file, record in notes(folder, RunRecord):
            with contextlib.suppress(OSError, ValueError):
                is_running = record.ended is None and is_alive(record)
                when = float("inf") if is_running else record.ended or file.stat().st_mtime
                here = place(record.url)
                newest[here] = max(newest.get(here, (when, record)), (when, record), key=lambda pair: pair[0])
    wanted = None if url is None else place(url)
    ended = [pair for here, pair in newest.items() if pair[0] != float("inf") and wanted in (None, here)]
    return max(ended, key=lambda pair: pair[0])[1] if ended else None


def with_record(target: Target, env: Mapping[str, str]) -> Target:
    """The target as its newest run record has it; the same where there is none, as between two engines."""
    for url, record in _records(env):
        if place(url) == place(target.url):
            known = {name: getattr(_of_record(url, record), name) for name in RECORD_FIELDS}
            known["log"] = target.log if target.log_named else known["log"] or target.log
            return replace(target, **known)
    return target


def _recorded(env: Mapping[str, str]) -> Iterator[Target]:
    for url, record in _records(env):
        yield replace(_of_record(url, record), api_key=_safe_key(record, env), key_is_recorded=True)


def _of_record(url: str, record: RunRecord) -> Target:
    return Target(
        url,
        log=record.log,
        pid=record.pid,
        engine=record.engine,
        parameters=record.parameters,
        start_check=record.start_check,
        refused=refusal(record),
        origin=f"run record of process {record.pid}",
    )


def _records(env: Mapping[str, str]) -> Iterator[tuple[str, RunRecord]]:
    for record in live_backends(env):
        with contextlib.suppress(SpecdashError):
            yield normalise_url(record.url), record


def _safe_key(record: RunRecord, env: Mapping[str, str]) -> str | None:
    """The key that a record names, unless a program of another user listens at its address by now."""
    key = recorded_key(record, env)
    if key is None:
        return None
    owners = listener_owners(place(record.url)[1])
    return key if owners is not None and owners <= {os.geteuid()} else None


def recorded_key(record: RunRecord | ProxyRecord, env: Mapping[str, str]) -> str | None:
    """A key from the variable or the file that the record names; the variable's value is that of this environment, else
    of the program's own env file."""
    if record.api_key_env is None:
        file = record.api_key_file if isinstance(record, RunRecord) else None
        return first_key_of(file) if file is not None else None
    keys = env.get(record.api_key_env)
    if not keys and record.env_file is not None:
        with contextlib.suppress(OSError, ValueError, SpecdashError):
            text = Path(record.env_file).read_text(encoding="utf-8")
            keys = envfile.parse(text).values.get(record.api_key_env)
    if not keys:
        return None
    return first_key(keys) if record.api_key_env == SERVER_KEYS else keys


def admin_token(record: ProxyRecord) -> str | None:
    """The token for the admin endpoints of a running proxy; None where it asks for none, as proxies of 0.1 do."""
    if record.admin_token_file is not None:
        with contextlib.suppress(OSError, ValueError):
            return Path(record.admin_token_file).read_text(encoding="ascii").strip() or None
    return None


def _running() -> Iterator[Target]:
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            # A look that costs a fifth of psutil's: a desktop has some hundred processes.
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"llama-server" in words or EMBEDDED_MODULE.encode() in words:
                process = psutil.Process(pid)
                command = process.cmdline()
                if is_llama_server(command):
                    found.append((process.create_time(), process, command))
    for _, process, command in sorted(found, key=lambda entry: entry[0], reverse=True):
        with contextlib.suppress(psutil.Error):
            if (target := _target_of(process, command)) is not None:
                yield target


def _target_of(process: psutil.Process, command: list[str]) -> Target | None:
    # Of a process of another user only the command line can be seen.
    environment: dict[str, str] = {}
    cwd = port = None
    with contextlib.suppress(psutil.Error, OSError):
        environment, cwd = process.environ(), process.cwd()
    arguments = server_arguments(command, environment, cwd)
    if arguments.port is None:
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            connections = process.net_connections(kind="tcp")
            port = min(entry.laddr.port for entry in connections if entry.status == psutil.CONN_LISTEN)
        if port is None and EMBEDDED_MODULE in command:
            return None
    url = arguments.url(port)
    if url is None:
        return None
    if arguments.certificate is not None:
        from specdash.system.http import trust

        trust(url, arguments.certificate)
    origin = f"process {process.pid} ({Path(command[0]).name})"
    return Target(
        normalise_url(url),
        log=arguments.log or place_of_process(process.pid),
        pid=process.pid,
        parameters=arguments.speculation,
        origin=f"{origin}, which wants an API key" if arguments.needs_key else origin,
    )


def place(url: str) -> tuple[str, int]:
    """Host and port for comparison; all names of this machine are one."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    local = is_local(host)
    return "localhost" if local else host, parts.port or (443 if parts.scheme == "https" else 80)


def concerns(url: str | None, here: tuple[str, int]) -> bool:
    """Whether what gives this address is about the server at that place; what gives none is about every server."""
    try:
        return url is None or place(url) == here
    except ValueError:
        return False


# Finds the proxy in front of a server: by the run records that proxies of this machine leave.

_NO_PROXY: dict[str, Any] = {"proxy_url": None, "proxy_key": None, "proxy_log": None, "proxy_origin": ""}


def with_proxy(target: Target, env: Mapping[str, str]) -> Target:
    """The target with the youngest proxy whose upstream it is, where there is one; its events before its log.

    What the user named of a proxy stays, and with an address that is everything. One that was found stays as long as it
    runs, and until another is found.
    """
    if target.proxy_url is not None and not target.proxy_found:
        return target
    records = [record for record in running_proxies(env) if place(record.upstream) == place(target.url)]
    if not records:
        return target
    record = next((record for record in records if record.url == target.proxy_url), records[0])
    recorded: dict[str, Any] = {
        "proxy_url": record.url,
        "proxy_key": recorded_key(record, env),
        "proxy_log": record.events,
        "proxy_origin": f"run record of process {record.pid}",
    }
    bare = replace(target, **{name: _NO_PROXY[name] for name in target.proxy_found})
    taken = {name: value for name, value in recorded.items() if value and not getattr(bare, name)}
    return replace(bare, proxy_found=tuple(taken), **taken)


def running_proxies(env: Mapping[str, str]) -> Iterator[ProxyRecord]:
    """The proxies of this machine that run and left a record, the youngest first."""
    for record in live_proxies(env):
        with contextlib.suppress(SpecdashError):
            yield replace(record, url=normalise_url(record.url), upstream=normalise_url(record.upstream))
