"""The steps that change something, in their order, from the hold to the settle period.

Each does nothing where its work is done already, so that a recovery can go through them again.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.control import faults, verify
from specdash.control.apply_engine import engine_check, promise
from specdash.control.apply_logs import about_speculation
from specdash.control.apply_services import bring_proxy, in_force, start_backend
from specdash.control.apply_settle import ProxyStanding, request_through_proxy, settle
from specdash.control.apply_steps import StepFailedError
from specdash.control.apply_wait import Passage
from specdash.control.env_store import read_env, replace_env
from specdash.control.key_reach import started_with, why_not_arrived
from specdash.control.service_command import process_values
from specdash.core.applies import STEPS, ApplyKind, Step
from specdash.core.changes import Role
from specdash.core.errors import ConflictError

if TYPE_CHECKING:
    from specdash.control.apply_engine import Engine
    from specdash.control.apply_work import Work
    from specdash.control.journal import JournalEdit

ENGINE_LOAD = "engine load"
"""Key in `ApplyRecord.step_seconds` of what the engine itself took to load."""
_DIRECT_S = 5.0
"""How long requests that did not come through a proxy of ours are waited for: nothing keeps new ones away."""
_DRAIN_POLL_S = 0.05
_PROBE_S = 120.0
_CLIENTS_SERVED = STEPS[STEPS.index(Step.REQUEST) :]


def forward(work: Work) -> None:
    """Make the new version the one in force. Raises what stood in the way; undoing is the caller's."""
    backend, proxy = work.journal.edit(Role.BACKEND), work.journal.edit(Role.PROXY)
    served = work.journal.step in _CLIENTS_SERVED
    passage: Passage | None = None
    if backend is not None and not (served and in_force(work, backend, new=True)):
        _hold(work)
        _drain(work, backend)
    else:
        why = "the backend goes on" if backend is None else "clients are served by it already"
        work.steps.skip(Step.HOLD, why)
        work.steps.skip(Step.DRAIN, why)
    _write(work)
    if backend is not None:
        passage = _backend(work, backend)
    elif proxy is not None:
        _proxy_alone(work, proxy)
    _resume(work, backend, proxy)
    proxies = [ProxyStanding(work.services[Role.PROXY])] if proxy is not None else []
    request_through_proxy(work)
    settle(work, passage, proxies)


def write_edit(edit: JournalEdit, *, new: bool, point: str) -> bool:
    """Put one version of an env file in the place of the other; False when it is there already.

    Raises `ConflictError` when the file holds neither: somebody else changed it.
    """
    now = read_env(Path(edit.env_file))
    data, other = (edit.new, edit.old) if new else (edit.old, edit.new)
    if now.data == data and now.exists is (new or edit.existed):
        return False
    if now.data != other:
        raise ConflictError(f"{edit.env_file} was changed by somebody else meanwhile; their version was left as it is")
    with faults.at_rename(now.target, point):
        if new or edit.existed:
            replace_env(now, data)
        else:
            now.target.unlink(missing_ok=True)
    return True


def _hold(work: Work) -> None:
    with work.steps.step(Step.HOLD):
        work.note(step=Step.HOLD)
        work.close_gate()
        count = work.gate.count if work.gate is not None else 0
        work.steps.say({0: "no proxy to hold", 1: "1 proxy held"}.get(count, f"{count} proxies held"))


def _drain(work: Work, edit: JournalEdit) -> None:
    with work.steps.step(Step.DRAIN):
        work.note(step=Step.DRAIN)
        began = time.monotonic()
        limit = work.journal.drain_timeout_s
        while left := work.requests():
            waited = time.monotonic() - began
            if waited >= limit:
                if not work.journal.force:
                    raise StepFailedError(
                        f"{left} requests were still running after {limit:g} s; give them more time with "
                        "--drain-timeout, or cut them off with --force"
                    )
                work.warn(f"{left} requests were still running after {limit:g} s and were cut off (--force)")
                break
            work.steps.say(f"{left} requests running upstream", min(1.0, waited / limit) if limit else None)
            work.steps.wait(_DRAIN_POLL_S)
        _drain_direct(work, edit, min(_DIRECT_S, limit))
        work.steps.say(f"after {time.monotonic() - began:.1f} s")


def _drain_direct(work: Work, edit: JournalEdit, limit: float) -> None:
    """Requests that were sent straight to the backend: waited for a little, and told of."""
    engine = work.engine(edit)
    if engine is None:
        return
    promise = work.promise(edit, new=False)
    deadline = time.monotonic() + limit
    while left := verify.busy(engine.url, promise):
        if time.monotonic() >= deadline:
            work.warn(f"{left} requests that did not come through a held proxy were cut off")
            return
        work.steps.say(f"{left} requests sent straight to the backend")
        work.steps.wait(_DRAIN_POLL_S)


