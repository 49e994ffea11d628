"""`specdash services adopt|install|uninstall|status|start|stop|restart|logs`: both programs as services of systemd."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.backend.env_store import read_env, replace_env
from specdash.cli.options import (
    add_actions,
    add_settings,
    one_target,
    print_answer,
    resolved_settings,
    say,
    wait_until,
)
from specdash.control.deployment import (
    BY_SYSTEMD,
    BY_UP,
    Service,
    ServiceState,
    ServiceStatus,
    default_env_file,
    find_deployment,
    main_pid,
    manager_of,
    start_command,
)
from specdash.control.services import adopt as adoption
from specdash.control.services import setup, systemd, units
from specdash.control.services.clients import client_view
from specdash.control.services.units import RECORD_UNIT, UNIT_OF, UNITS_OF
from specdash.core.changes import Role
from specdash.core.envfile import read_values
from specdash.core.errors import ConflictError, ExitCode, RefusedError, ServiceError, UsageError, errors
from specdash.core.structs import json_of
from specdash.system.files import user_name
from specdash.system.text import UNKNOWN, plain, table, timestamp

if TYPE_CHECKING:
    import argparse

_ACTIONS = {
    "adopt": "write an env file from a llama-server or a unit that specdash does not run, and explain how to take over",
    "install": "set the services up as systemd user units; with --model the env files, too",
    "uninstall": "stop the services and remove what install wrote; env files are kept",
    "status": "show the state of the services; exit code 0 if all are running",
    "start": "start them",
    "stop": "stop them, the proxy first",
    "restart": "restart them (cuts off running requests; `specdash apply` lets them finish)",
    "logs": "print the last lines of their output",
}
_DONE = {"start": "started", "stop": "stopped", "restart": "restarted"}
_SETTLE_S, _SHOWS_UP_S, _LOADS_S, _POLL_S = 1.0, 10.0, 60.0, 0.1
"""How long a start is watched: the least, the most that settings and records take on a busy machine, and a model."""


def configure(parser: argparse.ArgumentParser) -> None:
    parsers = add_actions(parser, _ACTIONS)
    for name in ("install", "start", "stop", "restart", "logs"):
        parsers[name].add_argument("role", nargs="?", choices=[str(role) for role in Role], help="only this service")
    adopt, setting_up, logs = parsers["adopt"], parsers["install"], parsers["logs"]
    adopt.add_argument("unit", nargs="?", metavar="UNIT", help="a unit of your systemd (default: a running server)")
    add_settings(adopt, ("url",))
    adopt.add_argument("--env-file", metavar="F", help="the file to write (default: specdash's own)")
    add_model_options(setting_up)
    setting_up.add_argument("--start", action="store_true", help="also start the services (--model does)")
    setting_up.add_argument("--record", action="store_true", help="also set up the recorder (`specdash record`)")
    for item in (adopt, setting_up):
        item.add_argument("--dry-run", action="store_true", help="show what would be written without changing anything")
    parsers["status"].add_argument("--json", action="store_true", help="print JSON")
    logs.add_argument("-n", dest="lines", type=int, default=20, metavar="N", help="how many lines (default: 20)")
    logs.add_argument("--follow", "-f", action="store_true", help="keep printing new lines until Ctrl-C")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the env files, and what writes them."""
    for role in Role:
        parser.add_argument(f"--{role}-env", metavar="F", help=f"the {role}'s env file (default: specdash's own)")
    parser.add_argument("--model", metavar="F", help="a GGUF file: write the env files that are not there yet for it")
    parser.add_argument("--draft", metavar="F", help="its draft model")
    parser.add_argument("--profile", metavar="P", help="settings of a profile for them (`specdash profile list`)")


def env_files_of(args: argparse.Namespace) -> dict[Role, Path]:
    """The env files that are named, else specdash's own."""
    named = {role: getattr(args, f"{role}_env") for role in Role}
    return {
        role: Path(file).expanduser().absolute() if file is not None else default_env_file(role, os.environ)
        for role, file in named.items()
    }


def run(args: argparse.Namespace) -> int:
    actions = {"adopt": _adopt, "install": _install, "uninstall": _uninstall, "status": _status, "logs": _logs}
    if (left := setup.left_supervisor()) is not None:
        say(left)
    if args.action in actions:
        return actions[args.action](args)
    return _act(args.action, _chosen(args.role))


class _Row(Struct, frozen=True):
    """A service: of systemd, or one that runs without it."""

    role: Role
    name: str
    manager: str
    env_file: Path | None
    status: ServiceStatus

    @property
    def service(self) -> Service:
        """The same by its env file, which run records name."""
        return Service(self.role, self.env_file or Path())


