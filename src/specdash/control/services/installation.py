"""Puts specdash's own units where systemd's user manager finds them, and takes them away; touches no file of others."""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
import os
import pwd
import shutil
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specdash.control.services.supervisor_client import SupervisorClient
from specdash.control.services.supervisor_services import FROM_ENV, ServiceEntry, read_services, write_services
from specdash.control.services.systemd import Systemctl, SystemdManager
from specdash.control.services.units import (
    RECORD_UNIT,
    UNIT_OF,
    UNITS_OF,
    UnitFacts,
    record_unit,
    unit_texts,
    version_of,
)
from specdash.core import paths
from specdash.core.changes import Role
from specdash.core.envfile import read_values
from specdash.core.errors import InputError, NotWrittenError, ServiceError
from specdash.core.parameter_catalogue import BY_KEY as BACKEND_KEYS
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS
from specdash.system import files
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdash.core.parameters import Parameter


_XDG = {"XDG_CONFIG_HOME": ".config", "XDG_STATE_HOME": ".local/state", "XDG_CACHE_HOME": ".cache"}
_MACHINE = ("LLAMA_BIN", "LLAMA_ENGINE")
_ENGINE = "llama-server"
_JOURNAL = Path("/run/systemd/journal/stdout")
_KEPT_JOURNAL = Path("/var/log/journal")
_LINGERING = Path("/var/lib/systemd/linger")
_ENABLE_S = 60.0


@dataclass(frozen=True, slots=True)
class UnitChange:
    """One unit file as it will be. `before` is None where there is none yet."""

    path: Path
    text: str
    before: str | None

    @property
    def diff(self) -> list[str]:
        """Unified diff against the unit that is there."""
        old, new = (self.before or "").splitlines(), self.text.splitlines()
        return list(difflib.unified_diff(old, new, str(self.path), f"{self.path} (new)", lineterm=""))


def unit_directory(env: Mapping[str, str]) -> Path:
    """Where the user's own units are."""
    return paths.config_dir(env).parent / "systemd" / "user"


def default_env_file(role: Role, env: Mapping[str, str]) -> Path:
    """The env file of a service that names none."""
    return paths.backend_env_file(env) if role is Role.BACKEND else paths.proxy_env_file(env)


def proxy_addresses(values: Mapping[str, str]) -> tuple[str, ...]:
    """Where PROXY_HOST and PROXY_PORT say that the proxy listens, as `ListenStream=` takes it. Raises `InputError`."""
    host = values.get("PROXY_HOST", "").strip() or str(PROXY_KEYS["PROXY_HOST"].default)
    port = int(_number(PROXY_KEYS["PROXY_PORT"], values))
    try:
        rows = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InputError(f"PROXY_HOST={host}: {error.strerror or error}") from None
    found = dict.fromkeys(str(row[4][0]) for row in rows)
    # A name may stand for addresses this machine has not: with one of them the whole socket unit would fail.
    usable = [name for name in found if len(found) == 1 or _is_here(name)]
    return tuple(f"[{name}]:{port}" if ipaddress.ip_address(name).version == 6 else f"{name}:{port}" for name in usable)


def gather(env: Mapping[str, str], env_files: Mapping[Role, Path]) -> UnitFacts:
    """What the units are made of on this machine. A missing env file counts as empty; raises `InputError`."""
    values = {role: _values(path) for role, path in env_files.items()}
    return UnitFacts(
        python=sys.executable,
        backend_env=str(env_files[Role.BACKEND]),
        proxy_env=str(env_files[Role.PROXY]),
        listen=proxy_addresses(values[Role.PROXY]),
        environment=_passed_on(env, values[Role.BACKEND]),
        backend_patience=_number(BACKEND_KEYS["LLAMA_STOP_TIMEOUT"], values[Role.BACKEND]),
        proxy_patience=_number(PROXY_KEYS["PROXY_DRAIN_TIMEOUT"], values[Role.PROXY]),
        log_dir=None if _JOURNAL.exists() and _KEPT_JOURNAL.is_dir() else str(paths.state_dir(env) / "logs"),
        kill=shutil.which("kill", path=env.get("PATH")) or "/bin/kill",
        find=shutil.which("find", path=env.get("PATH")) or "/usr/bin/find",
        modprobe=shutil.which("nvidia-modprobe", path=env.get("PATH")),
    )


def plan(env: Mapping[str, str], facts: UnitFacts, roles: Iterable[Role]) -> tuple[UnitChange, ...]:
    """The unit files of these services. Raises `ServiceError` for a file there that specdash did not write."""
    texts = unit_texts(facts)
    return tuple(change_of(env, name, texts[name]) for role in roles for name in UNITS_OF[role])


