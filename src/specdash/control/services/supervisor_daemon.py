"""The built-in supervisor as a process of its own: `python -m specdash.control.services.supervisor_daemon`.

It runs the services of `services.json`, whoever asked for that and is gone since, and takes commands on a Unix socket
(see `supervisor_wire`). There is one per state directory. When it is killed, the kernel kills its services with it; the
next one starts again what was wanted. SIGTERM ends it and the services in an orderly way, and they are still wanted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specdash import __version__
from specdash.control.services.services import ServiceState
from specdash.control.services.supervisor import SupervisedManager, Supervisor, bound_log
from specdash.control.services.supervisor_client import (
    LOG_LINES_LIMIT,
    REQUEST_LIMIT_BYTES,
    Claim,
    WireError,
    WireLines,
    peer_uid,
    send,
)
from specdash.control.services.supervisor_services import Children, describe, read_services, write_private
from specdash.core.errors import ExitCode, InputError, ServiceError, SpecdashError
from specdash.core.paths import services_file, state_dir, supervisor_socket
from specdash.system.text import utc_timestamp

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import FrameType

    from specdash.control.services.services import ServiceStatus
    from specdash.control.services.supervisor_services import ServiceEntry

_CONNECTIONS = 64
_REQUEST_S = 10.0
_SEND_S = 10.0
_START_S = 20.0
_LAST_ANSWERS_S = 2.0


def wanted_file(env: Mapping[str, str]) -> Path:
    """Which services shall run, kept for the next daemon."""
    return state_dir(env) / "supervisor-wanted.json"


def daemon_log(env: Mapping[str, str]) -> Path:
    """What a detached daemon says: its commands, and what became of the services."""
    return state_dir(env) / "supervisor.log"


class Daemon:
    """Serves the commands until it is told to end. `run` belongs into the main thread."""

    def __init__(
        self,
        claim: Claim,
        entries: Sequence[ServiceEntry],
        env: Mapping[str, str],
        *,
        uid_of: Callable[[socket.socket], int] = peer_uid,
        supervisor: Supervisor | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """`supervisor` (default: one of its own) runs the services; `say` takes a line about what is done."""
        self._claim = claim
        self._env = dict(env)
        self._uid_of = uid_of
        self._entries: dict[str, ServiceEntry] = {}
        self._entries_lock = threading.Lock()
        self._wanted = set(_read_wanted(wanted_file(env)))
        self._wanted_lock = threading.Lock()
        self._say = say or _say
        self._children = Children(env, self._say)
        self._supervisor = supervisor or Supervisor(handle_signals=False, on_change=self._changed)
        self._manager = SupervisedManager(self._supervisor)
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._waker, False)
        self._ending = threading.Event()
        self._ended = threading.Event()
        self._signalled = False
        self._last: list[threading.Thread] = []
        self._take(entries)

    def run(self) -> int:
        """Start what is wanted, serve, and end on SIGTERM, SIGINT or a command; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)
        # A handler, not SIG_IGN: services would inherit that.
        signal.signal(signal.SIGHUP, lambda *_: None)
        signal.set_wakeup_fd(self._waker)
        self._say(f"specdash {__version__} supervises, pid {os.getpid()}: {', '.join(self._entries) or 'no services'}")
        try:
            self._children.end_left()
            for name in self._entries:
                if name in self._wanted:
                    self._supervisor.start(name)
            self._serve()
        finally:
            self._ending.set()
            self._claim.close()
            self._supervisor.close()
            self._claim.release()
            self._ended.set()
        self._say("ended")
        for thread in self._last:
            thread.join(_LAST_ANSWERS_S)
        return ExitCode.OK

    def _changed(self, status: ServiceStatus) -> None:
        self._children.note(status)
        _say_change(status)

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Take commands in a thread while inside; whoever owns the supervisor ends its services."""
        thread = threading.Thread(target=self._serve, name="specdash-commands", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._end()
            thread.join()
            self._claim.close()
            self._claim.release()
            self._ended.set()

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        # No lock may be taken here: the main thread may hold it. The wakeup descriptor ends its wait.
        self._signalled = True

    def _end(self) -> None:
        self._ending.set()
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"x")

    def _serve(self) -> None:
        listening = self._claim.listener.fileno()
        while not (self._ending.is_set() or self._signalled):
            readable = select.select([listening, self._wake], [], [])[0]
            if self._wake in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 512)
            if listening not in readable:
                continue
            try:
                connection = self._claim.listener.accept()[0]
            except BlockingIOError:
                continue
            except OSError as error:
                self._say(f"a connection could not be taken: {error.strerror or error}")
                self._ending.wait(0.5)
                continue
            if self._free.acquire(blocking=False):
                threading.Thread(target=self._converse, args=(connection,), name="client", daemon=True).start()
            else:
                _refuse(connection, f"more than {_CONNECTIONS} clients at once; try again")
                connection.close()

    def _converse(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._answer_all(connection)
        finally:
            self._free.release()

    def _answer_all(self, connection: socket.socket) -> None:
        uid = self._uid_of(connection)
        if uid != os.geteuid():
            self._say(f"user {uid} was refused")
            _refuse(connection, f"this supervisor belongs to another user than {uid}")
            return
        lines = WireLines(connection, REQUEST_LIMIT_BYTES)
        try:
            while (request := lines.read(_REQUEST_S)) is not None:
                try:
                    result = self._do(request, lambda bound: send(connection, {"bound_s": bound}, _SEND_S))
                except SpecdashError as error:
                    send(connection, {"ok": False, "error": str(error)}, _SEND_S)
                else:
                    send(connection, {"ok": True, "result": result}, _SEND_S)
        except WireError as error:
            _refuse(connection, str(error))
        except OSError:
            return
        except Exception as error:  # noqa: BLE001 - a bug in one command must not end the services
            self._say(traceback.format_exc())
            _refuse(connection, f"internal error: {error!r}")

    def _do(self, request: Mapping[str, Any], say_bound: Callable[[float], None]) -> Any:
        """Carry out one request; `say_bound` tells the client how long that may take."""
        command, name = request.get("command"), request.get("name")
        if self._ending.is_set() and command != "shutdown":
            raise ServiceError("the built-in supervisor is ending; start it with `specdash services start`")
        if command == "status" and name is None:
            found = [asdict(status) for status in self._supervisor.statuses()]
            return {"pid": os.getpid(), "version": __version__, "services": found}
        if command == "rescan":
            return self._rescan(say_bound)
        if command == "shutdown":
            return self._shutdown(say_bound)
        commands = {
            "status": self._status,
            "start": self._start,
            "stop": self._stop,
            "restart": self._restart,
            "reload": self._reload,
            "log_tail": self._log_tail,
        }
        if not isinstance(command, str) or command not in commands:
            raise ServiceError(
                f"no command {str(command)[:40]!r}; known: {', '.join([*commands, 'rescan', 'shutdown'])}"
            )
        if not isinstance(name, str):
            raise ServiceError(f"{command} needs the name of a service")
        if command in ("start", "stop", "restart", "reload"):
            self._say(f"{name}: {command} asked for")
            self._refresh(name)
            say_bound(self._bound(name))
        return commands[command](name, request)

    def _status(self, name: str, _request: Mapping[str, Any]) -> dict[str, Any]:
        return asdict(self._manager.status(name))

    def _start(self, name: str, _request: Mapping[str, Any]) -> None:
        self._want(name, True)
        self._manager.start(name)

    def _stop(self, name: str, _request: Mapping[str, Any]) -> None:
        self._want(name, False)
        self._manager.stop(name)

    def _restart(self, name: str, _request: Mapping[str, Any]) -> None:
        self._want(name, True)
        self._manager.restart(name)

    def _reload(self, name: str, _request: Mapping[str, Any]) -> None:
        self._manager.reload(name)

    def _log_tail(self, name: str, request: Mapping[str, Any]) -> tuple[str, ...]:
        lines = request.get("lines", 20)
        if not isinstance(lines, int) or isinstance(lines, bool):
            raise ServiceError("log_tail: lines must be a whole number")
        return self._manager.log_tail(name, max(0, min(lines, LOG_LINES_LIMIT)))

    def _rescan(self, say_bound: Callable[[float], None]) -> list[str]:
        """Read services.json again: new services are known, changed ones count from their next start, the services
        that are no longer there are stopped."""
        entries = read_services(services_file(self._env))
        gone = self._take(entries)
        say_bound(sum(self._bound(name) for name in gone))
        for name in gone:
            self._say(f"{name}: no longer in {services_file(self._env)}")
            self._want(name, False)
            with contextlib.suppress(SpecdashError):
                self._supervisor.remove(name)
        return [entry.name for entry in entries]

    def _take(self, entries: Sequence[ServiceEntry]) -> list[str]:
        """Make these the services; returns the names that were known and are not among them."""
        with self._entries_lock:
            gone = [name for name in self._entries if name not in {entry.name for entry in entries}]
            self._entries = {entry.name: entry for entry in entries}
            for entry in entries:
                self._describe(entry)
            return gone

    def _refresh(self, name: str) -> None:
        with self._entries_lock:
            if (entry := self._entries.get(name)) is not None:
                self._describe(entry)

    def _describe(self, entry: ServiceEntry) -> None:
        known = any(status.name == entry.name for status in self._supervisor.statuses())
        before = self._supervisor.service(entry.name) if known else None
        self._supervisor.add(describe(entry, self._env, before))

    def _shutdown(self, say_bound: Callable[[float], None]) -> None:
        bound = max((self._bound(status.name) for status in self._supervisor.statuses()), default=_START_S)
        self._say("shutdown asked for")
        self._last.append(threading.current_thread())
        say_bound(bound)
        self._end()
        if not self._ended.wait(bound):
            raise ServiceError(f"the supervisor is still ending after {bound:g} s")

    def _bound(self, name: str) -> float:
        try:
            return self._supervisor.stop_bound(name) + _START_S
        except SpecdashError:
            return _START_S

    def _want(self, name: str, wanted: bool) -> None:
        with self._wanted_lock:
            if wanted == (name in self._wanted) or (wanted and name not in self._entries):
                return
            (self._wanted.add if wanted else self._wanted.discard)(name)
            text = json.dumps({"version": 1, "wanted": sorted(self._wanted)}) + "\n"
            try:
                write_private(wanted_file(self._env), text)
            except SpecdashError as error:
                self._say(f"{error}; the next supervisor will not know what shall run")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon in the foreground, or with `--detach` as a process of its own; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m specdash.control.services.supervisor_daemon", description=__doc__)
    parser.add_argument("--detach", action="store_true", help="return at once, and write to supervisor.log")
    detach = parser.parse_args(arguments).detach
    env = os.environ.copy()
    try:
        claim = Claim.take(supervisor_socket(env))
        if claim is None:
            print("specdash: the built-in supervisor is running already", file=sys.stderr)
            return ExitCode.OK
        entries = read_services(services_file(env))
        if detach:
            _detach(daemon_log(env))
    except SpecdashError as error:
        print(f"specdash: {error}", file=sys.stderr)
        return error.exit_code
    os.umask(0o077)
    return Daemon(claim, entries, env).run()


def _detach(log: Path) -> None:
    """Go on as a child that nobody waits for, in a session of its own; the parent ends well. No thread runs yet."""
    try:
        bound_log(log)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        if os.fork() > 0:
            os._exit(ExitCode.OK)
    except OSError as error:
        raise InputError(f"{log}: {error.strerror or error}") from None
    os.setsid()
    os.chdir("/")
    for number, descriptor in ((0, nothing), (1, output), (2, output)):
        os.dup2(descriptor, number)
    for descriptor in (nothing, output):
        os.close(descriptor)


def _read_wanted(path: Path) -> tuple[str, ...]:
    try:
        names = json.loads(path.read_bytes())["wanted"]
        return tuple(name for name in names if isinstance(name, str))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        _say(f"{path} cannot be read ({error}); nothing is started by itself")
        return ()


def _refuse(connection: socket.socket, why: str) -> None:
    with contextlib.suppress(OSError):
        send(connection, {"ok": False, "error": why}, 1.0)


def _say_change(status: ServiceStatus) -> None:
    if status.state is ServiceState.STARTING:
        return
    state = "started" if status.state is ServiceState.RUNNING else status.state
    pid = f", pid {status.pid}" if status.pid is not None else ""
    _say(f"{status.name}: {state}{pid}{': ' + status.detail if status.detail else ''}")


def _say(text: str) -> None:
    """One line on stderr, which in a detached daemon is its log; never fails."""
    with contextlib.suppress(OSError, ValueError):
        print(utc_timestamp(time.time()), text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
