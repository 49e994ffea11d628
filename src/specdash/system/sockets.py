"""Listening sockets."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BACKLOG = 1024


def open_listening(host: str, port: int) -> list[socket.socket]:
    """A listening socket on every address of `host`. Raises `socket.gaierror` for a name that is none, and the OSError
    of the address that cannot be had."""
    rows = socket.getaddrinfo(host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found: list[socket.socket] = []
    failed = OSError(errno.EADDRNOTAVAIL, "it has no address")
    for family, place in dict.fromkeys((row[0], row[4]) for row in rows):
        try:
            found.append(socket.create_server(place, family=family, backlog=_BACKLOG))
        except OSError as error:
            failed = OSError(error.errno, os.strerror(error.errno or 0))
            if error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                break
    else:
        if found:
            return found
    for opened in found:
        opened.close()
    raise failed


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """The path of a Unix socket by its open directory: `sun_path` has room for 107 bytes (unix(7)), homes may have
    more. Raises `OSError` where the directory cannot be opened."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
