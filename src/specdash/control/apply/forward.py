"""The steps that change something, in their order, from the hold to the settle period.

Each does nothing where its work is done already, so that a recovery can go through them again.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.collect.discover import place, recorded_key
from specdash.control.apply import steps
from specdash.control.apply.engine import (
    about_speculation,
    engine_check,
    last_lines,
    main_engine,
    promise,
    recorded_proxy,
    service_promise,
    telling,
)
from specdash.control.apply.steps import LOOK_S, EngineSwap, ReloadRefusedError, StepFailedError, because, failure
from specdash.control.env_store import read_env, replace_env
from specdash.control.services.service_command import process_values, started_with, why_not_arrived
from specdash.control.services.services import ServiceState
from specdash.core.changes import STEPS, ApplyKind, ApplyStep, Role
from specdash.core.errors import ConflictError, ServiceError
from specdash.llama.server_answers import error_message
from specdash.system.http import ask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.control.apply.engine import ServingEngine
    from specdash.control.apply.journal import Edit
    from specdash.control.apply.transaction import Transaction
    from specdash.control.services.services import ManagedService
    from specdash.system.http import HttpReply


# Brings one version of an env file into force in the service that reads it: a swap, a reload, a restart or a stop.

PROXY_S = 60.0
RELOAD_S = 15.0
_LOG_LINES = 30


def in_force(work: Transaction, edit: Edit, *, new: bool) -> bool:
    """Whether the service runs this version already, by its own word."""
    digest = edit.new_digest if new else edit.old_digest
    service = work.services[edit.role]
    if edit.role is Role.PROXY:
        record = recorded_proxy(service, work.env)
        return record is not None and record.env_digest == digest
    engine = work.engine(edit)
    return engine is not None and engine.digest == digest


def start_backend(work: Transaction, edit: Edit, *, new: bool) -> EngineSwap:
    """Put the engine of this version where another is, or none; returns once the other one is gone."""
    service = work.services[edit.role]
    status = service.status()
    old = work.engine(edit) if status.alive else None
    digest = edit.new_digest if new else edit.old_digest
    swap = EngineSwap(service, work.env, work.steps, digest, work.promise(edit, new=new), old)
    # An engine that was not well may end by itself while its runner is asked to swap it; a restart loses nothing.
    steady = edit.before.healthy or not new
    known = old is not None and old.digest is not None
    if known and steady and service.reloads and status.state is ServiceState.RUNNING:
        work.steps.say(f"swapping the engine of {service.name}")
        swap.watch_main()
        swap.asked()
        service.manager.reload(service.name)
        try:
            swap.until_old_is_gone()
        except ReloadRefusedError:
            # Nothing was stopped, and nothing will be.
            work.note_if_possible(touched=tuple(role for role in work.journal.touched if role is not Role.BACKEND))
            raise
        work.down(swap.down_since)
        return swap
    swap.asked()
    if old is not None:
        work.down(swap.asked_at)
    restart(work, service, alive=status.alive)
    swap.watch_main()
    return swap


def restart(work: Transaction, service: ManagedService, *, alive: bool) -> None:
    """Restart the service, or start one that does not run. Raises `ServiceError`."""
    work.steps.say(f"{'restarting' if alive else 'starting'} {service.name}")
    (service.manager.restart if alive else service.manager.start)(service.name)


def stop(work: Transaction, service: ManagedService) -> None:
    """Stop a service that did not run before either."""
    work.steps.say(f"stopping {service.name}, which did not run before")
    service.manager.stop(service.name)


def bring_proxy(work: Transaction, edit: Edit, *, new: bool, may_reload: bool = True) -> str:
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


def _see_what_proxy_runs(work: Transaction, edit: Edit) -> None:
    """Raise `StepFailedError` where a proxy that is not ours was not started with the change."""
    service = work.services[edit.role]
    listening = main_engine(service.status(), proxy_url(edit.values(new=True)))
    found = started_with(listening.pid) if listening is not None else None
    if listening is None or found is None:
        work.warn(f"whether the change reached {service.name} cannot be seen")
        return
    missing = why_not_arrived(service, listening.name, *found, edit.changes)
    if missing is not None:
        raise StepFailedError(missing)


def _until_proxy(
    work: Transaction, edit: Edit, not_pid: int | None, seen: frozenset[str], longest: float, *, new: bool
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


def _proxy_answers(work: Transaction, edit: Edit, digest: str, not_pid: int | None, *, new: bool) -> bool:
    service = work.services[edit.role]
    if service.reloads:
        record = recorded_proxy(service, work.env)
        if record is None or record.env_digest != digest or record.pid == not_pid:
            return False
        url = record.url
    else:
        status = service.status()
        url = proxy_url(edit.values(new=new))
        listening = main_engine(status, url)
        if listening is None or listening.pid == not_pid:
            return False
    try:
        ask(url, "/health", timeout=steps.ANSWER_S, verified=False)
    except OSError:
        return False
    return True


def proxy_url(values: Mapping[str, str]) -> str:
    """Where a proxy that leaves no record is asked, by its env."""
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


# After the clients are served again: one request through the proxy, and a time in which everything has to go on.
#
# What goes wrong here is rolled back like a failed restart, with the clients held again meanwhile.


_REQUEST_S = 120.0
_REQUEST_TOKENS = 8
_AGAIN_S = 0.2
_NOT_YET = (429, 503, 529)
"""The upstream is on its way, or has no slot free at this moment."""
_LOOK_S = 0.25
_SPECULATION_S = 2.0
_DEAF_S = 20.0
"""How long a process that lives may leave /health unanswered: a starved machine is no dead server."""


class ProxyStanding:
    """A proxy that was changed, as it has to stay from now on."""

    def __init__(self, service: ManagedService) -> None:
        self._service = service
        self._main = service.status()

    def check(self) -> None:
        """Raise `StepFailedError` when it has ended, or was started again."""
        status = self._service.status()
        what = failure(self._main, status)
        if what is not None:
            lines = self._service.manager.log_tail(self._service.name, _LOG_LINES)
            told = telling(lines) or last_lines(list(lines))
            raise StepFailedError(f"{self._service.name} {what}{because(status, told)}", told)


def request_through_proxy(work: Transaction) -> None:
    """One short turn as a client would ask it. Raises `StepFailedError` when it is not answered."""
    found = _asked_proxy(work)
    if isinstance(found, str):
        work.steps.skip(ApplyStep.REQUEST, found)
        return
    url, key = found
    with work.steps.step(ApplyStep.REQUEST, url):
        work.note(step=ApplyStep.REQUEST)
        began = time.monotonic()
        limit = min(_REQUEST_S, work.journal.health_timeout_s)
        body = {
            # Of a router this means the model in memory, of any other server the one it has.
            "model": "any",
            "max_tokens": _REQUEST_TOKENS,
            "messages": [{"role": "user", "content": "Answer with one word: ready?"}],
        }
        headers = {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}
        while True:
            left = limit - (time.monotonic() - began)
            try:
                reply = ask(url, "/v1/messages", headers=headers, body=body, timeout=max(1.0, left), verified=False)
            except TimeoutError:
                said = f"a request through the proxy at {url} was not answered within {limit:g} s"
                if not _others_are_served(work):
                    raise StepFailedError(said) from None
                # The clients that had waited come first: a queue says nothing about the settings.
                work.warn(f"{said}, while the backend worked for others")
                return
            except OSError as error:
                raise StepFailedError(f"a request through the proxy at {url} broke off ({error})") from None
            if reply.status not in _NOT_YET or left <= 0:
                break
            work.steps.wait(_AGAIN_S)
        if reply.status == 400 and work.deployment.backend is None:
            work.warn(f"the proxy at {url} answers, and its upstream wants a model named: {_complaint(reply)}")
            return
        if reply.status != 200 or not isinstance(reply.json, dict) or reply.json.get("type") != "message":
            raise StepFailedError(f"a request through the proxy at {url} failed: {_complaint(reply)}")
        work.steps.say(f"{url} answered in {time.monotonic() - began:.1f} s")


def settle(work: Transaction, swap: EngineSwap | None, proxies: Sequence[ProxyStanding]) -> None:
    """Wait for the settle period. Raises `StepFailedError` as soon as something changed does not go on as it should."""
    if work.journal.trial:
        work.steps.skip(ApplyStep.SETTLE, "it is on trial, and measured next")
        return
    period = work.journal.settle_s
    with work.steps.step(ApplyStep.SETTLE, f"settling {period:g} s"):
        work.note(step=ApplyStep.SETTLE)
        began = well_at = time.monotonic()
        next_slots = began + min(_SPECULATION_S, period)
        while True:
            for proxy in proxies:
                proxy.check()
            now = time.monotonic()
            left = began + period - now
            well = True
            if swap is not None:
                well = _engine_stands(work, swap)
                well_at = now if well else well_at
                if now - well_at > _DEAF_S:
                    raise StepFailedError(f"it runs, and did not answer /health for {_DEAF_S:g} s", swap.explained())
                if well and (now >= next_slots or left <= 0):
                    _still_speculates(swap)
                    next_slots = now + _SPECULATION_S
            if left <= 0 and well:
                break
            work.steps.say(f"settling {max(0.0, left):.0f} s", min(1.0, (now - began) / period) if period else None)
            work.steps.wait(min(_LOOK_S, max(0.01, left)))
        work.steps.say(f"stood for {period:g} s")


def _engine_stands(work: Transaction, swap: EngineSwap) -> bool:
    """Whether it answers; raises `StepFailedError` when it is gone."""
    engine = swap.engine
    if engine is not None and not engine.alive:
        work.down(time.monotonic())
        # At once, and not after the log was read: whoever asks now finds nobody behind the proxy.
        work.close_gate()
    swap.check_service()
    if engine is not None and not engine.alive:
        words = f"its {engine.name} ended after everything had been verified"
        raise StepFailedError(words, swap.last_words())
    return steps.healthy(engine.url if engine is not None else swap.promise.url)


def _still_speculates(swap: EngineSwap) -> None:
    wanted = swap.promise.speculates
    url = swap.engine.url if swap.engine is not None else swap.promise.url
    if wanted and steps.speculative(url, swap.promise) is False:
        raise StepFailedError("it does not speculate any more", swap.explained())


def _asked_proxy(work: Transaction) -> tuple[str, str | None] | str:
    """Address and key of the proxy to ask, or in words why none is asked."""
    if work.journal.trial:
        return "it is on trial, and measured next"
    proxy = work.deployment.proxy
    if proxy is None:
        return "there is no proxy"
    if not proxy.status().alive:
        return f"{proxy.name} does not run"
    values = read_env(proxy.env_file).values
    if proxy.reloads:
        record = recorded_proxy(proxy, work.env)
        if record is None:
            return f"{proxy.name} has left no record"
        url, upstream, key = record.url, record.upstream, recorded_key(record, work.env)
        if record.api_key_env is not None and key is None:
            work.warn(f"no request was sent through the proxy at {url}: its key is not known here")
            return "its key is not known"
    else:
        environment = proxy.command.variables(proxy.env_file, values) if proxy.command is not None else values
        url, key = proxy_url(values), environment.get("PROXY_API_KEY")
        upstream = values.get("LLAMA_CPP_BASE") or "http://127.0.0.1:8080/v1"
    return _why_not_asked(work, upstream) or (url, key)


def _why_not_asked(work: Transaction, upstream: str) -> str | None:
    """Why a turn says nothing about the change, None where it does."""
    backend = work.deployment.backend
    if backend is None:
        return "its upstream is no service of specdash" if not steps.healthy(_root(upstream)) else None
    promised = service_promise(backend, read_env(backend.env_file).values, work.env)
    if place(promised.url) != place(upstream):
        return f"it asks {_root(upstream)}, which is not this backend"
    if promised.no_probe is not None:
        return promised.no_probe
    if work.journal.edit(Role.BACKEND) is None and not steps.healthy(promised.url):
        return "the backend does not answer"
    return None


def _others_are_served(work: Transaction) -> bool:
    backend = work.deployment.backend
    if backend is None:
        return True
    promised = service_promise(backend, read_env(backend.env_file).values, work.env)
    return bool(steps.busy(promised.url, promised))


def _root(upstream: str) -> str:
    return upstream.rstrip("/").removesuffix("/v1")


def _complaint(reply: HttpReply) -> str:
    said = error_message(reply.body)
    return f"HTTP {reply.status}{f': {said}' if said else ''}"


ENGINE_LOAD = "engine load"
"""Key in `ApplyRecord.step_seconds` of what the engine itself took to load."""
_DIRECT_S = 5.0
"""How long requests that did not come through a proxy of ours are waited for: nothing keeps new ones away."""
_DRAIN_POLL_S = 0.05
_PROBE_S = 120.0
_CLIENTS_SERVED = STEPS[STEPS.index(ApplyStep.REQUEST) :]


def forward(work: Transaction) -> None:
    """Make the new version the one in force. Raises what stood in the way; undoing is the caller's."""
    backend, proxy = work.journal.edit(Role.BACKEND), work.journal.edit(Role.PROXY)
    served = work.journal.step in _CLIENTS_SERVED
    swap: EngineSwap | None = None
    if backend is not None and not (served and in_force(work, backend, new=True)):
        _hold(work)
        _drain(work, backend)
    else:
        why = "the backend goes on" if backend is None else "clients are served by it already"
        work.steps.skip(ApplyStep.HOLD, why)
        work.steps.skip(ApplyStep.DRAIN, why)
    _write(work)
    if backend is not None:
        swap = _backend(work, backend)
    elif proxy is not None:
        _proxy_alone(work, proxy)
    _resume(work, backend, proxy)
    proxies = [ProxyStanding(work.services[Role.PROXY])] if proxy is not None else []
    request_through_proxy(work)
    settle(work, swap, proxies)


