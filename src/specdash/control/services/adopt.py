"""The settings of a llama-server or a proxy that specdash does not run, as an env file."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import psutil
from msgspec import Struct
from msgspec.structs import replace

from specdash.backend import settings
from specdash.collect.run_records import live_backends
from specdash.control.deployment import way_to
from specdash.control.services import systemd
from specdash.core.changes import Role
from specdash.core.envfile import read_values
from specdash.core.errors import InputError, RefusedError, ServiceError
from specdash.core.parameter_catalogue import BY_KEY, BY_NAME, PASSED_ON
from specdash.core.parameters import ValueKind
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS
from specdash.core.target import Target, local_port
from specdash.system.processes import family, listener_owners, listening_pid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SERVER = "llama-server"
_VARIABLES = ("LLAMA_ARG_", "LLAMA_CACHE", "CUDA_", "GGML_", "HF_", "HIP_", "ROCR_", "LD_LIBRARY_PATH")
_UNIT = re.compile(r"([^/]+\.service)(?:/[^/]*)?$")


class Adopted(Struct, frozen=True):
    """What was found: `values` are an env file's, with secrets; `ending` is the command that ends what runs now."""

    role: Role
    values: dict[str, str]
    source: str
    ending: str
    pids: frozenset[int] = frozenset()


def adopt_process(target: Target) -> Adopted:
    """Of a running llama-server. Raises `RefusedError` where it cannot be seen, or is none."""
    port = local_port(target.url)
    pid = target.pid or (listening_pid(port) if port is not None else None)
    if pid is None:
        gone = port is None or listener_owners(port) == set()
        hidden = "its process cannot be seen; run this as the user who started it"
        raise RefusedError(f"{target.url}: {way_to(target.url) if gone else hidden}")
    for record in live_backends(os.environ):
        if record.pid == pid:
            raise RefusedError(f"{target.url}: specdash runs it already, from {record.env_file}; nothing was written")
    try:
        process = psutil.Process(pid)
        variables = process.environ()
        values = adopted_values(process.cmdline(), variables, replace(target, pid=pid))
    except (psutil.Error, OSError) as error:
        raise RefusedError(f"{target.url}: process {pid} cannot be seen: {error}") from None
    if values is None:
        raise RefusedError(f"process {pid}, which listens at {target.url}, is not a llama-server; nothing was written")
    return Adopted(Role.BACKEND, values, f"process {pid}, {target.url}", _ending(process, variables), frozenset({pid}))


def adopt_unit(unit: str, env: Mapping[str, str]) -> Adopted:
    """Of a unit of systemd's user manager: of the llama-server that it runs, and what its EnvironmentFile= has besides.

    Raises `ServiceError` where there is no such unit, `RefusedError` where it says nothing that can be taken over.
    """
    unit = unit if unit.endswith(".service") else f"{unit}.service"
    facts = systemd.show(env, [unit], ("LoadState", "MainPID", "EnvironmentFiles"))[0]
    if facts["LoadState"] == "not-found":
        raise ServiceError(f"{unit}: systemd's user manager knows no such unit")
    processes = family(int(facts["MainPID"])) if facts["MainPID"] != "0" else []
    pids = frozenset(process.pid for process in processes)
    ending = f"systemctl --user disable --now {unit}"
    running = None
    for process in processes:
        with contextlib.suppress(psutil.Error):
            running = running or adopted_values(process.cmdline(), process.environ(), Target("", pid=process.pid))
    for path in re.findall(r"(\S.*?) \(ignore_errors=\w+\)", facts.get("EnvironmentFiles", "")):
        try:
            given = read_values(Path(path).read_bytes(), path)
        except OSError as error:
            raise InputError(f"env file {path}: {error.strerror or error}") from None
        backend = {key: text for key, text in given.items() if key in BY_KEY or key in PASSED_ON}
        proxy = {key: text for key, text in given.items() if key in PROXY_KEYS}
        if proxy or backend:
            if len(proxy) > len(backend):
                return Adopted(Role.PROXY, proxy, f"{unit}, {path}", ending, pids)
            if running is None:
                return Adopted(Role.BACKEND, backend, f"{unit}, {path}", ending, pids)
            # A script between both adds arguments; those of the file are on the command line, too.
            running = {**{key: text for key, text in backend.items() if key != settings.SOURCE}, **running}
            break
    if running is not None:
        return Adopted(Role.BACKEND, running, f"{unit}, process {facts['MainPID']}", ending, pids)
    raise RefusedError(f"{unit} has no EnvironmentFile= with settings and runs no llama-server; nothing was written")


