"""Sets the services up: both env files for a model, and the units; touches no file of others."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from specdash.backend.env_store import read_env, replace_env
from specdash.control.services import systemd, units
from specdash.core import paths
from specdash.core.changes import Role
from specdash.core.envfile import quote
from specdash.core.errors import NotWrittenError, ServiceError
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS
from specdash.system import files
from specdash.system.files import short_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_BACKEND_PORT = 8080


def backend_text(model: str, draft: str | None = None, profile: str | None = None) -> str:
    """The backend's env file for a model, with a reason for each line.

    Raises `InputError` for files and settings that no server can be started with, `EngineMissingError`.
    """
    from specdash.backend.launch import make_plan
    from specdash.backend.plan import Circumstances, plan
    from specdash.backend.rules.machine import fitting_context

    rows = {
        "LLAMA_MODEL": (str(Path(model).expanduser().absolute()), "the model that was named"),
        "LLAMA_SPEC_TYPE": ("auto", "how it speculates"),
        "LLAMA_CTX_SIZE": ("0", "as the model was trained"),
        "LLAMA_HOST": ("127.0.0.1", "for this machine only; another address needs LLAMA_API_KEY"),
        "LLAMA_PORT": _free_port(_BACKEND_PORT),
        **_of_profile(profile, Role.BACKEND),
    }
    if draft is not None:
        rows["LLAMA_DRAFT_MODEL"] = str(Path(draft).expanduser().absolute()), "the draft model that was named"
    values = {key: text for key, (text, _) in rows.items()}
    if (choice := make_plan(values).settings.choice) is not None:
        reason = " ".join(choice.because.split())
        rows["LLAMA_SPEC_TYPE"] = ("auto", f"chosen at each start, today {choice.chain}: {reason}")
    if rows["LLAMA_CTX_SIZE"][0] == "0" and (context := fitting_context(plan(values, Circumstances(None)))):
        rows["LLAMA_CTX_SIZE"] = (str(context), "the largest that fits into the memory that is free now")
    return _env_text(rows)


def proxy_text(backend: Mapping[str, str], profile: str | None = None) -> str:
    """The env file of a proxy in front of a backend with these values, with a reason for each line."""
    key = backend.get("LLAMA_API_KEY", "").partition(",")[0]
    upstream = f"http://127.0.0.1:{backend.get('LLAMA_PORT') or _BACKEND_PORT}/v1"
    return _env_text(
        {
            "LLAMA_CPP_BASE": (upstream, "the backend"),
            **({"PROXY_UPSTREAM_API_KEY": (key, "the backend's key")} if key else {}),
            "PROXY_PORT": _free_port(int(str(PROXY_KEYS["PROXY_PORT"].default))),
            **_of_profile(profile, Role.PROXY),
        }
    )


def write_env_files(texts: Mapping[Role, str], env_files: Mapping[Role, Path]) -> list[Path]:
    """Write them, mode 0600; the paths. Raises `NotWrittenError`."""
    for role, text in texts.items():
        replace_env(read_env(env_files[role]), text.encode())
    return [env_files[role] for role in texts]


def unit_changes(
    env: Mapping[str, str], env_files: Mapping[Role, Path], names: Iterable[str], values: Mapping[Role, dict[str, str]]
) -> dict[Path, tuple[str | None, str]]:
    """The unit files of these names: their text now, None where there is none, and as it will be. Raises `ServiceError`
    for a file there that specdash did not write."""
    texts, changes = units.unit_texts(env, env_files, values), {}
    for name in names:
        path = units.unit_directory(env) / name
        before = _text_of(path)
        if path.is_symlink() or (before is not None and not before.startswith(units.MARKER)):
            masked = os.path.realpath(path) == os.devnull
            remedy = f"`systemctl --user unmask {name}` lifts its mask" if masked else "move it away first"
            raise ServiceError(f"{path} was not written by specdash, and is left as it is; {remedy}")
        changes[path] = before, texts[name]
    return changes


def install(env: Mapping[str, str], changes: Mapping[Path, tuple[str | None, str]], enabled: Sequence[str]) -> None:
    """Write the units, make systemd read them, and enable those named. Raises `ServiceError` or `NotWrittenError`; the
    units are then as they were before."""
    written = {path: before for path, (before, text) in changes.items() if text != before}
    try:
        for path in written:
            _write(path, changes[path][1])
        if (logs := units.log_dir(env)) is not None:
            with files.writing(logs, NotWrittenError):
                logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        systemd.systemctl(env, "daemon-reload")
        if enabled:
            systemd.systemctl(env, "enable", "--", *enabled)
    except (ServiceError, NotWrittenError):
        for path, before in written.items():
            with contextlib.suppress(OSError, NotWrittenError):
                path.unlink() if before is None else _write(path, before)
        with contextlib.suppress(ServiceError):
            systemd.systemctl(env, "daemon-reload")
        raise


def uninstall(env: Mapping[str, str]) -> list[Path]:
    """Stop, disable and remove specdash's units; the files that went. Raises `ServiceError` before anything is
    removed."""
    # The proxy first: it lets its requests finish while the backend still answers.
    names = (units.RECORD_UNIT, units.PROXY_SOCKET, units.PROXY_UNIT, units.BACKEND_UNIT)
    paths = [units.unit_directory(env) / name for name in names]
    files.sweep(units.unit_directory(env))
    ours = [path for path in paths if not path.is_symlink() and (_text_of(path) or "").startswith(units.MARKER)]
    if not ours:
        return []
    for path in ours:
        systemd.stop(path.name, env)
    systemd.systemctl(env, "disable", "--", *(path.name for path in ours))
    for path in ours:
        with files.writing(path, NotWrittenError):
            path.unlink()
    systemd.systemctl(env, "daemon-reload")
    return ours


def left_supervisor(env: Mapping[str, str] = os.environ) -> str | None:
    """One line about a supervisor of 0.1 that still runs, with what stops it; None where none does."""
    path = paths.state_dir(env) / "run" / "supervisor.sock"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            with short_path(path) as short:
                connection.connect(short)
            pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except OSError:
        return None
    # It listens before it goes into the background: the socket names a process that may be gone.
    holders = [row.pid for row in psutil.net_connections("unix") if str(row.laddr) == str(path)]
    pid = next(filter(None, holders), pid)
    return (
        f"the supervisor of specdash 0.1 still runs (process {pid}) with its services: `kill {pid}` stops them all; "
        "then `specdash up` or `specdash services install --start` runs them from the same env files"
    )


def _env_text(rows: Mapping[str, tuple[str, str]]) -> str:
    head = "# Written by specdash; `specdash env explain KEY` explains a key, `specdash apply KEY=VALUE` changes it.\n"
    return head + "".join(f"\n# {reason}\n{key}={quote(text)}\n" for key, (text, reason) in rows.items())


def _of_profile(name: str | None, role: Role) -> dict[str, tuple[str, str]]:
    from specdash.control.profiles import find_profile

    values = find_profile(name).values.get(role, {}) if name is not None else {}
    return {key: (text, f"profile {name}") for key, text in values.items()}


def _free_port(usual: int) -> tuple[str, str]:
    """The usual port, or the next one that is free, and why it is taken."""
    for port in range(usual, usual + 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return str(port), "where clients connect" + ("" if port == usual else f"; {usual} is in use")
    raise ServiceError(f"the ports {usual} to {usual + 99} are all in use")


def _text_of(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def _write(path: Path, text: str) -> None:
    with files.writing(path, NotWrittenError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(path, text.encode(), 0o644)
