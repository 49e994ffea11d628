"""The runner's control socket: changes of its settings, one JSON object a line.

A client sends one request a line: `{"do": "apply" | "trial" | "end" | "cancel" | "status", ...}`. The runner
answers with any number of `{"progress": {...}}` lines and then one line of the result, or
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
import socketserver
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from specdash.backend import trial
from specdash.backend.journal import Journal, apply_lock, remove_note, write_note
from specdash.backend.steps import Steps
from specdash.backend.transaction import Transaction
from specdash.core.changes import Role
from specdash.core.errors import ConflictError, ExitCode, InputError, NotWrittenError, SpecdashError
from specdash.core.paths import run_records_dir, runtime_dir, trial_file
from specdash.core.records import read
from specdash.core.structs import json_of
from specdash.system.files import file_digest, short_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.backend.session import BackendSession
    from specdash.backend.transaction import Outcome
    from specdash.core.changes import ApplyProgress

LONGEST_LINE = 16 * 1024 * 1024
_CLOSE_S = 5.0
_READS_WITHIN_S = 2
_RESTORE_TRIES = 2


class ControlSocket(socketserver.ThreadingUnixStreamServer):
    """Listens for the clients of one runner. `path` is None where no socket could be made, and `problem` says why."""

    daemon_threads = True

    def __init__(self, session: BackendSession, env: Mapping[str, str] = os.environ) -> None:
        super().__init__("", lambda *connection: _Client(self, *connection), bind_and_activate=False)
        self.session = session
        self.env = env
        self.env_file = session.engine.plan.env_file
        self.path: str | None = None
        self.problem = ""
        self.steps: Steps | None = None
        """Those of the change that is under way."""
        self.words = ""
        """What it is."""
        self.trial: trial.TrialJournal | None = None
        self._one_change = threading.Lock()
        for directory in filter(None, (runtime_dir(env), run_records_dir(env))):
            path = directory / f"backend-{os.getpid()}.sock"
            try:
                directory.mkdir(parents=True, exist_ok=True, mode=0o700)
                for left in directory.glob("backend-*.sock"):
                    # That of a runner that was killed, or of one of this number before.
                    if left == path or not Path(f"/proc/{left.stem.partition('-')[2]}").exists():
                        left.unlink(missing_ok=True)
                with short_path(path) as short:
                    self.socket.bind(short)
                path.chmod(0o600)
                self.server_activate()
            except OSError as error:
                self.problem = f"no control socket at {path} ({error.strerror or error}): settings cannot be applied"
                continue
            self.path, self.problem = str(path), ""
            return

    def serve(self) -> None:
        """Take clients from now on, each in a thread of its own."""
        plan = self.session.engine.plan
        if not plan.refused and file_digest(self.env_file) != plan.env_digest:
            # Changed while the start was planned, when there was no runner yet to ask for it.
            self.session.received.append(signal.SIGUSR1)
        if self.path is not None:
            threading.Thread(target=self.serve_forever, args=(3600,), name="control", daemon=True).start()

    def end(self) -> None:
        """The runner ends: a change that is under way puts the old files back; the socket is removed."""
        if self.path is not None:
            Path(self.path).unlink(missing_ok=True)
        if self.steps is not None:
            self.steps.cancel()
            self._one_change.acquire(timeout=_CLOSE_S)

    def change(
        self, wanted: Journal, listen: Callable[[Steps, ApplyProgress], None], *, locked: bool = False
    ) -> Outcome:
        """Make a change, one at a time, in the calling thread; its reports go to `listen`.

        Raises `ConflictError` while another one runs, `InputError` for a foreign env file.
        """
        backend = wanted.edit(Role.BACKEND)
        if backend is not None and os.path.realpath(backend.env_file) != os.path.realpath(self.env_file or ""):
            raise InputError(f"{backend.env_file}: this backend reads {self.env_file or 'no env file'}")
        steps = Steps(lambda progress: listen(steps, progress))
        if not self._one_change.acquire(blocking=False):
            raise ConflictError(f"another change is under way: {self.words}; wait for its end")
        try:
            if not wanted.trial:
                self.refuse_during_trial()
            self.words, self.steps = f"{wanted.kind} {wanted.what}", steps
            with self.session.change():
                return Transaction(wanted, self.session, steps, self.env, locked=locked).run()
        finally:
            self.steps = None
            self._one_change.release()

    def refuse_during_trial(self) -> None:
        """Raise `ConflictError` naming the trial that is under way."""
        if self.trial is not None:
            raise ConflictError(
                f"`specdash {self.trial.what}` (pid {self.trial.client_pid}) is trying settings on this backend; "
                "wait for its end, or stop it: the original goes back"
            )


class _Client(socketserver.StreamRequestHandler):
    """One connection, answered in a thread of its own until the client goes away; a trial of its own is undone then."""

    def __init__(self, runner: ControlSocket, *connection: Any) -> None:
        self._runner = runner
        self._lock: contextlib.ExitStack | None = None
        """Held for a whole trial."""
        super().__init__(*connection)

    def handle(self) -> None:
        """Answer each line."""
        self._pid, uid, _ = struct.unpack("3i", self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        # A client that is stopped, and so reads nothing, must not hold a change up.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _READS_WITHIN_S, 0))
        try:
            with contextlib.suppress(OSError):
                while uid in (0, os.geteuid()) and (line := self.rfile.readline(LONGEST_LINE)):
                    self._send(self._answer(line))
        finally:
            # An edit that was made meanwhile stays: there is no client left to say so to.
            with contextlib.suppress(SpecdashError):
                self.do_end({})

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            do: Callable[[Any], dict[str, Any]] = getattr(self, f"do_{request['do']}")
            return do(request)
        except SpecdashError as error:
            code, reason = error.exit_code, str(error)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            code, reason = ExitCode.USAGE, f"the control socket was sent what it cannot read ({error})"
        except Exception as error:  # noqa: BLE001 - a bug must reach the client, not end in a silent thread
            code, reason = ExitCode.FAILED, f"unexpected {type(error).__name__}: {error}"
        return {"error": {"code": int(code), "reason": reason}}

    def _send(self, answer: Mapping[str, Any]) -> None:
        self.wfile.write(json.dumps(answer).encode() + b"\n")

    def do_status(self, _: Mapping[str, Any]) -> dict[str, Any]:
        runner, plan = self._runner, self._runner.session.engine.plan
        return {
            "runner_pid": os.getpid(),
            "env_file": runner.env_file,
            "env_digest": plan.env_digest,
            "url": plan.settings.url,
            "change": runner.words if runner.steps is not None else None,
            "trial": runner.trial.what if runner.trial is not None else None,
        }

    def do_apply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        runner, wanted = self._runner, read(Journal, request["change"])
        if wanted.trial and runner.trial is not None and (backend := wanted.edit(Role.BACKEND)) is not None:
            runner.trial = runner.trial.trying(backend.new, request.get("boot"), request.get("planned"))
            write_note(trial_file(runner.env), runner.trial)
        is_gone = False

        def listen(steps: Steps, progress: ApplyProgress) -> None:
            nonlocal is_gone
            # A change goes on without its client; a trial ends with it.
            try:
                if not is_gone:
                    self._send({"progress": json_of(progress)})
            except OSError:
                is_gone = True
            if is_gone and wanted.trial:
                steps.cancel()

        return _as_json(runner.change(wanted, listen, locked=wanted.trial and self._lock is not None))

    def do_cancel(self, _: Mapping[str, Any]) -> dict[str, Any]:
        steps = self._runner.steps
        return {"cancelled": steps is not None and steps.cancel()}

    def do_trial(self, request: Mapping[str, Any]) -> dict[str, Any]:
        runner, what = self._runner, request["what"]
        if runner.env_file is None:
            raise InputError("this backend reads no env file, so nothing could be put back")
        runner.refuse_during_trial()
        with contextlib.ExitStack() as on_failure:
            on_failure.enter_context(apply_lock(f"{what} (settings on trial)", runner.env))
            plan = runner.session.engine.plan
            runner.trial = trial.begin(Path(runner.env_file), what, self._pid, plan, runner.env)
            self._lock = on_failure.pop_all()
        return {"backup": runner.trial.backup}

    def do_end(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Put the original of the trial back, and let others change settings again."""
        runner, noted, lock = self._runner, self._runner.trial, self._lock
        self._lock = None
        if noted is None or lock is None:
            return _as_json(None)
        note, outcome = trial_file(runner.env), None
        try:
            for _try in range(_RESTORE_TRIES):
                wanted = noted.way_back(runner.session.engine.plan.env_digest)
                if wanted is None or runner.session.stopping:
                    break
                outcome = runner.change(wanted, lambda *_: None, locked=True)
                if outcome.error is None:
                    break
            if outcome is not None and outcome.error is not None:
                # The original does not start: the note stays for the next start, and says that no one works on it.
                with contextlib.suppress(NotWrittenError):
                    write_note(note, replace(noted, pid=0, pid_started=0.0))
            elif not runner.session.stopping:
                remove_note(note)
        except ConflictError:
            remove_note(note)
            raise
        finally:
            runner.trial = None
            lock.close()
        return _as_json(outcome)


def _as_json(outcome: Outcome | None) -> dict[str, Any]:
    if outcome is None:
        return {"record": None, "changed": False, "problem": None}
    error = outcome.error
    problem = None if error is None else {"code": int(error.exit_code), "reason": str(error)}
    return {**json_of(outcome, "record changed"), "problem": problem}