def change_of(env: Mapping[str, str], name: str, text: str) -> UnitChange:
    """One unit file. Raises `ServiceError` for a file there that specdash did not write."""
    path = unit_directory(env) / name
    before = _text_of(path)
    if path.is_symlink() or (before is not None and version_of(before) is None):
        whose = f"leads to {path.readlink()}" if path.is_symlink() else "was not written by specdash"
        raise ServiceError(f"{path} {whose}, and is left as it is; move it away, then install again")
    return UnitChange(path, text, before)


def install(env: Mapping[str, str], changes: Iterable[UnitChange], enabled: Iterable[Role]) -> None:
    """Write the units, make systemd read them, and enable those of the services `enabled`.

    Raises `ServiceError` or `NotWrittenError`; the units are then as they were before.
    """
    systemctl = Systemctl(env)
    if (why := systemctl.why_not()) is not None:
        raise ServiceError(why)
    done: list[UnitChange] = []
    try:
        for change in changes:
            if change.text != change.before:
                _write(change.path, change.text)
                done.append(change)
        log_dir = paths.state_dir(env) / "logs"
        log_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        _must(systemctl, "daemon-reload")
        _check_loaded(systemctl, changes)
        units = [unit for role in enabled for unit in UNITS_OF[role]]
        if units:
            _must(systemctl, "enable", *units)
    except (ServiceError, NotWrittenError, OSError) as error:
        for change in done:
            with contextlib.suppress(OSError, NotWrittenError):
                change.path.unlink() if change.before is None else _write(change.path, change.before)
        with contextlib.suppress(ServiceError):
            systemctl.run("daemon-reload")
        if isinstance(error, OSError):
            raise NotWrittenError(f"{error.filename}: {error.strerror}") from None
        raise


