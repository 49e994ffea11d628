"""Brings one version of an env file into force in the service that reads it: a swap, a reload, a restart or a stop."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from specdash.backend.local_http import ask
from specdash.control import faults, verify
from specdash.control.apply_engine import listening_engine, recorded_proxy
from specdash.control.apply_logs import last_lines, telling
from specdash.control.apply_steps import StepFailedError
from specdash.control.apply_wait import LOOK_S, Passage, ReloadRefusedError, because, failure
from specdash.control.key_reach import started_with, why_not_arrived
from specdash.control.services import ServiceState
from specdash.core.applies import ApplyKind
from specdash.core.changes import Role
from specdash.core.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.control.apply_work import Work
    from specdash.control.journal import JournalEdit
    from specdash.control.services import ManagedService

PROXY_S = 60.0
RELOAD_S = 15.0
_LOG_LINES = 30


def in_force(work: Work, edit: JournalEdit, *, new: bool) -> bool:
    """Whether the service runs this version already, by its own word."""
    digest = edit.new_digest if new else edit.old_digest
    service = work.services[edit.role]
    if edit.role is Role.PROXY:
        record = recorded_proxy(service, work.env)
        return record is not None and record.env_digest == digest
    engine = work.engine(edit)
    return engine is not None and engine.digest == digest


def start_backend(work: Work, edit: JournalEdit, *, new: bool) -> Passage:
    """Put the engine of this version where another is, or none; returns once the other one is gone."""
    service = work.services[edit.role]
    status = service.status()
    old = work.engine(edit) if status.alive else None
    digest = edit.new_digest if new else edit.old_digest
    passage = Passage(service, work.env, work.steps, digest, work.promise(edit, new=new), old)
    # An engine that was not well may end by itself while its runner is asked to swap it; a restart loses nothing.
    steady = edit.before.healthy or not new
    known = old is not None and old.digest is not None
    if known and steady and service.reloads and status.state is ServiceState.RUNNING:
        work.steps.say(f"swapping the engine of {service.name}")
        passage.watch_main()
        passage.told()
        service.manager.reload(service.name)
        faults.reach(faults.RESTART_ASKED)
        try:
            passage.until_old_is_gone()
        except ReloadRefusedError:
            # Nothing was stopped, and nothing will be.
            work.note_if_possible(touched=tuple(role for role in work.journal.touched if role is not Role.BACKEND))
            raise
        work.down(passage.down_since)
        return passage
    passage.told()
    if old is not None:
        work.down(passage.told_at)
    restart(work, service, alive=status.alive)
    faults.reach(faults.RESTART_ASKED)
    passage.watch_main()
    return passage


def restart(work: Work, service: ManagedService, *, alive: bool) -> None:
    """Restart the service, or start one that does not run. Raises `ServiceError`."""
    work.steps.say(f"{'restarting' if alive else 'starting'} {service.name}")
    (service.manager.restart if alive else service.manager.start)(service.name)


def stop(work: Work, service: ManagedService) -> None:
    """Stop a service that did not run before either."""
    work.steps.say(f"stopping {service.name}, which did not run before")
    service.manager.stop(service.name)


def bring_proxy(work: Work, edit: JournalEdit, *, new: bool, may_reload: bool = True) -> str:
    """Make the proxy take this version over: by a reload where that is enough and allowed. Returns what was done.

    Raises `StepFailedError` when it does not come into force.
    """
    service = work.services[edit.role]
    status = service.status()
    record = recorded_proxy(service, work.env)
    seen = frozenset(service.manager.log_tail(service.name, _LOG_LINES))
    reloads = may_reload and service.reloads and not edit.needs_restart
    if reloads and status.state is ServiceState.RUNNING and record is not None:
        work.steps.say(f"reloading {service.name}")
        service.manager.reload(service.name)
        _until_proxy(work, edit, None, seen, RELOAD_S, new=new)
        return "took its settings over, no stream dropped"
    restart(work, service, alive=status.alive)
    _until_proxy(work, edit, status.pid, seen, PROXY_S, new=new)
    if new and not service.reloads and work.journal.kind is not ApplyKind.ROLLBACK:
        _see_what_proxy_runs(work, edit)
    return "restarted" if status.alive else "started"


def _see_what_proxy_runs(work: Work, edit: JournalEdit) -> None:
    """Raise `StepFailedError` where a proxy that is not ours was not started with the change."""
    service = work.services[edit.role]
    main = service.status().pid
    listening = listening_engine(main, proxy_url(edit.values(new=True))) if main is not None else None
    found = started_with(listening.pid) if listening is not None else None
    if listening is None or found is None:
        work.warn(f"whether the change reached {service.name} cannot be seen")
        return
    missing = why_not_arrived(service, listening.pid, *found, edit.key_changes)
    if missing is not None:
        raise StepFailedError(missing)


def _until_proxy(
    work: Work, edit: JournalEdit, not_pid: int | None, seen: frozenset[str], longest: float, *, new: bool
) -> None:
    """Wait until a proxy of this version answers. `seen` are log lines from before."""
    digest = edit.new_digest if new else edit.old_digest
    limit = min(longest, work.journal.health_timeout_s)
    service = work.services[edit.role]
    main = service.status()
    deadline = time.monotonic() + limit
    while not _proxy_answers(work, edit, digest, not_pid, new=new):
        status = service.status()
        what = failure(main, status)
        if what is not None or time.monotonic() > deadline:
            lines = [line for line in service.manager.log_tail(service.name, _LOG_LINES) if line not in seen]
            told = telling(lines) or last_lines(lines)
            words = what or f"did not take its settings over within {limit:g} s"
            raise StepFailedError(f"{service.name} {words}{because(status, told)}", told)
        work.steps.wait(4 * LOOK_S)


def _proxy_answers(work: Work, edit: JournalEdit, digest: str, not_pid: int | None, *, new: bool) -> bool:
    service = work.services[edit.role]
    if service.reloads:
        record = recorded_proxy(service, work.env)
        if record is None or record.env_digest != digest or record.pid == not_pid:
            return False
        url = record.url
    else:
        status = service.status()
        url = proxy_url(edit.values(new=new))
        if status.pid is None or status.pid == not_pid or listening_engine(status.pid, url) is None:
            return False
    try:
        ask(url, "/health", timeout=verify.ANSWER_S)
    except OSError:
        return False
    return True


def proxy_url(values: Mapping[str, str]) -> str:
    """Where a proxy that is not specdash's is asked from this machine, by its env."""
    host, port = values.get("PROXY_HOST") or "127.0.0.1", values.get("PROXY_PORT") or "4000"
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://{host}:{port}"


def check_can_run(service: ManagedService) -> None:
    """Raise `ServiceError` for a service that its manager does not know, or a manager that does not answer."""
    service.manager.bring_up()
    status = service.status()
    if status.state is ServiceState.MISSING:
        raise ServiceError(
            f"{service.name}: {status.detail or 'its manager does not know it'} ({service.origin}); nothing was changed"
        )
