"""What the services wrote, as `specdash services logs` prints it: from a file, or from the journal."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from specdash.core.errors import ExitCode, ServiceError

if TYPE_CHECKING:
    from pathlib import Path

    from specdash.control.services import ManagedService

_POLL_S = 0.3
_CHUNK = 256 * 1024


def show(services: list[ManagedService], lines: int, *, follow: bool) -> int:
    """Print the last lines of each service; with `follow`, go on with what comes."""
    if follow:
        return _follow(services, lines)
    for service in services:
        if len(services) > 1:
            print(f"==> {service.name} <==")
        for line in service.manager.log_tail(service.name, lines):
            print(line)
    return ExitCode.OK


def _follow(services: list[ManagedService], lines: int) -> int:
    files = {service.name: _file(service) for service in services}
    in_journal = [name for name, file in files.items() if file is None]
    if in_journal and len(in_journal) < len(files):
        raise ServiceError("one of them writes to a file and one to the journal; name the one to follow")
    if in_journal:
        return _follow_journal(in_journal, lines)
    for service in services:
        for line in service.manager.log_tail(service.name, lines):
            print(line)
    followed = [_Followed(file) for file in files.values() if file is not None]
    while True:
        sys.stdout.flush()
        time.sleep(_POLL_S)
        for one in followed:
            sys.stdout.write(one.read())


def _file(service: ManagedService) -> Path | None:
    """Where its output goes; None for the journal."""
    from specdash.control.systemd import SystemdManager

    if isinstance(service.manager, SystemdManager):
        return service.manager.log_file(service.name)
    from specdash.control.supervisor_services import log_file

    return log_file(service.name, os.environ)


def _follow_journal(names: list[str], lines: int) -> int:
    from specdash.control.systemctl import Systemctl

    units = [word for name in names for word in ("-u", name)]
    command = ["journalctl", "--user", *units, "-n", str(lines), "-o", "cat", "-q", "-f", "--no-pager"]
    try:
        ended = subprocess.run(command, env=Systemctl().environment, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        raise ServiceError(f"journalctl cannot be run: {error.strerror or error}") from None
    return ExitCode.OK if ended.returncode == 0 else ExitCode.SERVICE


class _Followed:
    """One file, from its end on; one that was moved away or cut is read from its new begin."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._at = self._place()

    def read(self) -> str:
        """What is new, whole pieces of it."""
        inode, size = self._place()
        if inode != self._inode or size < self._at:
            self._inode, self._at = inode, 0
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read(_CHUNK)
            whole = data[: data.rfind(b"\n") + 1] or (data if len(data) == _CHUNK else b"")
            self._at += len(whole)
            return whole.decode("utf-8", "replace")
        return ""

    def _place(self) -> tuple[int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return 0, 0
        return found.st_ino, found.st_size
