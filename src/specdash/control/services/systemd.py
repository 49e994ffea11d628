"""systemd's user manager: `systemctl --user` and `journalctl --user`, each call bounded in time, in systemd's words."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.control.deployment import ServiceState, ServiceStatus
from specdash.core.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ASK_S = 10.0
_START_S = 90.0
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
    *("Id", "LoadState", "LoadError", "ActiveState", "SubState", "MainPID", "NRestarts", "ExecMainCode"),
    *("ExecMainStatus", "Result", "StatusText", "StateChangeTimestampMonotonic", "ExecStart"),
)
_EXITED = "1"
"""CLD_EXITED; the other codes stand for signals."""


def environment(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the tools are started with: where the manager of a user without a login session is, too (su, cron)."""
    runtime = env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    return {**env, **_QUIET, "XDG_RUNTIME_DIR": runtime}


def systemctl(env: Mapping[str, str], *arguments: str, timeout: float = _ASK_S) -> subprocess.CompletedProcess[str]:
    """`systemctl --user ARGUMENTS`. Raises `ServiceError` where it cannot be run or does not end in time."""
    try:
        # In a session of its own: Ctrl-C ends us, and not a half-done restart.
        return subprocess.run(
            [  # noqa: S607 - the one on the PATH
                "systemctl",
                "--user",
                "--no-pager",
                "--no-ask-password",
                *arguments,
            ],
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
        words = " ".join(arguments)
        raise ServiceError(f"`systemctl --user {words}` did not end within {timeout:g} s") from None
    except OSError as error:
        raise ServiceError(f"systemctl cannot be run: {error.strerror or error}") from None


def must(env: Mapping[str, str], *arguments: str, timeout: float = _START_S) -> None:
    """The same, which must do it. Raises `ServiceError` with systemd's own text."""
    done = systemctl(env, *arguments, timeout=timeout)
    if done.returncode != 0:
        raise ServiceError(f"systemctl --user {arguments[0]}: {_text(done)}")


def why_not(env: Mapping[str, str] = os.environ) -> str | None:
    """Why systemd's user manager cannot be used; None where it can."""
    try:
        done = systemctl(env, "show", "-p", "Version")
    except ServiceError as error:
        return str(error)
    return None if done.returncode == 0 else f"systemd's user manager does not answer ({_text(done)})"


def show(env: Mapping[str, str], units: Sequence[str], properties: Sequence[str]) -> list[dict[str, str]]:
    """The properties of each unit. Raises `ServiceError` where the manager does not answer."""
    done = systemctl(env, "show", f"--property={','.join(properties)}", "--", *units)
    if done.returncode != 0:
        raise ServiceError(f"systemd's user manager does not answer ({_text(done)})")
    return [dict(line.partition("=")[::2] for line in part.splitlines()) for part in done.stdout.strip().split("\n\n")]


def status(unit: str, env: Mapping[str, str] = os.environ) -> ServiceStatus:
    """The unit now; MISSING where systemd knows none of that name. Raises `ServiceError`."""
    facts = show(env, [unit], _PROPERTIES)[0]
    state = _STATES.get(facts["ActiveState"], ServiceState.STOPPED)
    if state is ServiceState.STARTING and facts["SubState"].startswith("auto-restart"):
        state = ServiceState.WAITING
    detail, code = facts["StatusText"], None
    if state not in (ServiceState.RUNNING, ServiceState.STARTING):
        detail, code = _end(facts)
        if state is ServiceState.STOPPED and facts["LoadState"] == "not-found":
            state, detail = ServiceState.MISSING, "systemd knows no such unit"
        elif facts["LoadState"] not in ("loaded", "not-found"):
            detail = facts["LoadError"].partition(" ")[2].strip('"') or facts["LoadState"]
    changed = int(facts["StateChangeTimestampMonotonic"] or 0) / 1e6
    return ServiceStatus(
        unit,
        state,
        pid=int(facts["MainPID"]) or None,
        restarts=int(facts["NRestarts"] or 0),
        exit_code=code,
        detail=detail,
        since=time.time() - max(0.0, time.monotonic() - changed) if changed else None,
    )


def start(unit: str, env: Mapping[str, str] = os.environ, *, sockets: Sequence[str] = ()) -> None:
    """Start the unit and its sockets, forgetting earlier failures. Raises `ServiceError` with systemd's own text."""
    systemctl(env, "reset-failed", "--", unit, *sockets)
    # A socket cannot be started under a service that runs already.
    first = [] if status(unit, env).alive else sockets
    done = systemctl(env, "start", "--", *first, unit, timeout=_START_S)
    if done.returncode != 0:
        for facts in show(env, sockets, ("Id", "ActiveState", "Listen")) if sockets else ():
            if facts["ActiveState"] == "failed":
                raise ServiceError(f"{facts['Id']} cannot listen on {facts['Listen']}: is the port in use?")
        raise ServiceError(f"{unit}: {_text(done)}{_last_words(unit, env)}")


def stop(unit: str, env: Mapping[str, str] = os.environ, *, sockets: Sequence[str] = ()) -> None:
    """Stop the unit, and the sockets that would start it again. Raises `ServiceError`."""
    must(env, "stop", "--", *sockets, unit, timeout=STOP_S)
    # One that had to be killed counts as failed, and was stopped on purpose.
    systemctl(env, "reset-failed", "--", unit)


def restart(unit: str, env: Mapping[str, str] = os.environ, *, sockets: Sequence[str] = ()) -> None:
    """Stop and start the unit; its sockets stay open. Raises `ServiceError`."""
    if any(facts["ActiveState"] != "active" for facts in (show(env, sockets, ("ActiveState",)) if sockets else ())):
        # A socket that gave up cannot come back while its service runs.
        stop(unit, env)
        start(unit, env, sockets=sockets)
        return
    systemctl(env, "reset-failed", "--", unit, *sockets)
    done = systemctl(env, "restart", "--", unit, timeout=STOP_S)
    if done.returncode != 0:
        raise ServiceError(f"{unit}: {_text(done)}{_last_words(unit, env)}")


def env_file_of(unit: str, env: Mapping[str, str] = os.environ) -> Path | None:
    """The env file of an installed unit of specdash, as systemd shows its command; None where there is none."""
    try:
        shown = show(env, [unit], ("ExecStart",))[0].get("ExecStart", "")
    except ServiceError:
        return None
    path = shown.partition(" --env-file ")[2].rpartition(" ; ignore_errors=")[0]
    return Path(path.replace("$$", "$")) if path else None


def _text(done: subprocess.CompletedProcess[str]) -> str:
    """What systemd said, on one line."""
    return " ".join(done.stderr.split()) or f"exit code {done.returncode}"


def _last_words(unit: str, env: Mapping[str, str]) -> str:
    detail = status(unit, env).detail
    return f" ({detail})" if detail else ""


def _end(facts: Mapping[str, str]) -> tuple[str, int | None]:
    """Why it is not running, and its exit code (negative: the signal); an empty text where it ended well."""
    if facts["ExecMainCode"] in ("", "0") or facts["Result"] == "success":
        return ("" if facts["Result"] == "success" else facts["Result"]), None
    number = int(facts["ExecMainStatus"] or 0)
    if facts["ExecMainCode"] == _EXITED:
        return f"{facts['Result']}: exit code {number}", number
    try:
        return f"{facts['Result']}: {signal.Signals(number).name}", -number
    except ValueError:
        return f"{facts['Result']}: signal {number}", -number
