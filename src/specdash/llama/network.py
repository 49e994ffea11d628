"""How httpcore reaches a server here: a resolver that nothing waits for, and a note of how far each question came.

Importing this imports httpcore, which costs; `specdash.llama.transport` does so at the first question.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpcore

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

_HTTP = b"HTTP/"


@dataclass(slots=True)
class Progress:
    """How far one question came."""

    is_on_new_connection: bool = False
    start: bytes = b""
    """The first bytes of the answer, as many as tell whether it is HTTP."""
    is_closed: bool = False
    """The server closed the connection."""

    def note(self, data: bytes) -> None:
        """Take note of what was read, empty at its end. Raises RemoteProtocolError as soon as it is not HTTP."""
        self.is_closed = not data
        self.start += data[: len(_HTTP) - len(self.start)]
        if not _HTTP.startswith(self.start):
            raise httpcore.RemoteProtocolError("not HTTP")


PROGRESS: ContextVar[Progress] = ContextVar("progress")
"""That of the question which the current task asks."""


class Network(httpcore.AsyncNetworkBackend):
    """Connections of the library's own, by addresses found in bounded time and with their progress noted.

    anyio, which the library uses, resolves in the executor of the loop, and a loop waits for its executor when it ends.
    """

    def __init__(self) -> None:
        self._library = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the library's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to any of the name's addresses. Raises ConnectTimeout, ConnectError."""
        PROGRESS.get().is_on_new_connection = True
        errors: list[httpcore.ConnectError] = []
        try:
            async with asyncio.timeout(timeout):
                for address in await _addresses(host):
                    try:
                        found = await self._library.connect_tcp(address, port, None, local_address, socket_options)
                        return _Watched(found)
                    except httpcore.ConnectError as error:
                        errors.append(error)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(error) from error
        except OSError as error:
            raise httpcore.ConnectError(error) from error
        # An address that refuses tells more than one which this machine has no way to.
        raise next((error for error in errors if is_refusal(error)), errors[0])


class _Watched(httpcore.AsyncNetworkStream):
    """A connection that notes what comes for the question it serves."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        data = await self._stream.read(max_bytes, timeout)
        PROGRESS.get().note(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        return _Watched(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def causes(error: BaseException) -> list[BaseException]:
    """The error and what led to it, outermost first."""
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__ or current.__context__
    return found


def is_refusal(error: BaseException) -> bool:
    """Whether an error comes of nothing listening."""
    return any(isinstance(cause, ConnectionRefusedError) for cause in causes(error))


async def _addresses(host: str) -> list[str]:
    if host == "localhost":
        return ["127.0.0.1", "::1"]
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return await _resolve(host)
    return [host]


async def _resolve(host: str) -> list[str]:
    """The addresses of a name, at least one. In a daemon thread: a hanging resolver must not hold up the program's end.

    Raises OSError.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def settle(addresses: list[str], failure: OSError | None) -> None:
        if not found.done():
            found.set_exception(failure) if failure is not None else found.set_result(addresses)

    def look_up() -> None:
        addresses: list[str] = []
        failure: OSError | None = None
        try:
            infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            addresses = [str(info[4][0]) for info in infos]
        except OSError as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, addresses, failure)
        except RuntimeError:
            # The loop has ended in the meantime; nobody waits any more.
            return

    threading.Thread(target=look_up, name="specdash-resolve", daemon=True).start()
    return await found
