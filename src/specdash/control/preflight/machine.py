"""Room on the disks that an apply and the service write to, and the right to write there."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.collect.run_records import live_backends, live_proxies
from specdash.core.errors import Problem, ServiceError, Severity, SpecdashError
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


# Who listens on a TCP port of this network namespace, asked of the kernel without opening a port.
#
# Source: sock_diag(7). /proc/net/tcp tells the same and takes ten times as long on a machine with many connections;
# it is read where the kernel's own answer is not to be had.

_NETLINK_SOCK_DIAG = 4
_BY_FAMILY = 20
_DUMP = 0x301
_DONE, _ERROR = 3, 2
_LISTEN = 10
_HEADER = struct.Struct("=LHHLL")
_REQUEST = struct.Struct("=BBBxL")
_PLACE = struct.Struct("!HH16s16s")
_INODE_AT = 68
_ANSWER_BYTES = 72
_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket: its address and inode."""

    address: str
    port: int
    inode: str


def listeners(port: int) -> list[Listener]:
    """Everything that listens on a TCP port."""
    try:
        return [listener for family in (socket.AF_INET, socket.AF_INET6) for listener in _ask(family, port)]
    except (OSError, struct.error):
        return [listener for name in ("tcp", "tcp6") for listener in _read(name, port)]


def _ask(family: int, port: int) -> list[Listener]:
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 1 << _LISTEN) + _PLACE.pack(port, 0, b"", b"") + bytes(12)
    message = _HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request
    found: list[Listener] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_WAIT_S)
        kernel.send(message)
        while True:
            data = kernel.recv(65536)
            while data:
                size, kind, *_ = _HEADER.unpack_from(data)
                if kind == _DONE:
                    return found
                if kind == _ERROR or size < _HEADER.size:
                    raise OSError("the kernel does not tell its sockets")
                body, data = data[_HEADER.size : size], data[(size + 3) & ~3 :]
                if len(body) >= _ANSWER_BYTES and struct.unpack_from("!H", body, 4)[0] == port:
                    raw = body[8:12] if family == socket.AF_INET else body[8:24]
                    inode = struct.unpack_from("=L", body, _INODE_AT)[0]
                    found.append(Listener(str(ipaddress.ip_address(raw)), port, str(inode)))


def _read(name: str, port: int) -> list[Listener]:
    try:
        lines = Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return []
    found = []
    for line in lines:
        words = line.split()
        if len(words) > 9 and int(words[3], 16) == _LISTEN and words[1].endswith(f":{port:04X}"):
            found.append(Listener(_address(words[1].partition(":")[0]), port, words[9]))
    return found


def _address(text: str) -> str:
    """The address that /proc/net writes as words of the machine's own byte order."""
    words = [
        struct.pack("!L", struct.unpack("=L", bytes.fromhex(text[at : at + 8]))[0]) for at in range(0, len(text), 8)
    ]
    return str(ipaddress.ip_address(b"".join(words)))


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


def owner_of(inode: str, own: OwnProcesses) -> tuple[int | None, str | None]:
    """Pid and name of the process that holds a socket; the service's own processes are looked at first."""
    first = [pid for known in own.pids() for pid in (known, *_children(known))]
    for pid in dict.fromkeys((*first, *_all_pids())):
        if _holds(pid, inode):
            return pid, name_of(pid)
    return None, None


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


def _all_pids() -> Iterator[int]:
    try:
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                yield int(entry.name)
    except OSError:
        return


def _holds(pid: int, inode: str) -> bool:
    wanted = f"socket:[{inode}]"
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                try:
                    if os.readlink(entry.path) == wanted:  # noqa: PTH115 - thousands of them
                        return True
                except OSError:
                    continue
    except OSError:
        return False
    return False


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


_GOOD_FOR_S = 5.0
_answers: dict[Path, tuple[tuple[int, ...], float, Problem | None]] = {}
LITTLE = 64 * MIB
TOO_LITTLE = MIB


def check_disk(context: PreflightContext, out: Findings, *, log: str | None = None, key: str | None = None) -> None:
    """Add what is to be said of disks. `log` is the service's log file, set by `key`, None for the default place."""
    _replaceable(context, out)
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


def _replaceable(context: PreflightContext, out: Findings) -> None:
    problem = _rehearsed(context.env_file)
    if problem is not None:
        out.of(Severity.ERROR, "env-file", problem)


def _rehearsed(path: Path) -> Problem | None:
    """Why the env file cannot be replaced, None when it can. Rehearsing it writes to the disk, so that the answer is
    kept for a while, as long as the file is the same."""
    from specdash.control.env_store import check_writable, read_env

    state = _state(path)
    known = _answers.get(path)
    if known is not None and known[0] == state and time.monotonic() < known[1]:
        return known[2]
    answer: Problem | None = None
    try:
        check_writable(read_env(path))
    except SpecdashError as error:
        answer = error.problem
    except ValueError as error:
        answer = Problem(str(error))
    _answers.clear()
    _answers[path] = (state, time.monotonic() + _GOOD_FOR_S, answer)
    return answer


def _state(path: Path) -> tuple[int, ...]:
    found: list[int] = []
    for file in (path, path.parent):
        try:
            stat = file.stat()
            found += [stat.st_ino, stat.st_mode, stat.st_uid, stat.st_mtime_ns if file == path else 0]
        except (OSError, ValueError):
            found.append(0)
    return tuple(found)
