"""The runner's control socket: changes of its settings, one JSON object a line.

A client sends one request a line: `{"do": "apply" | "trial" | "end" | "cancel" | "status" | "outlook", ...}`. The
runner answers with any number of `{"progress": {...}}` lines and then one line of the result, or
`{"error": {"code": N, "reason": "..."}}` for what was refused, with an exit code of docs/scripting.md. A client that
goes away changes nothing: what it asked for goes on, and is recorded. Only a trial lives as long as its connection.

The socket is mode 0600, and only root and the runner's own user may connect.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from specdash.backend import trial
from specdash.backend.journal import ApplyLock, Journal, read_records
from specdash.backend.proxies import fronts
from specdash.backend.start_check import busy, promise_of
from specdash.backend.steps import Steps
from specdash.backend.transaction import Transaction
from specdash.core.changes import Role
from specdash.core.errors import ConflictError, ExitCode, InputError, NotWrittenError, SpecdashError
from specdash.core.paths import applies_file, run_records_dir, runtime_dir
from specdash.core.records import read
from specdash.core.structs import json_of
from specdash.system.files import file_digest
from specdash.system.sockets import short_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.backend.session import BackendSession
    from specdash.backend.transaction import Outcome
    from specdash.core.changes import ApplyProgress

LONGEST_LINE = 16 * 1024 * 1024
_CLOSE_S = 5.0
_READS_WITHIN_S = 2
_RESTORE_TRIES = 2


class ControlSocket:
    """Listens for the clients of one runner. `path` is None where no socket could be made, and `problem` says why."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self.path: str | None = None
        self.problem = ""
        self.env = env
        self.session: BackendSession
        self.env_file: str | None = None
        self.running: _Running | None = None
        self.trial: trial.TrialJournal | None = None
        self._starting = threading.Lock()
        self._listening = socket.socket(socket.AF_UNIX)
        for directory in (place for place in (runtime_dir(env), run_records_dir(env)) if place is not None):
            path = directory / f"backend-{os.getpid()}.sock"
            try:
                directory.mkdir(parents=True, exist_ok=True, mode=0o700)
                _sweep(directory)
                path.unlink(missing_ok=True)
                with short_path(path) as short:
                    self._listening.bind(short)
                path.chmod(0o600)
                self._listening.listen()
            except OSError as error:
                self.problem = f"no control socket at {path} ({error.strerror or error}): settings cannot be applied"
                continue
            self.path, self.problem = str(path), ""
            return

    def serve(self, session: BackendSession, env_file: str | None) -> None:
        """Take clients from now on, each in a thread of its own."""
        self.session, self.env_file = session, env_file
        if not session.plan.refused and file_digest(env_file) != session.plan.env_digest:
            # Changed while the start was planned, when there was no runner yet to ask for it.
            session.received.append(signal.SIGUSR1)
        if self.path is not None:
            threading.Thread(target=self._accept, name="control", daemon=True).start()

    def close(self) -> None:
        """The runner ends: a change that is under way puts the old files back; the socket is removed."""
        self._listening.close()
        if self.path is not None:
            Path(self.path).unlink(missing_ok=True)
        if (running := self.running) is not None:
            running.steps.cancel()
            running.ended.wait(_CLOSE_S)

    def change(
        self, wanted: Journal, listen: Callable[[Steps, ApplyProgress], None], lock: ApplyLock | None = None
    ) -> Outcome:
        """Make a change, one at a time, in the calling thread; its reports go to `listen`.

        Raises `ConflictError` while another one runs, `InputError` for a foreign env file.
        """
        backend = wanted.edit(Role.BACKEND)
        if backend is not None and (
            self.env_file is None or os.path.realpath(backend.env_file) != os.path.realpath(self.env_file)
        ):
            raise InputError(f"{backend.env_file}: this backend reads {self.env_file or 'no env file'}")
        steps = Steps(lambda progress: listen(steps, progress))
        with self._starting:
            if self.running is not None:
                raise ConflictError(f"another change is under way: {self.running.words}; wait for its end")
            if not wanted.trial:
                self.refuse_during_trial()
            self.running = running = _Running(f"{wanted.kind} {wanted.what}", steps)
        self.session.begin_change()
        try:
            return Transaction(wanted, self.session, steps, self.env, lock=lock).run()
        finally:
            self.running = None
            self.session.end_change()
            running.ended.set()

    def refuse_during_trial(self) -> None:
        """Raise `ConflictError` naming the trial that is under way."""
        if self.trial is not None:
            raise ConflictError(
                f"`specdash {self.trial.what}` (pid {self.trial.client_pid}) is trying settings on this backend; "
                "wait for its end, or stop it: the original goes back"
            )

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._client, args=(connection,), name="control-client", daemon=True).start()

    def _client(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            # A client that is stopped, and so reads nothing, must not hold a change up.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _READS_WITHIN_S, 0))
            if uid in (0, os.geteuid()):
                _Client(connection, pid, self).talk()


def _sweep(directory: Path) -> None:
    """Remove the sockets that killed runners left."""
    for path in directory.glob("backend-*.sock"):
        number = path.stem.partition("-")[2]
        if number.isdecimal() and not Path(f"/proc/{number}").exists():
            path.unlink(missing_ok=True)


class _Running(Struct, frozen=True):
    """One change under way."""

    words: str
    steps: Steps
    ended: threading.Event = field(default_factory=threading.Event)


class _Client:
    """One connection."""

    def __init__(self, connection: socket.socket, pid: int, runner: ControlSocket) -> None:
        self._connection = connection
        self._pid = pid
        self._runner = runner
        self._sending = threading.Lock()
        self._lock: ApplyLock | None = None
        """Held for a whole trial."""

    def talk(self) -> None:
        """Answer until the client goes away; a trial of its own is undone then."""
        try:
            with self._connection.makefile("rb") as lines:
                while line := lines.readline(LONGEST_LINE):
                    self._send(self._answer(line))
        finally:
            # An edit that was made meanwhile stays: there is no client left to say so to.
            with contextlib.suppress(SpecdashError):
                self._end({})

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            do = {
                "status": self._status,
                "outlook": self._outlook,
                "apply": self._apply,
                "cancel": self._cancel,
                "trial": self._trial,
                "end": self._end,
            }.get(request.get("do"), self._unknown)
            return do(request)
        except SpecdashError as error:
            return {"error": {"code": int(error.exit_code), "reason": str(error)}}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"the control socket was sent what it cannot read ({error})"
            return {"error": {"code": int(ExitCode.USAGE), "reason": reason}}
        except Exception as error:  # noqa: BLE001 - a bug must reach the client, not end in a silent thread
            return {"error": {"code": int(ExitCode.FAILED), "reason": f"unexpected {type(error).__name__}: {error}"}}

    def _unknown(self, request: Mapping[str, Any]) -> dict[str, Any]:
        raise InputError(f"the control socket does not know {request.get('do')!r}")

    def _send(self, answer: Mapping[str, Any]) -> None:
        with self._sending:
            self._connection.sendall(json.dumps(answer).encode() + b"\n")

    def _status(self, _: Mapping[str, Any]) -> dict[str, Any]:
        runner, plan = self._runner, self._runner.session.engine.plan
        return {
            "runner_pid": os.getpid(),
            "env_file": runner.env_file,
            "env_digest": plan.env_digest,
            "url": plan.settings.url,
            "change": running.words if (running := runner.running) is not None else None,
            "trial": runner.trial.what if runner.trial is not None else None,
        }

    def _outlook(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """What clients would feel of a change now: who would wait, for how long, and who would be cut off."""
        settings, env = self._runner.session.engine.plan.settings, self._runner.env
        proxies = fronts([settings.url], env)

        def behind_proxies() -> int:
            count = 0
            for front in proxies:
                with contextlib.suppress(OSError):
                    state = front.state()
                    count += int(state.get("active") or 0) + int(state.get("waiting") or 0)
            return count

        # Asked on both sides of the slots: a request that ends or begins in between is not one of a direct client.
        before = behind_proxies()
        at_all = busy(promise_of(settings, env))
        active = behind_proxies()
        records = [record for record in read_records(applies_file(env)) if record.downtime_s is not None]
        return {
            "proxies": len(proxies),
            "behind_proxy": active,
            "direct": None if at_all is None else max(0, at_all - max(before, active)),
            "last_downtime_s": records[-1].downtime_s if records else None,
            "last_stall_s": records[-1].longest_stall_s if records else None,
        }

    def _apply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        wanted = read(Journal, request["change"])
        if wanted.trial and self._runner.trial is not None and (backend := wanted.edit(Role.BACKEND)) is not None:
            noted = self._runner.trial.trying(backend.new, request.get("boot"), request.get("planned"))
            self._runner.trial = noted.write(self._runner.env)
        gone = threading.Event()

        def listen(steps: Steps, progress: ApplyProgress) -> None:
            # A change goes on without its client; a trial ends with it.
            if not gone.is_set():
                try:
                    self._send({"progress": json_of(progress)})
                except OSError:
                    gone.set()
            if gone.is_set() and wanted.trial:
                steps.cancel()

        return _as_json(self._runner.change(wanted, listen, self._lock if wanted.trial else None))

    def _cancel(self, _: Mapping[str, Any]) -> dict[str, Any]:
        running = self._runner.running
        return {"cancelled": running is not None and running.steps.cancel()}

    def _trial(self, request: Mapping[str, Any]) -> dict[str, Any]:
        runner = self._runner
        if runner.env_file is None:
            raise InputError("this backend reads no env file, so nothing could be put back")
        runner.refuse_during_trial()
        lock = ApplyLock(f"{request['what']} (settings on trial)", runner.env).acquire()
        try:
            plan = runner.session.engine.plan
            runner.trial = trial.begin(Path(runner.env_file), request["what"], self._pid, plan, runner.env)
        except BaseException:
            lock.release()
            raise
        self._lock = lock
        return {"backup": runner.trial.backup}

    def _end(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Put the original of the trial back, and let others change settings again."""
        runner, noted, lock = self._runner, self._runner.trial, self._lock
        self._lock = None
        if noted is None or lock is None:
            return _as_json(None)
        outcome: Outcome | None = None
        try:
            for _try in range(_RESTORE_TRIES):
                wanted = noted.way_back(runner.session.engine.plan.env_digest)
                if wanted is None or runner.session.stopping:
                    break
                outcome = runner.change(wanted, lambda *_: None, lock)
                if outcome.error is None:
                    break
            if outcome is not None and outcome.error is not None:
                with contextlib.suppress(NotWrittenError):
                    noted.abandoned().write(runner.env)
            elif not runner.session.stopping:
                trial.end(runner.env)
        except ConflictError:
            trial.end(runner.env)
            raise
        finally:
            runner.trial = None
            lock.release()
        return _as_json(outcome)


def _as_json(outcome: Outcome | None) -> dict[str, Any]:
    if outcome is None:
        return {"record": None, "changed": False, "slower": False, "problem": None}
    error = outcome.error
    return {
        "record": json_of(outcome.record),
        "changed": outcome.changed,
        "slower": outcome.slower,
        "problem": None if error is None else {"code": int(error.exit_code), "reason": str(error)},
    }
