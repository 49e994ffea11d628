"""A real sshd on loopback, for this user alone: its own host key, one authorised key, nothing of the machine's own."""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.fault_server import free_port
from support.waiting import until

REQUIRED = "SPECDASH_REQUIRE_SSHD"


class SshServer:
    """The machine `far`: a home of its own, with specdash in ~/.local/bin, and an ssh here that knows it."""

    def __init__(self, folder: Path, port: int, pid: int) -> None:
        self.pid = pid
        self.specdash = folder / "home/.local/bin/specdash"
        self.specdash.parent.mkdir(parents=True)
        _script(self.specdash, f'exec {sys.executable} -m specdash "$@"')
        config = folder / "ssh_config"
        config.write_text(
            f"Host far\n HostName 127.0.0.1\n Port {port}\n User {getpass.getuser()}\n IdentityFile {folder}/key\n"
            f" IdentitiesOnly yes\n UserKnownHostsFile {folder}/known_hosts\n GlobalKnownHostsFile /dev/null\n"
            " StrictHostKeyChecking yes\n LogLevel ERROR\n"
        )
        key = (folder / "host_key.pub").read_text().split()
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text(f"[127.0.0.1]:{port} {key[0]} {key[1]}\n")
        (folder / "near").mkdir()
        _script(folder / "near/ssh", f'exec {shutil.which("ssh")} -F {config} "$@"')
        self.path = f"{folder / 'near'}:{os.environ['PATH']}"
        """The PATH here, whose ssh knows that machine."""

    @property
    def processes(self) -> list[psutil.Process]:
        """Those of specdash there."""
        found = []
        for child in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is one, too
                if "specdash" in child.cmdline():
                    found.append(child)
        return found


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


@contextlib.contextmanager
def ssh_server(folder: Path) -> Iterator[SshServer]:
    """One that takes the key in `folder`; ended afterwards. Skips the test where there is no sshd, unless CI says that
    there must be one."""
    sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    keygen = shutil.which("ssh-keygen")
    if sshd is None or keygen is None or shutil.which("ssh") is None:
        message = "no OpenSSH server and client here (Debian: openssh-server)"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(message)
        pytest.skip(message)
    for name in ("host_key", "key"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    shutil.copy(folder / "key.pub", folder / "authorized_keys")
    port = free_port()
    config = folder / "sshd_config"
    config.write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/authorized_keys\n"
        "PidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"PermitRootLogin prohibit-password\nLogLevel ERROR\nSetEnv HOME={folder}/home LANG=C.UTF-8\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with (folder / "sshd.log").open("wb") as log:
        process = subprocess.Popen([sshd, "-D", "-e", "-f", config], stdout=log, stderr=log)
    try:
        until(lambda: _listens(port) or process.poll() is not None)
        assert process.poll() is None, (folder / "sshd.log").read_text()
        yield SshServer(folder, port, process.pid)
    finally:
        process.terminate()
        process.wait(10)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
