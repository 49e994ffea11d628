"""The control socket of a backend's runner, seen from a client."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.collect.run_records import live_backends, started_last
from specdash.core.changes import ApplyProgress
from specdash.core.errors import ConflictError, ExitCode, ServiceError, SpecdashError
from specdash.core.paths import run_records_dir, runtime_dir
from specdash.core.records import read
from specdash.system.files import short_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CONNECT_S = 5.0
_ANSWER_S = 10.0


class RemoteError(SpecdashError):
    """An error that the runner sent, with its own exit code."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.exit_code = ExitCode(code)


class RunnerConnection:
    """One connection to a runner's control socket."""

    def __init__(self, path: str) -> None:
        """Raises `ServiceError` where nothing listens."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(CONNECT_S)
        try:
            with short_path(Path(path)) as short:
                self._socket.connect(short)
        except OSError as error:
            self._socket.close()
            raise ServiceError(
                f"the backend's control socket {path} does not answer ({error.strerror or error})"
            ) from None
        self._lines = self._socket.makefile("rb")

    def ask(
        self,
        do: str,
        on_progress: Callable[[ApplyProgress], None] = lambda _: None,
        *,
        timeout: float | None = _ANSWER_S,
        **words: Any,
    ) -> dict[str, Any]:
        """The runner's answer. Raises `RemoteError` for what it refuses, `ServiceError` when it goes away."""
        self._socket.settimeout(timeout)
        try:
            self._socket.sendall(json.dumps({"do": do, **words}).encode() + b"\n")
            for line in self._lines:
                answer = json.loads(line)
                if "progress" in answer and "runner_pid" not in answer:
                    on_progress(read(ApplyProgress, answer["progress"]))
                elif (error := answer.get("error")) is not None and error["code"] == ExitCode.CONFLICT:
                    raise ConflictError(error["reason"])
                elif error is not None:
                    raise RemoteError(error["reason"], error["code"])
                else:
                    return dict(answer)
        except (OSError, ValueError) as error:
            raise ServiceError(f"the backend's runner does not answer ({error})") from None
        raise ServiceError(
            "the backend's runner ended during the change; at its next start it puts the old settings back and serves: "
            "see `specdash applies`"
        )

    def close(self) -> None:
        """Hang up. A trial ends with that."""
        self._lines.close()
        self._socket.close()


def runners(env: Mapping[str, str] = os.environ) -> Iterator[tuple[str, dict[str, Any]]]:
    """Control socket and status of every runner of this user that answers."""
    for directory in (runtime_dir(env), run_records_dir(env)):
        for path in sorted(directory.glob("backend-*.sock")) if directory is not None else ():
            with contextlib.suppress(SpecdashError), closing(RunnerConnection(str(path))) as connection:
                yield str(path), connection.ask("status")


def runner_of(env_file: str | Path, env: Mapping[str, str] = os.environ) -> tuple[str, dict[str, Any]] | None:
    """Control socket and status of the runner that reads this env file; None where none does.

    Raises `ServiceError` for a backend that runs without one.
    """
    wanted = os.path.realpath(env_file)
    for path, status in runners(env):
        if status["env_file"] is not None and os.path.realpath(status["env_file"]) == wanted:
            return path, status
    if (record := started_last(live_backends(env), env_file)) is not None:
        raise ServiceError(
            f"the backend at {record.url} (pid {record.pid}) has no control socket: it was started by another version "
            "of specdash; restart it once, with `specdash services restart backend` or by hand"
        )
    return None