def _found(role: Role) -> _Row | str:
    """The service of a role, the one that runs before the unit that does not; or why there is none."""
    unit, status, why = UNIT_OF[role], None, "it does not run"
    try:
        status = systemd.status(unit) if (units.unit_directory(os.environ) / unit).exists() else None
    except ServiceError as error:
        why = str(error)
    if status is None or not status.alive:
        deployment = find_deployment(resolved_settings(None))
        service = deployment.service(role)
        record = service.record() if service is not None else None
        manager = manager_of(main_pid(record)) if record is not None else None
        if service is not None and manager is not None and (status is None or manager != BY_SYSTEMD):
            return _Row(role, service.name, manager, service.env_file, service.status())
        if status is None:
            if service is None:
                return f"{role}: {deployment.missing.get(role)}"
            return f"{role}: {why}; `{start_command(role, service.env_file)}` starts it"
    return _Row(role, unit, BY_SYSTEMD, systemd.env_file_of(unit), status)


def _chosen(role: str | None) -> list[_Row]:
    """The services of that role, or all, the backend first. Raises `ServiceError` where there is none."""
    found = [_found(item) for item in ([Role(role)] if role is not None else list(Role))]
    rows = [row for row in found if isinstance(row, _Row)]
    if not rows:
        raise ServiceError("; ".join(map(str, found)))
    return rows


def _act(action: str, rows: list[_Row]) -> int:
    """Start, stop or restart the services, one after the other."""
    code = ExitCode.OK
    for row in reversed(rows) if action == "stop" else rows:
        failed = None
        if row.name != UNIT_OF[row.role]:
            _without_systemd(action, row)
        else:
            try:
                {"start": systemd.start, "stop": systemd.stop, "restart": systemd.restart}[action](row.name)
                failed = _failed_at_once(row) if action != "stop" else None
            except ServiceError:
                # One of Type=notify that ends at once fails its start job, which says nothing of the cause.
                failed = systemd.status(row.name)
                if failed.exit_code is None:
                    raise
        if failed is None:
            print(f"{row.name}: {_DONE[action]}")
            continue
        code = ExitCode.FAILED
        say(f"{row.name}: {failed.state}: {failed.detail}")
        print(_output_of(_log_command([row], 3)), end="", file=sys.stderr)
    return code


def _without_systemd(action: str, row: _Row) -> None:
    """Restart a child of `specdash up`; everything else is refused with the command that does it."""
    import psutil

    pid = row.status.pid
    if action == "start" or pid is None:
        raise ServiceError(f"{row.name} runs already ({row.manager}, process {pid})")
    if row.manager == BY_SYSTEMD:
        raise ServiceError(f"{row.name} is run by systemd: {systemd.why_not() or 'specdash did not install its unit'}")
    if row.manager != BY_UP:
        again = f"specdash {row.role} run --env-file {shlex.quote(str(row.env_file))}"
        kept = start_command(row.role, row.service.env_file)
        by_hand = f"was started by hand: `kill {pid}` ends it; then `{again}` starts it, `{kept}` as a service"
        raise ServiceError(setup.left_supervisor() or f"{row.name} {by_hand}")
    if action == "stop":
        raise ServiceError(
            f"{row.name} is kept running by `specdash up`: `kill {psutil.Process(pid).ppid()}` ends both services"
        )
    os.kill(pid, signal.SIGTERM)
    if not wait_until(systemd.STOP_S, lambda: row.service.status().pid not in (None, pid), _POLL_S):
        raise ServiceError(f"{row.name} did not start again ({row.service.status().state})")


def _failed_at_once(row: _Row) -> ServiceStatus | None:
    """The status of a service that did not live to leave its run record; None for one that did."""
    began = time.monotonic()
    while True:
        status, waited = systemd.status(row.name), time.monotonic() - began
        if not status.alive or status.state is ServiceState.WAITING:
            return status
        if waited >= _SHOWS_UP_S or (waited >= _SETTLE_S and row.service.record() is not None):
            return None
        time.sleep(_POLL_S)


