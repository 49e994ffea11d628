"""Who is the built-in supervisor of a state directory: the one process that holds its lock, and its socket."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.control.supervisor_wire import socket_address
from specdash.core.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

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
