"""systemd's user manager: `systemctl --user`, each call bounded in time, in systemd's words."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.backend.child import describe_exit
from specdash.control.deployment import ServiceState, ServiceStatus
from specdash.core.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ASK_S, _START_S = 10.0, 90.0
STOP_S = 400.0
"""Longer than any TimeoutStopSec that is likely: PROXY_DRAIN_TIMEOUT is 300 s at most."""
_QUIET = {"LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_URLIFY": "0"}
_STATES = {
    "active": ServiceState.RUNNING,
    "reloading": ServiceState.RUNNING,
    "refreshing": ServiceState.RUNNING,
    "activating": ServiceState.STARTING,
    "deactivating": ServiceState.STOPPING,
    "failed": ServiceState.FAILED,
}
_PROPERTIES = (
    *("LoadState", "LoadError", "ActiveState", "SubState", "MainPID", "NRestarts", "ExecMainCode", "ExecMainStatus"),
    *("Result", "StatusText", "StateChangeTimestampMonotonic"),
)


def environment(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the tools are started with: where the manager of a user without a login session is, too (su, cron)."""
    runtime = env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    return {**env, **_QUIET, "XDG_RUNTIME_DIR": runtime}


def systemctl(env: Mapping[str, str], *arguments: str, timeout: float = _START_S, check: bool = True) -> str:
    """What `systemctl --user ARGUMENTS` prints. Raises `ServiceError` where it cannot be run or does not end in time,
    and with systemd's own text where it fails, which `check` False allows."""
    try:
        # In a session of its own: Ctrl-C ends us, and not a half-done restart.
        done = subprocess.run(
            ["systemctl", "--user", "--no-pager", "--no-ask-password", *arguments],  # noqa: S607 - the one on the PATH
            env=environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise ServiceError("systemd's user manager cannot be used: no systemctl is installed") from None
    except subprocess.TimeoutExpired:
        raise ServiceError(f"`systemctl --user {' '.join(arguments)}` did not end within {timeout:g} s") from None
    except OSError as error:
        raise ServiceError(f"systemctl cannot be run: {error.strerror or error}") from None
    if check and done.returncode != 0:
        why = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise ServiceError(f"systemctl --user {arguments[0]}: {why}")
    return done.stdout


def why_not(env: Mapping[str, str] = os.environ) -> str | None:
    """Why systemd's user manager cannot be used; None where it can."""
    try:
        show(env, [], ("Version",))
    except ServiceError as error:
        return str(error)
    return None


def show(env: Mapping[str, str], units: Sequence[str], properties: Sequence[str]) -> list[dict[str, str]]:
    """The properties of each unit. Raises `ServiceError` where the manager does not answer."""
    shown = systemctl(env, "show", f"--property={','.join(properties)}", "--", *units, timeout=_ASK_S)
    return [dict(line.partition("=")[::2] for line in part.splitlines()) for part in shown.strip().split("\n\n")]


def status(unit: str, env: Mapping[str, str] = os.environ) -> ServiceStatus:
    """The unit now. Raises `ServiceError`."""
    facts = show(env, [unit], _PROPERTIES)[0]
    state, result = _STATES.get(facts["ActiveState"], ServiceState.STOPPED), facts["Result"]
    if state is ServiceState.STARTING and facts["SubState"].startswith("auto-restart"):
        state = ServiceState.WAITING
    detail, code = facts["StatusText"], None
    if state not in (ServiceState.RUNNING, ServiceState.STARTING):
        detail = "" if result == "success" else result
        if detail and facts["ExecMainCode"] not in ("", "0"):
            # CLD_EXITED; the other codes stand for signals.
            code = int(facts["ExecMainStatus"] or 0) * (1 if facts["ExecMainCode"] == "1" else -1)
            detail = f"{result}: {describe_exit(code)}"
        if facts["LoadState"] != "loaded":
            detail = facts["LoadError"].partition(" ")[2].strip('"') or facts["LoadState"]
    changed = int(facts["StateChangeTimestampMonotonic"] or 0) / 1e6
    return ServiceStatus(
        state,
        pid=int(facts["MainPID"]) or None,
        restarts=int(facts["NRestarts"] or 0),
        exit_code=code,
        detail=detail,
        since=time.time() - max(0.0, time.monotonic() - changed) if changed else None,
    )


def start(unit: str, env: Mapping[str, str] = os.environ, *, verb: str = "start") -> None:
    """Start the unit, forgetting earlier failures. Raises `ServiceError` with systemd's own text."""
    sockets = _sockets(unit)
    systemctl(env, "reset-failed", "--", unit, *sockets, check=False)
    # A socket cannot be started under a service that runs already.
    first = [] if verb != "start" or status(unit, env).alive else sockets
    try:
        systemctl(env, verb, "--", *first, unit, timeout=_START_S if verb == "start" else STOP_S)
    except ServiceError as error:
        for facts in show(env, sockets, ("ActiveState", "Listen")) if sockets else ():
            if facts["ActiveState"] == "failed":
                raise ServiceError(f"{sockets[0]} cannot listen on {facts['Listen']}: is the port in use?") from None
        detail = status(unit, env).detail
        raise ServiceError(f"{unit}: {error}{f' ({detail})' if detail not in str(error) else ''}") from None


def stop(unit: str, env: Mapping[str, str] = os.environ) -> None:
    """Stop the unit, and the socket that would start it again. Raises `ServiceError`."""
    systemctl(env, "stop", "--", *_sockets(unit), unit, timeout=STOP_S)
    # One that had to be killed counts as failed, and was stopped on purpose.
    systemctl(env, "reset-failed", "--", unit, check=False)


def restart(unit: str, env: Mapping[str, str] = os.environ) -> None:
    """Stop and start the unit; its socket stays open. Raises `ServiceError`."""
    sockets = _sockets(unit)
    if sockets and show(env, sockets, ("ActiveState",))[0]["ActiveState"] != "active":
        # A socket that gave up cannot come back while its service runs.
        stop(unit, env)
        start(unit, env)
    else:
        start(unit, env, verb="restart")


def env_file_of(unit: str, env: Mapping[str, str] = os.environ) -> Path | None:
    """The env file of an installed unit of specdash, as systemd shows its command; None where there is none."""
    try:
        shown = show(env, [unit], ("ExecStart",))[0].get("ExecStart", "")
    except ServiceError:
        return None
    path = shown.partition(" --env-file ")[2].rpartition(" ; ignore_errors=")[0]
    return Path(path.replace("$$", "$")) if path else None


def _sockets(unit: str) -> tuple[str, ...]:
    return (unit.replace(".service", ".socket"),) if unit.endswith("-proxy.service") else ()