def _status(args: argparse.Namespace) -> int:
    found = [_found(role) for role in Role]
    rows = [row for row in found if isinstance(row, _Row)]
    problems = [row for row in found if isinstance(row, str)]
    shown: list[dict[str, Any]] = []
    cells = [("SERVICE", "STATE", "PID", "SINCE", "RESTARTS", "RUN BY", "ENV FILE")]
    details = []
    for row in rows:
        status, there = row.status, row.env_file is not None and row.env_file.is_file()
        detail = status.detail or row.service.refusal()
        shown.append(
            {
                **json_of(row, "role name manager env_file"),
                "env_file_exists": there,
                **json_of(status, "state pid since restarts exit_code"),
                "detail": detail,
            }
        )
        since = timestamp(status.since) if status.since else UNKNOWN
        file = f"{row.env_file or UNKNOWN}{'' if there else ' (missing)'}"
        cells.append((row.name, status.state, plain(status.pid), since, plain(status.restarts), row.manager, file))
        details += [f"{row.name}: {detail}"] if detail else []
    clients = client_view({row.role: row.env_file for row in rows if row.env_file is not None and row.status.alive})
    details += [clients.line] if clients is not None else []
    text = [*(table(cells) if shown else []), *details, *problems]
    answer = {"services": shown, "problems": problems, "clients": json_of(clients, "url model ready proxy")}
    print_answer(answer, text, as_json=args.json)
    if not rows:
        return ExitCode.SERVICE
    return ExitCode.OK if all(row.status.state is ServiceState.RUNNING for row in rows) else ExitCode.FAILED


def _adopt(args: argparse.Namespace) -> int:
    """Write the env file, and say how the service takes over. Raises `RefusedError` where the server cannot be adopted,
    `ConflictError` where there is an env file already."""
    from specdash.backend.plan import Circumstances, judge
    from specdash.core.changes import shown_value
    from specdash.core.env_edit import with_changes
    from specdash.core.envfile import encode

    target = one_target(resolved_settings(args)) if args.unit is None else None
    found = adoption.adopt_process(target) if target is not None else adoption.adopt_unit(args.unit, os.environ)
    path = Path(args.env_file).expanduser().absolute() if args.env_file else default_env_file(found.role, os.environ)
    print(f"the settings of {found.source}:")
    print("\n".join(f"  {key}={shown_value(key, value)}" for key, value in found.values.items()))
    findings = judge(found.role, found.values, Circumstances(path, own_pids=found.pids))
    print("\n".join(f"{finding.severity}: {finding.line}" for finding in findings) or "preflight: no problems found")
    if errors(findings):
        raise RefusedError("preflight found errors, nothing was written; fix them there, and adopt it then")
    snapshot = read_env(path)
    if snapshot.exists:
        raise ConflictError(f"{path} already exists, nothing was written; name another file with --env-file")
    if args.dry_run:
        print(f"would write {path}")
        return ExitCode.OK
    head = f"# Written by `specdash services adopt` from {found.source}\n"
    replace_env(snapshot, encode(head + with_changes(snapshot.file, found.values)))
    print(f"wrote {path}; nothing was stopped. The service takes over with:")
    print(f"  {found.ending}   # requests that run are cut off")
    print(f"  {start_command(found.role, path)}")
    return ExitCode.OK


def _install(args: argparse.Namespace) -> int:
    """Write env files for a model, and units for the env files that are there."""
    env_files = env_files_of(args)
    roles = [Role(args.role)] if args.role is not None else list(Role)
    texts = bootstrap_texts(args, env_files)
    values = {role: _values(role, texts, env_files) for role in env_files}
    ready = [role for role in roles if role in texts or env_files[role].is_file()]
    names = [name for role in ready for name in UNITS_OF[role]] + ([RECORD_UNIT] if args.record else [])
    changes = setup.unit_changes(os.environ, env_files, names, values)
    if args.dry_run:
        changes = {**{env_files[role]: (None, text) for role, text in texts.items()}, **changes}
        for path, (before, text) in changes.items():
            fate = "would write" if before is None else "unchanged:" if before == text else "would replace"
            print(f"# {fate} {path}\n{text}")
        return ExitCode.OK
    for path in setup.write_env_files(texts, env_files):
        print(f"wrote {path}")
    if (why := systemd.why_not()) is not None:
        raise ServiceError(f"{why}; `specdash up` runs both without it")
    setup.install(os.environ, changes, names)
    for path, (before, text) in changes.items():
        print(f"{'unchanged' if text == before else 'wrote'} {path}, enabled")
    for role in [role for role in roles if role not in ready]:
        remedy = f"`specdash services install --model MODEL.gguf` writes it, --{role}-env names another"
        print(f"{role}: there is no env file {env_files[role]}; {remedy}", file=sys.stderr)
    code = ExitCode.OK if ready == roles else ExitCode.FAILED
    replaced = any(before not in (None, text) for before, text in changes.values())
    outdated = replaced and any(systemd.status(UNIT_OF[role]).alive for role in ready)
    if args.start or args.model:
        code = max(code, _start(ready, env_files))
        if args.record:
            systemd.restart(RECORD_UNIT)
    elif ready and not outdated:
        print("`specdash services start` starts them")
    if outdated:
        print("what runs goes on as it was: `specdash services stop`, then `start`, takes the new units")
    if ready and not (Path("/var/lib/systemd/linger") / user_name(os.geteuid())).exists():
        print("they stop when you log out; `loginctl enable-linger` keeps them running and starts them at boot")
    return code


