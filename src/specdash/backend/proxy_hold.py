"""The proxies in front of a backend, held while it restarts: their clients wait instead of seeing an error.

A hold is a lease: it ends by itself after `LEASE_S`, so a runner that was killed blocks its clients for no longer than
that. A thread renews it while the change runs.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.backend.journal import HeldProxy
from specdash.collect.discover import admin_token, place, recorded_key
from specdash.collect.run_records import live_proxies
from specdash.core.structs import Masked
from specdash.system.http import HttpReply, ask
from specdash.system.processes import same_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdash.core.records import ProxyRecord

LEASE_S = 10.0
RENEW_S = 3.0
LONGEST_WAIT_S = 86400.0
_ANSWER_S = 5.0
_RESUME_TRIES = 3
_TRIES_APART_S = 0.3


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

    def post(self, path: str, body: dict[str, Any]) -> HttpReply:
        """Raises `OSError`."""
        return ask(self.record.url, path, headers=self._headers, body=body, timeout=_ANSWER_S, verified=False)

    def state(self) -> dict[str, Any]:
        """GET /admin/state. Raises `OSError`, also for an answer of another form."""
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
    return _fronts((record for record in live_proxies(env) if place(record.upstream) in wanted), env)


def held_fronts(held: Iterable[HeldProxy], env: Mapping[str, str] = os.environ) -> tuple[ProxyFront, ...]:
    """The proxies of a journal that still run."""
    wanted = {(proxy.pid, proxy.url) for proxy in held}
    return _fronts((record for record in live_proxies(env) if (record.pid, record.url) in wanted), env)


def _fronts(records: Iterable[ProxyRecord], env: Mapping[str, str]) -> tuple[ProxyFront, ...]:
    ordered = sorted(records, key=lambda record: record.pid)
    return tuple(ProxyFront(record, recorded_key(record, env), admin_token(record)) for record in ordered)


class ProxyHold:
    """The hold of one change on its proxies. Not shared between threads, but for the one that renews."""

    def __init__(self, proxies: Iterable[ProxyFront], reason: str, wait_s: float) -> None:
        """`wait_s` is the longest that one client's request may wait."""
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
        for front in self._all:
            try:
                refusal = self._post(front)
            except OSError as error:
                refusal = str(error)
            if refusal is None:
                held.append(front)
            else:
                warnings.append(
                    f"the proxy at {front.record.url} could not be held ({refusal}); its clients may see errors"
                )
        self._held = tuple(held)
        if held and self._renewing is None:
            self._renewing = threading.Thread(target=self._renew, name="proxy-hold", daemon=True)
            self._renewing.start()
        return warnings

    def active(self) -> int:
        """Requests that the held proxies have upstream now; a proxy that does not answer counts for none."""
        return self._total("active")

    def waiting(self) -> int:
        """Requests that wait in the held proxies now."""
        return self._total("waiting")

    def longest_wait_s(self) -> float | None:
        """Seconds that the oldest of the waiting requests has waited; None where no proxy says so."""
        found = [state.get("longest_wait_s") for state in self._states()]
        seconds = [value for value in found if isinstance(value, int | float)]
        return max(seconds, default=None)

    def resume(self) -> list[str]:
        """Let everything pass again; a warning for each proxy that did not take it. May be called again."""
        self._ended.set()
        if self._renewing is not None:
            self._renewing.join(2 * _ANSWER_S * max(1, len(self._held)))
        held, self._held = self._held, ()
        return [warning for front in held if (warning := _resume(front)) is not None]

    def _states(self) -> list[dict[str, Any]]:
        states = []
        for front in self._held:
            with contextlib.suppress(OSError):
                states.append(front.state())
        return states

    def _total(self, name: str) -> int:
        return sum(value for state in self._states() if isinstance(value := state.get(name), int))

    def _post(self, front: ProxyFront) -> str | None:
        """Hold one proxy; why it did not, in words."""
        reply = front.post("/admin/hold", {"reason": self._reason, "limit_s": LEASE_S, "wait_s": self._wait_s})
        return None if reply.status == 200 else f"HTTP {reply.status}"

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            for front in self._held:
                if self._ended.is_set():
                    return
                with contextlib.suppress(OSError):
                    self._post(front)


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
        f"the proxy at {front.record.url} could not be resumed ({why}); its hold ends by itself within {LEASE_S:g} s, "
        f"or with `specdash proxy resume --url {front.record.url}`"
    )
