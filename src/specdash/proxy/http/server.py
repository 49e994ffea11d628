"""The proxy as a service: it listens, reloads, drains and ends as signals ask."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import io
import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec.structs
import uvicorn
import uvloop

from specdash.core.errors import ExitCode, InputError, PortInUseError, SpecdashError
from specdash.core.paths import proxy_records_dir
from specdash.core.records import ProxyRecord
from specdash.proxy.http.access import is_local
from specdash.proxy.http.app import Proxy, asgi
from specdash.proxy.settings import load, reread
from specdash.system import files
from specdash.system.processes import is_alive, open_listening, own_start

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping, Sequence
    from pathlib import Path

    from specdash.proxy.settings import Configuration, ProxySettings


# Where the proxy listens: sockets of its own or systemd's, and the words between systemd and a service.
#
# Sources: sd_listen_fds(3), sd_notify(3).

_FIRST_FD = 3


def listening_sockets(settings: ProxySettings, env: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """The sockets systemd passed to this process, else new ones on `PROXY_HOST` and `PROXY_PORT`.

    Raises `PortInUseError` or `InputError`, also when a passed socket lets other machines in without a key.
    """
    found = inherited_sockets(env)
    for item in found:
        if not settings.api_key and not _is_local(item):
            raise InputError(f"the socket unit listens on {address(item)}, for other machines too: set PROXY_API_KEY")
    host, port = settings.host, settings.port
    try:
        return found or open_listening(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            words = f"port {port} of {host} is in use; stop its owner, or set another PROXY_PORT"
            raise PortInUseError(words) from None
        why = error.strerror or error
        raise InputError(f"PROXY_HOST={host} and PROXY_PORT={port}: cannot listen there ({why})") from None


def _is_local(item: socket.socket) -> bool:
    return item.family == socket.AF_UNIX or is_local(str(item.getsockname()[0]))


def inherited_sockets(env: MutableMapping[str, str]) -> list[socket.socket]:
    """All sockets of `LISTEN_FDS`, when they are meant for this process; the variables are taken out of `env`."""
    pid, count, _ = (env.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    if pid != str(os.getpid()) or not count.isdigit():
        return []
    return [socket.socket(fileno=descriptor) for descriptor in range(_FIRST_FD, _FIRST_FD + int(count))]


def address(item: socket.socket) -> str:
    """HOST:PORT of a listening socket, or the path of a Unix socket."""
    name = item.getsockname()
    if not isinstance(name, tuple):
        return str(name)
    host = f"[{name[0]}]" if ":" in str(name[0]) else name[0]
    return f"{host}:{name[1]}"


def client_url(item: socket.socket) -> str:
    """The URL under which this machine reaches the socket."""
    return "http://" + address(item).replace("[::]:", "[::1]:", 1).replace("0.0.0.0:", "127.0.0.1:", 1)


def notify(state: str, env: Mapping[str, str] = os.environ) -> None:
    """Tell systemd `state`, when it asked for it; never fails."""
    place = env.get("NOTIFY_SOCKET", "")
    if not place.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as item:
        item.connect(place.replace("@", "\0", 1))
        item.sendall(state.encode())


_LOG = logging.getLogger("specdash.proxy")
_STDERR = 2
LOG_FORMAT = "%(asctime)s [%(levelname)s] %(name)s: %(message)s"
_KEEP_ALIVE_S = 75
_LEAVING_S = 0.5
"""How long clients that keep their connection learn with their next answer that it is the last; a connection that is
closed under a client costs it the request that it just sent."""
_LAST_REQUEST_S = 0.1
"""What a connection that was accepted last gets to send its request."""


def run(configuration: Configuration) -> int:
    """Serve until a signal ends it; the exit code. Raises `SpecdashError` when it cannot start.

    A SIGHUP that is blocked meanwhile is taken once the proxy listens.
    """
    sockets = listening_sockets(configuration.settings)
    set_up_log(configuration.settings.log_level)
    # Copies outlive the server's own, so that a restart refuses no connection.
    listening = [fcntl.fcntl(item.fileno(), fcntl.F_DUPFD_CLOEXEC, _FIRST_FD + len(sockets)) for item in sockets]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        restarts = runner.run(_serve(configuration, sockets))
    if restarts:
        execute_again(listening)
    return ExitCode.OK


def execute_again(listening: Sequence[int]) -> NoReturn:
    """Become a new process image of the same command, with the same id and the listening sockets (sd_listen_fds(3))."""
    for number, descriptor in enumerate(listening):
        os.dup2(descriptor, _FIRST_FD + number, inheritable=True)
    passed = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(listening))}
    os.execve(sys.executable, sys.orig_argv, {**os.environ, **passed})  # noqa: S606 - itself, without a shell


def set_up_log(level: str) -> None:
    """Send the log to standard error, past Python's buffer: that would keep what a full disk refuses."""
    logging.raiseExceptions = False
    raw = open(_STDERR, "wb", 0, closefd=False)  # noqa: SIM115 - as long as the process
    stream = io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)
    logging.basicConfig(level=logging.WARNING, stream=stream, format=LOG_FORMAT, force=True)
    _LOG.setLevel(level)


