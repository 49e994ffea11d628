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

from specdash.backend.journal import HeldProxy
from specdash.backend.start_check import ANSWER_S, busy, healthy
from specdash.backend.steps import StepFailedError
from specdash.collect.discover import admin_token, place, recorded_key
from specdash.collect.run_records import live_proxies, started_last
from specdash.core.changes import Role
from specdash.llama.server_answers import error_message, mapping
from specdash.system.http import ask, status_of
from specdash.system.processes import same_process

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

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


def fronts(urls: Iterable[str], env: Mapping[str, str] = os.environ) -> list[ProxyRecord]:
    """The live proxies whose upstream is one of these addresses."""
    wanted = {place(url) for url in urls}
    return [record for record in live_proxies(env) if place(record.upstream) in wanted]


def figure(proxy: ProxyRecord, name: str, env: Mapping[str, str] = os.environ) -> float | None:
    """How many requests are `active` upstream or `waiting`, or the `longest_wait_s` of those; None where it does not
    answer, or know."""
    with contextlib.suppress(OSError):
        value = _ask_admin(proxy, "/admin/state", env).get(name)
        return value if isinstance(value, int | float) else None
    return None


def _ask_admin(proxy: ProxyRecord, path: str, env: Mapping[str, str], body: Any = None) -> dict[str, Any]:
    # A proxy of 0.1 has no token of its own and asks for the key.
    sent = {"x-api-key": recorded_key(proxy, env), "x-admin-token": admin_token(proxy)}
    headers = {name: value for name, value in sent.items() if value}
    reply = ask(proxy.url, path, headers=headers, body=body, timeout=ANSWER_S)
    if reply.status != 200:
        raise OSError(f"HTTP {reply.status}")
    return mapping(reply.json)


class ProxyHold:
    """Proxies that keep their clients waiting until they are resumed. `warn` is called for each that does not."""

    def __init__(self, warn: Callable[[str], object], env: Mapping[str, str] = os.environ) -> None:
        self.longest_stall_s: float | None = None
        """The longest that a held client has waited."""
        self.held: list[ProxyRecord] = []
        self.env = env
        self._warn = warn
        self._ended = threading.Event()
        self._renewing: threading.Thread | None = None

    def hold(self, proxies: Iterable[ProxyRecord], reason: str, wait_s: float) -> None:
        """Hold them; `wait_s` is the longest that one client's request may wait."""
        body = {"reason": reason, "limit_s": LEASE_S, "wait_s": min(wait_s, LONGEST_WAIT_S)}
        for proxy in proxies:
            try:
                _ask_admin(proxy, "/admin/hold", self.env, body)
                self.held.append(proxy)
            except OSError as error:
                self._warn(f"the proxy at {proxy.url} could not be held ({error}); its clients may see errors")

        def renew() -> None:
            while not self._ended.wait(RENEW_S):
                for proxy in self.held:
                    with contextlib.suppress(OSError):
                        _ask_admin(proxy, "/admin/hold", self.env, body)

        self._ended.clear()
        self._renewing = threading.Thread(target=renew, name="proxy-hold", daemon=True)
        self._renewing.start()

    def total(self, name: str) -> int:
        """Requests that they have `active` upstream now, or `waiting`; one that does not answer counts for none."""
        return int(sum(figure(proxy, name, self.env) or 0 for proxy in self.held))

    def resume(self) -> None:
        """Let everything pass again; may be called again."""
        stalls = [self.longest_stall_s, *(figure(proxy, "longest_wait_s", self.env) for proxy in self.held)]
        self.longest_stall_s = max((stall for stall in stalls if stall is not None), default=None)
        self._ended.set()
        if self._renewing is not None:
            self._renewing.join(2 * ANSWER_S * max(1, len(self.held)))
        held, self.held = self.held, []
        for proxy in held:
            try:
                _ask_admin(proxy, "/admin/resume", self.env, {})
            except OSError as error:
                if same_process(proxy.pid, proxy.pid_started):
                    self._warn(
                        f"the proxy at {proxy.url} could not be resumed ({error}); its hold ends by itself "
                        f"within {LEASE_S:g} s, or with `specdash proxy resume --url {proxy.url}`"
                    )


