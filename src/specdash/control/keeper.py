"""Commands that are kept running as children of this process: started again when they end, gone when it ends.

Each has a thread that starts, watches and stops it: the kernel ends a child with the thread that started it
(`backend.child`), so that a `kill -9` leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import IO, TYPE_CHECKING, Self

from msgspec import Struct

from specdash.backend.child import Child, describe_exit
from specdash.control.services import units
from specdash.core.changes import Role
from specdash.core.errors import ExitCode, SpecdashError

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from pathlib import Path

HOPELESS = frozenset({ExitCode.USAGE, ExitCode.BAD_INPUT, ExitCode.NO_ENGINE, ExitCode.PORT_IN_USE})
"""Exit codes of a first start that the next one would end with, too."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 30.0
_GOOD_RUN_S = 60.0
"""After so long, an end counts as the first."""
_FOREVER_S = 1e9
_SLACK_S = 8.0
"""On top of a service's own patience: its second signal, its SIGKILL, and the reaping."""


class KeptCommand(Struct, frozen=True):
    """What to run. `env` is its whole environment; `output` is a file that its output is appended to, None passes it
    through; `sockets` are listening sockets of ours that it finds as sd_listen_fds(3) has it."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    output: Path | None = None
    again: bool = True
    stop_s: float = 5.0
    """How long it has to end by itself after SIGTERM."""
    sockets: tuple[socket.socket, ...] = ()


def kept_command(
    role: Role,
    env_file: Path,
    values: Mapping[str, str],
    env: Mapping[str, str],
    sockets: list[socket.socket],
    output: Path | None = None,
) -> KeptCommand:
    """`specdash backend run` or `proxy run`. The proxy gets its listening sockets, which outlive it."""
    return KeptCommand(
        str(role),
        (sys.executable, "-P", "-m", "specdash", str(role), "run", "--env-file", str(env_file)),
        env,
        output,
        stop_s=units.stop_patience(role, values) + _SLACK_S,
        sockets=tuple(sockets) if role is Role.PROXY else (),
    )


class KeptProcess(threading.Thread):
    """One command, kept running until it is stopped. `code` is the exit code that it was given up with, or ended with
    where it is not started again."""

    def __init__(self, command: KeptCommand) -> None:
        super().__init__(name=f"keep {command.name}", daemon=True)
        self.command = command
        self.pid: int | None = None
        self.code: int | None = None
        self._stopping = threading.Event()
        self._wake = os.eventfd(0)
        self._child: Child | None = None
        self.start()

    def stop(self, *, wait: bool = True) -> None:
        """End it: SIGTERM, its patience, SIGKILL."""
        self._stopping.set()
        os.eventfd_write(self._wake, 1)
        if wait:
            self.join()

    def kill(self) -> None:
        """End it at once, with everything it started."""
        self._stopping.set()
        if (child := self._child) is not None:
            child.kill_group()

    def run(self) -> None:
        """The thread."""
        pause, first = _PAUSE_S, True
        while not self._stopping.is_set():
            began = time.monotonic()
            self.code = code = self._run_once()
            if self._stopping.is_set() or not self.command.again or (first and code in HOPELESS):
                return
            first = False
            pause = _PAUSE_S if time.monotonic() - began > _GOOD_RUN_S else pause
            if self.command.output is None:
                words = (
                    f"specdash: the {self.command.name} ended ({describe_exit(code)}); it starts again in {pause:g} s"
                )
                print(words, file=sys.stderr, flush=True)
            self._stopping.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _run_once(self) -> int:
        command = self.command
        with contextlib.ExitStack() as stack:
            output: IO[bytes] | None = None
            if command.output is not None:
                descriptor = os.open(command.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                output = stack.enter_context(os.fdopen(descriptor, "wb", buffering=0))
            descriptors = [item.fileno() for item in command.sockets]
            try:
                child = Child.start(command.argv, command.env, output=output, sockets=descriptors)
            except SpecdashError as error:
                print(f"specdash: {error}", file=sys.stderr, flush=True)
                return ExitCode.FAILED
        self._child, self.pid = child, child.pid
        try:
            child.exited(_FOREVER_S, self._wake)
            return child.stop(command.stop_s) if self._stopping.is_set() else child.finish()
        finally:
            self._child = self.pid = None


class Keeper:
    """Commands by name, all ended when it is left."""

    def __init__(self) -> None:
        self._kept: dict[str, KeptProcess] = {}
        self.all: list[KeptProcess] = []
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, command: KeptCommand) -> KeptProcess:
        """Run it, in the place of one of that name. Raises `SpecdashError` after the end."""
        if self._closed:
            raise SpecdashError(f"{command.name} is not started: everything ends")
        self.stop(command.name)
        self._kept[command.name] = kept = KeptProcess(command)
        self.all.append(kept)
        return kept

    def stop(self, name: str) -> None:
        """End it and wait; nothing where it does not run."""
        if (kept := self._kept.pop(name, None)) is not None:
            kept.stop()

    def kept(self, name: str) -> KeptProcess | None:
        """The command of that name."""
        return self._kept.get(name)

    def kill(self) -> None:
        """End all of them at once."""
        for kept in self.all:
            kept.kill()

    def close(self) -> None:
        """End all of them at the same time, and close the sockets that they shared."""
        self._closed = True
        ended, self._kept = list(self._kept.values()), {}
        for kept in ended:
            kept.stop(wait=False)
        for kept in ended:
            kept.join()
            for item in kept.command.sockets:
                item.close()
