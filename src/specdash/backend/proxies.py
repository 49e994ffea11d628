"""The proxies while settings change: those in front of the engine held, drained and resumed, the one whose own env file
changes made to take it over, and a turn asked through it.

A hold is a lease: it ends by itself after `LEASE_S`, so a runner that was killed blocks its clients for no longer than
that. A thread renews it while the change runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.backend.journal import HeldProxy
from specdash.backend.start_check import ANSWER_S, busy, healthy
from specdash.backend.steps import StepFailedError
from specdash.collect.discover import admin_token, place, recorded_key
from specdash.collect.run_records import live_proxies, started_last
from specdash.core.changes import Role
from specdash.core.structs import Masked
from specdash.llama.server_answers import error_message
from specdash.system.http import HttpReply, ask
from specdash.system.processes import same_process

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from specdash.backend.engine_change import EngineChange
    from specdash.backend.journal import Edit
    from specdash.backend.transaction import Transaction
    from specdash.core.records import ProxyRecord

LEASE_S = 10.0
RENEW_S = 3.0
LONGEST_WAIT_S = 86400.0
RESTART_SIGNAL = signal.SIGUSR2
"""Asks a proxy to drain and to execute itself again with its listening socket."""
_RELOAD_S = 15.0
_PROXY_RESTART_S = 60.0
_REQUEST_S = 120.0
_NOT_YET = (429, 503, 529)
"""The upstream is on its way, or has no slot free at this moment."""
_POLL_S = 0.05


class ProxyFront(Masked, Struct, frozen=True):
    """One proxy in front of the backend, with the secrets for asking it."""

    hidden = ("key", "token")

    record: ProxyRecord
    key: str | None
    token: str | None = None
    """For its admin endpoints."""

    @property
    def held(self) -> HeldProxy:
        """As the journal keeps it."""
        return HeldProxy(self.record.pid, self.record.pid_started, self.record.url)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> HttpReply:
        """Raises `OSError`, also for an answer that is no success."""
        # A proxy of 0.1 has no token of its own and asks for the key.
        sent = {"x-api-key": self.key, "x-admin-token": self.token}
        headers = {name: value for name, value in sent.items() if value}
        reply = ask(self.record.url, path, headers=headers, body=body, timeout=ANSWER_S, verified=False)
        if reply.status != 200:
            raise OSError(f"HTTP {reply.status}")
        return reply

    def state(self) -> dict[str, Any]:
        """GET /admin/state. Raises `OSError`, also for an answer of another form."""
        found = self.ask("/admin/state").json
        if not isinstance(found, dict):
            raise OSError("no state")
        return found


def fronts(urls: Iterable[str], env: Mapping[str, str] = os.environ) -> tuple[ProxyFront, ...]:
    """The live proxies whose upstream is one of these addresses."""
    wanted = {place(url) for url in urls}
    return _fronts((record for record in live_proxies(env) if place(record.upstream) in wanted), env)


def held_fronts(held: Iterable[HeldProxy], env: Mapping[str, str] = os.environ) -> tuple[ProxyFront, ...]:
    """The proxies of a journal that still run."""
    wanted = {(proxy.pid, proxy.url) for proxy in held}
    return _fronts((record for record in live_proxies(env) if (record.pid, record.url) in wanted), env)


def _fronts(records: Iterable[ProxyRecord], env: Mapping[str, str]) -> tuple[ProxyFront, ...]:
    ordered = sorted(records, key=lambda record: record.pid)
    return tuple(ProxyFront(record, recorded_key(record, env), admin_token(record)) for record in ordered)


class ProxyHold:
    """The hold of one change on its proxies, from the start; `warnings` name each that cannot be held. Not shared
    between threads, but for the one that renews."""

    def __init__(self, proxies: Iterable[ProxyFront], reason: str, wait_s: float) -> None:
        """`wait_s` is the longest that one client's request may wait."""
        self.warnings: list[str] = []
        self._body = {"reason": reason, "limit_s": LEASE_S, "wait_s": min(wait_s, LONGEST_WAIT_S)}
        self._held: list[ProxyFront] = []
        self._ended = threading.Event()
        for front in proxies:
            try:
                front.ask("/admin/hold", self._body)
                self._held.append(front)
            except OSError as error:
                self.warnings.append(
                    f"the proxy at {front.record.url} could not be held ({error}); its clients may see errors"
                )
        self._renewing = threading.Thread(target=self._renew, name="proxy-hold", daemon=True)
        self._renewing.start()

    @property
    def count(self) -> int:
        """How many proxies are held."""
        return len(self._held)

    def total(self, name: str) -> int:
        """Requests that are `active` upstream, or `waiting`; a proxy that does not answer counts for none."""
        return sum(value for state in self._states() if isinstance(value := state.get(name), int))

    def longest_wait_s(self) -> float | None:
        """Seconds that the oldest of the waiting requests has waited; None where no proxy says so."""
        found = [state.get("longest_wait_s") for state in self._states()]
        return max((value for value in found if isinstance(value, int | float)), default=None)

    def resume(self) -> list[str]:
        """Let everything pass again; a warning for each proxy that did not take it. May be called again."""
        self._ended.set()
        self._renewing.join(2 * ANSWER_S * max(1, len(self._held)))
        held, self._held = self._held, []
        return [warning for front in held if (warning := _resume(front))]

    def _states(self) -> list[dict[str, Any]]:
        states = []
        for front in self._held:
            with contextlib.suppress(OSError):
                states.append(front.state())
        return states

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            for front in self._held:
                if not self._ended.is_set():
                    with contextlib.suppress(OSError):
                        front.ask("/admin/hold", self._body)


