"""The built-in supervisor's daemon as a service manager: asked over its socket, and started where it is not there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from specdash.control.services.services import ServiceState, ServiceStatus
from specdash.control.services.supervisor import KIND
from specdash.core.errors import InputError, ServiceError
from specdash.core.paths import supervisor_socket
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


# What the supervisor's daemon and its clients say to each other: JSON lines on a Unix socket.
#
# A request is one object with `command`, and `name` or `lines` where the command wants them. The answer is `{"ok":
# true, "result": ...}` or `{"ok": false, "error": "one line"}`; a command that may take long is answered first by
# `{"bound_s": N}`, the most seconds until the answer.

REQUEST_LIMIT_BYTES = 16 * 1024
ANSWER_LIMIT_BYTES = 8 * 1024 * 1024
LOG_LINES_LIMIT = 500
_ADDRESS_LIMIT_BYTES = 107
"""Of a Unix socket's path: unix(7)."""
_CHUNK = 64 * 1024


class WireError(Exception):
    """The other side said something that cannot be meant, in words."""


@contextlib.contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """The address to bind or connect to for the socket at `path`, however long that is. Raises `OSError`."""
    if len(os.fsencode(path)) <= _ADDRESS_LIMIT_BYTES:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end, by the kernel's word: SO_PEERCRED, unix(7)."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)


class WireLines:
    """The JSON objects that come over a connection, one a line."""

    def __init__(self, connection: socket.socket, limit: int) -> None:
        self._connection = connection
        self._limit = limit
        self._pending = bytearray()

    def read(self, timeout: float) -> dict[str, Any] | None:
        """The next object, None at the end. Raises `WireError`, `TimeoutError` and other `OSError`s."""
        deadline = time.monotonic() + timeout
        while (end := self._pending.find(b"\n")) < 0:
            if len(self._pending) > self._limit:
                raise WireError(f"a line is longer than {self._limit} bytes")
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no whole line within {timeout:g} s")
            self._connection.settimeout(left)
            data = self._connection.recv(_CHUNK)
            if not data:
                return None
            self._pending += data
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        if len(line) > self._limit:
            raise WireError(f"a line is longer than {self._limit} bytes")
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise WireError("a line is not JSON") from None
        if not isinstance(found, dict):
            raise WireError("a line is not a JSON object")
        return found


def send(connection: socket.socket, message: dict[str, Any], timeout: float) -> None:
    """Send one object. Raises `OSError`."""
    connection.settimeout(timeout)
    connection.sendall(json.dumps(message).encode() + b"\n")


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
        return tuple(_status(service) for service in self._call("status")["services"])

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
                lines = WireLines(connection, ANSWER_LIMIT_BYTES)
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
    command = [sys.executable, "-m", "specdash.control.services.supervisor_daemon", "--detach"]
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


# Who is the built-in supervisor of a state directory: the one process that holds its lock, and its socket.


_BACKLOG = 128


@dataclass(slots=True)
class Claim:
    """The right to be the daemon of a state directory, and its socket."""

    lock: int
    path: Path
    listener: socket.socket

    @classmethod
    def take(cls, path: Path) -> Claim | None:
        """Claim the socket at `path`; None when another daemon has it. Raises `InputError`."""
        try:
            _make_private(path.parent)
            lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InputError(f"{path.parent} cannot be used: {error.strerror or error}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Nobody holds the lock, so a socket that is there belongs to a daemon that was killed.
            path.unlink(missing_ok=True)
            before = os.umask(0o177)
            try:
                with socket_address(path) as address:
                    listener.bind(address)
            finally:
                os.umask(before)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            os.close(lock)
            raise InputError(f"{path} cannot be made: {error.strerror or error}") from None
        return cls(lock, path, listener)

    def close(self) -> None:
        """Stop listening; the lock is still held."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        self.listener.close()

    def release(self) -> None:
        """Let another daemon take over."""
        os.close(self.lock)


def _make_private(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if directory.stat().st_uid != os.geteuid():
        raise PermissionError(0, "it belongs to another user")
    directory.chmod(0o700)
