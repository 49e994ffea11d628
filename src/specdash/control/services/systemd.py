"""systemd's user manager as a `ServiceManager`."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.control.services.services import ServiceState, ServiceStatus
from specdash.control.services.tool import ToolOutput, run_tool
from specdash.control.services.units import output_file, split_words
from specdash.core.errors import ServiceError
from specdash.system.processes import caught_signals

if TYPE_CHECKING:
    from collections.abc import Mapping


# Asking systemd's user manager: `systemctl --user` and `journalctl --user`, each call bounded in time.
#
# The tools are started with argument lists and in the C locale. That the manager cannot be reached is a
# `ServiceError` here, in words; what it answers is for the caller to judge.

ASK_S = 10.0
"""How long a question may take."""
_QUIET = {"LC_ALL": "C", "LANG": "C", "LANGUAGE": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_URLIFY": "0"}
_GONE = re.compile(
    r"Failed to connect to bus|Failed to get D-Bus connection|Connection reset by peer|Transport endpoint is not|"
    r"D-Bus connection terminated|Connection terminated|Remote peer disconnected|has not been booted with systemd|"
    r"Connection refused|Connection timed out|Broken pipe|Message recipient disconnected"
)
_SPAN = re.compile(r"([\d.]+)\s*(us|ms|s|min|h|d|w|month|y)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800, "month": 2629800}


class Systemctl:
    """The tools, for one environment."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._env = {**env, **_QUIET}
        runtime = own_runtime_directory(env)
        if runtime is not None:
            self._env["XDG_RUNTIME_DIR"] = runtime

    @property
    def environment(self) -> dict[str, str]:
        """What the tools are started with."""
        return dict(self._env)

    def run(self, *arguments: str, timeout: float | None = None) -> ToolOutput:
        """`systemctl --user ARGUMENTS`. Raises `ServiceError` when the manager cannot be reached."""
        command = ["systemctl", "--user", "--no-pager", "--no-ask-password", *arguments]
        answer = self._run(command, ASK_S if timeout is None else timeout)
        if not answer.done and _GONE.search(answer.err):
            raise ServiceError(self.out_of_reach(answer.reason))
        return answer

    def show(self, names: list[str], properties: tuple[str, ...]) -> list[dict[str, str]]:
        """The properties of each unit, in the order of the names, from one call."""
        answer = self.run("show", "-p", ",".join(properties), "--", *names)
        if answer.code is None:
            raise ServiceError(self.out_of_reach(answer.reason))
        found = parse_show(answer.out)
        if len(found) != len(names):
            raise ServiceError(f"systemd says nothing of {' and '.join(names)}: {answer.reason}")
        return found

    def journal(self, name: str, lines: int) -> list[str]:
        """The last lines of a unit in the user's journal; empty where there is no journal, or none to read."""
        command = ["journalctl", "--user", "-u", name, "-n", str(lines), "-o", "cat", "-q", "--no-pager"]
        try:
            answer = self._run(command, ASK_S)
        except ServiceError:
            return []
        return answer.out.splitlines()[-lines:] if answer.done else []

    def why_not(self) -> str | None:
        """Why the manager cannot be used, in words; None when it answers."""
        try:
            answer = self.run("show", "-p", "SystemState", "--value")
        except ServiceError as error:
            return str(error)
        return None if answer.done else self.out_of_reach(answer.reason)

    def out_of_reach(self, reason: str) -> str:
        """What to say of a manager that cannot be reached."""
        if not self._env.get("XDG_RUNTIME_DIR"):
            return (
                "systemd's user manager cannot be reached: XDG_RUNTIME_DIR is not set; log in as this user (not by su "
                "or sudo), or run `loginctl enable-linger` and set XDG_RUNTIME_DIR=/run/user/$(id -u)"
            )
        return (
            f"systemd's user manager does not answer ({reason}); is it running? `loginctl enable-linger` starts it "
            "without a login"
        )

    def _run(self, command: list[str], timeout: float) -> ToolOutput:
        missing = f"systemd's user manager cannot be used: no {command[0]} is installed"
        return run_tool(command, self._env, timeout, name=command[0], missing=missing)


def own_runtime_directory(env: Mapping[str, str]) -> str | None:
    """XDG_RUNTIME_DIR, or where it would be if this were a proper login and the user's manager runs there."""
    named = env.get("XDG_RUNTIME_DIR")
    if named:
        return named
    usual = Path(f"/run/user/{os.getuid()}")
    return str(usual) if (usual / "systemd" / "private").exists() else None