def _resume(front: ProxyFront) -> str:
    """Let it pass; what is wrong in words where it does not, "" where its process is gone."""
    try:
        front.ask("/admin/resume", {})
    except OSError as error:
        if same_process(front.record.pid, front.record.pid_started):
            return (
                f"the proxy at {front.record.url} could not be resumed ({error}); its hold ends by itself within "
                f"{LEASE_S:g} s, or with `specdash proxy resume --url {front.record.url}`"
            )
    return ""


class ProxyChange:
    """The proxies of one change."""

    def __init__(self, change: Transaction) -> None:
        self.longest_stall_s: float | None = None
        """The longest that a held client has waited."""
        self._change = change
        self._steps = change.steps
        self._hold: ProxyHold | None = None

    # Those in front of the engine.

    def hold(self, urls: Collection[str]) -> int:
        """Hold every proxy in front of these addresses, and note their names first; how many are held."""
        if self._hold is None:
            journal = self._change.journal
            found = fronts(urls, self._change.env)
            held = (*journal.held, *(front.held for front in found))
            self._change.note_if_possible(held=tuple(dict.fromkeys(held)))
            longest = journal.health_timeout_s + journal.drain_timeout_s
            self._hold = ProxyHold(found, f"specdash {journal.kind} {journal.number}", longest)
            for warning in self._hold.warnings:
                self._change.warn(warning)
        return self._hold.count

    @property
    def holds(self) -> bool:
        """Whether they are held now."""
        return self._hold is not None

    def total(self, name: str) -> int:
        """Requests that the held proxies have `active` upstream now, or `waiting`."""
        return self._hold.total(name) if self._hold is not None else 0

    def drain(self) -> None:
        """Wait until no request is upstream. Raises `StepFailedError` when some still are after the drain timeout."""
        began = time.monotonic()
        limit = self._change.journal.drain_timeout_s
        while left := self.total("active"):
            waited = time.monotonic() - began
            if waited >= limit:
                late = f"{left} requests were still running after {limit:g} s"
                if not self._change.journal.force:
                    raise StepFailedError(
                        f"{late}; give them more time with --drain-timeout, or cut them off with --force"
                    )
                self._change.warn(f"{late} and were cut off (--force)")
                return
            words = (
                f"{left} requests running upstream, {self.total('waiting')} waiting, for {limit - waited:.0f} s at most"
            )
            self._steps.say(words, min(1.0, waited / limit) if limit else None)
            self._steps.wait(_POLL_S)

    def resume(self) -> None:
        """Let everything pass again; may be called again."""
        hold, self._hold = self._hold, None
        if hold is None:
            return
        stall = hold.longest_wait_s()
        if stall is not None:
            self.longest_stall_s = max(stall, self.longest_stall_s or 0.0)
        for warning in hold.resume():
            self._change.warn(warning)

    # The one whose own settings change.

    @property
    def record(self) -> ProxyRecord | None:
        """The most recently started live proxy whose run record names the env file that changes."""
        edit = self._change.journal.edit(Role.PROXY)
        return started_last(live_proxies(self._change.env), edit.env_file) if edit is not None else None

    def take_over(self, edit: Edit, digest: str, *, wait: bool = True) -> str:
        """Make the proxy run this version; what was done, in words. Raises `StepFailedError` when it does not."""
        record = self.record
        if record is None:
            return "does not run: it counts at the next start"
        if record.env_digest == digest:
            return "runs with it already"
        restarts = edit.needs_restart
        if restarts and not record.restarts_itself:
            raise StepFailedError(
                f"the proxy (pid {record.pid}) is of a version that cannot restart itself, which "
                f"{', '.join(change.key for change in edit.changes)} needs; restart it once by hand"
            )
        self._steps.say("restarting the proxy" if restarts else "reloading the proxy")
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.pid, RESTART_SIGNAL if restarts else signal.SIGHUP)
        limit = min(_PROXY_RESTART_S if restarts else _RELOAD_S, self._change.journal.health_timeout_s)
        deadline = time.monotonic() + limit
        while wait and not self._answers(digest):
            now = self.record
            if now is not None and now.refused_digest == digest:
                raise StepFailedError(f"the proxy refused its settings: {now.refused}")
            self.check_alive(record)
            if time.monotonic() > deadline:
                raise StepFailedError(f"the proxy did not take its settings over within {limit:g} s{_see(record)}")
            self._steps.wait(_POLL_S)
        return "restarted, no connection refused" if restarts else "took it over, no stream dropped"

    def _answers(self, digest: str) -> bool:
        record = self.record
        if record is None or record.env_digest != digest:
            return False
        with contextlib.suppress(OSError):
            ask(record.url, "/health", timeout=ANSWER_S, verified=False)
            return True
        return False

    def check_alive(self, record: ProxyRecord | None) -> None:
        """Raises `StepFailedError` where the process of this record has ended."""
        if record is not None and not same_process(record.pid, record.pid_started):
            raise StepFailedError(f"the proxy ended{_see(record)}")

    # A turn through it.

    def to_ask(self, engine: EngineChange | None) -> ProxyRecord | str:
        """The proxy to ask, or in words why none is asked."""
        if self._change.journal.trial:
            return "it is on trial, and measured next"
        record = self.record
        if record is None and engine is not None:
            record = next((front.record for front in fronts([engine.place[0]], self._change.env)), None)
        if record is None:
            return "there is no proxy"
        root = record.upstream.rstrip("/").removesuffix("/v1")
        if engine is None:
            return record if healthy(root) else "its upstream does not answer"
        url, promise = engine.place
        if place(url) != place(root):
            return f"it asks {root}, which is not this backend"
        return promise.no_probe or record

    def request(self, proxy: ProxyRecord, engine: EngineChange | None) -> None:
        """One short turn through the proxy as a client would ask it. Raises `StepFailedError` when it fails."""
        key, through = recorded_key(proxy, self._change.env), f"through the proxy at {proxy.url}"
        if proxy.api_key_env is not None and key is None:
            self._change.warn(f"no request was sent {through}: its key is not known here")
            return
        limit = min(_REQUEST_S, self._change.journal.health_timeout_s)
        messages = [{"role": "user", "content": "Answer with one word: ready?"}]
        # "any" means the model in memory to a router, and the one it has to any other server.
        body = {"model": "any", "max_tokens": 8, "messages": messages}
        headers = {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}
        began = time.monotonic()
        while True:
            left = max(1.0, limit - (time.monotonic() - began))
            try:
                reply = ask(proxy.url, "/v1/messages", headers=headers, body=body, timeout=left, verified=False)
            except TimeoutError:
                words = f"a request {through} was not answered within {limit:g} s"
                # The clients that had waited come first: a queue says nothing about the settings.
                if engine is None or not busy(engine.place[1]):
                    raise StepFailedError(words) from None
                self._change.warn(f"{words}, while the backend worked for others")
                return
            except OSError as error:
                raise StepFailedError(f"a request {through} broke off ({error})") from None
            if reply.status not in _NOT_YET or time.monotonic() - began >= limit:
                break
            self._steps.wait(4 * _POLL_S)
        message = error_message(reply.body)
        complaint = f"HTTP {reply.status}{f': {message}' if message else ''}"
        if reply.status == 400 and engine is None:
            self._change.warn(f"the proxy at {proxy.url} answers, and its upstream wants a model named: {complaint}")
        elif reply.status != 200 or not isinstance(reply.json, dict) or reply.json.get("type") != "message":
            raise StepFailedError(f"a request {through} failed: {complaint}")
        else:
            self._steps.say(f"{proxy.url} answered in {time.monotonic() - began:.1f} s")


def _see(record: ProxyRecord) -> str:
    return f"; see its log, {record.log}" if record.log is not None else ""
