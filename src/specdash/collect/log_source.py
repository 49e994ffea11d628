"""A log as lines that grow: of a file, standard input, or the program that keeps it (journalctl, docker, podman)."""

from __future__ import annotations

import os
import re
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, TypeAlias

from specdash.collect.tail import BACKFILL_BYTES, WHOLE_BELOW_BYTES, LogTail, TailChunk
from specdash.core.errors import InputError
from specdash.core.log_places import STANDARD_INPUT, program_and_name
from specdash.core.readings import Failure, FailureKind
from specdash.system.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BACKLOG_LINES = 20_000
"""Lines of the past that are read of what a program keeps."""
_PIPE_BYTES = 64 * 1024
"""What a pipe holds: after less than this, it is empty."""
_RESTART_S = 5.0
_COMPLAINS_S = 1.0
"""What a program prints within this time of its start may be why it ends."""
_COMPLAINT_BYTES = 4096
_SILENT_S = 20.0
"""So long a program that keeps a log may print nothing: docker waits for ever for a daemon that hangs."""
_NO_ENTRIES = "the journal has no line of such a unit, or not for this user (`systemctl status` names the units)"
_UNIT = re.compile(r"([^/]+\.service)(?:/|$)")
_CONTAINER = re.compile(r"(?:(docker)[-/]|(?:libpod)-)([0-9a-f]{12})[0-9a-f]{52}")


def lines_of(
    place: str,
    *,
    whole_below: int = WHOLE_BELOW_BYTES,
    backfill: int = BACKFILL_BYTES,
    backlog_lines: int = BACKLOG_LINES,
) -> LogLines:
    """The lines at a place of `core.log_places`, with those of the past that are still worth reading."""
    if place == STANDARD_INPUT:
        return InputLines()
    if program_and_name(place) is not None:
        return ProgramLines(place, backlog_lines)
    return LogTail(place, whole_below=whole_below, backfill=backfill)


def command_of(place: str, lines: int | None, *, since: float | None = None, follow: bool = True) -> list[str]:
    """The command that prints a log that a program keeps: its last lines, those since a Unix time, or (None) all.

    Raises ValueError for a file."""
    found = program_and_name(place)
    if found is None:
        raise ValueError(f"{place}: is a file")
    program, name = found
    if program == "journal":
        # Both, so that a unit is found whether it is one of the system's or of the user's.
        command, newest, began = ["journalctl", "--unit", name, "--user-unit", name, "-o", "cat", "-q"], "-n", "@"
    else:
        command, newest, began = [program, "logs"], "--tail", ""
    if since is not None:
        command += ["--since", f"{began}{since:.3f}"]
    elif lines is not None:
        command += [newest, str(lines)]
    command += ["-f"] if follow else []
    return command if program == "journal" else [*command, name]


def past(place: str, lines: int = BACKLOG_LINES) -> Iterator[TailChunk]:
    """What is there now, in pieces; one with a failure where it cannot be read."""
    if place == STANDARD_INPUT:
        yield TailChunk(failure=_failure("standard input", "is read once, by the dashboard"))
    elif program_and_name(place) is not None:
        with TemporaryFile() as file:
            try:
                print_whole(place, file, lines)
            except InputError as error:
                yield TailChunk(failure=Failure(FailureKind.UNAVAILABLE, str(error)))
                return
            file.seek(0)
            yield TailChunk(file.read())
    else:
        tail = LogTail(place)
        with closing(tail):
            chunk = tail.read()
            while chunk.more:
                yield chunk
                chunk = tail.read()
            yield chunk


def print_whole(place: str, into: IO[bytes], lines: int | None = None) -> None:
    """Write the last lines, or all, that a program keeps of a log into a file. Raises `InputError` with its words."""
    command = command_of(place, lines, follow=False)
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=into, stderr=subprocess.STDOUT)
    except OSError as error:
        raise InputError(f"{place}: {_not_started(command[0], error)}") from None
    size, status = -1, None
    try:
        while status is None:
            before, size = size, os.fstat(into.fileno()).st_size
            if size == before:
                raise InputError(f"{place}: {command[0]} printed nothing for {_SILENT_S:g} s")
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(_SILENT_S)
    finally:
        if status is None:
            process.kill()
            process.wait(1.0)
    if status:
        into.seek(max(0, into.seek(0, os.SEEK_END) - _COMPLAINT_BYTES))
        words = _last_line(into.read()) or f"{command[0]} ended with status {status}"
        raise InputError(f"{place}: {words}")
    if command[0] == "journalctl" and not os.fstat(into.fileno()).st_size:
        raise InputError(f"{place}: {_NO_ENTRIES}")