def write_edit(edit: Edit, *, new: bool) -> bool:
    """Put one version of an env file in the place of the other; False when it is there already.

    Raises `ConflictError` when the file holds neither: somebody else changed it.
    """
    now = read_env(Path(edit.env_file))
    data, other = (edit.new, edit.old) if new else (edit.old, edit.new)
    if now.data == data and now.exists is (new or edit.existed):
        return False
    if now.data != other:
        raise ConflictError(f"{edit.env_file} was changed by somebody else meanwhile; their version was left as it is")
    if new or edit.existed:
        replace_env(now, data)
    else:
        now.target.unlink(missing_ok=True)
    return True


def _hold(work: Transaction) -> None:
    with work.steps.step(ApplyStep.HOLD):
        work.note(step=ApplyStep.HOLD)
        work.close_gate()
        count = work.gate.count if work.gate is not None else 0
        work.steps.say({0: "no proxy to hold", 1: "1 proxy held"}.get(count, f"{count} proxies held"))


def _drain(work: Transaction, edit: Edit) -> None:
    with work.steps.step(ApplyStep.DRAIN):
        work.note(step=ApplyStep.DRAIN)
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


def _drain_direct(work: Transaction, edit: Edit, limit: float) -> None:
    """Requests that were sent straight to the backend: waited for a little, and told of."""
    engine = work.engine(edit)
    if engine is None:
        return
    promise = work.promise(edit, new=False)
    deadline = time.monotonic() + limit
    while left := steps.busy(engine.url, promise):
        if time.monotonic() >= deadline:
            work.warn(f"{left} requests that did not come through a held proxy were cut off")
            return
        work.steps.say(f"{left} requests sent straight to the backend")
        work.steps.wait(_DRAIN_POLL_S)


