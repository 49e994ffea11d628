"""Run a program for its few words about itself: bounded in time and in what is read, whatever it does."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CHUNK = 64 * 1024
_LARGEST = 1024 * 1024
_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program said. `problem` says in words why there is no whole answer, None when there is one."""

    text: str
    code: int | None = None
    problem: str | None = None

    @property
    def first_line(self) -> str:
        """The first line that says something, for a message; the exit code when none does."""
        lines = (line.strip() for line in self.text.splitlines())
        return next((line for line in lines if line), f"exit code {self.code}")


def ask(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Answer:
    """Standard output and error of `argv` together. Never raises for what the program does, and leaves none behind."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            start_new_session=True,
        )
    except OSError as error:
        return Answer("", problem=error.strerror or str(error))
    deadline = time.monotonic() + timeout_s
    with process:
        try:
            output, problem = _read(process, deadline)
            while problem is None and process.poll() is None:
                if time.monotonic() >= deadline:
                    problem = _too_slow(timeout_s)
                time.sleep(_POLL_S)
        finally:
            # Children that the program left in its session go with it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    return Answer(output.decode("utf-8", "replace"), process.returncode, problem)


def _read(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, str | None]:
    """Output until its end, the deadline, or the most that is read; and what went wrong."""
    if process.stdout is None:
        raise ValueError("the program was started without a pipe for its output")
    pipe = process.stdout.fileno()
    started = time.monotonic()
    output = bytearray()
    while len(output) <= _LARGEST:
        wait = deadline - time.monotonic()
        if wait <= 0 or not select.select([pipe], [], [], wait)[0]:
            return bytes(output), _too_slow(deadline - started)
        data = os.read(pipe, _CHUNK)
        if not data:
            return bytes(output), None
        output += data
    return bytes(output[:_LARGEST]), f"says more than {_LARGEST // 1024} KiB"


def _too_slow(timeout_s: float) -> str:
    return f"no answer within {timeout_s:.0f} s"