async def _serve(configuration: Configuration, sockets: list[socket.socket]) -> bool:
    """Serve to the end; True when the proxy is to start again."""
    proxy = Proxy(configuration.settings)
    settings = configuration.settings
    events = proxy.telemetry.file.path
    record = ProxyRecord(
        pid=os.getpid(),
        pid_started=own_start(),
        url=client_url(sockets[0]),
        upstream=proxy.upstream.shown_url,
        events=str(events.absolute()) if events is not None else None,
        env_file=str(configuration.env_file) if configuration.env_file is not None else None,
        api_key_env="PROXY_API_KEY" if settings.api_key else None,
        env_digest=configuration.digest,
        restarts_itself=True,
        admin_token_file=str(proxy_records_dir().absolute() / f"{os.getpid()}{_TOKEN}"),
    )
    is_open = any(not _is_local(item) for item in sockets)
    server = _Server(proxy, configuration, record, is_open=is_open)
    left = [_left(_TOKEN, proxy.admin_token), _left(".json", record.to_json())]
    try:
        await server.serve(sockets)
        return server.restarts
    finally:
        for file in left:
            file.unlink(missing_ok=True)
        await proxy.upstream.close()


class _Server(uvicorn.Server):
    """uvicorn, with the signals of a service."""

    def __init__(self, proxy: Proxy, configuration: Configuration, record: ProxyRecord, *, is_open: bool) -> None:
        super().__init__(
            uvicorn.Config(
                asgi(proxy),
                # h11 bounds the head of a request; httptools is twice as fast.
                http="h11" if is_open else "httptools",
                h11_max_incomplete_event_size=64 << 10,
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=False,
                backlog=1024,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=configuration.settings.drain_timeout,  # type: ignore[arg-type]
            )
        )
        self._proxy = proxy
        self._configuration = configuration
        self._record = record
        self.restarts = False
        """Whether it ends to start again."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End on the first SIGTERM or SIGINT once requests are done, on the second at once; reload on SIGHUP."""
        loop = asyncio.get_running_loop()
        ends = dict.fromkeys((signal.SIGTERM, signal.SIGINT), self._stop)
        handlers = {**ends, signal.SIGHUP: self._reload, signal.SIGUSR2: self._restart}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        where = ", ".join(address(item) for item in sockets or ())
        _LOG.info("Proxy started: listening on %s -> upstream %s", where, self._proxy.upstream.shown_url)
        notify("READY=1")
        for problem in self._configuration.settings.problems:
            _LOG.warning("%s", problem)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, let who has just connected ask, then drain and close."""
        self._proxy.leaving = True
        for server in self.servers:
            server.close()
        if self.server_state.connections and not self.force_exit:
            await asyncio.sleep(_LAST_REQUEST_S)
        await super().shutdown(sockets)

    def _stop(self) -> None:
        if self.should_exit or self._proxy.leaving:
            self.force_exit = self.should_exit = True
            _LOG.warning("stopping at once: %d requests are cut off", len(self.server_state.tasks))
            for task in self.server_state.tasks:
                task.cancel()
            return
        running = len(self.server_state.tasks)
        if running:
            limit_s = self._proxy.settings.drain_timeout
            _LOG.info("stopping: %d running requests may take up to %g s to finish", running, limit_s)
        if not self.server_state.connections:
            self.should_exit = True
            return
        self._proxy.leaving = True
        asyncio.get_running_loop().call_later(_LEAVING_S, setattr, self, "should_exit", True)

    def _restart(self) -> None:
        """Drain, and start again with the listening sockets, if the env file can be started with."""
        file = self._configuration.env_file
        try:
            load(str(file) if file is not None else None, overrides=self._configuration.overrides)
        except SpecdashError as error:
            self._refused("restart", error)
        else:
            self.restarts = True
            self._stop()

    def _reload(self) -> None:
        if (file := self._configuration.env_file) is None:
            _LOG.info("reload: nothing to read, the settings come from the environment")
            return
        try:
            found, changed, needs_restart = reread(self._configuration, file)
        except SpecdashError as error:
            self._refused("reload", error)
        else:
            self._configuration, settings = found, found.settings
            self._proxy.reconfigure(settings)
            _LOG.setLevel(settings.log_level)
            self.config.timeout_graceful_shutdown = settings.drain_timeout  # type: ignore[assignment]
            # Which version of the env file is in force now.
            self._write(env_digest=found.digest)
            for line in changed:
                _LOG.info("reload: %s", line)
            for key in needs_restart:
                _LOG.warning("reload: %s was changed: it counts after a restart of the proxy", key)
            for line in settings.problems:
                _LOG.warning("reload: %s", line)
            if not changed and not needs_restart:
                _LOG.info("reload: no setting changed")

    def _refused(self, what: str, error: SpecdashError) -> None:
        """Note in the record which version of the env file was not taken over, and why."""
        _LOG.error("%s: %s; nothing was changed", what, error)
        file = self._configuration.env_file
        self._write(refused=str(error), refused_digest=files.file_digest(str(file) if file is not None else None))

    def _write(self, **changes: Any) -> None:
        self._record = msgspec.structs.replace(self._record, **changes)
        try:
            _left(".json", self._record.to_json())
        except OSError as error:
            _LOG.error("reload: the run record cannot be written: %s", error)


_TOKEN = ".token"  # noqa: S105 - the end of a file name


def _left(suffix: str, text: str) -> Path:
    """Leave a file for programs of the same user, mode 0600, named by this process; also in place of an earlier one."""
    directory = proxy_records_dir()
    files.make_directories(directory)
    files.sweep(directory)
    for token in directory.glob(f"*{_TOKEN}"):
        # A proxy that was killed leaves its own behind.
        if token.stem.isdecimal() and not is_alive(int(token.stem)):
            token.unlink(missing_ok=True)
    path = directory / f"{os.getpid()}{suffix}"
    files.replace(path, text.encode())
    return path
