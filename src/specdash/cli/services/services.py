"""`specdash services adopt|install|uninstall|status|start|stop|restart|reload|logs`: both programs as services."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

from specdash.cli.changes.over_ssh import add_far_options
from specdash.cli.options import add_settings, resolved_settings
from specdash.core.changes import Role
from specdash.core.config import SERVICE_SETTINGS
from specdash.core.errors import ExitCode, RefusedError, ServiceError, errors
from specdash.system.text import UNKNOWN, plain, table, timestamp

if TYPE_CHECKING:
    import argparse

    from specdash.control.services.services import Deployment, ManagedService, ServiceStatus
    from specdash.export import documents

_ACTIONS = {
    "adopt": "write an env file from a llama-server that was started by hand, and say how a service takes over",
    "install": "set the services up: systemd units, or entries of the built-in supervisor",
    "uninstall": "stop the services and remove what install has written; env files stay",
    "status": "say how the services stand; exit code 0 when all run",
    "start": "start them",
    "stop": "stop them, the proxy first",
    "restart": "restart them (requests that run are cut off: `specdash apply` drains them)",
    "reload": "let them read their env files again",
    "logs": "print the last lines of what they wrote",
}
_DONE = {"start": "started", "stop": "stopped", "restart": "restarted", "reload": "told to read its env file again"}
OVER_SSH = ("status", "start", "stop", "restart", "reload")
"""What is done on another machine as well."""
_SETTLE_S = 1.0
_SHOWS_UP_S = 10.0
"""So long, a service of ours may take on a busy machine to read its settings and to leave its record."""
_POLL_S = 0.1


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="{" + ",".join(_ACTIONS) + "}")
    parsers = {name: actions.add_parser(name, help=text, allow_abbrev=False) for name, text in _ACTIONS.items()}
    for name, argument_parser in parsers.items():
        of_name = {"adopt": ("url",), "install": ("manager",), "uninstall": ("manager",)}
        add_settings(argument_parser, of_name.get(name, SERVICE_SETTINGS))
        if name not in ("adopt", "uninstall", "status"):
            argument_parser.add_argument(
                "role", nargs="?", choices=[str(role) for role in Role], help="only this one of the two"
            )
        if name in OVER_SSH:
            add_far_options(argument_parser)
    parsers["adopt"].add_argument("--env-file", metavar="F", help="the file to write (default: the backend's own)")
    install = parsers["install"]
    for argument_parser in (parsers["adopt"], install):
        argument_parser.add_argument(
            "--dry-run", action="store_true", help="print what would be written, and change nothing"
        )
    for role in Role:
        install.add_argument(f"--{role}-env", metavar="F", help=f"the {role}'s env file (default: specdash's own)")
    install.add_argument("--start", action="store_true", help="start the services too")
    install.add_argument("--record", action="store_true", help="set up the recorder too (`specdash record`)")
    parsers["status"].add_argument("--json", action="store_true", help="print one JSON object")
    parsers["logs"].add_argument("-n", dest="lines", type=int, default=20, metavar="N", help="how many lines (20)")
    parsers["logs"].add_argument("--follow", "-f", action="store_true", help="go on with what comes, until Ctrl-C")


def run(args: argparse.Namespace) -> int:
    """Do what `args.action` says; see `configure`."""
    if args.action == "adopt":
        from specdash.cli.services.services_adopt import adopt

        return adopt(args)
    if args.action in ("install", "uninstall"):
        from specdash.cli.services import services_install

        return services_install.install(args) if args.action == "install" else services_install.uninstall(args)
    from specdash.cli.changes.over_ssh import carry_over, far_machine
    from specdash.control.services.deployment import find_deployment

    if args.action in OVER_SSH and (host := far_machine(args)) is not None:
        return carry_over(host, args)
    deployment = find_deployment(resolved_settings(args))
    if args.action == "status":
        return _status(deployment, as_json=args.json)
    services = chosen(deployment, args.role)
    if args.action == "logs":
        from specdash.cli.services import services_install as services_logs

        return services_logs.show(services, max(0, args.lines), follow=args.follow)
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
    from specdash.control.apply.plan import disagreements

    both = [service for role in Role if (service := deployment.service(role)) is not None]
    if len(both) < len(Role) or not all(service in services or service.status().alive for service in both):
        return
    refusals = errors(disagreements(deployment, os.environ))
    if refusals:
        raise RefusedError("; ".join(refusal.line for refusal in refusals))


def act(action: str, services: list[ManagedService]) -> int:
    """Start, stop, restart or reload the services, one after the other, and say so."""
    if action in ("start", "restart"):
        _ensure_manager(services)
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


def _ensure_manager(services: list[ManagedService]) -> None:
    """The built-in supervisor is started by whoever needs it; systemd is there, or is not."""
    if any(service.manager.kind == "supervisor" for service in services):
        from specdash.control.services.supervisor_client import SupervisorClient

        SupervisorClient.ensure_running(os.environ)


def _failed_at_once(service: ManagedService) -> ServiceStatus | None:
    """What became of a service that did not outlive its first moment; None for one that did."""
    from specdash.control.services.services import ServiceState

    began = time.monotonic()
    while True:
        status = service.status()
        if not status.alive or status.state is ServiceState.WAITING:
            return status
        waited = time.monotonic() - began
        if waited >= _SHOWS_UP_S or (waited >= _SETTLE_S and _shows_up(service, status)):
            return None
        time.sleep(_POLL_S)


def _shows_up(service: ManagedService, status: ServiceStatus) -> bool:
    """Whether it has got as far as to leave its record; one of others leaves none."""
    from specdash.control.apply.engine import recorded_engine, recorded_proxy

    if not service.reloads:
        return True
    if service.role is Role.PROXY:
        return recorded_proxy(service, os.environ) is not None
    return recorded_engine(service, os.environ, status.pid) is not None


def _status(deployment: Deployment, *, as_json: bool) -> int:
    rows = [_row(service) for role in Role if (service := deployment.service(role)) is not None]
    if as_json:
        document: documents.ServicesDocument = {"services": rows, "problems": list(deployment.problems)}
        print(json.dumps(document, indent=1))
    else:
        print(_table(rows, deployment.problems))
    if not rows or any(row["error"] is not None for row in rows):
        return ExitCode.SERVICE
    return ExitCode.OK if all(row["state"] == "running" for row in rows) else ExitCode.FAILED


def _row(service: ManagedService) -> documents.ServiceDocument:
    status, error = None, None
    try:
        status = service.status()
    except ServiceError as failure:
        error = str(failure)
    return {
        "role": service.role,
        "name": service.name,
        "manager": service.manager.kind,
        "origin": service.origin,
        "env_file": str(service.env_file),
        "env_file_exists": service.env_file.is_file(),
        "reloads": service.reloads,
        "socket": service.socket,
        "state": status.state if status is not None else None,
        "pid": status.pid if status is not None else None,
        "since": status.since if status is not None else None,
        "restarts": status.restarts if status is not None else None,
        "exit_code": status.exit_code if status is not None else None,
        "detail": status.detail if status is not None else "",
        "error": error,
    }


def _table(rows: list[documents.ServiceDocument], problems: tuple[str, ...]) -> str:
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
