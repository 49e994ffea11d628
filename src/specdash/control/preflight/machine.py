"""Room on the disks that an apply and the service write to, and the right to write there."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from specdash.collect.run_records import live_backends, live_proxies
from specdash.core.errors import ServiceError
from specdash.core.paths import backups_dir, cache_dir, state_dir
from specdash.core.target import is_loopback
from specdash.system.data import dataclass
from specdash.system.processes import name_of, parent
from specdash.system.text import MIB, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdash.control.preflight.context import Findings, PreflightContext
    from specdash.control.preflight.settings import BackendSubject
    from specdash.core.records import ProxyRecord, RunRecord


# Who listens on a TCP port of this network namespace.


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket: its address, and the process that holds it, None where it is another user's."""

    address: str
    pid: int | None


def listeners(port: int) -> list[Listener]:
    """Everything that listens on a TCP port."""
    return [
        Listener(found.laddr.ip, found.pid)
        for found in psutil.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN and found.laddr and found.laddr.port == port
    ]


def collides(host: str, listener: Listener) -> bool:
    """Whether a server on `host` would want the listener's address."""
    try:
        wanted = ipaddress.ip_address({"localhost": "127.0.0.1", "": "0.0.0.0"}.get(host, host.strip("[]")))  # noqa: S104
    except ValueError:
        return True
    theirs = ipaddress.ip_address(listener.address)
    mapped = theirs.ipv4_mapped if isinstance(theirs, ipaddress.IPv6Address) else None
    theirs = mapped if mapped is not None else theirs
    if theirs.is_unspecified:
        return theirs.version == 6 or wanted.version == 4
    return wanted.is_unspecified or wanted == theirs


# Which processes are this service's own, and which of all holds a socket.


class OwnProcesses:
    """Tells the processes of the checked service from others, asking no more than it must."""

    def __init__(self, context: PreflightContext) -> None:
        self._context = context
        self._asked: frozenset[int] | None = None

    def __contains__(self, pid: int) -> bool:
        family = (pid, *ancestors(pid))
        return any(number in self._context.own_pids for number in family) or any(
            number in self._others() for number in family
        )

    def pids(self) -> frozenset[int]:
        """The processes that are known to be the service's, without their children."""
        return self._context.own_pids | self._others()

    def _others(self) -> frozenset[int]:
        if self._asked is None:
            self._asked = frozenset(self._ask())
        return self._asked

    def _ask(self) -> Iterator[int]:
        service = self._context.service
        if service is not None:
            if self._context.own_pids:
                return
            try:
                pid = service.status().pid
            except ServiceError:
                pid = None
            if pid is not None:
                yield pid
            return
        # No manager knows this env file: what runs from it in the foreground is still its own.
        wanted = str(self._context.env_file.absolute())
        for record in records(self._context):
            if record.env_file == wanted:
                yield record.pid


def records(context: PreflightContext) -> Iterator[RunRecord | ProxyRecord]:
    """The notes of running backends and proxies."""
    yield from live_backends(context.base)
    yield from live_proxies(context.base)


def ancestors(pid: int) -> Iterator[int]:
    """The parents of a process, nearest first."""
    seen = {pid}
    while True:
        found = parent(pid)
        if found is None or found <= 1 or found in seen:
            return
        pid = found
        seen.add(pid)
        yield pid


def tree(pids: frozenset[int]) -> frozenset[int]:
    """The processes and all their descendants."""
    found, left = set(pids), list(pids)
    while left:
        for child in _children(left.pop()):
            if child not in found:
                found.add(child)
                left.append(child)
    return frozenset(found)


def _children(pid: int) -> list[int]:
    try:
        lists = [path.read_text(encoding="ascii") for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(word) for text in lists for word in text.split()]


# Where a service will listen: an address of this machine, a port that is free or its own, and who gets in.


_BIND_CAPABILITY = 1 << 10
_SOCKET_FILE = ".sock"


def check_listening(subject: BackendSubject, out: Findings) -> None:
    """Add what is to be said of the backend's host, port and key."""
    settings = subject.settings
    hosts = (settings.text("host") or "127.0.0.1").split(",")
    host_key, port_key = subject.source("host"), subject.source("port")
    if subject.readable("host", "port"):
        for host in hosts:
            check_place(host.strip(), settings.port, host_key, port_key, subject.context, out)
    exposed = [
        host for host in map(str.strip, hosts) if host and not is_loopback(host) and not host.endswith(_SOCKET_FILE)
    ]
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


def _owner(host: str, port: int, key: str, context: PreflightContext, out: Findings) -> None:
    own = OwnProcesses(context)
    for listener in listeners(port):
        if not collides(host, listener):
            continue
        pid = listener.pid
        if pid is not None and pid in own:
            continue
        who = f"{name_of(pid)} (pid {pid})" if pid is not None else "a process of another user"
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
            with socket.socket(family, kind) as item:
                item.bind(place)
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


LITTLE = 64 * MIB
TOO_LITTLE = MIB


def check_disk(context: PreflightContext, out: Findings, *, log: str | None = None, key: str | None = None) -> None:
    """Add what is to be said of disks. `log` is the service's log file, set by `key`, None for the default place."""
    seen: set[int] = set()
    for what, folder, needed, about in _places(context, log, key):
        _place(what, folder, needed, about, seen, out)


def _places(
    context: PreflightContext, log: str | None, key: str | None
) -> Iterator[tuple[str, Path, bool, str | None]]:
    yield "the env file", context.env_file.parent, True, None
    yield "backups of env files", backups_dir(context.base), True, None
    if log is not None:
        yield "the log", Path(log).expanduser().parent, True, key
    else:
        yield "the log", state_dir(context.base) / "logs", True, None
    yield "the cache", cache_dir(context.base), False, None


def _place(what: str, folder: Path, needed: bool, key: str | None, seen: set[int], out: Findings) -> None:
    try:
        there = _existing(folder)
        stat, disk = there.stat(), os.statvfs(there)
    except (OSError, ValueError) as error:
        out.error("disk-space", f"{what}: {folder} cannot be looked at ({error})", key=key, fix="name another place")
        return
    add = out.error if needed else out.warning
    if disk.f_flag & os.ST_RDONLY:
        add("read-only", f"{what}: {there} is on a read-only disk", key=key, fix="mount it read-write")
        return
    if not os.access(there, os.W_OK | os.X_OK):
        add("read-only", f"{what}: {there} cannot be written by this user", key=key, fix="change its owner or mode")
        return
    if stat.st_dev in seen:
        return
    seen.add(stat.st_dev)
    free = disk.f_bavail * disk.f_frsize
    said = f"{what}: {size(free, exact=True)} are free in {there}"
    fix = "make room on that disk"
    if free < TOO_LITTLE or (disk.f_files and not disk.f_favail):
        said = said if free < TOO_LITTLE else f"{what}: no more files can be made in {there}"
        out.error("disk-space", said, key=key, fix=fix)
    elif free < LITTLE:
        out.warning("disk-space", said, key=key, fix=fix)


def _existing(folder: Path) -> Path:
    for above in (folder.absolute(), *folder.absolute().parents):
        if above.is_dir():
            return above
    return Path("/")