def adopted_values(argv: Sequence[str], variables: Mapping[str, str], target: Target) -> dict[str, str] | None:
    """The settings of a command line of llama-server as an env file that people read: a key for each argument that has
    one, and whole paths. None where it is another command. Holds secrets.

    Raises `RefusedError` for an argument that today's llama-server has not."""
    if not argv or not PurePath(argv[0]).name.startswith(_SERVER):
        return None
    words = (word.split("=", 1) if word.startswith("--") else [word] for word in argv[1:])
    try:
        known, unknown = settings.parse(shlex.join(part for parts in words for part in parts))
    except InputError as error:
        raise RefusedError(f"its command line: {error}; nothing was written") from None
    own = {key: value for key, value in variables.items() if key.startswith(_VARIABLES) or key == "LLAMA_API_KEY"}
    named: dict[str, str] = {}
    rest: list[str] = []
    for parameter, text in ((BY_NAME[name], text) for name, text in known.items()):
        if parameter.keys:
            # The name that operators use, where it has one beside llama.cpp's own.
            named[min(parameter.keys, key=lambda key: key.startswith("LLAMA_ARG_"))] = text
        elif parameter.kind is ValueKind.SWITCH:
            rest.append((parameter.flags if text == "1" else parameter.off_flags)[0])
        else:
            rest += [parameter.flags[0], text]
    rest += unknown
    port = local_port(target.url) if target.url else None
    values = {
        **own,
        "LLAMA_ENGINE": _SERVER,
        "LLAMA_BIN": argv[0] if "/" in argv[0] else shutil.which(argv[0], path=variables.get("PATH")) or argv[0],
        **({"LLAMA_PORT": str(port)} if port is not None else {}),
        # Its own default, where ours is one slot.
        **({"LLAMA_PARALLEL": "-1"} if "LLAMA_ARG_N_PARALLEL" not in own else {}),
        **named,
    }
    try:
        cwd = psutil.Process(target.pid).cwd()
    except (psutil.Error, OSError):
        cwd = ""

    def whole(word: str, *, is_path: bool = False) -> str:
        place = str(Path(cwd) / word)
        # A word may be longer than any path, for which Path.is_file raises.
        return place if cwd and ((is_path and "/" in word) or os.path.isfile(place)) else word  # noqa: PTH113

    paths = {key for key in values if key in BY_KEY and BY_KEY[key].kind is ValueKind.PATH} | {"LLAMA_BIN"}
    values = {key: whole(value, is_path=key in paths) for key, value in values.items()}
    return {**values, **({settings.SOURCE: shlex.join(map(whole, rest))} if rest else {})}


def _ending(process: psutil.Process, variables: Mapping[str, str]) -> str:
    """The command that ends the process for good: a unit would start it again."""
    # systemd notes the process that it started, which is this one or the script around it.
    started = variables.get("SYSTEMD_EXEC_PID")
    if started in (str(process.pid), str(process.ppid())):
        with contextlib.suppress(OSError):
            group = Path(f"/proc/{process.pid}/cgroup").read_text(encoding="utf-8").strip().rpartition(":")[2]
            if (found := _UNIT.search(group)) is not None:
                unit, own = found.group(1), "/user@" in group
                with contextlib.suppress(ServiceError):
                    own = own or systemd.show(os.environ, [unit], ("MainPID",))[0]["MainPID"] == started
                return f"{'systemctl --user' if own else 'sudo systemctl'} disable --now {unit}"
    return f"kill {process.pid}"
