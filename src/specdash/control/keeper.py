"""Commands that are kept running as children of this process: started again when they end, gone when it ends.

Each has a thread that starts, watches and stops it: the kernel ends a child with the thread that started it
(`backend.child`), so that a `kill -9` leaves nothing behind.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Self

from specdash.backend.child import Child, describe_exit
from specdash.core.errors import ExitCode, SpecdashError

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from specdash.core.changes import Role

HOPELESS = frozenset({ExitCode.USAGE, ExitCode.BAD_INPUT, ExitCode.NO_ENGINE, ExitCode.PORT_IN_USE})
"""Exit codes of a first start that the next one would end with, too."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 30.0
_GOOD_RUN_S = 60.0
"""After so long, an end counts as the first."""
_FOREVER_S = 1e9
_SERVICE_STOPS_S = 400.0
"""A service ends its engine or its requests within its own timeout, 300 s at most; this is for one that hangs."""


class KeptProcess(threading.Thread):
    """One command, kept running until it is stopped. `env` is its whole environment; its output is appended to the file
    `output`, None passes it through; `sockets` are listening sockets that it finds as sd_listen_fds(3) has it.

    `code` is the exit code that it was given up with, or ended with where it is not started again.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        output: Path | None = None,
        *,
        again: bool = True,
        stop_s: float = 5.0,
        sockets: Sequence[socket.socket] = (),
    ) -> None:
        """`stop_s` is how long it has to end by itself after SIGTERM."""
        super().__init__(name=f"keep {name}", daemon=True)
        self.child: Child | None = None
        """The process, while it runs."""
        self.code: int | None = None
        self.sockets = sockets
        self._what, self._argv, self._env, self._output = name, argv, env, output
        self._again, self._stop_s = again, stop_s
        self._stopping = threading.Event()
        self._wake = os.eventfd(0)
        self.start()

    def stop(self) -> None:
        """Ask for the end: SIGTERM, its patience, SIGKILL."""
        self._stopping.set()
        os.eventfd_write(self._wake, 1)

    def kill(self) -> None:
        """End it at once, with everything it started."""
        self._stopping.set()
        if (child := self.child) is not None:
            child.kill_group()

    def run(self) -> None:
        """The thread."""
        pause, first = _PAUSE_S, True
        while not self._stopping.is_set():
            began = time.monotonic()
            self.code = code = self._run_once()
            if self._stopping.is_set() or not self._again or (first and code in HOPELESS):
                return
            first = False
            pause = _PAUSE_S if time.monotonic() - began > _GOOD_RUN_S else pause
            if self._output is None:
                _tell(f"the {self._what} ended ({describe_exit(code)}); it starts again in {pause:g} s")
            self._stopping.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _run_once(self) -> int:
        try:
            with self._output.open("ab", buffering=0) if self._output is not None else nullcontext() as output:
                sockets = [item.fileno() for item in self.sockets]
                self.child = child = Child(self._argv, self._env, output=output, sockets=sockets)
        except (SpecdashError, OSError) as error:
            _tell(error)
            return ExitCode.FAILED
        try:
            child.exited(_FOREVER_S, self._wake)
            return child.stop(self._stop_s) if self._stopping.is_set() else child.finish()
        finally:
            self.child = None


def _tell(what: object) -> None:
    # The disk that standard error goes to may be full, which ends nothing.
    with suppress(OSError):
        os.write(2, f"specdash: {what}\n".encode())


class Keeper:
    """Commands by name, all ended when it is left."""

    def __init__(self) -> None:
        self.kept: dict[str, KeptProcess] = {}
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End all of them at the same time, and close the sockets that they shared."""
        self._closed = True
        kept = list(self.kept.values())
        for process in kept:
            process.stop()
        for process in kept:
            process.join()
            for item in process.sockets:
                item.close()

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str], *more: Any, **others: Any) -> KeptProcess:
        """Run a command as `KeptProcess` does. Raises `SpecdashError` after the end."""
        if self._closed:
            raise SpecdashError(f"{name} is not started: everything ends")
        self.kept[name] = kept = KeptProcess(name, argv, env, *more, **others)
        return kept

    def start_service(
        self,
        role: Role,
        env_file: Path,
        env: Mapping[str, str],
        output: Path | None = None,
        sockets: Sequence[socket.socket] = (),
    ) -> KeptProcess:
        """Run `specdash backend run` or `proxy run`. The proxy's listening sockets outlive it."""
        argv = (sys.executable, "-P", "-m", "specdash", str(role), "run", "--env-file", str(env_file))
        return self.start(str(role), argv, env, output, stop_s=_SERVICE_STOPS_S, sockets=sockets)

    def stop(self, name: str) -> None:
        """End it and wait; nothing where it does not run."""
        if (kept := self.kept.get(name)) is not None:
            kept.stop()
            kept.join()

    def kill(self) -> None:
        """End all of them at once."""
        for kept in self.kept.values():
            kept.kill()