def _write(work: Work) -> None:
    with work.steps.step(Step.WRITE):
        work.note(step=Step.WRITE)
        for edit in work.journal.edits:
            write_edit(edit, new=True, point=faults.WRITE_TEMP)
            faults.reach(faults.WRITE_RENAMED)
        work.steps.say(", ".join(Path(edit.env_file).name for edit in work.journal.edits))


def _backend(work: Work, edit: JournalEdit) -> Passage:
    service = work.services[Role.BACKEND]
    if in_force(work, edit, new=True):
        work.steps.skip(Step.RESTART, "the new settings are in force already")
        passage = Passage(
            service, work.env, work.steps, edit.new_digest, work.promise(edit, new=True), work.engine(edit)
        )
        passage.old = None
        passage.watch_main()
    else:
        with work.steps.step(Step.RESTART):
            work.note(step=Step.RESTART, touched=_touched(work, Role.BACKEND))
            passage = start_backend(work, edit, new=True)
    with work.steps.step(Step.HEALTH):
        engine = passage.until_healthy(work.journal.health_timeout_s)
        if work.down_since is not None and passage.load_s is not None:
            work.steps.seconds[ENGINE_LOAD] = round(passage.load_s, 4)
        work.up(passage.first_ok)
        work.note(step=Step.HEALTH)
        if not service.reloads:
            _see_what_runs(work, edit, passage, engine)
        work.steps.say(f"healthy, process {engine.pid}")
    promise = passage.promise
    with work.steps.step(Step.SPECULATION):
        work.note(step=Step.SPECULATION)
        try:
            verdict = verify.check_speculation(engine.url, promise)
        except StepFailedError as error:
            raise StepFailedError(str(error), about_speculation(passage.lines()) or passage.explained()) from None
        _take(work, verdict)
    with work.steps.step(Step.PROBE):
        work.note(step=Step.PROBE)
        try:
            limit = min(_PROBE_S, work.journal.health_timeout_s)
            verdict = verify.probe(engine.url, promise, limit, lambda: engine_check(engine.pid, work.env))
        except StepFailedError as error:
            raise StepFailedError(str(error), passage.last_words()) from None
        if not engine.alive:
            raise StepFailedError("it generated, and then its process ended", passage.last_words())
        _take(work, verdict)
    return passage


def _see_what_runs(work: Work, edit: JournalEdit, passage: Passage, engine: Engine) -> None:
    """A service that is not ours reads of its env file what it likes: raise `StepFailedError` where that is not the
    change, and expect from now on what its own process was started with."""
    found = started_with(engine.pid)
    if found is None:
        work.warn(f"whether the change reached process {engine.pid} cannot be seen")
        return
    missing = why_not_arrived(passage.service, engine.pid, *found, edit.key_changes)
    if missing is not None and work.journal.kind is not ApplyKind.ROLLBACK:
        raise StepFailedError(missing)
    values = process_values(*found)
    if values is not None:
        passage.promise = replace(promise(values, work.env), url=passage.promise.url)


def _proxy_alone(work: Work, edit: JournalEdit) -> None:
    with work.steps.step(Step.RESTART):
        work.note(step=Step.RESTART, touched=_touched(work, Role.PROXY))
        done = "in force already" if in_force(work, edit, new=True) else bring_proxy(work, edit, new=True)
        faults.reach(faults.RESTART_ASKED)
        work.steps.say(f"{work.services[Role.PROXY].name} {done}")
    with work.steps.step(Step.HEALTH):
        work.note(step=Step.HEALTH)
        work.steps.say("the proxy answers")
    work.steps.skip(Step.SPECULATION, "the backend goes on")
    work.steps.skip(Step.PROBE, "the backend goes on")


def _resume(work: Work, backend: JournalEdit | None, proxy: JournalEdit | None) -> None:
    with work.steps.step(Step.RESUME):
        both = backend is not None and proxy is not None
        touched = _touched(work, Role.PROXY) if both else work.journal.touched
        work.note(step=Step.RESUME, touched=touched)
        if proxy is not None and both and not proxy.needs_restart and not in_force(work, proxy, new=True):
            bring_proxy(work, proxy, new=True)
        work.open_gate()
        if proxy is not None and both and proxy.needs_restart and not in_force(work, proxy, new=True):
            # Only now: requests that wait in the old process must be let through before it ends.
            bring_proxy(work, proxy, new=True)
        work.steps.say("everything passes again" if backend is not None else "nothing was held")


def _touched(work: Work, role: Role) -> tuple[Role, ...]:
    return tuple(dict.fromkeys((*work.journal.touched, role)))


def _take(work: Work, verdict: verify.Verdict) -> None:
    if verdict.warning is not None:
        work.warn(verdict.warning)
    work.steps.say(verdict.detail)
