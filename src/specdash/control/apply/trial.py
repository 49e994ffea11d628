"""Settings on trial: what a service ran before configurations were tried on it, on the disk before anything is changed.

Each trial is an ordinary apply; what makes it one is the note that is there while it lasts, one JSON file, mode 0600.
It keeps every other apply away, and whoever finds it after its process has died can put the original back: the bytes
are in it.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import field, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from specdash.control.apply.engine import recorded_engine, service_promise
from specdash.control.apply.journal import read_note
from specdash.control.apply.plan import ApplyPlan, edit_of, findings, service_of
from specdash.control.env_store import Backups, read_env
from specdash.core.changes import ApplyKind, Role, differences
from specdash.core.env_edit import with_changes
from specdash.core.envfile import decode, parse
from specdash.core.errors import ConflictError, InputError, NotWrittenError, ServiceError, UnfinishedApplyError
from specdash.core.paths import backups_dir, trial_file
from specdash.core.records import JsonRecord, read
from specdash.system import files
from specdash.system.data import dataclass
from specdash.system.processes import own_start, same_process
from specdash.system.text import counted, timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.control.env_store import EnvSnapshot
    from specdash.control.services.services import Deployment, ManagedService

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Trial(JsonRecord):
    """Trials that are under way, or were when their process died."""

    pid: int
    pid_started: float
    at: float
    what: str
    """The command: `bench ab`, `tune`."""
    service: str
    env_file: str
    original: bytes = field(repr=False)
    """The env file as it was, secrets included."""
    backup: int
    tried: tuple[str, ...] = ()
    """SHA-256 of every version that was, or was about to be, written."""
    url: str = ""
    """Where the service answers, for whoever watches it; empty in notes of versions that did not say."""
    boot: int | None = None
    """The boot that is made now, from 1, and how many there will be (`core.trials`)."""
    planned: int | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of the original."""
        return sha256(self.original).hexdigest()

    @property
    def alive(self) -> bool:
        """Whether its process still works on it."""
        return same_process(self.pid, self.pid_started)

    @property
    def ours(self) -> bool:
        """Whether that is this process."""
        return self.pid == os.getpid() and self.alive

    @property
    def words(self) -> str:
        """What was cut short, in a line."""
        when = timestamp(self.at)
        tried = f"after {counted(len(self.tried), 'configuration')}"
        return f"`specdash {self.what}` of {when} was cut short {tried}, and {self.service} runs one of them"

    @property
    def values(self) -> dict[str, str]:
        """Key to value of the original. Holds secrets."""
        return parse(decode(self.original)).values


def read_trial(env: Mapping[str, str] = os.environ) -> Trial | None:
    """The trial that is noted, alive or not. Raises `InputError` for a note that cannot be read."""
    return read_note(trial_file(env), lambda text: read(Trial, json.loads(text)), "note")


def abandoned(env: Mapping[str, str] = os.environ) -> Trial | None:
    """The trial whose process died before it had put the original back. Raises `InputError`."""
    trial = read_trial(env)
    return None if trial is None or trial.alive else trial


def refuse_during_trial(env: Mapping[str, str] = os.environ) -> None:
    """Raise `ConflictError` while somebody tries settings, `UnfinishedApplyError` where that was cut short."""
    trial = read_trial(env)
    if trial is None:
        return
    if trial.alive:
        raise ConflictError(
            f"`specdash {trial.what}` (pid {trial.pid}) is trying settings on {trial.service}; wait for its end, or "
            "stop it: it puts the original back"
        )
    raise UnfinishedApplyError(f"{trial.words}; `specdash recover` restores the previous settings")


def begin(service: ManagedService, what: str, env: Mapping[str, str] = os.environ) -> Trial:
    """Note the service as it is, and keep a backup. Raises as `refuse_during_trial` does, and `NotWrittenError`."""
    refuse_during_trial(env)
    snapshot = read_env(service.env_file)
    if not snapshot.exists:
        raise InputError(f"env file {service.env_file}: does not exist, so nothing could be put back")
    backup = Backups(backups_dir(env)).save(Role.BACKEND, snapshot)
    trial = Trial(
        pid=os.getpid(),
        pid_started=own_start(),
        at=time.time(),
        what=what,
        service=service.name,
        env_file=str(service.env_file),
        original=snapshot.data,
        backup=backup.number,
        url=service_promise(service, parse(decode(snapshot.data)).values, env).url,
    )
    _write(trial, env)
    return trial


