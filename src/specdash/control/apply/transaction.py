"""What every part of a transaction shares: the journal and where it is kept, the services, the hold, the warnings."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from specdash.collect.discover import admin_token, place, recorded_key
from specdash.collect.run_records import live_proxies
from specdash.control.apply.engine import running_engine, scrubbed, service_promise
from specdash.control.apply.journal import HeldProxy, JournalFile, journal_file
from specdash.core.changes import STEPS, ApplyStep, Role, is_secret
from specdash.core.errors import NotWrittenError, ServiceError
from specdash.system.data import dataclass
from specdash.system.http import HttpReply, ask
from specdash.system.processes import same_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdash.backend.start_check import ServerPromise
    from specdash.control.apply.engine import ServingEngine
    from specdash.control.apply.journal import Edit, Journal
    from specdash.control.apply.steps import Steps
    from specdash.control.services.services import Deployment, ManagedService
    from specdash.core.records import ProxyRecord


# Holds the proxies in front of a backend while it restarts: their clients wait instead of seeing an error.
#
# A hold ends by itself after `LIMIT_S`, so that a specdash that was killed blocks nobody for long; a thread renews it
# as long as we live.

LIMIT_S = 60.0
"""How long a hold lasts that nobody renews."""
RENEW_S = 10.0
LONGEST_WAIT_S = 86400.0
_ANSWER_S = 5.0
_RESUME_TRIES = 3
_TRIES_APART_S = 0.3


@dataclass(frozen=True, slots=True)
class ProxyFront:
    """One proxy in front of the backend."""

    record: ProxyRecord
    key: str | None = field(repr=False)
    token: str | None = field(default=None, repr=False)
    """For its admin endpoints."""

    @property
    def held(self) -> HeldProxy:
        """As the journal keeps it."""
        return HeldProxy(self.record.pid, self.record.pid_started, self.record.url)

    def post(self, path: str, body: dict[str, Any]) -> HttpReply:
        """Raises `OSError`."""
        return ask(self.record.url, path, headers=self._headers, body=body, timeout=_ANSWER_S, verified=False)

    def state(self) -> dict[str, Any]:
        """GET /admin/state. Raises `OSError`, also for an answer that is none."""
        reply = ask(self.record.url, "/admin/state", headers=self._headers, timeout=_ANSWER_S, verified=False)
        if reply.status != 200 or not isinstance(reply.json, dict):
            raise OSError(f"HTTP {reply.status}")
        found: dict[str, Any] = reply.json
        return found

    @property
    def alive(self) -> bool:
        """Whether its process still runs."""
        return same_process(self.record.pid, self.record.pid_started)

    @property
    def _headers(self) -> dict[str, str]:
        # A proxy of 0.1 has no token of its own and asks for the key.
        sent = {"x-api-key": self.key, "x-admin-token": self.token}
        return {name: value for name, value in sent.items() if value}


def fronts(urls: Iterable[str], env: Mapping[str, str] = os.environ) -> tuple[ProxyFront, ...]:
    """The live proxies whose upstream is one of these addresses."""
    wanted = {place(url) for url in urls}
    found = [live_proxy for live_proxy in live_proxies(env) if place(live_proxy.upstream) in wanted]
    return tuple(
        ProxyFront(record, recorded_key(record, env), admin_token(record))
        for record in sorted(found, key=lambda record: record.pid)
    )


def recorded_fronts(held: Iterable[HeldProxy], env: Mapping[str, str] = os.environ) -> tuple[ProxyFront, ...]:
    """Those of a journal that still run."""
    wanted = {(held_proxy.pid, held_proxy.url) for held_proxy in held}
    return tuple(
        ProxyFront(proxy, recorded_key(proxy, env), admin_token(proxy))
        for proxy in live_proxies(env)
        if (proxy.pid, proxy.url) in wanted
    )


class ProxyGate:
    """The hold of one apply on its proxies. Not shared between threads, but for the one that renews."""

    def __init__(self, proxies: Iterable[ProxyFront], reason: str, wait_s: float) -> None:
        self._all = tuple(proxies)
        self._reason = reason
        self._wait_s = min(wait_s, LONGEST_WAIT_S)
        self._held: tuple[ProxyFront, ...] = ()
        self._ended = threading.Event()
        self._renewing: threading.Thread | None = None

    @property
    def count(self) -> int:
        """How many proxies are held."""
        return len(self._held)

    def hold(self) -> list[str]:
        """Hold them all, and go on renewing; a warning for each that cannot be held."""
        warnings = []
        held = []
        for proxy_front in self._all:
            try:
                refusal = self._post(proxy_front)
            except OSError as error:
                refusal = str(error)
            if refusal is None:
                held.append(proxy_front)
            else:
                warnings.append(
                    f"the proxy at {proxy_front.record.url} could not be held ({refusal}); its clients may see errors"
                )
        self._held = tuple(held)
        if held and self._renewing is None:
            self._renewing = threading.Thread(target=self._renew, name="specdash-hold", daemon=True)
            self._renewing.start()
        return warnings

    def active(self) -> int:
        """Requests that the held proxies have upstream now; those of a proxy that does not answer are not counted."""
        running = 0
        for proxy_front in self._held:
            with contextlib.suppress(OSError, ValueError, TypeError):
                running += int(proxy_front.state().get("active") or 0)
        return running

    def resume(self) -> list[str]:
        """Let everything pass again; a warning for each proxy that did not take it. May be called again."""
        self._ended.set()
        if self._renewing is not None:
            self._renewing.join(2 * _ANSWER_S * max(1, len(self._held)))
        held, self._held = self._held, ()
        return [warning for proxy_front in held if (warning := _resume(proxy_front)) is not None]

    def _post(self, proxy_front: ProxyFront) -> str | None:
        """Hold one proxy; why it did not, in words."""
        reply = proxy_front.post("/admin/hold", {"reason": self._reason, "limit_s": LIMIT_S, "wait_s": self._wait_s})
        return None if reply.status == 200 else f"HTTP {reply.status}"

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            for proxy_front in self._held:
                if self._ended.is_set():
                    return
                with contextlib.suppress(OSError):
                    self._post(proxy_front)


def resume_all(held: Iterable[HeldProxy], env: Mapping[str, str] = os.environ) -> list[str]:
    """Resume the proxies of a journal whose own specdash is gone; a warning for each that did not take it."""
    return [warning for front in recorded_fronts(held, env) if (warning := _resume(front)) is not None]


def _resume(front: ProxyFront) -> str | None:
    why = ""
    for _ in range(_RESUME_TRIES):
        try:
            reply = front.post("/admin/resume", {})
        except OSError as error:
            why = str(error)
        else:
            if reply.status == 200:
                return None
            why = f"HTTP {reply.status}"
        if not front.alive:
            return None
        threading.Event().wait(_TRIES_APART_S)
    return (
        f"the proxy at {front.record.url} could not be resumed ({why}); its hold ends by itself within {LIMIT_S:g} s, "
        f"or with `specdash proxy resume --url {front.record.url}`"
    )


_SHORTEST_SECRET = 4
_BEFORE_HEALTH = STEPS[: STEPS.index(ApplyStep.HEALTH)]


class Transaction:
    """One transaction under way, by the process that began it or by the one that recovers it."""

    def __init__(
        self, deployment: Deployment, journal: Journal, steps: Steps, env: Mapping[str, str] = os.environ
    ) -> None:
        self.journal = journal
        self.steps = steps
        self.env = env
        self.deployment = deployment
        self.file: JournalFile = journal_file(env)
        self.services = {edit.role: _service(deployment, edit) for edit in journal.edits}
        self.gate: ProxyGate | None = None
        self.downtime_s: float | None = None
        """How long the backend was away, all told; None as long as it never was."""
        self.down_since: float | None = None
        """Since when, in monotonic seconds, while it is."""
        self.warnings: list[str] = list(journal.warnings)

    @property
    def unsettled(self) -> bool:
        """Whether a restart was asked for whose end was not seen: what runs now need not be what runs in a second."""
        return self.journal.step in _BEFORE_HEALTH and Role.BACKEND in self.journal.touched

    def note(self, **changes: Any) -> None:
        """Write down what is about to be done. Raises `NotWrittenError`."""
        self.journal = replace(self.journal, **changes, warnings=tuple(self.warnings))
        self.file.write(self.journal)

    def note_if_possible(self, **changes: Any) -> None:
        """The same, where going on without it is better than not going on."""
        try:
            self.note(**changes)
        except NotWrittenError as error:
            self.warn(str(error))

    def warn(self, text: str) -> None:
        """Something for the operator, each once."""
        clean = self.scrub(text)
        if clean not in self.warnings:
            self.warnings.append(clean)

    def promise(self, edit: Edit, *, new: bool) -> ServerPromise:
        """What one version of the backend's env promises."""
        return service_promise(self.services[edit.role], edit.values(new=new), self.env)

    def engine(self, edit: Edit) -> ServingEngine | None:
        """The engine that serves now."""
        service = self.services[edit.role]
        for new in (True, False):
            found = running_engine(service, service.status(), self.env, self.promise(edit, new=new).url)
            if found is not None:
                return found
        return None

    def close_gate(self) -> None:
        """Hold every proxy in front of the backend, and write their names down first."""
        edit = self.journal.edit(Role.BACKEND)
        if edit is None or self.gate is not None:
            return
        urls = {self.promise(edit, new=True).url, self.promise(edit, new=False).url}
        if self.journal.url is not None:
            urls.add(self.journal.url)
        found = fronts(urls, self.env)
        known = dict.fromkeys((*self.journal.held, *(proxy_front.held for proxy_front in found)))
        self.note_if_possible(held=tuple(known))
        wait_s = self.journal.health_timeout_s + self.journal.drain_timeout_s
        self.gate = ProxyGate(found, f"specdash {self.journal.kind} {self.journal.number}", wait_s)
        for warning in self.gate.hold():
            self.warn(warning)
        proxy = self.deployment.proxy
        with contextlib.suppress(ServiceError):
            if proxy is not None and not proxy.reloads and proxy.status().alive:
                self.warn(f"{proxy.name} is no specdash proxy and cannot be held: a restart cuts its clients off")

    def requests(self) -> int:
        """Requests that held proxies have upstream now."""
        return self.gate.active() if self.gate is not None else 0

    def open_gate(self) -> None:
        """Let everything pass again."""
        gate, self.gate = self.gate, None
        if gate is not None:
            for warning in gate.resume():
                self.warn(warning)

    def down(self, since: float) -> None:
        """The backend, which ran, does not answer from now on."""
        if self.down_since is None:
            self.down_since = since

    def up(self, at: float | None) -> None:
        """It answers again."""
        if self.down_since is not None and at is not None:
            self.downtime_s = (self.downtime_s or 0.0) + max(0.0, at - self.down_since)
            self.down_since = None

    def scrub(self, text: str) -> str:
        """The text without a secret of any version of the env files."""
        found = {
            value
            for edit in self.journal.edits
            for new in (True, False)
            for key, value in edit.values(new=new).items()
            if is_secret(key) and len(value) >= _SHORTEST_SECRET
        }
        return scrubbed(text, sorted(found, key=len, reverse=True))


def _service(deployment: Deployment, edit: Edit) -> ManagedService:
    found = deployment.service(edit.role)
    if found is None or found.name != edit.service or str(found.env_file) != edit.env_file:
        now = f"{found.name} with {found.env_file}" if found is not None else "none"
        raise ServiceError(
            f"the apply that was cut short changed {edit.service} with {edit.env_file}; the {edit.role} is now {now}; "
            "name that service with its options or in config.toml, and recover again"
        )
    return found
