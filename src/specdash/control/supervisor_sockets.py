"""Listening sockets that the manager holds for a service, so that a restart of it refuses no connection."""

from __future__ import annotations

import contextlib
import errno
import socket

from specdash.core.errors import PortInUseError, SpecdashError

_BACKLOG = 1024


class HeldSockets:
    """The sockets of one service: opened before its first start, kept over restarts and crashes."""

    def __init__(self) -> None:
        self._address: tuple[str, int] | None = None
        self._sockets: list[socket.socket] = []

    @property
    def held(self) -> bool:
        """Whether any socket is open."""
        return bool(self._sockets)

    def descriptors(self, address: tuple[str, int] | None) -> tuple[int, ...]:
        """The descriptors that listen on `address`; opened where they are not, and none for None.

        Raises `SpecdashError` when that cannot be listened on; the sockets held before are then still open.
        """
        if address != self._address:
            before = self._address
            if before is not None and address is not None and before[1] == address[1]:
                # The same port on another address: ours would be in the way.
                self.close()
            try:
                opened = [] if address is None else open_listening(*address)
            except SpecdashError:
                if before is not None and not self._sockets:
                    with contextlib.suppress(SpecdashError):
                        self._sockets, self._address = open_listening(*before), before
                raise
            self.close()
            self._sockets, self._address = opened, address
        return tuple(one.fileno() for one in self._sockets)

    def close(self) -> None:
        """Stop listening."""
        for one in self._sockets:
            one.close()
        self._sockets, self._address = [], None


def open_listening(host: str, port: int) -> list[socket.socket]:
    """A listening socket on every address of `host`. Raises `SpecdashError` naming host and port."""
    where = f"{host}:{port}"
    try:
        rows = socket.getaddrinfo(host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise SpecdashError(f"{where} is not an address of this machine ({error.strerror or error})") from None
    found: list[socket.socket] = []
    failed: OSError | None = None
    for family, place in dict.fromkeys((row[0], row[4]) for row in rows):
        try:
            found.append(_open(family, place))
        except OSError as error:
            failed = error
            if error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                break
    else:
        if found:
            return found
    for one in found:
        one.close()
    if failed is not None and failed.errno == errno.EADDRINUSE:
        raise PortInUseError(f"port {port} of {host} is in use; stop its owner, or choose another port")
    reason = failed.strerror or str(failed) if failed is not None else "it has no address"
    raise SpecdashError(f"cannot listen on {where}: {reason}")


def _open(family: int, place: object) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(place)  # type: ignore[arg-type]  # the shape depends on the family
        one.listen(_BACKLOG)
    except OSError:
        one.close()
        raise
    return one
