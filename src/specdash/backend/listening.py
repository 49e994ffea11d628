"""Whether somebody answers where a server shall listen: a port, or a Unix socket in the file system."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.core.errors import PortInUseError

if TYPE_CHECKING:
    from specdash.backend.settings import BackendSettings

_CONNECT_S = 0.1


def free_port(host: str) -> int:
    """A port nobody listens on now."""
    with socket.create_server((host, 0), family=family(host)) as server:
        return int(server.getsockname()[1])


def family(host: str) -> socket.AddressFamily:
    """Of an address or a name."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def is_listening(settings: BackendSettings) -> bool:
    """Whether a connection can be made now."""
    with contextlib.suppress(OSError):
        if _is_socket(settings):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(_CONNECT_S)
                client.connect(settings.host)
                return True
        host = settings.url.removeprefix("http://").rsplit(":", 1)[0].strip("[]")
        with socket.create_connection((host, settings.port), timeout=_CONNECT_S):
            return True
    return False


def clear_stale_socket(settings: BackendSettings) -> None:
    """Remove the socket file that a server left behind: llama.cpp's does, and the next one could not listen there.

    Raises `PortInUseError` when somebody still answers on it.
    """
    file = Path(settings.host)
    if not _is_socket(settings) or not file.is_socket():
        return
    if is_listening(settings):
        raise PortInUseError(f"LLAMA_HOST={settings.host}: somebody listens there already; stop them, or name another")
    file.unlink(missing_ok=True)


def _is_socket(settings: BackendSettings) -> bool:
    return settings.host.endswith(".sock")