def parse_show(text: str) -> list[dict[str, str]]:
    """The answer of `systemctl show`: a mapping for each unit. Values of a repeated property are joined by newlines."""
    units: list[dict[str, str]] = []
    current: dict[str, str] = {}
    for line in [*text.splitlines(), ""]:
        key, equals, value = line.partition("=")
        if equals:
            current[key] = f"{current[key]}\n{value}" if key in current else value
        elif not line and current:
            units.append(current)
            current = {}
    return units


def seconds(span: str) -> float | None:
    """A time span as systemd prints it, `1min 30s`; None for `infinity` and what is none."""
    found = _SPAN.findall(span)
    if not found:
        return None
    return sum(float(number) * _SECONDS.get(unit, 31557600.0) for number, unit in found)


_START_S = 20.0
_STOP_SLACK_S = 15.0
_STOP_UNBOUNDED_S = 300.0
"""How long a stop is waited for whose TimeoutStopSec is infinite."""
_CATCH_S = 10.0
_POLL_S = 0.02
_STATUS = (
    *("LoadState", "LoadError", "ActiveState", "SubState", "MainPID", "NRestarts", "ExecMainCode", "ExecMainStatus"),
    *("Result", "StatusText", "StateChangeTimestampMonotonic", "ActiveEnterTimestampMonotonic"),
    *("TriggeredBy", "TimeoutStopUSec", "ExecReload", "FragmentPath", "DropInPaths"),
)
_STATES = {
    "active": ServiceState.RUNNING,
    "reloading": ServiceState.RUNNING,
    "refreshing": ServiceState.RUNNING,
    "activating": ServiceState.STARTING,
    "deactivating": ServiceState.STOPPING,
    "failed": ServiceState.FAILED,
}
_EXITED = "1"
"""CLD_EXITED; the other codes stand for signals."""
_RESULTS = {
    "timeout": "did not start or stop in time",
    "watchdog": "did not answer systemd's watchdog",
    "protocol": "ended without saying that it is ready",
    "resources": "systemd could not start it (a file or limit is missing)",
    "oom-kill": "was killed: out of memory",
    "start-limit-hit": "started too often within a short time",
}
_EXEC_STEPS = {
    200: "its working directory is missing",
    203: "its program cannot be run",
    209: "its output file cannot be opened",
    226: "its sandbox cannot be set up",
    228: "its system call filter cannot be set up",
}
"""Exit codes of systemd's own, between fork and exec (systemd.exec(5))."""
_SIGNAL_SENT = re.compile(r"kill\s+(?:-s\s*|-)(?:SIG)?([A-Z]+[0-9]*)\s")
_WORDS = (
    (re.compile(r"not found|not loaded"), "systemd knows no such unit; `specdash services install` writes ours"),
    (re.compile(r"is masked"), "is masked; `systemctl --user unmask {name}` allows it again"),
    (
        re.compile(r"bad unit file setting"),
        "its unit file is wrong; `systemd-analyze --user verify {name}` tells where",
    ),
    (re.compile(r"not applicable"), "knows no reload (no ExecReload= in its unit); restart it instead"),
    (re.compile(r"not active"), "does not run; start it first"),
    (re.compile(r"cancell?ed"), "somebody else started or stopped it meanwhile; see `systemctl --user status {name}`"),
)


def available(env: Mapping[str, str] = os.environ) -> str | None:
    """Why systemd's user manager cannot be used, in words; None when it can."""
    return Systemctl(env).why_not()


