"""A program on a bare pseudo-terminal: what it writes, keys in one write, and a terminal that goes away."""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Self

_NOT_OF_TERMINAL = ("COLUMNS", "LINES", "TMUX")
_CONTROL = re.compile(rb"\x1b\[[0-9;?<>=]*[ -/]*[@-~]|\x1b[()][0-9A-B]|\x1b[=>78]")


class PseudoTerminal:
    """Runs `argv` in a session of its own. With `controlling`, the terminal is the session's: when it goes away, the
    kernel sends SIGHUP; without, the program only finds that it reads an end of file."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        size: tuple[int, int] = (80, 24),
        controlling: bool = True,
    ) -> None:
        self._master, slave = os.openpty()
        columns, rows = size
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

        def take() -> None:
            if controlling:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        # pytest pins COLUMNS and LINES, which programs believe more than their terminal.
        given = {**os.environ, "TERM": "xterm-256color", **(env or {})}
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, preexec_fn=take,
            env={key: value for key, value in given.items() if key not in _NOT_OF_TERMINAL},
        )  # fmt: skip
        os.close(slave)
        self.written = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        self.vanish()

    @property
    def text(self) -> str:
        """All that was written so far, without control sequences."""
        return _CONTROL.sub(b"", self.written).decode(errors="replace")

    def press(self, keys: bytes) -> None:
        """These bytes in one write, as a slow line delivers them."""
        os.write(self._master, keys)

    def wait_for(self, *texts: str, within_s: float = 30.0) -> str:
        """All that was written from now on, once the texts are in it."""
        begin = len(self.text)
        until = time.monotonic() + within_s
        while not all(text in self.text[begin:] for text in texts):
            over = self.process.poll() is not None or time.monotonic() > until
            self.read(0.1)
            assert not over, f"{texts} not seen:\n{self.text[begin:]}"
        return self.text[begin:]

    def read(self, seconds: float) -> None:
        """Take what is written within so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([self._master], [], [], left)[0]:
                try:
                    self.written += os.read(self._master, 65536)
                except OSError:
                    return

    def vanish(self) -> None:
        """The terminal goes away, as a closed window or a lost connection does."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def wait_exit(self, within_s: float = 15.0) -> int:
        """The exit code, once the program has ended; a signal that killed it is a negative one."""
        until = time.monotonic() + within_s
        while self.process.poll() is None:
            assert time.monotonic() < until, f"still running after {within_s} s"
            if self._master >= 0:
                self.read(0.05)
            else:
                time.sleep(0.05)
        return self.process.returncode


def read_until(descriptor: int, wanted: bytes, seconds: float = 60) -> bytes:
    """What the master of a terminal gives, up to `wanted`."""
    seen = b""
    deadline = time.monotonic() + seconds
    while wanted not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([descriptor], [], [], 0.2)[0]:
            seen += os.read(descriptor, 4096)
    return seen
