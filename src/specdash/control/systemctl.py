"""Asking systemd's user manager: `systemctl --user` and `journalctl --user`, each call bounded in time.

The tools are started with argument lists and in the C locale. That the manager cannot be reached is a `ServiceError`
here, in words; what it answers is for the caller to judge.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.core.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Mapping

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


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool said. `code` is None for one that did not end in time and was ended."""

    code: int | None
    out: str
    err: str

    @property
    def done(self) -> bool:
        """Whether it did what it was asked."""
        return self.code == 0

    @property
    def reason(self) -> str:
        """The first line of what it complained about, without the advice that follows."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        return lines[0].rstrip(".") if lines else f"exit code {self.code}"


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

    def run(self, *arguments: str, timeout: float | None = None) -> Answer:
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

    def _run(self, command: list[str], timeout: float) -> Answer:
        tool = shutil.which(command[0], path=self._env.get("PATH"))
        if tool is None:
            raise ServiceError(f"systemd's user manager cannot be used: no {command[0]} is installed")
        try:
            # In a session of its own: Ctrl-C is for us, a half-done restart must not come of it.
            done = subprocess.run(
                [tool, *command[1:]],
                env=self._env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return Answer(None, "", f"{command[0]} did not end within {timeout:g} s")
        except OSError as error:
            raise ServiceError(f"{tool} cannot be run: {error.strerror or error}") from None
        return Answer(done.returncode, _text(done.stdout), _text(done.stderr))


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


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