def _write(work: Transaction) -> None:
    with work.steps.step(ApplyStep.WRITE):
        work.note(step=ApplyStep.WRITE)
        for edit in work.journal.edits:
            write_edit(edit, new=True)
        work.steps.say(", ".join(Path(edit.env_file).name for edit in work.journal.edits))


def _backend(work: Transaction, edit: Edit) -> EngineSwap:
    service = work.services[Role.BACKEND]
    if in_force(work, edit, new=True):
        work.steps.skip(ApplyStep.RESTART, "the new settings are in force already")
        swap = EngineSwap(
            service, work.env, work.steps, edit.new_digest, work.promise(edit, new=True), work.engine(edit)
        )
        swap.old = None
        swap.watch_main()
    else:
        with work.steps.step(ApplyStep.RESTART):
            work.note(step=ApplyStep.RESTART, touched=_touched(work, Role.BACKEND))
            swap = start_backend(work, edit, new=True)
    with work.steps.step(ApplyStep.HEALTH):
        engine = swap.until_healthy(work.journal.health_timeout_s)
        if work.down_since is not None and swap.load_s is not None:
            work.steps.seconds[ENGINE_LOAD] = round(swap.load_s, 4)
        work.up(swap.first_ok)
        work.note(step=ApplyStep.HEALTH)
        if not service.reloads:
            _see_what_runs(work, edit, swap, engine)
        work.steps.say(f"healthy, {engine.name}")
    promise = swap.promise
    with work.steps.step(ApplyStep.SPECULATION):
        work.note(step=ApplyStep.SPECULATION)
        try:
            verdict = steps.check_speculation(engine.url, promise)
        except StepFailedError as error:
            raise StepFailedError(str(error), about_speculation(swap.lines()) or swap.explained()) from None
        _take(work, verdict)
    with work.steps.step(ApplyStep.PROBE):
        work.note(step=ApplyStep.PROBE)
        try:
            limit = min(_PROBE_S, work.journal.health_timeout_s)
            verdict = steps.probe(engine.url, promise, limit, lambda: engine_check(engine.pid, work.env))
        except StepFailedError as error:
            raise StepFailedError(str(error), swap.last_words()) from None
        if not engine.alive:
            raise StepFailedError("it generated, and then its process ended", swap.last_words())
        _take(work, verdict)
    return swap