def place_of_process(pid: int, proc: Path = Path("/proc")) -> str | None:
    """Where a server's standard error goes: a file, its container's log, or the journal of its unit; else None."""
    try:
        target = (proc / str(pid) / "fd/2").readlink()
        groups = (proc / str(pid) / "cgroup").read_text(encoding="utf-8")
        if target.is_absolute() and target.is_file():
            return str(target)
    except OSError:
        return None
    if container := _CONTAINER.search(groups):
        return f"{container[1] or 'podman'}:{container[2]}"
    unit = _UNIT.findall(groups.splitlines()[-1] if groups else "")
    if str(target).startswith("socket:") and unit:
        return f"journal:{unit[-1]}"
    return None


def keep_standard_input() -> None:
    """Keep the standard input for the log `-`, and put the terminal in its place, where keys are read.

    Raises OSError where the process has no terminal."""
    global _input
    terminal = os.open("/dev/tty", os.O_RDWR)
    _input = os.dup(0)
    os.dup2(terminal, 0)
    os.close(terminal)


_input = 0


class InputLines:
    """What another program writes to our standard input."""

    def __init__(self) -> None:
        self._descriptor = os.dup(_input)
        os.set_blocking(self._descriptor, False)
        self.written_at: float | None = None

    def read(self, limit: int = _PIPE_BYTES) -> TailChunk:
        """What is new, at most `limit` bytes; never waits."""
        try:
            data = os.read(self._descriptor, limit)
        except BlockingIOError:
            return TailChunk()
        except OSError as error:
            return TailChunk(failure=_failure("standard input", error.strerror or str(error)))
        if not data:
            return TailChunk(failure=_failure("standard input", "the program that wrote the log has ended"))
        self.written_at = time.time()
        return TailChunk(data, more=len(data) >= _PIPE_BYTES)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)


class ProgramLines:
    """Follows what a program prints of a log, which is started again when it ends."""

    def __init__(
        self, place: str, backlog_lines: int = BACKLOG_LINES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.place, self._backlog_lines, self._clock = place, backlog_lines, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._began = float("-inf")
        self._since: float | None = None
        """When the program ended last: what it had printed until then has been read."""
        self._early = b""
        """What was printed at first: lines, or why the program ends."""
        self._failure: Failure | None = None
        self.written_at: float | None = None

    def read(self, limit: int = _PIPE_BYTES) -> TailChunk:
        """What is new, at most `limit` bytes; never waits."""
        if self._process is None and self._clock() >= self._began + _RESTART_S:
            self._start()
        if self._process is None or self._process.stdout is None:
            return TailChunk(failure=self._failure)
        with suppress(BlockingIOError):
            data = os.read(self._process.stdout.fileno(), limit)
            if not data:
                return self._ended()
            self._early += data
        if self._clock() - self._began < _COMPLAINS_S and len(self._early) < _COMPLAINT_BYTES:
            return TailChunk(more=True, failure=self._failure)
        if not self._early and self.written_at is None and self.place.startswith("journal:"):
            # journalctl follows a unit that is not there without a word.
            self._failure = _failure(self.place, _NO_ENTRIES)
            return TailChunk(failure=self._failure)
        data, self._early, self._failure = self._early, b"", None
        self.written_at = time.time() if data else self.written_at
        return TailChunk(data, more=len(data) >= _PIPE_BYTES)

    def close(self) -> int:
        """End the program; its exit status."""
        process, self._process = self._process, None
        if process is None or process.stdout is None:
            return 0
        process.stdout.close()
        process.terminate()
        try:
            return process.wait(0.5)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait(0.5)

    def _start(self) -> None:
        self._began = self._clock()
        command = command_of(self.place, self._backlog_lines, since=self._since)
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError as error:
            self._failure = _failure(self.place, _not_started(command[0], error))
            return
        if self._process.stdout is not None:
            os.set_blocking(self._process.stdout.fileno(), False)

    def _ended(self) -> TailChunk:
        if not (status := self.close()):
            self._since = time.time()
        data, self._early = self._early, b""
        # With a status of failure, what it has printed at once was its complaint and not the log's.
        words = _last_line(data) if status else ""
        program = command_of(self.place, 0)[0]
        self._failure = _failure(self.place, words or f"{program} ended with status {status}")
        return TailChunk(b"" if words else data, failure=self._failure)


LogLines: TypeAlias = LogTail | InputLines | ProgramLines
"""What `lines_of` returns."""


def _failure(place: str, why: str) -> Failure:
    return Failure(FailureKind.UNAVAILABLE, f"{place}: {why}")


def _not_started(program: str, error: OSError) -> str:
    return f"{program} is not installed" if isinstance(error, FileNotFoundError) else f"{program}: {error.strerror}"


def _last_line(data: bytes) -> str:
    lines = data.decode("utf-8", "replace").strip().splitlines()
    return clean(lines[-1].strip(), 200) if lines else ""