def installed(env: Mapping[str, str]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The unit files under our names: those that specdash wrote, and those that it did not."""
    names = [unit for role in Role for unit in UNITS_OF[role]]
    found = [unit_directory(env) / unit for unit in (*names, RECORD_UNIT)]
    there = [path for path in found if path.is_symlink() or path.exists()]
    ours = tuple(path for path in there if not path.is_symlink() and version_of(_text_of(path) or "") is not None)
    return ours, tuple(path for path in there if path not in ours)


def uninstall(env: Mapping[str, str], ours: Iterable[Path]) -> None:
    """Stop, disable and remove these units. Raises `ServiceError` before anything is removed."""
    systemctl, manager = Systemctl(env), SystemdManager(env)
    if (why := systemctl.why_not()) is not None:
        raise ServiceError(why)
    names = [path.name for path in ours]
    # The proxy first: it lets its requests finish while the backend still answers.
    for unit in (RECORD_UNIT, UNIT_OF[Role.PROXY], UNIT_OF[Role.BACKEND]):
        if unit in names:
            manager.stop(unit)
    _must(systemctl, "disable", *names)
    for path in ours:
        try:
            path.unlink()
        except OSError as error:
            raise NotWrittenError(f"{path} cannot be removed: {error.strerror}") from None
    _must(systemctl, "daemon-reload")


def lingers(env: Mapping[str, str]) -> bool:
    """Whether this user's services run without a login."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = env.get("USER", "")
    return bool(user) and (_LINGERING / user).exists()


def _check_loaded(systemctl: Systemctl, changes: Iterable[UnitChange]) -> None:
    expected = {change.path.name: change.path for change in changes}
    for unit in systemctl.show(list(expected), ("Id", "LoadState", "LoadError", "FragmentPath")):
        name, path = unit.get("Id", ""), unit.get("FragmentPath", "")
        if unit.get("LoadState") != "loaded":
            said = unit.get("LoadError", "").partition(" ")[2].strip('"') or unit.get("LoadState")
            raise ServiceError(f"{name}: systemd cannot load it: {said}")
        if name in expected and Path(path) != expected[name] and not _is_same(Path(path), expected[name]):
            raise ServiceError(
                f"{name}: systemd reads {path}, not {expected[name]}; is the user manager's XDG_CONFIG_HOME another?"
            )


def _is_same(path: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.samefile(other)
    return False


def _must(systemctl: Systemctl, *arguments: str) -> None:
    answer = systemctl.run(*arguments, timeout=_ENABLE_S)
    if not answer.done:
        raise ServiceError(f"systemctl --user {arguments[0]}: {answer.reason}")


def _passed_on(env: Mapping[str, str], backend: Mapping[str, str]) -> dict[str, str]:
    """What the services shall find as the caller finds it: specdash's places, and the engine."""
    home = env.get("HOME") or str(Path.home())
    found = {
        key: env[key]
        for key, usual in _XDG.items()
        if env.get(key, "").startswith("/") and Path(env[key]) != Path(home) / usual
    }
    found |= {key: env[key] for key in _MACHINE if env.get(key) and key not in backend}
    if "LLAMA_BIN" not in {**found, **backend} and (binary := shutil.which(_ENGINE, path=env.get("PATH"))):
        # systemd's PATH is shorter: it might run another engine than the caller has seen at work, or none.
        found["LLAMA_BIN"] = os.path.abspath(binary)  # noqa: PTH100 - links stay
    return found


def _values(path: Path) -> dict[str, str]:
    try:
        return read_values(path.read_bytes(), str(path))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"env file {path}: {error.strerror or error}") from None


def _number(parameter: Parameter, values: Mapping[str, str]) -> float:
    text = values.get(parameter.key, "").strip()
    return float(str(parameter.parse(text, parameter.key) if text else parameter.default))


def _is_here(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as item:
            item.bind((address, 0))
    except OSError:
        return False
    return True


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ServiceError(f"{path} cannot be read: {error.strerror}") from None


def _write(path: Path, text: str) -> None:
    """Replace a unit file, whole or not at all, mode 0644."""
    with files.writing(path, NotWrittenError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(path, text.encode(), 0o644)


# Makes specdash's services known to the built-in supervisor, and takes them away; other entries stay.

NAMES = {Role.BACKEND: "specdash-backend", Role.PROXY: "specdash-proxy"}
"""What our services are called there."""
RECORDER = "specdash-record"


def planned(env: Mapping[str, str], env_files: Mapping[Role, Path], roles: Iterable[Role]) -> tuple[ServiceEntry, ...]:
    """services.json as it will be: what is there, with these services added or renewed. Raises `InputError`."""
    fresh = {
        NAMES[role]: ServiceEntry(NAMES[role], role, env_files[role], FROM_ENV if role is Role.PROXY else None)
        for role in roles
    }
    kept = [fresh.pop(service.name, service) for service in read_services(paths.services_file(env))]
    return (*kept, *fresh.values())


def install_supervised(env: Mapping[str, str], entries: Iterable[ServiceEntry]) -> None:
    """Write services.json, and let a running supervisor read it. Raises `ServiceError` or `NotWrittenError`."""
    write_services(paths.services_file(env), tuple(entries))
    client = SupervisorClient(paths.supervisor_socket(env))
    if client.available():
        client.rescan()


def uninstall_supervised(env: Mapping[str, str]) -> tuple[str, ...]:
    """Stop our services and take them out of services.json; the names that went. A supervisor without services ends."""
    file = paths.services_file(env)
    entries = read_services(file)
    ours = tuple(entry.name for entry in entries if entry.name in (*NAMES.values(), RECORDER))
    rest = tuple(entry for entry in entries if entry.name not in ours)
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


# The recorder as a service, with either manager: optional, and apart from the services that may be changed.


STOP_TIMEOUT_S: Final = 10.0


def recorder_change(env: Mapping[str, str], facts: UnitFacts) -> UnitChange:
    """The unit file. Raises `ServiceError` for a file there that specdash did not write."""
    return change_of(env, RECORD_UNIT, record_unit(facts))


def install_recorder(env: Mapping[str, str], change: UnitChange, *, start: bool) -> None:
    """Write the unit and enable it. Raises `ServiceError` or `NotWrittenError`."""
    install(env, (change,), ())
    systemctl = Systemctl(env)
    for action in ("enable", *(("restart",) if start else ())):
        answer = systemctl.run(action, RECORD_UNIT)
        if not answer.done:
            raise ServiceError(f"systemctl --user {action} {RECORD_UNIT}: {answer.reason}")


def recorder_entries(env: Mapping[str, str]) -> tuple[ServiceEntry, ...]:
    """services.json as it will be: what is there, with the recorder added or renewed."""
    kept = read_services(paths.services_file(env))
    argv = (sys.executable, "-m", "specdash", "record")
    own = ServiceEntry(RECORDER, None, paths.config_file(env), argv=argv, stop_timeout=STOP_TIMEOUT_S)
    return (*(service_entry for service_entry in kept if service_entry.name != RECORDER), own)