class ProxyChange(ProxyHold):
    """The proxies of one change."""

    def __init__(self, change: Transaction) -> None:
        super().__init__(change.warn, change.env)
        self._change = change
        self._steps = change.steps

    def hold_clients(self, urls: Collection[str]) -> None:
        """Hold every proxy in front of these addresses, and note their names first."""
        if not self.held:
            journal, found = self._change.journal, fronts(urls, self.env)
            held = (*journal.held, *(HeldProxy(proxy.pid, proxy.pid_started, proxy.url) for proxy in found))
            self._change.note_if_possible(held=tuple(dict.fromkeys(held)))
            longest = journal.health_timeout_s + journal.drain_timeout_s
            self.hold(found, f"specdash {journal.kind} {journal.number}", longest)

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
            words = f"{left} requests running upstream, {self.total('waiting')} waiting"
            self._steps.say(f"{words}, for {limit - waited:.0f} s at most", waited / limit)
            self._steps.wait(_POLL_S)

    # The one whose own settings change.

    @property
    def record(self) -> ProxyRecord | None:
        """The most recently started live proxy whose run record names the env file that changes."""
        edit = self._change.journal.edit(Role.PROXY)
        return started_last(live_proxies(self.env), edit.env_file) if edit is not None else None

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
        while wait:
            now = self.record
            if now is not None and now.env_digest == digest and status_of(now.url, "/health", ANSWER_S) is not None:
                break
            if now is not None and now.refused_digest == digest:
                raise StepFailedError(f"the proxy refused its settings: {now.refused}")
            self.check_alive(record)
            if time.monotonic() > deadline:
                raise StepFailedError(f"the proxy did not take its settings over within {limit:g} s{_see(record)}")
            self._steps.wait(_POLL_S)
        return "restarted, no connection refused" if restarts else "took it over, no stream dropped"

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
            record = next(iter(fronts([engine.settings.url], self.env)), None)
        if record is None:
            return "there is no proxy"
        root = record.upstream.rstrip("/").removesuffix("/v1")
        if engine is None:
            return record if healthy(root) else "its upstream does not answer"
        if place(engine.settings.url) != place(root):
            return f"it asks {root}, which is not this backend"
        return engine.settings.no_probe or record

    def request(self, proxy: ProxyRecord, engine: EngineChange | None) -> None:
        """One short turn through the proxy as a client would ask it. Raises `StepFailedError` when it fails."""
        key, through = recorded_key(proxy, self.env), f"through the proxy at {proxy.url}"
        if proxy.api_key_env is not None and key is None:
            self._change.warn(f"no request was sent {through}: its key is not known here")
            return
        limit = min(_REQUEST_S, self._change.journal.health_timeout_s)
        # "any" means the model in memory to a router, and the one it has to any other server.
        messages = [{"role": "user", "content": "Answer with one word: ready?"}]
        body = {"model": "any", "max_tokens": 8, "messages": messages}
        headers = {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}
        began = time.monotonic()
        while True:
            left = max(1.0, limit - (time.monotonic() - began))
            try:
                reply = ask(proxy.url, "/v1/messages", headers=headers, body=body, timeout=left)
            except TimeoutError:
                words = f"a request {through} was not answered within {limit:g} s"
                # The clients that had waited come first: a queue says nothing about the settings.
                if engine is None or not busy(engine.settings):
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
        elif reply.status != 200 or mapping(reply.json).get("type") != "message":
            raise StepFailedError(f"a request {through} failed: {complaint}")
        else:
            self._steps.say(f"{proxy.url} answered in {time.monotonic() - began:.1f} s")


def _see(record: ProxyRecord) -> str:
    return f"; see its log, {record.log}" if record.log is not None else ""
