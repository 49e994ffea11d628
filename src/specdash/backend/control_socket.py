"""The runner's control socket: changes of its settings, one JSON object a line.

A client sends one request a line: `{"do": "apply" | "trial" | "cancel" | "status" | "outlook", ...}`. The runner
answers with any number of `{"progress": {...}}` lines and then one line of the result, or
`{"error": {"code": N, "reason": "..."}}` for what was refused, with an exit code of docs/scripting.md. A client that
goes away changes nothing: what it asked for goes on, and is recorded. Only a trial lives as long as its connection.

The socket is mode 0600, and only root and the runner's own user may connect.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.backend import trial
from specdash.backend.journal import ApplyLock, Journal, describe, read_records
from specdash.backend.proxy_hold import fronts
from specdash.backend.start_check import busy, promise_of
from specdash.backend.steps import Steps
from specdash.backend.transaction import Transaction
from specdash.core.changes import Role
from specdash.core.errors import ConflictError, InputError, SpecdashError
from specdash.core.paths import applies_file, run_records_dir, runtime_dir
from specdash.core.structs import json_of
from specdash.system.sockets import short_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.backend.session import BackendSession
    from specdash.backend.transaction import Outcome
    from specdash.core.changes import ApplyProgress

LONGEST_LINE = 16 * 1024 * 1024
_CLOSE_S = 5.0
_GONE_POLL_S = 0.1
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
        self._closing = False
        self._listening = socket.socket(socket.AF_UNIX)
        name = f"backend-{os.getpid()}.sock"
        places = [place for place in (runtime_dir(env), run_records_dir(env)) if place is not None]
        for directory in places:
            path = directory / name
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
        if self.path is not None:
            threading.Thread(target=self._accept, name="control", daemon=True).start()

    def close(self) -> None:
        """The runner ends: a change that is under way puts the old files back; the socket is removed."""
        self._closing = True
        self._listening.close()
        if self.path is not None:
            Path(self.path).unlink(missing_ok=True)
        if self.running is not None:
            self.running.steps.cancel()
            self.running.join(_CLOSE_S)

    # One change at a time, in a thread of its own.

    def start(
        self,
        wanted: Journal,
        lock: ApplyLock | None = None,
        listen: Callable[[ApplyProgress], None] = lambda _: None,
    ) -> _Running:
        """Begin a change, whose reports go to `listen`.

        Raises `ConflictError` while another one runs, `InputError` for a foreign env file.
        """
        backend = wanted.edit(Role.BACKEND)
        if backend is not None and (
            self.env_file is None or os.path.realpath(backend.env_file) != os.path.realpath(self.env_file)
        ):
            raise InputError(f"{backend.env_file}: this backend reads {self.env_file or 'no env file'}")
        with self._starting:
            if self.running is not None and self.running.is_alive():
                raise ConflictError(f"another change is under way: {self.running.words}; wait for its end")
            if not wanted.trial:
                self.refuse_during_trial()
            self.running = running = _Running(self.session, wanted, self.env, lock, listen)
            running.start()
        return running

    def refuse_during_trial(self) -> None:
        """Raise `ConflictError` naming the trial that is under way."""
        if self.trial is not None:
            raise ConflictError(
                f"`specdash {self.trial.what}` (pid {self.trial.client_pid}) is trying settings on this backend; "
                "wait for its end, or stop it: the original goes back"
            )

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._client, args=(connection,), name="control-client", daemon=True).start()

    def _client(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid not in (0, os.geteuid()):
                return
            _Client(connection, pid, self).talk()


def _sweep(directory: Path) -> None:
    """Remove the sockets that killed runners left."""
    for path in directory.glob("backend-*.sock"):
        number = path.stem.partition("-")[2]
        if number.isdecimal() and not Path(f"/proc/{number}").exists():
            path.unlink(missing_ok=True)


class _Running(threading.Thread):
    """One change under way, in its thread."""

    def __init__(
        self,
        session: BackendSession,
        wanted: Journal,
        env: Mapping[str, str],
        lock: ApplyLock | None,
        listen: Callable[[ApplyProgress], None],
    ) -> None:
        super().__init__(name="change", daemon=True)
        self.words = f"{wanted.kind} {describe(tuple(change for edit in wanted.edits for change in edit.changes))}"
        self.steps = Steps(listen)
        self.outcome: Outcome | None = None
        self.error: SpecdashError | None = None
        self._session = session
        self._transaction = Transaction(wanted, session, self.steps, env, lock=lock)

    def run(self) -> None:
        """The change, from the lock to the record."""
        self._session.begin_change()
        try:
            self.outcome = self._transaction.run()
        except SpecdashError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - a bug must reach the client, not end in a silent thread
            self.error = SpecdashError(f"unexpected {type(error).__name__}: {error}")
        finally:
            self._session.end_change()


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
                    self._answer(line)
        finally:
            if self._lock is not None:
                # An edit that was made meanwhile stays: there is no client left to say so to.
                with contextlib.suppress(SpecdashError):
                    self._end_trial()

    def _answer(self, line: bytes) -> None:
        try:
            request = json.loads(line)
            do = {
                "status": self._status,
                "outlook": self._outlook,
                "apply": self._apply,
                "cancel": self._cancel,
                "trial": self._begin_trial,
                "end": self._end,
            }.get(request.get("do"))
            if do is None:
                raise InputError(f"the control socket does not know {request.get('do')!r}")
            answer = do(request)
        except SpecdashError as error:
            answer = {"error": {"code": int(error.exit_code), "reason": str(error)}}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            answer = {"error": {"code": 2, "reason": f"the control socket was sent what it cannot read ({error})"}}
        self._send(answer)

    def _send(self, answer: Mapping[str, Any]) -> None:
        with self._sending:
            self._connection.sendall(json.dumps(answer).encode() + b"\n")

    def _status(self, _: Mapping[str, Any]) -> dict[str, Any]:
        session, running = self._runner.session, self._runner.running
        under_way = running if running is not None and running.is_alive() else None
        return {
            "runner_pid": os.getpid(),
            "env_file": self._runner.env_file,
            "env_digest": session.engine.plan.env_digest,
            "url": session.engine.plan.settings.url,
            "change": under_way.words if under_way is not None else None,
            "trial": self._runner.trial.what if self._runner.trial is not None else None,
        }

    def _outlook(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """What clients would feel of a change now: who would wait, for how long, and who would be cut off."""
        settings = self._runner.session.engine.plan.settings
        proxies = fronts([settings.url], self._runner.env)

        def behind_proxies() -> int:
            count = 0
            for front in proxies:
                with contextlib.suppress(OSError):
                    state = front.state()
                    count += int(state.get("active") or 0) + int(state.get("waiting") or 0)
            return count

        # Asked on both sides of the slots: a request that ends or begins in between is not one of a direct client.
        before = behind_proxies()
        at_all = busy(settings.url, promise_of(settings, self._runner.env))
        active = behind_proxies()
        records = [record for record in read_records(applies_file(self._runner.env)) if record.downtime_s is not None]
        last = records[-1] if records else None
        return {
            "proxies": len(proxies),
            "behind_proxy": active,
            "direct": None if at_all is None else max(0, at_all - max(before, active)),
            "last_downtime_s": last.downtime_s if last is not None else None,
            "last_stall_s": last.longest_stall_s if last is not None else None,
        }

    def _apply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        wanted = Journal.from_json(json.dumps(request["change"]))
        if wanted.trial and self._runner.trial is not None:
            backend = wanted.edit(Role.BACKEND)
            if backend is not None:
                step = request.get("boot"), request.get("planned")
                self._runner.trial = trial.note_version(self._runner.trial, backend.new, step, self._runner.env)
        gone = threading.Event()

        def listen(progress: ApplyProgress) -> None:
            # A client that is gone, or that does not read, must not hold the change up.
            if not gone.is_set():
                try:
                    self._send({"progress": json_of(progress)})
                except OSError:
                    gone.set()

        running = self._runner.start(wanted, self._lock if wanted.trial else None, listen)
        while running.is_alive():
            running.join(_GONE_POLL_S)
            if wanted.trial and self._is_gone():
                running.steps.cancel()
        if running.error is not None:
            raise running.error
        return _as_json(running.outcome)

    def _is_gone(self) -> bool:
        """Whether the client has closed the connection."""
        if not select.select([self._connection], [], [], 0)[0]:
            return False
        try:
            return not self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return True

    def _cancel(self, _: Mapping[str, Any]) -> dict[str, Any]:
        running = self._runner.running
        return {"cancelled": running is not None and running.is_alive() and running.steps.cancel()}

    def _begin_trial(self, request: Mapping[str, Any]) -> dict[str, Any]:
        file = self._runner.env_file
        if file is None:
            raise InputError("this backend reads no env file, so nothing could be put back")
        self._runner.refuse_during_trial()
        lock = ApplyLock(f"{request['what']} (settings on trial)", self._runner.env).acquire()
        try:
            plan = self._runner.session.engine.plan
            self._runner.trial = trial.begin(Path(file), request["what"], self._pid, plan, self._runner.env)
        except BaseException:
            lock.release()
            raise
        self._lock = lock
        return {"backup": self._runner.trial.backup}

    def _end(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return _as_json(self._end_trial())

    def _end_trial(self) -> Outcome | None:
        """Put the original back and let others change settings again."""
        noted, lock = self._runner.trial, self._lock
        self._lock = None
        if noted is None or lock is None:
            return None
        outcome: Outcome | None = None
        try:
            running = self._runner.running
            if running is not None:
                running.steps.cancel()
                running.join()
            if self._runner.session.stopping:
                return None
            for _ in range(_RESTORE_TRIES):
                wanted = trial.way_back(noted, self._runner.session.engine.plan.env_digest)
                if wanted is None:
                    break
                running = self._runner.start(wanted, lock)
                running.join()
                outcome = running.outcome
                if outcome is not None and outcome.error is None:
                    break
            if outcome is None or outcome.error is None:
                trial.end(self._runner.env)
            else:
                trial.abandon(noted, self._runner.env)
        except ConflictError:
            trial.end(self._runner.env)
            raise
        finally:
            self._runner.trial = None
            lock.release()
        return outcome


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