def adopt(trial: Trial, env: Mapping[str, str] = os.environ) -> Trial:
    """Take over a trial whose process died. Raises `ConflictError` when it lives, or another has taken it over."""
    now = read_trial(env)
    if now is None or now.alive:
        raise ConflictError("somebody else is at that trial; wait for its end")
    mine = replace(trial, pid=os.getpid(), pid_started=own_start())
    _write(mine, env)
    return mine


def plan_trial(
    trial: Trial,
    deployment: Deployment,
    configuration: Mapping[str, str],
    env: Mapping[str, str] = os.environ,
    *,
    boot: int | None = None,
    planned: int | None = None,
) -> tuple[Trial, ApplyPlan]:
    """The apply that puts `configuration` over the original, with the trial that knows of it, which is noted already.
    `boot` of `planned` is for whoever watches.

    Always a change, so that the same configuration twice is two starts. An empty value unsets a key. Raises
    `ConflictError` when somebody else changed the env file, `EnvFileError` for what an env file cannot hold.
    """
    service, snapshot = _subject(trial, deployment)
    wanted = {key: value or None for key, value in configuration.items()}
    text = with_changes(parse(decode(trial.original)), wanted)
    data = _marked(text.encode(), trial)
    after = parse(decode(data)).values
    changed = differences(Role.BACKEND, snapshot.file.values, after)
    edit = edit_of(service, snapshot, data, changed)
    plan = ApplyPlan(deployment, (edit,), findings((edit,), deployment, env), trial=True)
    noted = replace(trial, tried=(*trial.tried, sha256(data).hexdigest()), boot=boot, planned=planned)
    if not plan.refused:
        _write(noted, env)
    return noted, plan


def plan_restore(trial: Trial, deployment: Deployment, env: Mapping[str, str] = os.environ) -> ApplyPlan:
    """The apply that puts the original back; empty when it is in force. Raises `ConflictError` when somebody else
    changed the env file."""
    service, snapshot = _subject(trial, deployment)
    engine = recorded_engine(service, env)
    as_before = engine is None or engine.digest in (None, trial.digest)
    if snapshot.data == trial.original and as_before and service.status().alive:
        return ApplyPlan(deployment, (), kind=ApplyKind.ROLLBACK, trial=True)
    changed = differences(Role.BACKEND, snapshot.file.values, trial.values)
    edit = edit_of(service, snapshot, trial.original, changed)
    kind = ApplyKind.ROLLBACK
    return ApplyPlan(deployment, (edit,), findings((edit,), deployment, env, back=True), kind=kind, trial=True)


def end(env: Mapping[str, str] = os.environ) -> None:
    """The original is in force, or somebody else's version: nothing is to be put back any more."""
    path = trial_file(env)
    path.unlink(missing_ok=True)
    files.sweep(path.parent)


def _subject(trial: Trial, deployment: Deployment) -> tuple[ManagedService, EnvSnapshot]:
    service = service_of(deployment, Role.BACKEND)
    if str(service.env_file) != trial.env_file:
        raise ServiceError(
            f"the trial was on {trial.service} with {trial.env_file}, and {service.name} reads {service.env_file}; "
            "name the service with --backend-service"
        )
    snapshot = read_env(service.env_file)
    if snapshot.digest not in (trial.digest, *trial.tried):
        raise ConflictError(
            f"{service.env_file} was changed by somebody else while settings were tried; their version was left as it "
            f"is, and the one from before is backup {trial.backup} of `specdash env history`"
        )
    return service, snapshot


def _marked(data: bytes, trial: Trial) -> bytes:
    """With a first line that says so to whoever looks, and that makes every trial a version of its own."""
    mark, rest = (data[:3], data[3:]) if data.startswith(_BYTE_ORDER_MARK) else (b"", data)
    line = (
        f"# On trial ({trial.what}, {len(trial.tried) + 1}, {time.time():.3f}): backup {trial.backup} has the settings "
        "from before, `specdash recover` puts them back.\n"
    )
    return mark + line.encode() + rest


def _write(trial: Trial, env: Mapping[str, str]) -> None:
    path = trial_file(env)
    with files.writing(path, NotWrittenError):
        files.save(path, trial.to_json().encode())
