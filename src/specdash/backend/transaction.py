"""A change of settings in production: the new settings in force and verified, or everything as it was.

`Transaction.run` is the whole of it, from top to bottom; docs/apply.md describes the steps and what each failure
leaves. It runs in a thread of the runner, which owns the engine; where no backend runs, in the process that asked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from specdash.backend import start_check
from specdash.backend.env_store import Backups, check_writable, read_env, replace_env
from specdash.backend.journal import (
    ApplyLock,
    ServiceBefore,
    append_record,
    describe,
    journal_file,
    next_number,
    read_records,
)
from specdash.backend.launch import check_port
from specdash.backend.proxy_hold import ProxyHold, fronts
from specdash.backend.start_check import busy, health, healthy, promise_of
from specdash.backend.steps import (
    CancelledApplyError,
    StepFailedError,
    Steps,
    about_speculation,
    check_speculation,
    explained,
    last_line,
    probe,
    speculative,
)
from specdash.collect.discover import place, recorded_key
from specdash.collect.run_records import live_proxies, started_last
from specdash.core.changes import ApplyOutcome, ApplyRecord, ApplyStep, Role, is_secret
from specdash.core.errors import ConflictError, NotWrittenError, PortInUseError, SpecdashError
from specdash.core.paths import applies_file, backups_dir
from specdash.core.readings import HealthStatus
from specdash.llama.server_answers import error_message
from specdash.system.data import dataclass
from specdash.system.http import ask
from specdash.system.processes import family, own_start, same_process
from specdash.system.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdash.backend.env_store import EnvSnapshot
    from specdash.backend.journal import Edit, Journal
    from specdash.backend.launch import LaunchPlan
    from specdash.backend.session import BackendSession, RunningChild
    from specdash.core.readings import Health
    from specdash.core.records import ProxyRecord
    from specdash.system.http import HttpReply

LOOK_S = 0.012
"""Time between two looks at a starting engine: what passes between its health and our seeing it is downtime."""
ENGINE_LOAD = "engine load"
"""Key in `ApplyRecord.step_seconds` of the engine's own load time."""
MUCH_SLOWER = 5.0
"""A first completion that takes so many times as long per token as before the change is worth a warning."""
_ASKED = 3
"""How often an engine is asked for its health before it counts as unhealthy: a busy machine lets it answer late."""
_DIRECT_S = 5.0
"""How long requests that did not come through a held proxy are waited for: nothing keeps new ones away."""
_POLL_S = 0.05
_PROBE_S = 120.0
_RELOAD_S = 15.0
_PROXY_RESTART_S = 60.0
_REQUEST_S = 120.0
_NOT_YET = (429, 503, 529)
"""The upstream is on its way, or has no slot free at this moment."""
_SETTLE_LOOK_S = 0.25
_SPECULATION_S = 2.0
_DEAF_S = 20.0
"""How long a process that lives may leave /health unanswered: a starved machine is no dead server."""
_ROOM_S = 15.0
_PATIENCE_S = 120.0
"""How long the old settings may take at least: the patience with the new ones may have been short on purpose."""
_SICK_BEFORE_S = 20.0
"""How long an engine is waited for that was not healthy before the change either."""
_WRITE_TRIES, _TRIES_APART_S = 5, 0.3
_LOG_LINES = 30
_SHORTEST_SECRET = 4
RESTART_SIGNAL = signal.SIGUSR2
"""Asks a proxy to drain and to execute itself again with its listening socket."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a change. `error` is what stood in the way; `changed` says whether anything was touched meanwhile."""

    record: ApplyRecord
    error: SpecdashError | None = None
    changed: bool = False
    slower: bool = False
    """Whether a first completion became much slower (`MUCH_SLOWER`)."""


