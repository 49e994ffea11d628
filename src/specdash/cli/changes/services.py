"""`specdash services adopt|install|uninstall|status|start|stop|restart|reload|logs`: both programs as services."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.cli.options import (
    add_actions,
    add_own_machine,
    add_settings,
    check_own_machine,
    one_target,
    print_answer,
    resolved_settings,
)
from specdash.control.services import installation
from specdash.control.services.deployment import OTHERS, find_deployment
from specdash.control.services.services import ServiceState
from specdash.control.services.systemd import Systemctl, SystemdManager, available
from specdash.control.services.units import UNIT_OF, UNITS_OF
from specdash.core import paths
from specdash.core.changes import Role
from specdash.core.config import SERVICE_SETTINGS, Resolved
from specdash.core.errors import (
    ConflictError,
    ExitCode,
    RefusedError,
    ServiceError,
    SpecdashError,
    errors,
)
from specdash.system.data import json_of
from specdash.system.text import UNKNOWN, plain, table, timestamp

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from specdash.control.services.installation import UnitChange
    from specdash.control.services.services import Deployment, ManagedService, ServiceStatus
    from specdash.core.target import Target

_ACTIONS = {
    "adopt": "write an env file from a llama-server that was started by hand, and explain how a service takes over",
    "install": "set the services up: systemd units, or entries of the built-in supervisor",
    "uninstall": "stop the services and remove what install wrote; env files are kept",
    "status": "show the state of the services; exit code 0 if all are running",
    "start": "start them",
    "stop": "stop them, the proxy first",
    "restart": "restart them (cuts off running requests; `specdash apply` lets them finish)",
    "reload": "make them read their env files again",
    "logs": "print the last lines of their output",
}
_DONE = {"start": "started", "stop": "stopped", "restart": "restarted", "reload": "told to read its env file again"}
_OF_TARGET = ("status", "start", "stop", "restart", "reload")
"""Takes `--target`."""
_SETTLE_S = 1.0
_SHOWS_UP_S = 10.0
"""So long, a service of ours may take on a busy machine to read its settings and to leave its record."""
_POLL_S = 0.1


def configure(parser: argparse.ArgumentParser) -> None:
    parsers = add_actions(parser, _ACTIONS)
    for name, argument_parser in parsers.items():
        of_name = {"adopt": ("url",), "install": ("manager",), "uninstall": ("manager",)}
        add_settings(argument_parser, of_name.get(name, SERVICE_SETTINGS))
        if name not in ("adopt", "uninstall", "status"):
            argument_parser.add_argument(
                "role", nargs="?", choices=[str(role) for role in Role], help="only this service"
            )
        if name in _OF_TARGET:
            add_own_machine(argument_parser)
    parsers["adopt"].add_argument("--env-file", metavar="F", help="the file to write (default: the backend's)")
    setup = parsers["install"]
    for argument_parser in (parsers["adopt"], setup):
        argument_parser.add_argument(
            "--dry-run", action="store_true", help="show what would be written without changing anything"
        )
    for role in Role:
        setup.add_argument(f"--{role}-env", metavar="F", help=f"the {role}'s env file (default: specdash's own)")
    setup.add_argument("--start", action="store_true", help="also start the services")
    setup.add_argument("--record", action="store_true", help="also set up the recorder (`specdash record`)")
    parsers["status"].add_argument("--json", action="store_true", help="print JSON")
    parsers["logs"].add_argument(
        "-n", dest="lines", type=int, default=20, metavar="N", help="how many lines (default: 20)"
    )
    parsers["logs"].add_argument("--follow", "-f", action="store_true", help="keep printing new lines until Ctrl-C")


def run(args: argparse.Namespace) -> int:
    if args.action in _OF_TARGET:
        check_own_machine(args)
    by_itself = {"adopt": adopt, "install": install, "uninstall": uninstall}.get(args.action)
    if by_itself is not None:
        return by_itself(args)
    deployment = find_deployment(resolved_settings(args), by_hand=False)
    if args.action == "status":
        return _status(deployment, as_json=args.json)
    services = chosen(deployment, args.role)
    if args.action == "logs":
        return show_logs(services, max(0, args.lines), follow=args.follow)
    if args.action in ("start", "restart"):
        refuse_strangers(services, deployment)
    return act(args.action, services)


def chosen(deployment: Deployment, role: str | None) -> list[ManagedService]:
    """The services of that role, or all, the backend first. Raises `ServiceError` when there is none."""
    roles = [Role(role)] if role is not None else list(Role)
    found = [service for role in roles if (service := deployment.service(role)) is not None]
    if not found:
        about = deployment.about(Role(role)) if role is not None else deployment.problems
        raise ServiceError("; ".join(about) or "no service is known; `specdash services install` sets them up")
    return found


def refuse_strangers(services: list[ManagedService], deployment: Deployment) -> None:
    """Raise `RefusedError` where backend and proxy, both running or about to, would not find or not take each other."""
    from specdash.control.plan import disagreements

    both = [service for role in Role if (service := deployment.service(role)) is not None]
    if len(both) < len(Role) or not all(service in services or service.status().alive for service in both):
        return
    refusals = errors(disagreements(deployment, os.environ))
    if refusals:
        raise RefusedError("; ".join(refusal.line for refusal in refusals))


def act(action: str, services: list[ManagedService]) -> int:
    """Start, stop, restart or reload the services, one after the other, and say so."""
    if action in ("start", "restart"):
        for service in services:
            service.manager.bring_up()
    code = ExitCode.OK
    for service in reversed(services) if action == "stop" else services:
        match action:
            case "start":
                service.manager.start(service.name)
            case "stop":
                service.manager.stop(service.name)
            case "restart":
                service.manager.restart(service.name)
            case _:
                service.manager.reload(service.name)
        failed = _failed_at_once(service) if action in ("start", "restart") else None
        if failed is None:
            print(f"{service.name}: {_DONE[action]}")
            continue
        code = ExitCode.FAILED
        print(f"specdash: {service.name}: {failed.state}: {failed.detail}", file=sys.stderr)
        for line in service.manager.log_tail(service.name, 3):
            print(f"  {line}", file=sys.stderr)
    return code


def _failed_at_once(service: ManagedService) -> ServiceStatus | None:
    """What became of a service that did not outlive its first moment; None for one that did."""
    began = time.monotonic()
    while True:
        status = service.status()
        if not status.alive or status.state is ServiceState.WAITING:
            return status
        waited = time.monotonic() - began
        if waited >= _SHOWS_UP_S or (waited >= _SETTLE_S and _shows_up(service)):
            return None
        time.sleep(_POLL_S)


def _shows_up(service: ManagedService) -> bool:
    """Whether it has got as far as to leave its record; one of others leaves none."""
    from specdash.control.running import recorded_engine, recorded_proxy

    if not service.reloads:
        return True
    if service.role is Role.PROXY:
        return recorded_proxy(service, os.environ) is not None
    return recorded_engine(service, os.environ) is not None


def _status(deployment: Deployment, *, as_json: bool) -> int:
    rows = [_row(service) for role in Role if (service := deployment.service(role)) is not None]
    document: dict[str, Any] = {"services": rows, "problems": list(deployment.problems)}
    print_answer(document, _table(rows, deployment.problems), as_json=as_json)
    if not rows or any(row["error"] is not None for row in rows):
        return ExitCode.SERVICE
    return ExitCode.OK if all(row["state"] == "running" for row in rows) else ExitCode.FAILED


def _row(service: ManagedService) -> dict[str, Any]:
    status, error = None, None
    try:
        status = service.status()
    except ServiceError as failure:
        error = str(failure)
    row: dict[str, Any] = json_of(
        service,
        "role name manager=manager.kind origin env_file reloads socket",
        env_file_exists=service.env_file.is_file(),
        **json_of(status, "state pid since restarts exit_code"),
        detail=status.detail if status is not None else "",
        error=error,
    )
    return row


def _table(rows: list[dict[str, Any]], problems: tuple[str, ...]) -> str:
    head = ("SERVICE", "STATE", "PID", "SINCE", "RESTARTS", "MANAGER", "ORIGIN", "ENV FILE")
    cells = [head] + [
        (
            row["name"],
            row["state"] or UNKNOWN,
            plain(row["pid"]),
            timestamp(row["since"]) if row["since"] else UNKNOWN,
            plain(row["restarts"]),
            row["manager"],
            row["origin"],
            row["env_file"] + ("" if row["env_file_exists"] else " (missing)"),
        )
        for row in rows
    ]
    said = [f"{row['name']}: {row['error'] or row['detail']}" for row in rows if row["error"] or row["detail"]]
    return "\n".join([*(table(cells) if rows else []), *said, *problems])


# Adopt: the settings of a llama-server that was started by hand, as an env file for a service.

_HEAD = "# Written by `specdash services adopt` from a llama-server that was started by hand\n"


def adopt(args: argparse.Namespace) -> int:
    """Write the env file, and say how the service takes over. Raises `RefusedError` where the server cannot be adopted,
    `ConflictError` where there is an env file already."""
    from specdash.backend.env_store import read_env, replace_env
    from specdash.backend.plan import Circumstances, plan
    from specdash.core.env_edit import shown_text, with_changes
    from specdash.core.envfile import encode

    target = one_target(resolved_settings(args))
    path = Path(args.env_file).expanduser().absolute() if args.env_file else paths.backend_env_file()
    values = _values(target)
    print(f"the settings of process {target.pid}, {target.url}:")
    print("\n".join(f"  {key}={shown_text(key, value)}" for key, value in values.items()))
    pids = frozenset({target.pid} if target.pid is not None else ())
    findings = plan(values, Circumstances(path, own_pids=pids)).findings
    print("\n".join(f"{finding.severity}: {finding.line}" for finding in findings) or "preflight: no problems found")
    if errors(findings):
        raise RefusedError(
            "preflight found errors, nothing was written; fix them, restart the server, and adopt it then"
        )
    snapshot = read_env(path)
    if snapshot.exists:
        raise ConflictError(f"{path} already exists, nothing was written; name another file with --env-file")
    if args.dry_run:
        print(f"would write {path}")
        return ExitCode.OK
    replace_env(snapshot, encode(_HEAD + with_changes(snapshot.file, values)))
    named = f" --backend-env {path}" if args.env_file else ""
    print(f"wrote {path}; nothing was stopped. The service takes over with:")
    print(f"  kill {target.pid}   # requests that run are cut off")
    print(f"  specdash services install backend{named} --start")
    return ExitCode.OK


def _values(target: Target) -> dict[str, str]:
    if target.pid is None:
        raise RefusedError(f"{target.url}: its process cannot be seen; run this as the user who started it")
    from specdash.control.services.service_command import adopted_values, started_with

    process = started_with(target.pid)
    if process is None:
        raise RefusedError(f"process {target.pid} does not show its arguments; run this as the user who started it")
    values = adopted_values(*process, target)
    if values is None:
        raise RefusedError(f"process {target.pid} is not a llama-server that was started by hand")
    return values


# Install and uninstall.

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
        print("they stop when you log out; `loginctl enable-linger` keeps them running and starts them at boot")
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
        gone += [f"{name} ({paths.services_file(env)})" for name in installation.uninstall_supervised(env)]
    if not gone:
        raise ServiceError("specdash has not installed anything")
    for text in gone:
        print(f"removed {text}")
    print("the env files were kept")
    return ExitCode.OK


def _env_file(named: str | None, role: Role) -> Path:
    if named is None:
        return installation.default_env_file(role, os.environ)
    return Path(named).expanduser().absolute()


def _manager(args: argparse.Namespace) -> tuple[str, str | None]:
    """Which manager to use, and why not systemd where it was left open."""
    asked = resolved_settings(args)["manager"].value
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
    settings = {name: Resolved(None, "default") for name in SERVICE_SETTINGS}
    settings["manager"] = Resolved(manager, "install")
    deployment = find_deployment(settings, os.environ, by_hand=False)
    services = [service for service in chosen(deployment, None) if service.role in roles]
    try:
        refuse_strangers(services, deployment)
        return ExitCode(act("start", services))
    except SpecdashError as error:
        print(f"specdash: installed, but not started: {error}", file=sys.stderr)
        return error.exit_code


# What the services wrote, as `specdash services logs` prints it: from a file, or from the journal.

_FOLLOW_S = 0.3
_CHUNK = 256 * 1024


def show_logs(services: list[ManagedService], lines: int, *, follow: bool) -> int:
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
    files = {service.name: _file(service) for service in services}
    in_journal = [name for name, file in files.items() if file is None]
    if in_journal and len(in_journal) < len(files):
        raise ServiceError("one service writes to a file and the other to the journal; name the one to follow")
    if in_journal:
        return _follow_journal(in_journal, lines)
    for service in services:
        for line in service.manager.log_tail(service.name, lines):
            print(line)
    followed = [_Followed(file) for file in files.values() if file is not None]
    while True:
        sys.stdout.flush()
        time.sleep(_FOLLOW_S)
        for item in followed:
            sys.stdout.write(item.read())


def _file(service: ManagedService) -> Path | None:
    """Where its output goes; None for the journal."""
    if isinstance(service.manager, SystemdManager):
        return service.manager.log_file(service.name)
    from specdash.control.services.supervisor_services import log_file

    return log_file(service.name, os.environ)


def _follow_journal(names: list[str], lines: int) -> int:
    units = [word for name in names for word in ("-u", name)]
    command = ["journalctl", "--user", *units, "-n", str(lines), "-o", "cat", "-q", "-f", "--no-pager"]
    return _follow_command(command, Systemctl().environment)


def _follow_command(command: list[str], env: Mapping[str, str]) -> int:
    try:
        ended = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, check=False)
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
