"""Where the proxy listens: sockets of its own or systemd's, TLS, and the words between systemd and a service.

Sources: sd_listen_fds(3), sd_notify(3).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.core.errors import InputError, PortInUseError
from specdash.proxy.auth import is_local

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from specdash.proxy.settings import ProxySettings

_FIRST_FD = 3
_BACKLOG = 1024


def listening_sockets(settings: ProxySettings, env: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """The sockets systemd passed to this process, else new ones on `PROXY_HOST` and `PROXY_PORT`.

    Raises `PortInUseError` or `InputError`, also when a passed socket lets other machines in without a key.
    """
    found = inherited_sockets(env)
    if not found:
        return open_sockets(settings.host, settings.port)
    for one in found:
        if one.family != socket.AF_UNIX and not settings.api_key and not is_local(str(one.getsockname()[0])):
            raise InputError(f"the socket unit listens on {address(one)}, for other machines too: set PROXY_API_KEY")
    return found


def inherited_sockets(env: MutableMapping[str, str]) -> list[socket.socket]:
    """All sockets of `LISTEN_FDS`, when they are meant for this process; the variables are taken out of `env`."""
    names = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
    pid, count, _ = (env.pop(name, "") for name in names)
    if pid != str(os.getpid()) or not count.isdigit():
        return []
    found = []
    for descriptor in range(_FIRST_FD, _FIRST_FD + int(count)):
        os.set_inheritable(descriptor, False)
        found.append(socket.socket(fileno=descriptor))
        found[-1].setblocking(False)
    return found


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """A listening socket on every address of `host`."""
    bare = host.strip("[]")
    try:
        rows = socket.getaddrinfo(bare or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InputError(f"PROXY_HOST={host}: {error.strerror or error}") from None
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
    raise _refusal(failed, host, port)


def _open(family: int, place: object) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(place)  # type: ignore[arg-type]  # the shape depends on the family
        one.listen(_BACKLOG)
        one.setblocking(False)
    except OSError:
        one.close()
        raise
    return one


def _refusal(error: OSError | None, host: str, port: int) -> Exception:
    if error is not None and error.errno == errno.EADDRINUSE:
        return PortInUseError(f"port {port} of {host} is in use; stop its owner, or set another PROXY_PORT")
    if isinstance(error, PermissionError):
        return InputError(f"PROXY_PORT={port}: not permitted for this user; use one above 1023")
    reason = error.strerror if error is not None else "it has no address"
    return InputError(f"PROXY_HOST={host}: cannot listen there ({reason})")


def address(one: socket.socket) -> str:
    """HOST:PORT of a listening socket, or the path of a Unix socket."""
    name = one.getsockname()
    if not isinstance(name, tuple):
        return str(name)
    host = f"[{name[0]}]" if ":" in str(name[0]) else name[0]
    return f"{host}:{name[1]}"


def client_url(one: socket.socket, *, tls: bool) -> str:
    """The URL under which this machine reaches the socket."""
    here = address(one).replace("[::]:", "[::1]:", 1).replace("0.0.0.0:", "127.0.0.1:", 1)
    return f"{'https' if tls else 'http'}://{here}"


def tls_context(settings: ProxySettings) -> ssl.SSLContext | None:
    """The TLS side of the listening sockets, None for plain HTTP. Raises `InputError` naming key and file."""
    certificate, key = settings.tls_cert_file, settings.tls_key_file
    if certificate is None or key is None:
        return None
    for name, file in (("PROXY_TLS_CERT_FILE", certificate), ("PROXY_TLS_KEY_FILE", key)):
        try:
            text = Path(file).expanduser().read_bytes()
        except OSError as error:
            raise InputError(f"{name}={file}: {error.strerror or error}") from None
        if b"-----BEGIN" not in text:
            raise InputError(f"{name}={file}: is not a PEM file")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # An empty password, so that an encrypted key fails instead of asking the terminal.
        context.load_cert_chain(Path(certificate).expanduser(), Path(key).expanduser(), password="")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or ""
        if "MISMATCH" in reason:
            said = f"is not the key of PROXY_TLS_CERT_FILE={certificate}"
        else:
            said = "is encrypted or damaged, or the certificate is; use an unencrypted PEM key"
        raise InputError(f"PROXY_TLS_KEY_FILE={key}: {said}") from None
    return context


def notify(state: str, env: Mapping[str, str] = os.environ) -> None:
    """Tell systemd `state`, when it asked to be told; never fails."""
    place = env.get("NOTIFY_SOCKET", "")
    if not place.startswith(("/", "@")):
        return
    if state == "RELOADING=1":
        state += f"\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.connect(place.replace("@", "\0", 1))
        one.sendall(state.encode())
