"""The proxy as a service: it listens, reloads, drains and ends as its supervisor tells it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop

from specdash.core.errors import ExitCode, InputError, SpecdashError
from specdash.proxy.app import Proxy, asgi
from specdash.proxy.configuration import reread
from specdash.proxy.connection import Connection
from specdash.proxy.late_log import FileHandler, LateHandler, StderrHandler
from specdash.proxy.listen import address, client_url, listening_sockets, notify, tls_context
from specdash.proxy.run_note import record_of, write_record
from specdash.proxy.telemetry.events_file import RotatedFile

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Iterator

    from specdash.core.run_record import ProxyRecord
    from specdash.proxy.configuration import Configuration
    from specdash.proxy.settings import ProxySettings

_LOG = logging.getLogger("specdash.proxy")
LOG_FORMAT = "%(asctime)s [%(levelname)s] %(name)s: %(message)s"
_KEEP_ALIVE_S = 75
_LEAVING_S = 0.5
"""How long clients that keep their connection are told with their next answer that it is the last; a connection that is
closed under a client costs it the request that it just sent."""
_LAST_REQUEST_S = 0.1
"""What a connection that was accepted last gets to send its request."""
_IDLE_LOOK_S = 0.1
_LAST_WORDS_S = 2.0
"""What cancelled requests get to close their connections."""


def run(configuration: Configuration, reloads: list[int] | None = None) -> int:
    """Serve until a signal ends it; the exit code. Raises `SpecdashError` when it cannot start.

    `reloads` holds a SIGHUP that came before, if one did.
    """
    settings = configuration.settings
    context = tls_context(settings)
    sockets = listening_sockets(settings)
    log_lines_lost = set_up_log(settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(configuration, sockets, context, reloads if reloads is not None else [], log_lines_lost))
    return ExitCode.OK


def set_up_log(settings: ProxySettings) -> Callable[[], int]:
    """Send the log to stderr, and to `PROXY_LOG_FILE`; returns how many of its lines were lost.

    Raises `InputError` when the file cannot be written.
    """
    handlers: list[StderrHandler | FileHandler] = [StderrHandler()]
    if settings.log_file is not None:
        path = Path(settings.log_file).expanduser()
        file = RotatedFile(path, settings.log_max_mib << 20, name="Log file")
        try:
            path.parent.stat()
            file.open()
        except OSError as error:
            raise InputError(f"PROXY_LOG_FILE={settings.log_file}: {error.strerror or error}") from None
        handlers.append(FileHandler(file))
    for handler in handlers:
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
    logging.basicConfig(level=logging.WARNING, handlers=[LateHandler(handlers)], force=True)
    _LOG.setLevel(settings.log_level)
    return lambda: sum(handler.lost for handler in handlers)


async def _serve(
    configuration: Configuration,
    sockets: list[socket.socket],
    context: ssl.SSLContext | None,
    reloads: list[int],
    log_lines_lost: Callable[[], int],
) -> None:
    proxy = Proxy(configuration.settings)
    proxy.telemetry.log_lines_lost = log_lines_lost
    record = record_of(configuration, client_url(sockets[0], tls=context is not None))
    server = _Server(proxy, configuration, record, context, reloads)
    file = write_record(record)
    try:
        await server.serve(sockets)
        await server.end_requests()
    finally:
        file.unlink(missing_ok=True)
        await proxy.close()


class _Server(uvicorn.Server):
    """uvicorn, with the signals of a service."""

    def __init__(
        self,
        proxy: Proxy,
        configuration: Configuration,
        record: ProxyRecord,
        context: ssl.SSLContext | None,
        reloads: list[int],
    ) -> None:
        super().__init__(
            uvicorn.Config(
                asgi(proxy),
                http=partial(Connection, proxy),  # type: ignore[arg-type]  # any callable does
                ws="none",
                interface="asgi3",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                backlog=1024,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=configuration.settings.drain_timeout,  # type: ignore[arg-type]
                ssl_context_factory=None if context is None else lambda *_: context,
            )
        )
        self._proxy = proxy
        self._configuration = configuration
        self._record = record
        self._reloads = reloads
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End on the first SIGTERM or SIGINT once requests are done, on the second at once; reload on SIGHUP."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._reload if number is signal.SIGHUP else self._stop)
        if self._reloads:
            loop.call_soon(self._reload)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        where = ", ".join(address(one) for one in sockets or ())
        _LOG.info("Proxy started: listening on %s -> upstream %s", where, self._proxy.upstream.shown_url)
        # What is loaded by now stays: a full collection that walks it would hold up a stream for some 15 ms.
        gc.collect()
        gc.freeze()
        notify("READY=1")
        for problem in self._configuration.settings.problems:
            _LOG.warning("%s", problem)
        task = asyncio.get_running_loop().create_task(self._introduce())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, let who has just connected ask, then drain and close."""
        self._proxy.leaving = True
        for server in self.servers:
            server.close()
        if self.server_state.connections and not self.force_exit:
            await asyncio.sleep(_LAST_REQUEST_S)
        closing = asyncio.get_running_loop().create_task(self._close_idle())
        try:
            await super().shutdown(sockets)
        finally:
            closing.cancel()

    async def _close_idle(self) -> None:
        """Close connections that came at the last moment too: the drain waits for all, and a client may keep one idle
        while it waits for the next proxy on another."""
        while True:
            for connection in list(self.server_state.connections):
                connection.shutdown()
            await asyncio.sleep(_IDLE_LOOK_S)

    async def end_requests(self) -> None:
        """Cancel the requests that the drain left, and let them close their connections."""
        left = {*self.server_state.tasks, *self._tasks}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_LAST_WORDS_S)

    async def _introduce(self) -> None:
        await self._proxy.window.refresh(force=True)
        say_settings(self._proxy)

    def _stop(self) -> None:
        if self.should_exit or self._proxy.leaving:
            self.force_exit = self.should_exit = True
            _LOG.warning("stopping at once: %d requests are cut off", len(self.server_state.tasks))
            return
        notify("STOPPING=1")
        running = len(self.server_state.tasks)
        if running:
            limit_s = self._proxy.settings.drain_timeout
            _LOG.info("stopping: %d running requests may take up to %g s to finish", running, limit_s)
        if not self.server_state.connections:
            self.should_exit = True
            return
        self._proxy.leaving = True
        asyncio.get_running_loop().call_later(_LEAVING_S, self._leave)

    def _leave(self) -> None:
        self.should_exit = True

    def _reload(self) -> None:
        if self._configuration.env_file is None:
            _LOG.info("reload: nothing to read, the settings come from the environment")
            return
        notify("RELOADING=1")
        try:
            result = reread(self._configuration)
        except SpecdashError as error:
            _LOG.error("reload: %s; nothing was changed", error)
        else:
            self._configuration = result.configuration
            settings = result.configuration.settings
            self._proxy.reconfigure(settings)
            _LOG.setLevel(settings.log_level)
            self.config.timeout_graceful_shutdown = settings.drain_timeout  # type: ignore[assignment]
            self._tell_version()
            for line in result.changed:
                _LOG.info("reload: %s", line)
            for key in result.needs_restart:
                _LOG.warning("reload: %s was changed: it counts after a restart of the proxy", key)
            for line in settings.problems:
                _LOG.warning("reload: %s", line)
            if not result.changed and not result.needs_restart:
                _LOG.info("reload: no setting changed")
        notify("READY=1")

    def _tell_version(self) -> None:
        """Say in the record which version of the env file is in force now."""
        self._record = dataclasses.replace(self._record, env_digest=self._configuration.digest)
        try:
            write_record(self._record)
        except OSError as error:
            _LOG.error("reload: the run record cannot be written: %s", error)


def say_settings(proxy: Proxy) -> None:
    """The lines that tell what holds, in the words operators grep for."""
    one = proxy.settings
    tokens = proxy.window.tokens
    _LOG.info(
        "Context window: %s, prune threshold: %g%%, prune target: %g%%",
        f"{tokens} tokens" if tokens is not None else "unknown until the upstream answers",
        one.context_prune_threshold * 100,
        one.context_prune_target_fraction * 100,
    )
    _LOG.info(
        "Guardrails: malformed=%s stream_strict=%s force_non_stream=%s tool_narrowing=%s thinking_off_on_tools=%s "
        "contamination_breaker=%s(%d) loop_breaker=%s",
        *map(_on, (one.malformed_tool_guardrail, one.malformed_tool_stream_strict, one.force_non_stream)),
        *map(_on, (one.tool_narrowing, one.disable_thinking_on_tool_turns, one.session_contamination_breaker)),
        one.session_contamination_threshold,
        _on(one.loop_breaker),
    )


def _on(value: Any) -> str:
    return "on" if value else "off"
