"""A child process that cannot outlive us: started in a session of its own, killed by the kernel when its parent dies.

The command is started through a few lines of Python that ask the kernel for that (PR_SET_PDEATHSIG) and then become
the command; so nothing of this program runs between fork and exec of a process with threads. The kernel's promise is
tied to the thread that started the child: make a `Child` in a thread that lives as long as the child should.

The same lines hand over listening sockets the way systemd does: sd_listen_fds(3).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from typing import IO, TYPE_CHECKING

from specdash.core.errors import SpecdashError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SECOND_SIGNAL_WAIT_S = 1.0
"""After the second SIGTERM: llama-server ends at once on it."""
_KILL_WAIT_S = 5.0
_BECOME = """
import ctypes, os, signal, sys
parent, sockets, *command = sys.argv[1:]
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(parent):
    os._exit(125)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
sockets = sorted(map(int, sockets.split()))
for target, descriptor in enumerate(sockets, 3):
    os.dup2(descriptor, target)
os.closerange(3 + len(sockets), max(sockets, default=0) + 1)
if sockets:
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(sockets)))
try:
    os.execvp(command[0], command)
except OSError as error:
    os.write(2, f"error: {command[0]} cannot be run: {error.strerror}\\n".encode())
    os._exit(127)
"""
"""Sorted, no descriptor is overwritten before it was copied: the n-th lowest is never below 3 + n."""


class Child:
    """One running child process. Not reaped before its group was cleaned up, so no signal can hit a stranger."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        output: int | IO[bytes] | None = subprocess.PIPE,
        sockets: Sequence[int] = (),
    ) -> None:
        """Start `argv` with exactly the environment `env`; stdout and stderr go to `output`. Raises `SpecdashError`.

        The listening `sockets` become its descriptors from 3 on, announced by LISTEN_FDS; we keep ours.
        """
        passed = " ".join(map(str, sockets))
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), passed, *argv],
                env=dict(env),
                pass_fds=tuple(sockets),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise SpecdashError(f"{argv[0]} cannot be started: {error.strerror or error}") from None
        self.pid = self.process.pid
        self.pidfd = os.pidfd_open(self.pid)
        """Can be read once the process has ended."""

    def exited(self, timeout: float = 0.0, wake: int | None = None) -> bool:
        """Whether the process has ended, after waiting at most `timeout` seconds, or until `wake` can be read."""
        watched = [self.pidfd] if wake is None else [self.pidfd, wake]
        return self.process.returncode is not None or self.pidfd in select.select(watched, [], [], timeout)[0]

    def signal(self, number: int) -> None:
        """Send `number` to the process, if it is still there."""
        if not self.exited():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """SIGKILL to the process and to everything it started that stayed in its group."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def finish(self) -> int:
        """Kill what is left of the group, reap the process and return its exit code (negative: the signal)."""
        if self.process.returncode is None:
            self.kill_group()
            try:
                self.process.wait(_KILL_WAIT_S)
            except subprocess.TimeoutExpired:  # the kernel does not let it go
                self.process.returncode = -signal.SIGKILL
            os.close(self.pidfd)
        return self.process.wait()

    def end(self, number: int, grace: float) -> None:
        """Send `number`, after `grace` seconds SIGTERM, and a moment later SIGKILL. From any thread."""
        with contextlib.suppress(OSError):  # reaped meanwhile
            for sent, wait in ((number, grace), (signal.SIGTERM, SECOND_SIGNAL_WAIT_S)):
                self.signal(sent)
                if self.exited(wait):
                    return
            self.kill_group()

    def stop(self, grace: float) -> int:
        """`end` it by SIGTERM, then `finish`."""
        self.end(signal.SIGTERM, grace)
        return self.finish()


def describe_exit(code: int) -> str:
    """An exit code in words: `exit code 1`, `signal SIGABRT`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