class Transaction:
    """One change of the backend's env file, the proxy's, or both."""

    def __init__(
        self,
        wanted: Journal,
        runner: BackendSession | None,
        steps: Steps,
        env: Mapping[str, str] = os.environ,
        *,
        lock: ApplyLock | None = None,
    ) -> None:
        """`wanted` holds the edits and the options; `lock` is the one that the caller holds for a whole trial."""
        self.journal = replace(wanted, pid=os.getpid(), pid_started=own_start(), at=time.time())
        self.steps = steps
        self.down_s: float | None = None
        """Seconds without a healthy backend, in all; None as long as there were none."""
        self.down_since: float | None = None
        self.longest_stall_s: float | None = None
        self._runner = runner
        self._env = env
        self._lock = lock
        self._file = journal_file(env)
        self._hold: ProxyHold | None = None
        self._warnings = list(wanted.warnings)
        self._planned: LaunchPlan | None = None
        self._last_good: LaunchPlan | None = None
        self._engine: RunningChild | None = None
        self._probe_before_s: float | None = None
        self._slower = False

    def run(self) -> Outcome:
        """Make the change, or put everything back; never raises for what a change can meet.

        Raises `ConflictError` when another change runs and `NotWrittenError` when the lock cannot be made: nothing was
        touched then, and nothing is recorded.
        """
        lock = self._lock or ApplyLock(f"{self.journal.kind} {describe(self._changes)}", self._env)
        try:
            try:
                with self.steps.step(ApplyStep.LOCK):
                    if self._lock is None:
                        lock.acquire()
            except CancelledApplyError as error:
                return self.refused(error)
            return self._locked()
        finally:
            if self._lock is None:
                lock.release()

    def _locked(self) -> Outcome:
        try:
            with self.steps.step(ApplyStep.PREFLIGHT):
                snapshots = self._preflight()
            with self.steps.step(ApplyStep.BACKUP):
                self._backup(snapshots)
        except SpecdashError as error:
            self._file.remove()
            return self.refused(error)
        try:
            self._forward()
            with self._step(ApplyStep.RECORD):
                self.steps.keep()
                self._keep_good()
                return Outcome(self._conclude(ApplyOutcome.APPLIED), changed=True, slower=self._slower)
        except Exception as error:  # noqa: BLE001 - after any failure everything goes back first
            return self._undo(error)
        finally:
            self._resume_proxies()

    def _keep_good(self) -> None:
        """What was verified is what the next start of the runner falls back to."""
        edit = self.journal.edit(Role.BACKEND)
        if edit is None or self._planned is None or self.journal.trial:
            return
        try:
            Backups(backups_dir(self._env)).keep_good(edit.role, Path(edit.env_file), edit.new)
        except NotWrittenError as error:
            self._warn(str(error))

    @property
    def _changes(self) -> tuple[Any, ...]:
        return tuple(change for edit in self.journal.edits for change in edit.changes)

    # Before anything is touched.

    def _preflight(self) -> dict[Role, EnvSnapshot]:
        """The env files as they are; what the runner would run. Raises what stands against the change."""
        snapshots = {}
        for edit in self.journal.edits:
            snapshots[edit.role] = snapshot = read_env(Path(edit.env_file))
            if snapshot.data != edit.old or snapshot.exists is not edit.existed:
                raise ConflictError(f"{edit.env_file} was changed since it was read; run the command again")
            check_writable(snapshot)
        backend = self.journal.edit(Role.BACKEND)
        if backend is not None and self._runner is not None:
            self._engine = self._runner.engine
            self._last_good = self._engine.plan
            self._planned = self._runner.planned(backend.new)
        count = len(self._warnings)
        self.steps.say(counted(count, "warning") if count else "no problems found")
        return snapshots

    def _backup(self, snapshots: dict[Role, EnvSnapshot]) -> None:
        """Keep the old bytes, then note on the disk what is going to be done."""
        backups = Backups(backups_dir(self._env))
        edits = []
        for edit in self.journal.edits:
            number = backups.save(edit.role, snapshots[edit.role]).number
            edits.append(replace(edit, backup=number, before=self._before(edit)))
        self.journal = replace(
            self.journal,
            number=next_number(read_records(applies_file(self._env))),
            edits=tuple(edits),
            url=self._planned.settings.url if self._planned is not None else None,
        )
        self._note(step=ApplyStep.BACKUP)
        self.steps.say(", ".join(f"{edit.role} backup {edit.backup}" for edit in edits))

    def _before(self, edit: Edit) -> ServiceBefore:
        if edit.role is Role.PROXY:
            record = self._proxy_record()
            return ServiceBefore(record is not None, record is not None)
        if self._engine is None or self._engine.ended is not None:
            return ServiceBefore()
        plan, check = self._engine.plan, self._engine.check
        if plan.env_digest not in (None, edit.old_digest):
            self._warn(f"{edit.env_file} was edited since the engine was started: those edits come into force too")
        if check is not None and check.probe_tokens and check.probe_s is not None:
            self._probe_before_s = check.probe_s / check.probe_tokens
        url, promise = plan.settings.url, promise_of(plan.settings, self._env)
        well = any(healthy(url) for _ in range(_ASKED))
        return ServiceBefore(
            running=True,
            healthy=well,
            speculative=speculative(url, promise) if well else None,
        )

    # The way forward.

    def _forward(self) -> None:
        backend, proxy = self.journal.edit(Role.BACKEND), self.journal.edit(Role.PROXY)
        if self._planned is not None:
            with self._step(ApplyStep.HOLD):
                count = self._close().count
                self.steps.say({0: "no proxy to hold", 1: "1 proxy held"}.get(count, f"{count} proxies held"))
            self._drain()
        else:
            why = "the backend goes on" if backend is None else "the backend does not run"
            self.steps.skip(ApplyStep.HOLD, why)
            self.steps.skip(ApplyStep.DRAIN, why)
        with self._step(ApplyStep.WRITE, written=tuple(edit.role for edit in self.journal.edits)):
            self._write_all()
            self.steps.say(", ".join(Path(edit.env_file).name for edit in self.journal.edits))
        if self._planned is not None:
            self._bring_backend(self._planned)
        elif proxy is not None:
            with self._step(ApplyStep.RESTART, touched=(Role.PROXY,)):
                self.steps.say(f"the proxy {self._bring_proxy(proxy, new=True)}")
            for step in (ApplyStep.HEALTH, ApplyStep.SPECULATION, ApplyStep.PROBE):
                self.steps.skip(step, "the backend goes on")
        else:
            for step in (ApplyStep.RESTART, ApplyStep.HEALTH, ApplyStep.SPECULATION, ApplyStep.PROBE):
                self.steps.skip(step, "the backend does not run: it counts at the next start")
        after = proxy if self._planned is not None else None
        touched = self.journal.touched if after is None else (Role.BACKEND, Role.PROXY)
        with self._step(ApplyStep.RESUME, touched=touched):
            if after is not None and not after.needs_restart:
                self._bring_proxy(after, new=True)
            self._resume_proxies()
            if after is not None and after.needs_restart:
                # Only now: requests that wait in the old process must be let through before it ends.
                self._bring_proxy(after, new=True)
            self.steps.say("everything passes again" if self._planned is not None else "nothing was held")
        self._request()
        self._settle()

    def _close(self) -> ProxyHold:
        """Hold every proxy in front of the backend, and write their names down first."""
        if self._hold is not None:
            return self._hold
        plans = [plan for plan in (self._planned, self._last_good) if plan is not None]
        found = fronts({plan.settings.url for plan in plans}, self._env)
        self._note_if_possible(held=tuple(dict.fromkeys((*self.journal.held, *(front.held for front in found)))))
        longest = self.journal.health_timeout_s + self.journal.drain_timeout_s
        self._hold = ProxyHold(found, f"specdash {self.journal.kind} {self.journal.number}", longest)
        for warning in self._hold.hold():
            self._warn(warning)
        return self._hold

    def _drain(self) -> None:
        """Wait until no request is upstream. Raises `StepFailedError` when some still are after the drain timeout."""
        assert self._runner is not None  # noqa: S101 - a drain is of a runner's engine
        assert self._last_good is not None  # noqa: S101
        assert self._hold is not None  # noqa: S101
        with self._step(ApplyStep.DRAIN):
            self._runner.quiet()
            began = time.monotonic()
            limit = self.journal.drain_timeout_s
            while left := self._hold.active():
                waited = time.monotonic() - began
                if waited >= limit:
                    if not self.journal.force:
                        raise StepFailedError(
                            f"{left} requests were still running after {limit:g} s; give them more time with "
                            "--drain-timeout, or cut them off with --force"
                        )
                    self._warn(f"{left} requests were still running after {limit:g} s and were cut off (--force)")
                    break
                waiting = self._hold.waiting()
                words = f"{left} requests running upstream, {waiting} waiting, for {limit - waited:.0f} s at most"
                self.steps.say(words, min(1.0, waited / limit) if limit else None)
                self.steps.wait(_POLL_S)
            url, promise = self._last_good.settings.url, promise_of(self._last_good.settings, self._env)
            deadline = time.monotonic() + min(_DIRECT_S, limit)
            while left := busy(url, promise) or 0:
                if time.monotonic() >= deadline:
                    self._warn(f"{left} requests that did not come through a held proxy were cut off")
                    break
                self.steps.say(f"{left} requests sent straight to the backend")
                self.steps.wait(_POLL_S)
            self.steps.say(f"after {time.monotonic() - began:.1f} s")

    def _write_all(self) -> None:
        """Both files, or neither. Raises `ConflictError` for a file that was edited meanwhile, `NotWrittenError`."""
        written: list[Role] = []
        try:
            for edit in self.journal.edits:
                write_edit(edit, new=True)
                written.append(edit.role)
        except SpecdashError:
            # Only what was written has to go back: an edit that others made stays.
            self._note_if_possible(written=tuple(written))
            raise

    def _bring_backend(self, plan: LaunchPlan) -> None:
        with self._step(ApplyStep.RESTART, touched=(Role.BACKEND,)):
            self._swap(plan)
        with self.steps.step(ApplyStep.HEALTH):
            self._until_healthy(self.journal.health_timeout_s)
            self._note(step=ApplyStep.HEALTH)
        engine = self._running()
        url, promise = plan.settings.url, promise_of(plan.settings, self._env)
        with self._step(ApplyStep.SPECULATION):
            try:
                verdict = check_speculation(url, promise)
            except StepFailedError as error:
                lines = engine.lines()
                raise StepFailedError(str(error), about_speculation(lines) or explained(lines)) from None
            if verdict.warning is not None:
                self._warn(verdict.warning)
            self.steps.say(verdict.detail)
        with self._step(ApplyStep.PROBE):
            try:
                limit = min(_PROBE_S, self.journal.health_timeout_s)
                found = probe(url, promise, limit, lambda: engine.check, self.steps.wait)
            except StepFailedError as error:
                raise StepFailedError(str(error), self._last_words()) from None
            if engine.ended is not None:
                raise StepFailedError("it generated, and then its process ended", self._last_words())
            self.steps.say(found.detail)
            self._compare_probes(found.seconds_per_token)

    def _compare_probes(self, now_s: float | None) -> None:
        before_s = self._probe_before_s
        if now_s is not None and before_s and now_s > MUCH_SLOWER * before_s:
            self._slower = True
            self._warn(
                f"a first completion takes {now_s / before_s:.0f} times as long as before the change "
                f"({1000 * before_s:.1f} -> {1000 * now_s:.1f} ms a token); `specdash rollback {self.journal.number}` "
                "goes back"
            )

    def _swap(self, plan: LaunchPlan) -> None:
        assert self._runner is not None  # noqa: S101 - a plan exists only with a runner
        self.steps.say("stopping the engine and starting the next")
        ran = self._engine is not None and self._engine.ended is None
        self._engine, stopped_at = self._runner.swap(plan)
        if ran and self.down_since is None:
            self.down_since = stopped_at

    def _until_healthy(self, limit_s: float) -> None:
        """Wait for the first healthy answer. Raises `StepFailedError` as soon as it cannot come."""
        engine = self._running()
        url = engine.plan.settings.url
        deadline = time.monotonic() + limit_s
        next_say = 0.0
        while True:
            found = health(url)
            now = time.monotonic()
            if engine.ended is not None:
                lines = explained(engine.lines())
                try:
                    check_port(engine.plan.settings)
                except PortInUseError as error:
                    raise StepFailedError(str(error), lines) from None
                raise _failure(f"the engine ended with {engine.ended}", lines)
            answers = found is not None and found.status is HealthStatus.OK
            settings = engine.plan.settings
            if answers and owns_port(engine.pid, settings.port) is not False:
                break
            state = "answered by another process" if answers else _state_words(found)
            if now > deadline:
                raise StepFailedError(f"not healthy within {limit_s:g} s ({state})", explained(engine.lines()))
            if now >= next_say:
                next_say = now + 4 * _POLL_S
                held = f"{waiting} clients wait" if self._hold is not None and (waiting := self._hold.waiting()) else ""
                words = [state, held, last_line(engine.lines())]
                self.steps.say(": ".join(filter(None, words)), found.progress if found is not None else None)
            self.steps.wait(LOOK_S)
        if self.down_since is not None:
            self.steps.seconds[ENGINE_LOAD] = round(now - engine.began, 4)
            self.down_s = (self.down_s or 0.0) + max(0.0, now - self.down_since)
            self.down_since = None
        self.steps.say(f"healthy, process {engine.pid}")

    def _running(self) -> RunningChild:
        assert self._engine is not None  # noqa: S101 - asked for only after a swap
        return self._engine

    def _last_words(self) -> tuple[str, ...]:
        """Why an engine that may just have died died: its runner needs a moment to read the end of its output."""
        engine = self._running()
        deadline = time.monotonic() + _TRIES_APART_S
        while engine.ended is None and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return explained(engine.lines())

    def _resume_proxies(self) -> None:
        hold, self._hold = self._hold, None
        if hold is None:
            return
        stall = hold.longest_wait_s()
        if stall is not None:
            self.longest_stall_s = max(stall, self.longest_stall_s or 0.0)
        for warning in hold.resume():
            self._warn(warning)

    # The proxy.

    def _proxy_record(self) -> ProxyRecord | None:
        """The most recently started live proxy whose run record names the env file of the edit."""
        edit = self.journal.edit(Role.PROXY)
        return started_last(live_proxies(self._env), edit.env_file) if edit is not None else None

    def _bring_proxy(self, edit: Edit, *, new: bool) -> str:
        """Make the proxy take this version over; what was done, in words. Raises `StepFailedError` when it does not."""
        record = self._proxy_record()
        if record is None:
            return "does not run: it counts at the next start"
        digest = edit.new_digest if new else edit.old_digest
        if record.env_digest == digest:
            return "runs with it already"
        if edit.needs_restart and not record.restarts_itself:
            raise StepFailedError(
                f"the proxy (pid {record.pid}) is of a version that cannot restart itself, which "
                f"{', '.join(change.key for change in edit.changes)} needs; restart it once by hand"
            )
        self.steps.say("restarting the proxy" if edit.needs_restart else "reloading the proxy")
        seen = _log_lines(record.log)
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.pid, RESTART_SIGNAL if edit.needs_restart else signal.SIGHUP)
        limit = min(_PROXY_RESTART_S if edit.needs_restart else _RELOAD_S, self.journal.health_timeout_s)
        deadline = time.monotonic() + limit
        while not self._proxy_answers(digest):
            now = self._proxy_record()
            if now is not None and now.refused_digest == digest:
                raise StepFailedError(f"the proxy refused its settings: {now.refused}")
            gone = not same_process(record.pid, record.pid_started)
            if gone or time.monotonic() > deadline:
                lines = explained([line for line in _log_lines(record.log) if line not in seen])
                what = "ended" if gone else f"did not take its settings over within {limit:g} s"
                raise _failure(f"the proxy {what}", lines)
            self.steps.wait(_POLL_S)
        return "restarted, no connection refused" if edit.needs_restart else "took it over, no stream dropped"

    def _proxy_answers(self, digest: str) -> bool:
        record = self._proxy_record()
        if record is None or record.env_digest != digest:
            return False
        with contextlib.suppress(OSError):
            ask(record.url, "/health", timeout=start_check.ANSWER_S, verified=False)
            return True
        return False

    def _request(self) -> None:
        """One short turn through the proxy as a client would ask it. Raises `StepFailedError` when it fails."""
        found = self._proxy_to_ask()
        if isinstance(found, str):
            self.steps.skip(ApplyStep.REQUEST, found)
            return
        url = found.url
        with self._step(ApplyStep.REQUEST, url):
            key = recorded_key(found, self._env)
            if found.api_key_env is not None and key is None:
                self._warn(f"no request was sent through the proxy at {url}: its key is not known here")
                return
            limit = min(_REQUEST_S, self.journal.health_timeout_s)
            body = {
                # Of a router this means the model in memory, of any other server the one it has.
                "model": "any",
                "max_tokens": 8,
                "messages": [{"role": "user", "content": "Answer with one word: ready?"}],
            }
            headers = {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}
            began = time.monotonic()
            while True:
                left = limit - (time.monotonic() - began)
                try:
                    reply = ask(url, "/v1/messages", headers=headers, body=body, timeout=max(1.0, left), verified=False)
                except TimeoutError:
                    words = f"a request through the proxy at {url} was not answered within {limit:g} s"
                    # The clients that had waited come first: a queue says nothing about the settings.
                    if self._engine is not None and busy(*self._place()):
                        self._warn(f"{words}, while the backend worked for others")
                        return
                    raise StepFailedError(words) from None
                except OSError as error:
                    raise StepFailedError(f"a request through the proxy at {url} broke off ({error})") from None
                if reply.status not in _NOT_YET or left <= 0:
                    break
                self.steps.wait(4 * _POLL_S)
            if reply.status == 400 and self._engine is None:
                self._warn(f"the proxy at {url} answers, and its upstream wants a model named: {_complaint(reply)}")
                return
            if reply.status != 200 or not isinstance(reply.json, dict) or reply.json.get("type") != "message":
                raise StepFailedError(f"a request through the proxy at {url} failed: {_complaint(reply)}")
            self.steps.say(f"{url} answered in {time.monotonic() - began:.1f} s")

    def _proxy_to_ask(self) -> ProxyRecord | str:
        """The proxy to ask, or in words why none is asked."""
        if self.journal.trial:
            return "it is on trial, and measured next"
        record = self._proxy_record()
        if record is None and self._engine is not None:
            front = next(iter(fronts([self._engine.plan.settings.url], self._env)), None)
            record = front.record if front is not None else None
        if record is None:
            return "there is no proxy"
        root = record.upstream.rstrip("/").removesuffix("/v1")
        if self._engine is None:
            return record if healthy(root) else "its upstream does not answer"
        url, promise = self._place()
        if place(url) != place(root):
            return f"it asks {root}, which is not this backend"
        return promise.no_probe or record

    def _place(self) -> tuple[str, start_check.ServerPromise]:
        settings = self._running().plan.settings
        return settings.url, promise_of(settings, self._env)

    def _settle(self) -> None:
        """Wait for the settle period. Raises `StepFailedError` as soon as what was changed does not go on."""
        if self.journal.trial:
            self.steps.skip(ApplyStep.SETTLE, "it is on trial, and measured next")
            return
        period = self.journal.settle_s if self._planned is not None or self.journal.touched else 0.0
        engine = self._engine if self._planned is not None else None
        proxy = self._proxy_record()
        with self._step(ApplyStep.SETTLE, f"settling {period:g} s, clients are served"):
            began = well_at = time.monotonic()
            next_slots = began + min(_SPECULATION_S, period)
            while True:
                now = time.monotonic()
                left = began + period - now
                well = True
                if proxy is not None and not same_process(proxy.pid, proxy.pid_started):
                    raise _failure("the proxy ended", explained(_log_lines(proxy.log)))
                if engine is not None:
                    well = self._engine_stands(engine)
                    well_at = now if well else well_at
                    if now - well_at > _DEAF_S:
                        words = f"it runs, and did not answer /health for {_DEAF_S:g} s"
                        raise StepFailedError(words, explained(engine.lines()))
                    if well and (now >= next_slots or left <= 0):
                        url, promise = self._place()
                        if promise.speculates and speculative(url, promise) is False:
                            raise StepFailedError("it does not speculate any more", explained(engine.lines()))
                        next_slots = now + _SPECULATION_S
                if left <= 0 and well:
                    break
                words = f"settling {max(0.0, left):.0f} s, clients are served"
                self.steps.say(words, min(1.0, (now - began) / period) if period else None)
                self.steps.wait(min(_SETTLE_LOOK_S, max(0.01, left)))
            self.steps.say(f"stood for {period:g} s")

    def _engine_stands(self, engine: RunningChild) -> bool:
        """Whether it answers; raises `StepFailedError` when it is gone."""
        if engine.ended is None:
            return healthy(engine.plan.settings.url)
        self.down_since = time.monotonic()
        # At once, and not after the log was read: who asks now finds nothing behind the proxy.
        self._close()
        lines = explained(engine.lines())
        raise StepFailedError(f"the engine ended with {engine.ended} after everything had been verified", lines)

    # The way back.

    def _undo(self, error: Exception) -> Outcome:
        """Put everything back as it was, however far the change got, and record that."""
        stopping = self._runner is not None and self._runner.stopping
        failed = self.steps.current
        reason = "the runner was stopped" if stopping else str(error) or type(error).__name__
        lines = tuple(self._scrub(line) for line in getattr(error, "log_lines", ()))
        self.steps.undoing = True
        changed = bool(self.journal.touched)
        self._note_if_possible(failed_step=failed, reason=self._scrub(reason), log_lines=lines)
        problems: list[str] = []
        unwritten = False
        with self.steps.step(ApplyStep.ROLLBACK, "putting the old settings back"):
            back = []
            for edit in self.journal.edits:
                if edit.role not in self.journal.written:
                    continue
                try:
                    changed |= restore_edit(edit)
                    back.append(edit.role)
                except ConflictError:
                    changed = True
                    self._warn(
                        f"{edit.env_file} was edited after it was written: that version stays, and "
                        f"what runs is the one from before, backup {edit.backup} of `specdash env history`"
                    )
                except SpecdashError as wrong:
                    unwritten = True
                    problems.append(f"{wrong}; the next start of the backend tries again (backup {edit.backup})")
            proxy = self.journal.edit(Role.PROXY)
            try:
                if proxy is not None and proxy.needs_restart and Role.PROXY in back:
                    self._proxy_back(proxy, problems)
                if not stopping:
                    self._backend_back(problems)
                if proxy is not None and not proxy.needs_restart and Role.PROXY in back:
                    self._proxy_back(proxy, problems)
            finally:
                self._resume_proxies()
            self.steps.say("a person is needed" if problems else "everything is as it was before")
        outcome = ApplyOutcome.ROLLBACK_FAILED if problems else ApplyOutcome.ROLLED_BACK
        if problems:
            reason = " ".join((f"{reason}; and it could not be undone:", *problems))
            self.journal = replace(self.journal, reason=self._scrub(reason))
        record = self._conclude(outcome, keep_journal=unwritten)
        known = error if isinstance(error, SpecdashError) else SpecdashError(f"unexpected {type(error).__name__}")
        return Outcome(record, known, changed)

    def _backend_back(self, problems: list[str]) -> None:
        """The last good plan runs, and is verified."""
        edit = self.journal.edit(Role.BACKEND)
        if edit is None or self._last_good is None or Role.BACKEND not in self.journal.touched:
            return
        if self._engine is not None and self._engine.plan is self._last_good and self._engine.ended is None:
            return
        if self._hold is None:
            # Hold the proxies before restarting again.
            hold = self._close()
            deadline = time.monotonic() + min(_ROOM_S, self.journal.drain_timeout_s)
            while hold.active() and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        limit = max(self.journal.health_timeout_s, _PATIENCE_S)
        limit = limit if edit.before.healthy else min(limit, _SICK_BEFORE_S)
        try:
            self._swap(self._last_good)
            try:
                self._until_healthy(limit)
            except StepFailedError:
                if not edit.before.healthy:
                    raise
                # A port that was not free yet, or memory that the driver had not given back: one more whole start.
                self._swap(self._last_good)
                self._until_healthy(limit)
        except SpecdashError as error:
            if not edit.before.healthy:
                self._warn(f"the backend was not healthy before, and is not now: {error}")
                return
            problems.append(
                f"the old settings are back in {edit.env_file}, but the backend does not come back with them: {error}; "
                "see its log, and mend the cause"
            )
            return
        before = edit.before.speculative
        now = speculative(*self._place()) if before is not None else None
        if before is not None and now is not None and now is not before:
            problems.append(
                "the old settings are back and the backend is healthy, but it "
                f"{'does not speculate' if before else 'speculates'}, other than before; see its log"
            )

    def _proxy_back(self, edit: Edit, problems: list[str]) -> None:
        if Role.PROXY not in self.journal.touched or not edit.before.running:
            return
        if edit.needs_restart:
            # Requests that wait in a proxy must be let through before it ends.
            self._resume_proxies()
        try:
            self._bring_proxy(edit, new=False)
        except SpecdashError as error:
            problems.append(f"the old settings are back in {edit.env_file}, but the proxy does not run them: {error}")

    # Notes and the record.

    @contextlib.contextmanager
    def _step(self, step: ApplyStep, detail: str = "", **changes: Any) -> Iterator[None]:
        """One step, written down before anything of it is done."""
        with self.steps.step(step, detail):
            self._note(step=step, **changes)
            yield

    def _warn(self, text: str) -> None:
        clean = self._scrub(text)
        if clean not in self._warnings:
            self._warnings.append(clean)

    def _note(self, **changes: Any) -> None:
        """Write down what is about to be done. Raises `NotWrittenError`."""
        self.journal = replace(self.journal, **changes, warnings=tuple(self._warnings))
        self._file.write(self.journal)

    def _note_if_possible(self, **changes: Any) -> None:
        try:
            self._note(**changes)
        except NotWrittenError as error:
            self._warn(str(error))

    def _scrub(self, text: str) -> str:
        """The text without a secret of any version of the env files."""
        found = {
            value
            for edit in self.journal.edits
            for new in (True, False)
            for key, value in edit.values(new=new).items()
            if is_secret(key) and len(value) >= _SHORTEST_SECRET
        }
        for secret in sorted(found, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def refused(self, error: SpecdashError) -> Outcome:
        """Nothing was touched: record that it was tried."""
        taken = read_records(applies_file(self._env))
        self.journal = replace(
            self.journal, number=next_number(taken), failed_step=self.steps.current, reason=self._scrub(str(error))
        )
        record = replace(self._record(ApplyOutcome.REFUSED), backups={}, digests={}, url=None)
        # Where the disk is what stands in the way, `error` says so already.
        with contextlib.suppress(NotWrittenError):
            append_record(applies_file(self._env), record)
        return Outcome(record, error)

    def _conclude(self, outcome: ApplyOutcome, *, keep_journal: bool = False) -> ApplyRecord:
        """Append the record and remove the journal. A record that cannot be written becomes a warning: what it says
        was done either way."""
        self._resume_proxies()
        record = self._record(outcome)
        try:
            append_record(applies_file(self._env), record)
        except NotWrittenError as error:
            self._warn(str(error))
            record = replace(record, warnings=tuple(self._warnings))
        if keep_journal:
            # This process does not work on it any more, although it lives on.
            self._note_if_possible(pid=0, pid_started=0.0)
        else:
            with contextlib.suppress(OSError):
                self._file.remove()
        return record

    def _record(self, outcome: ApplyOutcome) -> ApplyRecord:
        return replace(
            self.journal.record(outcome),
            warnings=tuple(self._warnings),
            downtime_s=None if self.down_s is None else round(self.down_s, 4),
            longest_stall_s=None if self.longest_stall_s is None else round(self.longest_stall_s, 3),
            step_seconds=dict(self.steps.seconds),
        )


def write_edit(edit: Edit, *, new: bool) -> bool:
    """Put one version of an env file in the place of the other; False when it is there already.

    Raises `ConflictError` when the file holds neither: it was edited.
    """
    now = read_env(Path(edit.env_file))
    data, other = (edit.new, edit.old) if new else (edit.old, edit.new)
    if now.data == data and now.exists is (new or edit.existed):
        return False
    if now.data != other:
        raise ConflictError(f"{edit.env_file} was edited meanwhile; that version was left as it is")
    if new or edit.existed:
        replace_env(now, data)
    else:
        now.target.unlink(missing_ok=True)
    return True


def restore_edit(edit: Edit) -> bool:
    """The old version back, tried several times; False when it was there. Raises as `write_edit`."""
    for attempt in range(_WRITE_TRIES):
        try:
            return write_edit(edit, new=False)
        except ConflictError:
            raise
        except SpecdashError:
            if attempt == _WRITE_TRIES - 1:
                raise
            time.sleep(_TRIES_APART_S)
    return False


def owns_port(pid: int, port: int) -> bool | None:
    """Whether this process or one that it started listens on the port; None where the system does not say."""
    hidden = False
    for process in family(pid):
        try:
            connections = process.net_connections("tcp")
        except psutil.NoSuchProcess:
            continue
        except (psutil.Error, OSError):
            hidden = True
            continue
        if any(found.status == psutil.CONN_LISTEN and found.laddr.port == port for found in connections):
            return True
    return None if hidden else False


def _failure(what: str, lines: tuple[str, ...]) -> StepFailedError:
    """The failure, with the last of its lines as the cause."""
    return StepFailedError(f"{what}: {lines[-1]}" if lines else what, lines)


def _state_words(found: Health | None) -> str:
    if found is None:
        return "no answer yet"
    return "loading" if found.status is HealthStatus.LOADING else found.detail or "unhealthy"


def _log_lines(path: str | None) -> list[str]:
    if path is None:
        return []
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    return []


def _complaint(reply: HttpReply) -> str:
    message = error_message(reply.body)
    return f"HTTP {reply.status}{f': {message}' if message else ''}"
