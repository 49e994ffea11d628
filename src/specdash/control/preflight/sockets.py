"""Who listens on a TCP port of this network namespace, asked of the kernel without opening a port.

Source: sock_diag(7). /proc/net/tcp tells the same and takes ten times as long on a machine with many connections; it is
read where the kernel's own answer is not to be had.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

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
        return [one for family in (socket.AF_INET, socket.AF_INET6) for one in _ask(family, port)]
    except (OSError, struct.error):
        return [one for name in ("tcp", "tcp6") for one in _read(name, port)]


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