def _values(role: Role, texts: dict[Role, str], env_files: dict[Role, Path]) -> dict[str, str]:
    """What the env file of a service will say."""
    return read_values(texts[role].encode(), "the new file") if role in texts else read_env(env_files[role]).values


def bootstrap_texts(args: argparse.Namespace, env_files: dict[Role, Path]) -> dict[Role, str]:
    """The env files that are to be written: for --model those that are not there. Raises `UsageError`, `InputError`."""
    if args.model is None:
        if args.draft is not None or args.profile is not None:
            raise UsageError("--draft and --profile go with --model")
        return {}
    texts: dict[Role, str] = {}
    if args.role != Role.PROXY and not env_files[Role.BACKEND].exists():
        texts[Role.BACKEND] = setup.backend_text(args.model, args.draft, args.profile)
    if args.role != Role.BACKEND and not env_files[Role.PROXY].exists():
        texts[Role.PROXY] = setup.proxy_text(_values(Role.BACKEND, texts, env_files), args.profile)
    for role in Role:
        if role not in texts and args.role in (None, role):
            print(f"{env_files[role]} is there, and stays as it is", file=sys.stderr)
    return texts


def _start(roles: list[Role], env_files: dict[Role, Path]) -> ExitCode:
    """Start what was installed, wait a while for the model to be loaded, and print what clients need."""
    code = ExitCode(_act("start", [row for role in roles for row in _chosen(role)]))
    if code is ExitCode.OK and Role.BACKEND in roles:
        deadline = time.monotonic() + _LOADS_S
        while (clients := client_view({role: env_files[role] for role in roles})) is None or not clients.ready:
            if time.monotonic() > deadline:
                print("not ready yet; `specdash services status` shows how it stands, `specdash services logs` why")
                return code
            time.sleep(_POLL_S)
        print(clients.line)
    return code


def _uninstall(_args: argparse.Namespace) -> int:
    if not (gone := setup.uninstall(os.environ)):
        raise ServiceError("specdash has not installed anything")
    print("\n".join([*(f"removed {path}" for path in gone), "the env files were kept"]))
    return ExitCode.OK


def _logs(args: argparse.Namespace) -> int:
    """Print the last lines of what the services write; with --follow, go on with what comes."""
    command = _log_command(_chosen(args.role), max(0, args.lines))
    if not args.follow:
        print(_output_of(command), end="")
        return ExitCode.OK
    follows = [command[0], "-f" if command[0] == "journalctl" else "-F", *command[1:]]
    ended = subprocess.run(follows, env=systemd.environment(), stdin=subprocess.DEVNULL, check=False)
    return ExitCode.OK if ended.returncode == 0 else ExitCode.SERVICE


def _output_of(command: list[str]) -> str:
    done = subprocess.run(
        command, env=systemd.environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return done.stdout.decode("utf-8", "replace")


def _log_command(rows: list[_Row], lines: int) -> list[str]:
    """What prints the last lines of these services."""
    logs = [_log_of(row) for row in rows]
    files = [str(log) for log in logs if isinstance(log, Path)]
    if files and len(files) < len(logs):
        raise ServiceError("one service writes to a file and the other to the journal; name one of them")
    if files:
        return ["tail", "-n", str(lines), *files]
    named = (word for log in logs for word in ("-u", str(log)))
    return ["journalctl", "--user", *named, "-n", str(lines), "-o", "cat", "-q", "--no-pager"]


def _log_of(row: _Row) -> Path | str:
    """The file that a service writes to, or its unit in the journal. Raises `ServiceError` where it writes to a
    terminal only."""
    if row.name == UNIT_OF[row.role]:
        directory = units.log_dir(os.environ)
        return row.name if directory is None else directory / row.name.replace(".service", ".log")
    record, output = row.service.record(), Path(f"/proc/{row.status.pid}/fd/2").resolve()
    if record is not None and record.log is not None:
        return Path(record.log)
    if output.is_file():
        return output
    remedy = "LLAMA_LOG_FILE names a file for its log" if row.role is Role.BACKEND else "`2>FILE` sends it to a file"
    raise ServiceError(f"{row.name} writes to its terminal only ({output}); {remedy}")
