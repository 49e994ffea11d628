"""`specdash services install` and `uninstall`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.cli.options import resolved_settings
from specdash.control import installation, record_service, supervised_installation
from specdash.control.systemctl import Systemctl
from specdash.control.systemd import available
from specdash.control.units import UNIT_OF, UNITS_OF
from specdash.core import paths
from specdash.core.changes import Role
from specdash.core.errors import ExitCode, ServiceError, SpecdashError

if TYPE_CHECKING:
    import argparse

    from specdash.control.installation import UnitChange

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
    env, asked = os.environ, resolved_settings(args)["manager"].value
    gone: list[str] = []
    if asked != "supervisor":
        ours, others = installation.installed(env)
        if ours:
            installation.uninstall(env, ours)
            gone += [str(path) for path in ours]
        for path in others:
            print(f"left as it is: {path} was not written by specdash", file=sys.stderr)
    if asked != "systemd":
        gone += [f"{name} ({paths.services_file(env)})" for name in supervised_installation.uninstall(env)]
    if not gone:
        raise ServiceError("nothing of specdash's is installed")
    for one in gone:
        print(f"removed {one}")
    print("the env files were kept")
    return ExitCode.OK


def _env_file(named: str | None, role: Role) -> Path:
    if named is None:
        return installation.default_env_file(role, os.environ)
    return Path(named).expanduser().absolute()


def _manager(args: argparse.Namespace) -> tuple[str, str | None]:
    """Which manager to use, and why not systemd where it was left open."""
    asked = str(resolved_settings(args)["manager"].value)
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
        change = record_service.plan(env, installation.gather(env, env_files))
        if dry_run:
            print(f"# {_fate(change)} {change.path}\n{change.text}")
            return
        record_service.install(env, change, start=start)
        print(f"{'unchanged' if change.text == change.before else 'wrote'} {change.path}, enabled")
        return
    entries = record_service.entries(env)
    if dry_run:
        print(f"{supervised_installation.RECORDER}: {' '.join(entries[-1].argv or ())}")
        return
    supervised_installation.install(env, entries)
    print(f"wrote {supervised_installation.RECORDER} into {paths.services_file(env)}")
    if start:
        from specdash.control.supervisor_client import SupervisorClient

        SupervisorClient.ensure_running(env)
        SupervisorClient(paths.supervisor_socket(env)).start(supervised_installation.RECORDER)


def _fate(change: UnitChange) -> str:
    if change.before is None:
        return "would write"
    return "unchanged:" if change.before == change.text else "would replace"


def _notes(changes: tuple[UnitChange, ...]) -> None:
    """What else an operator should know: running services keep the old unit, others want the same ports."""
    from specdash.control.deployment import OTHERS

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
    from specdash.control.supervisor_services import read_services

    env, file = os.environ, paths.services_file(os.environ)
    entries = supervised_installation.planned(env, env_files, roles)
    if dry_run:
        print(f"# would write {file}")
        for one in entries:
            listen = f", listening where {one.env_file} says" if one.listen == "env" else ""
            print(f"{one.name}: the {one.role} of {one.env_file}{listen}")
        return False
    unchanged = read_services(file) == entries
    supervised_installation.install(env, entries)
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
    from specdash.cli.services import act, chosen, refuse_strangers
    from specdash.control.deployment import find_deployment
    from specdash.core.config import SERVICE_SETTINGS, Resolved

    settings = {name: Resolved(None, "default") for name in SERVICE_SETTINGS}
    settings["manager"] = Resolved(manager, "install")
    deployment = find_deployment(settings, os.environ)
    services = [one for one in chosen(deployment, None) if one.role in roles]
    try:
        refuse_strangers(services, deployment)
        return ExitCode(act("start", services))
    except SpecdashError as error:
        print(f"specdash: installed, but not started: {error}", file=sys.stderr)
        return error.exit_code
