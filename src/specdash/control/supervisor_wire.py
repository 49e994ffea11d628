"""What the supervisor's daemon and its clients say to each other: JSON lines on a Unix socket.

A request is one object with `command`, and `name` or `lines` where the command wants them. The answer is
`{"ok": true, "result": ...}` or `{"ok": false, "error": "one line"}`; a command that may take long is answered first by
`{"bound_s": N}`, the most seconds until the answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


class Lines:
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
