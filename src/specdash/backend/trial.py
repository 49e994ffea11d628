"""Settings on trial: what a service ran before configurations were tried on it, on the disk before anything is changed;
and what a runner repairs at its start.

A trial is a connection to the runner: when the client goes away, the original goes back at once. The note is for the
case that the runner itself dies meanwhile, and for dashboards.
"""

from __future__ import annotations

import os
import time
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from specdash.backend.env_store import Backups, read_env
from specdash.backend.journal import Edit, Journal, apply_lock, read_note, remove_note, unfinished, write_note
from specdash.backend.proxies import ProxyHold
from specdash.backend.start_check import healthy
from specdash.backend.transaction import undo_dead
from specdash.collect.run_records import live_proxies
from specdash.core.changes import ApplyKind, ApplyStep, Role, differences
from specdash.core.envfile import decode, parse
from specdash.core.errors import ConflictError, InputError, SpecdashError
from specdash.core.paths import backups_dir, trial_file
from specdash.core.records import JsonRecord
from specdash.core.structs import Masked
from specdash.system.processes import own_start, same_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdash.backend.journal import HeldProxy
    from specdash.backend.launch import LaunchPlan


class TrialJournal(Masked, JsonRecord, Struct, frozen=True):
    """Trials that are under way, or were when the runner died. `pid` is the runner, `client_pid` the command."""

    hidden = ("original",)

    pid: int
    pid_started: float
    at: float
    what: str
    """The command: `bench ab`, `tune`."""
    env_file: str
    original: bytes
    """The env file as it was, secrets included."""
    backup: int
    service: str = "backend"
    """What is on trial, for dashboards."""
    client_pid: int = 0
    tried: tuple[str, ...] = ()
    """SHA-256 of every version that was, or was about to be, written."""
    url: str = ""
    """Where the service answers."""
    boot: int | None = None
    """The boot that is made now, from 1, and how many there will be (`core.trials`)."""
    planned: int | None = None

    @property
    def alive(self) -> bool:
        """Whether its runner still works on it."""
        return same_process(self.pid, self.pid_started)

    def trying(self, data: bytes, boot: int | None, planned: int | None) -> TrialJournal:
        """With a version that is about to be written, and which boot of how many it is."""
        return replace(self, tried=(*self.tried, sha256(data).hexdigest()), boot=boot, planned=planned)

    def way_back(self, running_digest: str | None) -> Journal | None:
        """The change that puts the original back; None when it is in force. Raises `ConflictError` when the env file
        was edited meanwhile: that version stays."""
        snapshot, digest = read_env(Path(self.env_file)), sha256(self.original).hexdigest()
        if snapshot.digest not in (digest, *self.tried):
            raise ConflictError(
                f"{self.env_file} was edited while settings were tried; that version was left as it "
                f"is, and the one from before is backup {self.backup} of `specdash env history`"
            )
        if snapshot.data == self.original and running_digest in (None, digest):
            return None
        before, after = (parse(decode(data)).values for data in (snapshot.data, self.original))
        changes = differences(Role.BACKEND, before, after)
        edit = Edit(Role.BACKEND, self.env_file, snapshot.data, self.original, snapshot.exists, changes, True)
        kind, now, me = ApplyKind.ROLLBACK, time.time(), os.getpid()
        return Journal(0, kind, now, me, own_start(), ApplyStep.LOCK, (edit,), trial=True, force=True)


def read_trial(env: Mapping[str, str] = os.environ) -> TrialJournal | None:
    """The trial that is noted, alive or not. Raises `InputError` for a note that cannot be read."""
    return read_note(trial_file(env), TrialJournal, "note")


def begin(
    env_file: Path, what: str, client_pid: int, plan: LaunchPlan, env: Mapping[str, str] = os.environ
) -> TrialJournal:
    """Note the env file as it is, and keep a backup.

    Raises `ConflictError` where the engine runs another version of the file, or where the original of an earlier trial
    still has to be put back, and `NotWrittenError`.
    """
    left = read_trial(env)
    if left is not None and not left.alive:
        raise ConflictError(
            f"the settings from before `specdash {left.what}` could not be put back (backup {left.backup} of "
            "`specdash env history`); see why in the backend's log, and restart it"
        )
    snapshot = read_env(env_file)
    if not snapshot.exists:
        raise InputError(f"env file {env_file}: does not exist, so nothing could be put back")
    if plan.env_digest not in (None, snapshot.digest):
        raise ConflictError(
            f"{env_file} was edited since the backend was started, so what runs now could not be put back; bring the "
            "edits into force first, with `specdash services restart backend`"
        )
    noted = TrialJournal(
        pid=os.getpid(),
        pid_started=own_start(),
        at=time.time(),
        what=what,
        env_file=str(env_file),
        original=snapshot.data,
        backup=Backups(backups_dir(env)).save(Role.BACKEND, snapshot).number,
        client_pid=client_pid,
        url=plan.settings.url,
    )
    write_note(trial_file(env), noted)
    return noted


# What a runner finds at its start that the one before left half-done. A change (its journal) and a trial (its note)
# hold both versions of the env files, so that nothing else is needed; those of 0.1 have the same form.

_HOLD_S = 600.0
_POLL_S = 0.05


def resume(held: Iterable[HeldProxy], url: str, env: Mapping[str, str] = os.environ) -> None:
    """Keep the proxies that a dead runner held until the backend at `url` answers, then let their clients through."""
    wanted = {(proxy.pid, proxy.url) for proxy in held}
    hold = ProxyHold(lambda _: None, env)
    found = [record for record in live_proxies(env) if (record.pid, record.url) in wanted]
    hold.hold(found, "specdash puts the old settings back", _HOLD_S)
    deadline = time.monotonic() + _HOLD_S
    while hold.held and not healthy(url) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    hold.resume()


def repair(env_file: str, env: Mapping[str, str] = os.environ) -> tuple[list[str], tuple[HeldProxy, ...]]:
    """Undo the change and the trial of a dead process on this env file, or on a proxy's alone: sentences for the log,
    and the proxies that it held.

    Never raises: what cannot be undone is in the sentences, and its journal stays for the next start.
    """
    lines: list[str] = []
    held: tuple[HeldProxy, ...] = ()
    file = os.path.realpath(env_file)
    try:
        with apply_lock("repair", env):
            journal = unfinished(env)
            backend = journal.edit(Role.BACKEND) if journal is not None else None
            if journal is not None and (backend is None or os.path.realpath(backend.env_file) == file):
                held = journal.held
                lines += undo_dead(journal, env)
            noted = read_trial(env)
            if noted is not None and os.path.realpath(noted.env_file) == file and not noted.alive:
                why = "the original is back"
                try:
                    change = noted.way_back(None)
                    for edit in change.edits if change is not None else ():
                        edit.write()
                except ConflictError as error:
                    why = str(error)
                remove_note(trial_file(env))
                lines.append(f"`specdash {noted.what}` was cut short while it tried settings: {why}")
    except ConflictError:
        # Another process is at it, and will finish it.
        return [], ()
    except SpecdashError as error:
        lines.append(str(error))
    return lines, held