class SystemdManager:
    """The user's systemd. Holds no state of its own."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._systemctl = Systemctl(env)

    @property
    def kind(self) -> str:
        """`systemd`."""
        return "systemd"

    def bring_up(self) -> None:
        """Nothing to do: systemd is there or it is not."""

    def status(self, name: str) -> ServiceStatus:
        """See `ServiceManager.status`."""
        return status_of(name, self._show(name))

    def start(self, name: str) -> None:
        """Start it, and the sockets that belong to it."""
        facts = self._known(name)
        sockets = _sockets(facts)
        self._forget_failures(name, sockets)
        idle = facts.get("ActiveState") in ("inactive", "failed")
        # A socket cannot be started under a service that runs already.
        answer = self._systemctl.run("start", "--", *(sockets if idle else ()), name, timeout=_START_S)
        self._check_start("start", name, answer, sockets)

    def stop(self, name: str) -> None:
        """Stop it, and the sockets that would start it again; takes as long as its TimeoutStopSec at most."""
        facts = self._known(name)
        self._stop(name, facts, [*_sockets(facts), name])
        # One that had to be killed counts as failed; but it was stopped on purpose.
        self._forget_failures(name, ())

    def restart(self, name: str) -> None:
        """Stop and start it; its sockets stay open. Returns when the old process is gone and a new one was started."""
        facts = self._known(name)
        sockets = _sockets(facts)
        self._forget_failures(name, sockets)
        if any(socket.get("ActiveState") != "active" for socket in self._of_sockets(sockets)):
            # A socket that gave up, or was stopped by hand, cannot come back while its service runs.
            self._stop(name, facts, [name])
            self.start(name)
            return
        answer = self._systemctl.run("restart", "--", name, timeout=_stop_bound(facts) + _START_S)
        self._check_start("restart", name, answer, sockets)
        before, now = _number(facts, "MainPID"), self._show(name)
        if before and _number(now, "MainPID") == before:
            raise ServiceError(
                f"{name}: its process {before} is still the same after a restart; see `systemctl --user status {name}`"
            )

    def reload(self, name: str) -> None:
        """Run its ExecReload. Where that sends a signal, wait until the process would not die of it."""
        facts = self._known(name)
        sent = _SIGNAL_SENT.search(facts.get("ExecReload", ""))
        pid = _number(facts, "MainPID")
        if sent is not None and pid and facts.get("ActiveState") == "active":
            wait_until_caught(name, pid, sent.group(1))
        answer = self._systemctl.run("reload", "--", name)
        if not answer.done:
            raise ServiceError(_refusal("reload", name, answer))

    def log_tail(self, name: str, lines: int = 20) -> tuple[str, ...]:
        """The unit's journal; where that is empty, the file that its output is appended to."""
        facts = self._show(name)
        file = log_file(facts)
        found = [] if file is not None else self._systemctl.journal(name, lines)
        if file is not None:
            found = _tail(file, lines)
        return tuple(line for line in (name.rstrip() for name in found) if line)

    def log_file(self, name: str) -> Path | None:
        """The file that its output goes to; None where the journal has it."""
        return log_file(self._show(name))

    def _of_sockets(self, sockets: list[str]) -> list[dict[str, str]]:
        return self._systemctl.show(sockets, ("Id", "ActiveState", "Listen")) if sockets else []

    def _show(self, name: str) -> dict[str, str]:
        return self._systemctl.show([name], _STATUS)[0]

    def _known(self, name: str) -> dict[str, str]:
        facts = self._show(name)
        if status_of(name, facts).state is ServiceState.MISSING:
            raise ServiceError(f"{name}: {_WORDS[0][1]}")
        return facts

    def _forget_failures(self, name: str, sockets: list[str] | tuple[()]) -> None:
        self._systemctl.run("reset-failed", "--", name, *sockets)

    def _stop(self, name: str, facts: Mapping[str, str], units: list[str]) -> None:
        bound = _stop_bound(facts)
        answer = self._systemctl.run("stop", "--", *units, timeout=bound)
        if answer.code is None:
            raise ServiceError(_still_stopping(name, bound))
        if not answer.done:
            raise ServiceError(_refusal("stop", name, answer))

    def _check_start(self, verb: str, name: str, answer: ToolOutput, sockets: list[str]) -> None:
        if answer.done:
            return
        facts = self._show(name)
        now = status_of(name, facts)
        if answer.code is None:
            if now.alive and now.pid is not None:
                return
            if now.state is ServiceState.STOPPING:
                raise ServiceError(_still_stopping(name, _stop_bound(facts)))
            raise ServiceError(f"{name}: did not {verb} in time ({now.state}); see `systemctl --user status {name}`")
        said = _refusal(verb, name, answer)
        closed = [socket for socket in self._of_sockets(sockets) if socket.get("ActiveState") == "failed"]
        if closed:
            where = closed[0].get("Listen", "").replace("\n", ", ")
            raise ServiceError(
                f"{name}: {closed[0]['Id']} cannot listen on {where}: is that in use by another program?"
            )
        if "Job for" in answer.err and "cancel" not in answer.err:
            last = self.log_tail(name, 1)
            why = ": ".join(filter(None, (now.detail, *last))) or answer.reason
            said = f"{name}: did not {verb}: {why}"
        raise ServiceError(said)


