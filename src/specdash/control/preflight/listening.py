"""Where a service will listen: an address of this machine, a port that is free or its own, and who gets in."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.control.preflight.processes import Own, owner_of
from specdash.control.preflight.sockets import collides, listeners

if TYPE_CHECKING:
    from specdash.control.preflight.context import Findings, PreflightContext
    from specdash.control.preflight.subject import Subject

_BIND_CAPABILITY = 1 << 10
_SOCKET_FILE = ".sock"


def check_backend(subject: Subject, out: Findings) -> None:
    """Add what is to be said of the backend's host, port and key."""
    settings = subject.settings
    hosts = (settings.text("host") or "127.0.0.1").split(",")
    host_key, port_key = subject.source("host"), subject.source("port")
    if subject.readable("host", "port"):
        for host in hosts:
            check_place(host.strip(), settings.port, host_key, port_key, subject.context, out)
    exposed = [host for host in hosts if not is_loopback(host.strip()) and not host.strip().endswith(_SOCKET_FILE)]
    if exposed and "api-key" not in settings.secrets and settings.text("api-key-file") is None:
        said = f"{subject.named('host')} lets other machines in, and no key is asked of them"
        out.warning("api-key", said, key=host_key, fix="set LLAMA_API_KEY, or use 127.0.0.1")


def check_place(host: str, port: int, host_key: str, port_key: str, context: PreflightContext, out: Findings) -> None:
    """Add what is to be said of listening on `host` and `port`; 0 is a port the system chooses."""
    if host.endswith(_SOCKET_FILE):
        folder = Path(host).expanduser().parent
        if not os.access(folder, os.W_OK | os.X_OK):
            said = f"{host_key}={host}: a socket cannot be made in {folder}"
            out.error("host", said, key=host_key, fix="name a directory that can be written")
        return
    reason = _address_trouble(host)
    if reason is not None:
        fix = "use 127.0.0.1, or an address that `ip addr` shows"
        out.error("host", f"{host_key}={host}: {reason}", key=host_key, fix=fix)
        return
    if port and not _may_bind(port):
        said = f"{port_key}={port}: not permitted for this user"
        out.error("privileged-port", said, key=port_key, fix=f"set {port_key} above 1023")
    if port:
        _owner(host, port, port_key, context, out)


def is_loopback(host: str) -> bool:
    """True for `localhost` and every loopback address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host in ("localhost", "")


def _owner(host: str, port: int, key: str, context: PreflightContext, out: Findings) -> None:
    own = Own(context)
    for listener in listeners(port):
        if not collides(host, listener):
            continue
        pid, name = owner_of(listener.inode, own)
        if pid is not None and pid in own:
            continue
        who = f"{name} (pid {pid})" if pid is not None else "a process of another user"
        said = f"{key}={port}: the port is in use by {who}"
        out.error("port-owner", said, key=key, fix=f"stop it, or set another {key}")
        return


def _address_trouble(host: str) -> str | None:
    """Why nobody can listen on this address here; found out on a port that nobody wants."""
    bare = host.strip("[]")
    try:
        rows = socket.getaddrinfo(bare or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        return f"is no address ({getattr(error, 'strerror', None) or error})"
    said = None
    for family, kind, _, _, place in dict.fromkeys(rows):
        try:
            with socket.socket(family, kind) as one:
                one.bind(place)
                return None
        except OSError as error:
            known = error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
            said = "is no address of this machine" if known else f"cannot listen there ({error.strerror})"
    return said


def _may_bind(port: int) -> bool:
    try:
        first_free = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text(encoding="ascii"))
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except (OSError, ValueError):
        return port > 1023 or os.geteuid() == 0
    if port >= first_free:
        return True
    capabilities = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return bool(int(capabilities, 16) & _BIND_CAPABILITY)
