"""`specdash services install` and `uninstall`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.cli.options import resolved_settings
from specdash.control.services import installation
from specdash.control.services.containers import ContainerEngine, ContainerManager
from specdash.control.services.systemd import Systemctl, available
from specdash.control.services.units import UNIT_OF, UNITS_OF
from specdash.core import paths
from specdash.core.changes import Role
from specdash.core.errors import ExitCode, ServiceError, SpecdashError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from specdash.control.services.installation import UnitChange
    from specdash.control.services.services import ManagedService


_EXAMPLES = {
    Role.BACKEND: ("LLAMA_MODEL=/models/model.gguf", "LLAMA_CTX_SIZE=16384", "LLAMA_SPEC_TYPE=ngram-mod"),
    Role.PROXY: ("LLAMA_CPP_BASE=http://127.0.0.1:8080/v1", "PROXY_PORT=4000"),
}
_UAP_FILES = {Role.BACKEND: "uap/llama-server.env", Role.PROXY: "uap/anthropic-proxy.env"}


def install(args: argparse.Namespace) -> int:
    """Set the services up with the manager that is there, or the one asked for."""
    env, roles = os.environ, [Role(args.role)] if args.role is not None else list(Role)
    env_files = {role: _env_file(getattr(args, f"{role}_env"), role) for role in Role}
    ready = [role for role in roles if env_files[role].is_file()]
    manager, why_not = _manager(args)
    if manager == "systemd":
        done = _install_units(env_files, roles, ready, dry_run=args.dry_run)
    else:
        if why_not is not None:
            print(f"the built-in supervisor takes the services: {why_not}", file=sys.stderr)
        done = _install_supervised(env_files, roles, dry_run=args.dry_run)
    if args.record:
        _install_recorder(env_files, manager, dry_run=args.dry_run, start=args.start)
    for role in roles:
        if role not in ready:
            print(_without_env_file(role, env_files[role]), file=sys.stderr)
    if args.dry_run:
        return ExitCode.OK
    code = ExitCode.OK if ready == roles else ExitCode.FAILED
    if args.start and ready:
        code = max(code, _start(ready, manager))
    elif done and ready:
        print("`specdash services start` starts them")
    if manager == "systemd" and not installation.lingers(env):
        print("they end when you log out; `loginctl enable-linger` keeps them, and starts them with the machine")
    return code


def uninstall(args: argparse.Namespace) -> int:
    """Remove what specdash installed, from every manager or the one asked for."""
    env, asked = os.environ, _asked_manager(args)
    gone: list[str] = []
    if asked != "supervisor":
        ours, others = installation.installed(env)
        if ours:
            installation.uninstall(env, ours)
            gone += [str(path) for path in ours]
        for path in others:
            print(f"left as it is: {path} was not written by specdash", file=sys.stderr)
    if asked != "systemd":
        gone += [f"{name} ({paths.services_file(env)})" for name in installation.uninstall_supervised(env)]
    if not gone:
        raise ServiceError("nothing of specdash's is installed")
    for text in gone:
        print(f"removed {text}")
    print("the env files were kept")
    return ExitCode.OK


def _env_file(named: str | None, role: Role) -> Path:
    if named is None:
        return installation.default_env_file(role, os.environ)
    return Path(named).expanduser().absolute()


def _asked_manager(args: argparse.Namespace) -> str:
    """The manager that was asked for. Raises `UsageError` for one that specdash sets nothing up with."""
    asked = str(resolved_settings(args)["manager"].value)
    if asked in tuple(ContainerEngine):
        raise UsageError(
            f"containers are made with `{asked} run --env-file FILE`, and changed from here (containers.md)"
        )
    return asked


def _manager(args: argparse.Namespace) -> tuple[str, str | None]:
    """Which manager to use, and why not systemd where it was left open."""
    asked = _asked_manager(args)
    if asked == "supervisor":
        return asked, None
    why_not = available(os.environ)
    if asked == "auto":
        return ("systemd", None) if why_not is None else ("supervisor", why_not)
    if why_not is not None and not args.dry_run:
        raise ServiceError(f"{why_not}; or use --manager supervisor")
    return asked, None


def _install_units(env_files: dict[Role, Path], roles: list[Role], ready: list[Role], *, dry_run: bool) -> bool:
    env = os.environ
    changes = installation.plan(env, installation.gather(env, env_files), roles)
    if dry_run:
        for change in changes:
            print(f"# {_fate(change)} {change.path}\n{change.text}")
        return False
    installation.install(env, changes, ready)
    for change in changes:
        print(f"{'unchanged' if change.text == change.before else 'wrote'} {change.path}")
        if change.before is not None:
            print("\n".join(f"  {line}" for line in change.diff) or "", end="\n" if change.diff else "")
    for role in ready:
        print(f"enabled {', '.join(UNITS_OF[role])}")
    _notes(changes)
    return True


def _install_recorder(env_files: dict[Role, Path], manager: str, *, dry_run: bool, start: bool) -> None:
    env = os.environ
    if manager == "systemd":
        change = installation.recorder_change(env, installation.gather(env, env_files))
        if dry_run:
            print(f"# {_fate(change)} {change.path}\n{change.text}")
            return
        installation.install_recorder(env, change, start=start)
        print(f"{'unchanged' if change.text == change.before else 'wrote'} {change.path}, enabled")
        return
    entries = installation.recorder_entries(env)
    if dry_run:
        print(f"{installation.RECORDER}: {' '.join(entries[-1].argv or ())}")
        return
    installation.install_supervised(env, entries)
    print(f"wrote {installation.RECORDER} into {paths.services_file(env)}")
    if start:
        from specdash.control.services.supervisor_client import SupervisorClient

        SupervisorClient.ensure_running(env)
        SupervisorClient(paths.supervisor_socket(env)).start(installation.RECORDER)


def _fate(change: UnitChange) -> str:
    if change.before is None:
        return "would write"
    return "unchanged:" if change.before == change.text else "would replace"


def _notes(changes: tuple[UnitChange, ...]) -> None:
    """What else an operator should know: running services keep the old unit, others want the same ports."""
    from specdash.control.services.deployment import OTHERS

    mine = {UNIT_OF[role]: role for role in Role}
    names = [*mine, *OTHERS.values()]
    changed = {change.path.name for change in changes if change.before not in (None, change.text)}
    for unit in Systemctl(os.environ).show(names, ("Id", "ActiveState")):
        name = unit.get("Id", "")
        if unit.get("ActiveState") != "active":
            continue
        if name in mine and changed & set(UNITS_OF[mine[name]]):
            role = mine[name]
            print(f"{name} runs with the unit as it was: `specdash services stop {role}`, then start, to renew it")
        elif name not in mine:
            print(f"{name} runs too, and may hold the same port: disable it, or leave it and uninstall ours")


def _install_supervised(env_files: dict[Role, Path], roles: list[Role], *, dry_run: bool) -> bool:
    from specdash.control.services.supervisor_services import read_services

    env, file = os.environ, paths.services_file(os.environ)
    entries = installation.planned(env, env_files, roles)
    if dry_run:
        print(f"# would write {file}")
        for entry in entries:
            listen = f", listening where {entry.env_file} says" if entry.listen == "env" else ""
            print(f"{entry.name}: the {entry.role} of {entry.env_file}{listen}")
        return False
    unchanged = read_services(file) == entries
    installation.install_supervised(env, entries)
    print(f"{'unchanged' if unchanged else 'wrote'} {file}")
    return True


def _without_env_file(role: Role, path: Path) -> str:
    example = "".join(f"\n  {line}" for line in _EXAMPLES[role])
    other = paths.config_dir(os.environ).parent / _UAP_FILES[role]
    hint = f"\nor use UAP's: --{role}-env {other}" if other.is_file() else ""
    return (
        f"{role}: not enabled, there is no env file {path}; write it, then run `specdash services install` again. For "
        f"example:{example}{hint}"
    )


def _start(roles: list[Role], manager: str) -> ExitCode:
    from specdash.cli.services.services import act, chosen, refuse_strangers
    from specdash.control.services.deployment import find_deployment
    from specdash.core.config import SERVICE_SETTINGS, Resolved

    settings = {name: Resolved(None, "default") for name in SERVICE_SETTINGS}
    settings["manager"] = Resolved(manager, "install")
    deployment = find_deployment(settings, os.environ)
    services = [service for service in chosen(deployment, None) if service.role in roles]
    try:
        refuse_strangers(services, deployment)
        return ExitCode(act("start", services))
    except SpecdashError as error:
        print(f"specdash: installed, but not started: {error}", file=sys.stderr)
        return error.exit_code


# What the services wrote, as `specdash services logs` prints it: from a file, or from the journal.

_POLL_S = 0.3
_CHUNK = 256 * 1024


def show(services: list[ManagedService], lines: int, *, follow: bool) -> int:
    """Print the last lines of each service; with `follow`, go on with what comes."""
    if follow:
        return _follow(services, lines)
    for service in services:
        if len(services) > 1:
            print(f"==> {service.name} <==")
        for line in service.manager.log_tail(service.name, lines):
            print(line)
    return ExitCode.OK


def _follow(services: list[ManagedService], lines: int) -> int:
    for service in services:
        if isinstance(service.manager, ContainerManager):
            if len(services) > 1:
                raise ServiceError("one of them runs in a container; name the one to follow")
            # A container's own stderr comes as that of its engine's command.
            return _follow_command(service.manager.follow(service.name, lines), os.environ, subprocess.STDOUT)
    files = {service.name: _file(service) for service in services}
    in_journal = [name for name, file in files.items() if file is None]
    if in_journal and len(in_journal) < len(files):
        raise ServiceError("one of them writes to a file and one to the journal; name the one to follow")
    if in_journal:
        return _follow_journal(in_journal, lines)
    for service in services:
        for line in service.manager.log_tail(service.name, lines):
            print(line)
    followed = [_Followed(file) for file in files.values() if file is not None]
    while True:
        sys.stdout.flush()
        time.sleep(_POLL_S)
        for item in followed:
            sys.stdout.write(item.read())


def _file(service: ManagedService) -> Path | None:
    """Where its output goes; None for the journal."""
    from specdash.control.services.systemd import SystemdManager

    if isinstance(service.manager, SystemdManager):
        return service.manager.log_file(service.name)
    from specdash.control.services.supervisor_services import log_file

    return log_file(service.name, os.environ)


def _follow_journal(names: list[str], lines: int) -> int:
    from specdash.control.services.systemd import Systemctl

    units = [word for name in names for word in ("-u", name)]
    command = ["journalctl", "--user", *units, "-n", str(lines), "-o", "cat", "-q", "-f", "--no-pager"]
    return _follow_command(command, Systemctl().environment)


def _follow_command(command: list[str], env: Mapping[str, str], stderr: int | None = None) -> int:
    try:
        ended = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stderr=stderr, check=False)
    except OSError as error:
        raise ServiceError(f"{command[0]} cannot be run: {error.strerror or error}") from None
    return ExitCode.OK if ended.returncode == 0 else ExitCode.SERVICE


class _Followed:
    """One file, from its end on; one that was moved away or cut is read from its new begin."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._at = self._place()

    def read(self) -> str:
        """What is new, whole pieces of it."""
        inode, size = self._place()
        if inode != self._inode or size < self._at:
            self._inode, self._at = inode, 0
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read(_CHUNK)
            whole = data[: data.rfind(b"\n") + 1] or (data if len(data) == _CHUNK else b"")
            self._at += len(whole)
            return whole.decode("utf-8", "replace")
        return ""

    def _place(self) -> tuple[int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return 0, 0
        return found.st_ino, found.st_size
