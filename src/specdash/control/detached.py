"""Commands that a specdash on another machine asks for: each in a session of its own, so that it goes to its end
whatever becomes of the connection, and what it says in a file, so that whoever connects again reads on.

A command is known by an id that whoever asks for it made up. Its file is claimed once and for all: by the command when
it begins, or by whoever asks how it goes when it did not, so that a request that was under way for long begins nothing.
It is locked as long as the command lives. No line in it holds a secret: the request comes on standard input, and what a
command prints is masked.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any, Final, cast

from specdash.core.errors import ConflictError, NotWrittenError, SpecdashError, UsageError
from specdash.core.paths import applies_file, detached_dir
from specdash.system.processes import is_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from specdash.core.changes import ApplyProgress

COMMANDS: Final = ("apply", "rollback", "recover", "applies", "services")
"""What may be asked for."""
KEPT_S: Final = 7 * 86400.0
"""So long it can be read how a command ended."""
MOST_REQUEST_BYTES: Final = 1 << 20
_MOST_ANSWER_BYTES: Final = 1 << 18
_LOOK_S: Final = 0.02
_GONE_S: Final = 5.0
_ID = re.compile(r"[0-9a-f]{32}\Z")


class DetachedCommands:
    """Those of this user. `program` starts one, and is given the number of the descriptor of its file."""

    def __init__(self, env: Mapping[str, str] = os.environ, program: tuple[str, ...] = ()) -> None:
        self._folder = detached_dir(env)
        self._env = env
        self._program = program or (sys.executable, "-m", "specdash", "agent", "--carry-out")
        self._begun: dict[str, subprocess.Popen[bytes]] = {}

    def begin(self, command_id: str, request: Mapping[str, Any]) -> None:
        """Start a command. `request` has its `argv`, and the `input` that it reads before all answers. Raises
        `ConflictError` for an id that was used or given up."""
        argv = request.get("argv")
        if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv) or argv[:1] == []:
            raise UsageError("no command")
        if argv[0] not in COMMANDS:
            raise UsageError(f"{argv[0]}: cannot be asked for from another machine; one of {', '.join(COMMANDS)}")
        path = self._path(command_id)
        descriptor = self._claim(path)
        if descriptor is None:
            raise ConflictError("it was begun or given up already")
        try:
            write_event(descriptor, began=time.time(), kind=argv[0])
            with path.open("ab") as words:
                # A second opening: what the command starts may keep it, which shall not keep the lock.
                process = subprocess.Popen(
                    (*self._program, str(descriptor)),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=words,
                    pass_fds=(descriptor,),
                    env=dict(self._env),
                    start_new_session=True,
                )
        finally:
            os.close(descriptor)
        self._begun[command_id] = process
        entry = cast("IO[bytes]", process.stdin)
        with contextlib.suppress(OSError):
            entry.write(json.dumps(dict(request)).encode() + b"\n" + str(request.get("input", "")).encode())
            entry.flush()

    def answer(self, command_id: str, text: str) -> None:
        """What somebody says to the question of a command that was begun here; nobody can say it to another."""
        process = self._begun.get(command_id)
        if process is None:
            raise ConflictError("it was asked over a connection that is gone, and takes that for a no")
        entry = cast("IO[bytes]", process.stdin)
        with contextlib.suppress(OSError):
            entry.write(text.encode())
            entry.flush()

    @property
    def processes(self) -> tuple[subprocess.Popen[bytes], ...]:
        """Those that were begun here."""
        return tuple(self._begun.values())

    def cancel(self, command_id: str) -> None:
        """What Ctrl-C does to a command."""
        path = self._path(command_id)
        pid = _pid(path)
        if pid is not None and _is_held(path):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)

    def follow(self, command_id: str, after: int, wait_s: float) -> dict[str, Any]:
        """What a command has said after so many bytes; waits for it for a while. `dead` says that it ended without
        saying how; one that was never begun is given up by this."""
        path = self._path(command_id)
        descriptor = self._claim(path)
        if descriptor is not None:
            with contextlib.closing(os.fdopen(descriptor, "wb")):
                write_event(descriptor, never=True)
        ends = time.monotonic() + wait_s
        while True:
            was_held = _is_held(path)
            data = _read(path, after)
            if data or not was_held or time.monotonic() > ends:
                break
            time.sleep(_LOOK_S)
        answer: dict[str, Any] = {"lines": data.decode("utf-8", "replace").splitlines(), "after": after + len(data)}
        if not data and not was_held:
            answer["dead"] = self._left(path)
        return answer

    def _left(self, path: Path) -> dict[str, Any]:
        """What a command left that was killed: an apply that was cut short, or the record of one that was not."""
        from specdash.control.apply.journal import read_records, unfinished

        first = next(_events(path), {})
        began = first.get("began")
        if not isinstance(began, float) or first.get("kind") not in ("apply", "rollback", "recover"):
            return {}
        pid, gone_by = _pid(path), time.monotonic() + _GONE_S
        # It loses its lock while it ends; until it has ended, its apply looks as if it went on.
        while pid is not None and is_alive(pid) and time.monotonic() < gone_by:
            time.sleep(_LOOK_S)
        journal = unfinished(self._env)
        records = [record for record in read_records(applies_file(self._env)) if record.ended_at >= began]
        return {
            "unfinished": journal.words if journal is not None else None,
            "record": records[-1].to_json() if records else None,
        }

    def _path(self, command_id: str) -> Path:
        if not _ID.match(command_id):
            raise UsageError("no id of a command")
        return self._folder / command_id

    def _claim(self, path: Path) -> int | None:
        """The file, open and locked, for whoever is the first to ask for it; None for all others."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not path.exists():
                self._tidy()
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise NotWrittenError(f"{path}: {error.strerror or error}; nothing was changed") from None
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.fstat(descriptor).st_size:
                return descriptor
        os.close(descriptor)
        return None

    def _tidy(self) -> None:
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > KEPT_S:
                    path.unlink()


