"""The proxies in front of a backend, held while it restarts: their clients wait instead of seeing an error.

A hold is a lease: it ends by itself after `LEASE_S`, so a runner that was killed blocks its clients for no longer than
that. A thread renews it while the change runs.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import field
from typing import TYPE_CHECKING, Any

from specdash.backend.journal import HeldProxy
from specdash.collect.discover import admin_token, place, recorded_key
from specdash.collect.run_records import live_proxies
from specdash.system.data import dataclass
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


@dataclass(frozen=True, slots=True)
class ProxyFront:
    """One proxy in front of the backend, with the secrets for asking it."""

    record: ProxyRecord
    key: str | None = field(repr=False)
    token: str | None = field(default=None, repr=False)
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
        reply = ask(self.record.url, path, headers=headers, body=body, timeout=_ANSWER_S, verified=False)
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
        self._renewing.join(2 * _ANSWER_S * max(1, len(self._held)))
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
    why = ""
    for _ in range(_RESUME_TRIES):
        try:
            front.ask("/admin/resume", {})
        except OSError as error:
            why = str(error)
        else:
            return ""
        if not same_process(front.record.pid, front.record.pid_started):
            return ""
        threading.Event().wait(_TRIES_APART_S)
    return (
        f"the proxy at {front.record.url} could not be resumed ({why}); its hold ends by itself within {LEASE_S:g} s, "
        f"or with `specdash proxy resume --url {front.record.url}`"
    )
