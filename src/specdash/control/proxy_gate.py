"""Holds the proxies in front of a backend while it restarts: their clients wait instead of seeing an error.

A hold ends by itself after `LIMIT_S`, so that a specdash that was killed blocks nobody for long; a thread renews it as
long as we live.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specdash.backend.local_http import Reply, ask
from specdash.collect.discover import place, recorded_key
from specdash.collect.processes import same_process
from specdash.control.apply_engine import live_proxies
from specdash.control.journal import HeldProxy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdash.core.run_record import ProxyRecord

LIMIT_S = 60.0
"""How long a hold lasts that nobody renews."""
RENEW_S = 10.0
LONGEST_WAIT_S = 86400.0
_ANSWER_S = 5.0
_RESUME_TRIES = 3
_TRIES_APART_S = 0.3


@dataclass(frozen=True, slots=True)
class Front:
    """One proxy in front of the backend."""

    record: ProxyRecord
    key: str | None = field(repr=False)

    @property
    def held(self) -> HeldProxy:
        """As the journal keeps it."""
        return HeldProxy(self.record.pid, self.record.pid_started, self.record.url)

    def post(self, path: str, body: dict[str, Any]) -> Reply:
        """Raises `OSError`."""
        return ask(self.record.url, path, headers=self._headers, body=body, timeout=_ANSWER_S)

    def state(self) -> dict[str, Any]:
        """GET /admin/state. Raises `OSError`, also for an answer that is none."""
        reply = ask(self.record.url, "/admin/state", headers=self._headers, timeout=_ANSWER_S)
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
        return {"x-api-key": self.key} if self.key else {}


def fronts(urls: Iterable[str], env: Mapping[str, str] = os.environ) -> tuple[Front, ...]:
    """The live proxies whose upstream is one of these addresses."""
    wanted = {place(url) for url in urls}
    found = [one for one in live_proxies(env) if place(one.upstream) in wanted]
    return tuple(Front(one, recorded_key(one, env)) for one in sorted(found, key=lambda one: one.pid))


def recorded_fronts(held: Iterable[HeldProxy], env: Mapping[str, str] = os.environ) -> tuple[Front, ...]:
    """Those of a journal that still run."""
    wanted = {(one.pid, one.url) for one in held}
    return tuple(Front(one, recorded_key(one, env)) for one in live_proxies(env) if (one.pid, one.url) in wanted)


class ProxyGate:
    """The hold of one apply on its proxies. Not shared between threads, but for the one that renews."""

    def __init__(self, proxies: Iterable[Front], reason: str, wait_s: float) -> None:
        self._all = tuple(proxies)
        self._reason = reason
        self._wait_s = min(wait_s, LONGEST_WAIT_S)
        self._held: tuple[Front, ...] = ()
        self._plain: set[int] = set()
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
        for one in self._all:
            try:
                refusal = self._post(one)
            except OSError as error:
                refusal = str(error)
            if refusal is None:
                held.append(one)
            else:
                warnings.append(
                    f"the proxy at {one.record.url} could not be held ({refusal}); its clients may see errors"
                )
        self._held = tuple(held)
        if held and self._renewing is None:
            self._renewing = threading.Thread(target=self._renew, name="specdash-hold", daemon=True)
            self._renewing.start()
        return warnings

    def active(self) -> int:
        """Requests that the held proxies have upstream now; those of a proxy that does not answer are not counted."""
        running = 0
        for one in self._held:
            with contextlib.suppress(OSError, ValueError, TypeError):
                running += int(one.state().get("active") or 0)
        return running

    def resume(self) -> list[str]:
        """Let everything pass again; a warning for each proxy that did not take it. May be called again."""
        self._ended.set()
        if self._renewing is not None:
            self._renewing.join(2 * _ANSWER_S * max(1, len(self._held)))
        held, self._held = self._held, ()
        return [warning for one in held if (warning := _resume(one)) is not None]

    def _post(self, one: Front) -> str | None:
        """Hold one proxy; why it did not, in words."""
        body: dict[str, Any] = {"reason": self._reason, "limit_s": LIMIT_S, "wait_s": self._wait_s}
        if one.record.pid in self._plain:
            del body["wait_s"]
        reply = one.post("/admin/hold", body)
        if reply.status == 400 and "wait_s" in body:
            # A proxy of an earlier specdash, which knows only PROXY_HOLD_LIMIT.
            self._plain.add(one.record.pid)
            return self._post(one)
        return None if reply.status == 200 else f"HTTP {reply.status}"

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            for one in self._held:
                if self._ended.is_set():
                    return
                with contextlib.suppress(OSError):
                    self._post(one)


def resume_all(held: Iterable[HeldProxy], env: Mapping[str, str] = os.environ) -> list[str]:
    """Resume the proxies of a journal whose own specdash is gone; a warning for each that did not take it."""
    return [warning for one in recorded_fronts(held, env) if (warning := _resume(one)) is not None]


def _resume(one: Front) -> str | None:
    why = ""
    for _ in range(_RESUME_TRIES):
        try:
            reply = one.post("/admin/resume", {})
        except OSError as error:
            why = str(error)
        else:
            if reply.status == 200:
                return None
            why = f"HTTP {reply.status}"
        if not one.alive:
            return None
        threading.Event().wait(_TRIES_APART_S)
    return (
        f"the proxy at {one.record.url} could not be resumed ({why}); its hold ends by itself within {LIMIT_S:g} s, "
        f"or with `specdash proxy resume --url {one.record.url}`"
    )