def _see_what_runs(work: Transaction, edit: Edit, swap: EngineSwap, engine: ServingEngine) -> None:
    """A service that is not ours reads of its env file what it likes: raise `StepFailedError` where that is not the
    change, and expect from now on what its own process was started with."""
    runs = started_with(engine.pid)
    if runs is None:
        work.warn(f"whether the change reached {engine.name} cannot be seen")
        return
    missing = why_not_arrived(swap.service, engine.name, *runs, edit.changes)
    if missing is not None and work.journal.kind is not ApplyKind.ROLLBACK:
        raise StepFailedError(missing)
    values = process_values(*runs)
    if values is not None:
        swap.promise = replace(promise(values, work.env), url=swap.promise.url)


def _proxy_alone(work: Transaction, edit: Edit) -> None:
    with work.steps.step(ApplyStep.RESTART):
        work.note(step=ApplyStep.RESTART, touched=_touched(work, Role.PROXY))
        done = "in force already" if in_force(work, edit, new=True) else bring_proxy(work, edit, new=True)
        work.steps.say(f"{work.services[Role.PROXY].name} {done}")
    with work.steps.step(ApplyStep.HEALTH):
        work.note(step=ApplyStep.HEALTH)
        work.steps.say("the proxy answers")
    work.steps.skip(ApplyStep.SPECULATION, "the backend goes on")
    work.steps.skip(ApplyStep.PROBE, "the backend goes on")


def _resume(work: Transaction, backend: Edit | None, proxy: Edit | None) -> None:
    with work.steps.step(ApplyStep.RESUME):
        both = backend is not None and proxy is not None
        touched = _touched(work, Role.PROXY) if both else work.journal.touched
        work.note(step=ApplyStep.RESUME, touched=touched)
        if proxy is not None and both and not proxy.needs_restart and not in_force(work, proxy, new=True):
            bring_proxy(work, proxy, new=True)
        work.open_gate()
        if proxy is not None and both and proxy.needs_restart and not in_force(work, proxy, new=True):
            # Only now: requests that wait in the old process must be let through before it ends.
            bring_proxy(work, proxy, new=True)
        work.steps.say("everything passes again" if backend is not None else "nothing was held")


def _touched(work: Transaction, role: Role) -> tuple[Role, ...]:
    return tuple(dict.fromkeys((*work.journal.touched, role)))


def _take(work: Transaction, verdict: steps.CheckResult) -> None:
    if verdict.warning is not None:
        work.warn(verdict.warning)
    work.steps.say(verdict.detail)