def status_of(name: str, facts: Mapping[str, str]) -> ServiceStatus:
    """The status from the unit's properties."""
    load, active = facts.get("LoadState", ""), facts.get("ActiveState", "")
    state = _STATES.get(active, ServiceState.STOPPED)
    if state is ServiceState.STARTING and facts.get("SubState", "").startswith("auto-restart"):
        state = ServiceState.WAITING
    idle = state in (ServiceState.STOPPED, ServiceState.FAILED)
    if load == "not-found" and idle:
        return ServiceStatus(name, ServiceState.MISSING, detail="systemd knows no such unit")
    if load == "masked" and idle:
        return ServiceStatus(name, ServiceState.STOPPED, detail=f"masked; `systemctl --user unmask {name}` allows it")
    if load in ("bad-setting", "error") and idle:
        said = facts.get("LoadError", "").partition(" ")[2].strip('"') or "its unit file is wrong"
        return ServiceStatus(name, ServiceState.FAILED, detail=said)
    told = state not in (ServiceState.RUNNING, ServiceState.STARTING)
    restarts = _number(facts, "NRestarts") or 0
    detail = _detail(facts) if told else facts.get("StatusText", "")
    if state is ServiceState.FAILED and restarts and detail:
        detail = f"given up after {restarts} restarts; last: {detail}"
    return ServiceStatus(
        name,
        state,
        pid=_number(facts, "MainPID"),
        restarts=restarts,
        exit_code=_exit_code(facts) if told else None,
        detail=detail,
        since=_since(facts, state),
    )


def log_file(facts: Mapping[str, str]) -> Path | None:
    """The file that the unit's output goes to, from FragmentPath and DropInPaths; None where it goes elsewhere."""
    return output_file([facts.get("FragmentPath", ""), *(split_words(facts.get("DropInPaths", "")) or ())])


def _sockets(facts: Mapping[str, str]) -> list[str]:
    return [unit for unit in facts.get("TriggeredBy", "").split() if unit.endswith(".socket")]


def _number(facts: Mapping[str, str], key: str) -> int | None:
    text = facts.get(key, "")
    return int(text) if text.isdigit() and text != "0" else None


def _exit_code(facts: Mapping[str, str]) -> int | None:
    if facts.get("ExecMainCode", "0") == "0":
        return None
    status = _number(facts, "ExecMainStatus") or 0
    return status if facts["ExecMainCode"] == _EXITED else -status


def _detail(facts: Mapping[str, str]) -> str:
    """Why it is not running, "" when it ended well or never ran."""
    result, code = facts.get("Result", "success"), _exit_code(facts)
    if result == "success":
        return ""
    if result in _RESULTS and not (result == "start-limit-hit" and code):
        return _RESULTS[result]
    if code is None:
        return result
    if code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    step = _EXEC_STEPS.get(code)
    return f"exit code {code}" + (f" ({step})" if step else "")


def _since(facts: Mapping[str, str], state: ServiceState) -> float | None:
    stamps = ["StateChangeTimestampMonotonic"]
    if state is ServiceState.RUNNING:
        stamps.insert(0, "ActiveEnterTimestampMonotonic")
    for stamp in stamps:
        microseconds = _number(facts, stamp)
        if microseconds is not None:
            return time.time() - max(0.0, time.monotonic() - microseconds / 1e6)
    return None


def _stop_bound(facts: Mapping[str, str]) -> float:
    span = seconds(facts.get("TimeoutStopUSec", ""))
    return _STOP_UNBOUNDED_S if span is None else min(span, _STOP_UNBOUNDED_S) + _STOP_SLACK_S


def _still_stopping(name: str, waited_s: float) -> str:
    return (
        f"{name}: still stopping after {waited_s:g} s (see TimeoutStopSec= of its unit); "
        f"`systemctl --user kill -s KILL {name}` ends it at once"
    )


def _refusal(verb: str, name: str, answer: ToolOutput) -> str:
    for pattern, words in _WORDS:
        if pattern.search(answer.err):
            return f"{name}: {words.format(name=name)}"
    if answer.code is None:
        return f"{name}: {verb}: {answer.reason}; see `systemctl --user status {name}`"
    reason = re.sub(r"^Failed to \S+ \S+: ", "", answer.reason)
    return f"{name}: systemd refused to {verb} it: {reason}; see `systemctl --user status {name}`"


def wait_until_caught(name: str, pid: int, signal_name: str) -> None:
    """Wait until the process has a handler for the signal: one that is still starting would be ended by it."""
    try:
        number = signal.Signals[f"SIG{signal_name}"]
    except KeyError:
        return
    deadline = time.monotonic() + _CATCH_S
    while (caught := caught_signals(pid)) is not None and not caught >> (number - 1) & 1:
        if time.monotonic() >= deadline:
            raise ServiceError(
                f"{name}: its process {pid} would end by SIG{signal_name}: it has no handler; restart it"
            )
        time.sleep(_POLL_S)


def _tail(path: Path, lines: int) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1024 * lines))
            return file.read().decode("utf-8", "replace").splitlines()[-lines:]
    except OSError:
        return []
