"""The built-in supervisor's daemon as a service manager: asked over its socket, and started where it is not there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from specdash.control.services import ServiceState, ServiceStatus
from specdash.control.supervised import KIND
from specdash.control.supervisor_wire import ANSWER_LIMIT_BYTES, Lines, WireError, send, socket_address
from specdash.core.errors import ServiceError
from specdash.core.paths import supervisor_socket

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_CONNECT_S = 5.0
_ANSWER_S = 15.0
"""For what the daemon answers at once."""
_SLACK_S = 5.0
"""On top of the bound that the daemon itself gave."""
_AVAILABLE_S = 3.0
_ENSURE_S = 45.0
"""A daemon that is just ending may take as long as its services."""
_PAUSE_S = 0.1
NOT_RUNNING = "the built-in supervisor is not running; start it with `specdash services start`"


class SupervisorClient:
    """A `control.services.ServiceManager`; see there. Every call is a connection of its own."""

    def __init__(self, socket_path: Path, env: Mapping[str, str] = os.environ) -> None:
        """`env` is what a daemon gets that has to be started, see `bring_up`."""
        self._path = socket_path
        self._env = env

    @classmethod
    def ensure_running(cls, env: Mapping[str, str] = os.environ) -> SupervisorClient:
        """The daemon of this environment, started where it does not run, with what was wanted to run.

        It and its services get `env` as their environment. Raises `ServiceError` saying why it does not start.
        """
        client = cls(supervisor_socket(env), env)
        client.bring_up()
        return client

    @property
    def kind(self) -> str:
        """`supervisor`."""
        return KIND

    def bring_up(self) -> None:
        """Start the daemon where it does not run, with what was wanted to run: it may have been killed."""
        deadline = time.monotonic() + _ENSURE_S
        while not self.available():
            _start_daemon(self._env)
            if self.available():
                break
            if time.monotonic() >= deadline:
                raise ServiceError(f"the built-in supervisor does not answer on {self._path}")
            time.sleep(_PAUSE_S)

    def available(self) -> bool:
        """Whether the daemon runs and answers."""
        try:
            self._call("status", answer_s=_AVAILABLE_S)
        except ServiceError:
            return False
        return True

    def daemon(self) -> tuple[int, str]:
        """The daemon's pid, and the version of specdash that it runs."""
        result = self._call("status")
        return int(result["pid"]), str(result["version"])

    def status(self, name: str) -> ServiceStatus:
        """The service now; MISSING when it is not in services.json."""
        return _status(self._call("status", name=name))

    def statuses(self) -> tuple[ServiceStatus, ...]:
        """All services, in the order of services.json."""
        return tuple(_status(one) for one in self._call("status")["services"])

    def start(self, name: str) -> None:
        """Start it, forgetting earlier failures; from now on it is wanted to run."""
        self._call("start", name=name)

    def stop(self, name: str) -> None:
        """Stop it, and wait until it is gone; it is no longer wanted to run."""
        self._call("stop", name=name)

    def restart(self, name: str) -> None:
        """Returns when the old process is gone and a new one has been started."""
        self._call("restart", name=name)

    def reload(self, name: str) -> None:
        """Send the service its reload signal."""
        self._call("reload", name=name)

    def log_tail(self, name: str, lines: int = 20) -> tuple[str, ...]:
        """The last lines of the service's output, at most 500."""
        return tuple(str(line) for line in self._call("log_tail", name=name, lines=lines))

    def rescan(self) -> tuple[str, ...]:
        """Let it read services.json again, and stop the services that are no longer in it; the names that are."""
        return tuple(str(name) for name in self._call("rescan"))

    def shutdown(self) -> None:
        """Stop all services and the daemon, and wait for that. What was wanted to run is again at its next start."""
        self._call("shutdown")

    def _call(self, command: str, *, answer_s: float = _ANSWER_S, **fields: object) -> Any:
        what = f"{command} {fields['name']}" if "name" in fields else command
        try:
            with self._connected() as connection:
                # A daemon that refuses us says why before it has heard us, and hangs up.
                with suppress(BrokenPipeError):
                    send(connection, {"command": command, **fields}, answer_s)
                lines = Lines(connection, ANSWER_LIMIT_BYTES)
                answer = lines.read(answer_s)
                if answer is not None and "bound_s" in answer:
                    answer = lines.read(float(answer["bound_s"]) + _SLACK_S)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            raise ServiceError(NOT_RUNNING) from None
        except TimeoutError:
            raise ServiceError(f"the built-in supervisor did not answer to {what!r} in time") from None
        except (OSError, WireError, ValueError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise ServiceError(f"the built-in supervisor cannot be asked for {what!r} ({reason})") from None
        if answer is None:
            raise ServiceError(f"the built-in supervisor ended before it answered to {what!r}")
        if answer.get("ok") is not True:
            raise ServiceError(str(answer.get("error")))
        return answer.get("result")

    def _connected(self) -> socket.socket:
        deadline = time.monotonic() + _CONNECT_S
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(_CONNECT_S)
                with socket_address(self._path) as address:
                    connection.connect(address)
            except BlockingIOError:
                # Its queue is full: connect(2) does not wait for that.
                connection.close()
                if time.monotonic() >= deadline:
                    raise TimeoutError from None
                time.sleep(_PAUSE_S)
            except BaseException:
                connection.close()
                raise
            else:
                return connection


def _status(fields: Mapping[str, Any]) -> ServiceStatus:
    return ServiceStatus(**{**fields, "state": ServiceState(fields["state"])})


def _start_daemon(env: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "specdash.control.supervisor_daemon", "--detach"]
    try:
        done = subprocess.run(
            command,
            # Without PYTHONSAFEPATH, a stray json.py in the working directory would be imported.
            env={**env, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            timeout=_ENSURE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceError(f"the built-in supervisor cannot be started: {error}") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise ServiceError(f"the built-in supervisor cannot be started: {said[-1].removeprefix('specdash: ')}")