def _read(path: Path, after: int) -> bytes:
    """Whole lines, as many as an answer has room for."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(after)
        data = file.read(_MOST_ANSWER_BYTES)
        return data[: data.rfind(b"\n") + 1]
    return b""


def _events(path: Path) -> Iterator[dict[str, Any]]:
    for line in _read(path, 0).splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                yield event


def _pid(path: Path) -> int | None:
    return next((event["pid"] for event in _events(path) if isinstance(event.get("pid"), int)), None)


def _is_held(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


# The command itself, in the process that was started for it.


def write_event(descriptor: int, **event: Any) -> None:
    """Add a line. A full disk is no reason to stop what is under way."""
    with contextlib.suppress(OSError):
        os.write(descriptor, json.dumps(event).encode() + b"\n")


class EventStream(io.TextIOBase):
    """Standard output or error of a command: what is written becomes a line of its file."""

    def __init__(self, descriptor: int, name: str, *, terminal: bool) -> None:
        self._descriptor, self._name, self._terminal = descriptor, name, terminal
        self._text = ""

    def writable(self) -> bool:
        """It is."""
        return True

    def isatty(self) -> bool:
        """Whether whoever asked for the command sits at a terminal."""
        return self._terminal

    def write(self, text: str) -> int:
        """Take text; a whole line is written."""
        self._text += text
        if "\n" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Write what there is."""
        text, self._text = self._text, ""
        if text:
            write_event(self._descriptor, **{self._name: text})

    def take_progress(self, progress: ApplyProgress) -> None:
        """A report of an apply as it is, for whoever draws it there."""
        write_event(self._descriptor, progress=asdict(progress))


class AnswerStream(io.TextIOWrapper):
    """Standard input of a command: says that it waits for an answer before it does."""

    def __init__(self, buffer: Any, descriptor: int, *, terminal: bool) -> None:
        super().__init__(buffer, encoding="utf-8")
        self._descriptor, self._terminal = descriptor, terminal
        self.asks = True
        """Whether what is read next is an answer."""

    def isatty(self) -> bool:
        """Whether whoever asked for the command sits at a terminal."""
        return self._terminal

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        """What somebody answers; nothing when the connection is gone."""
        if self.asks:
            write_event(self._descriptor, asks=True)
        self.asks = True
        return super().readline(size)


def carry_out(descriptor: int, main: Callable[[list[str]], int]) -> int:
    """Do what the request on standard input says, by `main`. Half a request is none."""
    os.set_inheritable(descriptor, False)
    line = sys.stdin.buffer.readline(MOST_REQUEST_BYTES)
    try:
        request = json.loads(line)
        argv, terminal = [str(word) for word in request["argv"]], bool(request.get("terminal"))
    except (ValueError, TypeError, KeyError):
        raise SpecdashError("the connection ended before the request did: nothing was changed") from None
    write_event(descriptor, pid=os.getpid())
    sys.stdin = answers = AnswerStream(sys.stdin.buffer, descriptor, terminal=terminal)
    answers.asks = not request.get("input")
    streams = [EventStream(descriptor, name, terminal=terminal) for name in ("out", "err")]
    sys.stdout, sys.stderr = streams
    code = main(argv)
    for stream in streams:
        stream.flush()
    write_event(descriptor, exit=int(code))
    return code
