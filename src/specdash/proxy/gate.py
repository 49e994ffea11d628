"""The gate that requests pass before they go upstream: an operator holds it while the backend restarts."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from specdash.proxy.http.responses import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG = logging.getLogger("specdash.proxy")
_RETRY_S = 5
SETTLING_S = 15.0
"""How long after a hold the upstream may still be on its way back."""


class Gate:
    """Open, or held for a reason. A hold that is not lifted ends by itself: a crashed tool must not block for ever.

    `since` is Unix time; `limit_s` says how long the hold lasts from the latest `hold` on, `wait_s` how long a request
    may wait in it in all; `waiting` counts the requests that wait now.
    """

    def __init__(self, wall: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic) -> None:
        self.held = False
        self.reason = ""
        self.since: float | None = None
        self.limit_s: float | None = None
        self.wait_s: float | None = None
        self.waiting = 0
        self.met = False
        """Whether the upstream was seen since the latest hold."""
        self.on_open: Callable[[], None] | None = None
        """Called whenever a hold ends, before the waiting go on."""
        self._wall = wall
        self._clock = clock
        self._opened = asyncio.Event()
        self._opened_at: float | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._waits: dict[asyncio.Timeout, tuple[float, float]] = {}

    def hold(self, reason: str, limit_s: float, wait_s: float | None = None) -> None:
        """Let nothing pass until `resume`, or for `limit_s` seconds from now.

        While held, this renews the hold: its reason and limits are replaced, also for the requests that wait already,
        none of which is woken. Without `wait_s` the waits that are allowed now stay so; in a new hold each request then
        has its own.
        """
        self._cancel_expiry()
        renewed = self.held
        if not renewed:
            self.since = self._wall()
            self._opened = asyncio.Event()
        self.wait_s = wait_s if wait_s is not None else self.wait_s
        if not renewed or reason != self.reason:
            _LOG.info("HOLD: new requests wait, for up to %g s: %s", limit_s, reason or "no reason given")
        self.held, self.reason, self.limit_s = True, reason, limit_s
        self._expiry = asyncio.get_running_loop().call_later(limit_s, self._expire)
        for limit, (began, own_s) in self._waits.items():
            if not limit.expired():
                limit.reschedule(self._end_of_wait(began, own_s))

    def resume(self) -> bool:
        """Let everything pass; False when nothing was held."""
        if not self.held:
            return False
        _LOG.info("RESUME: %d waiting requests go on after %.1f s", self.waiting, self.held_s)
        self._open()
        return True

    @property
    def held_s(self) -> float:
        """Seconds since the hold began, 0 without one."""
        return max(0.0, self._wall() - self.since) if self.since is not None else 0.0

    @property
    def longest_wait_s(self) -> float | None:
        """Seconds that the oldest of the waiting requests has waited, None without one."""
        began = min((began for began, _ in self._waits.values()), default=None)
        return None if began is None else asyncio.get_running_loop().time() - began

    @property
    def settling(self) -> bool:
        """Whether a hold ended so recently that the upstream may not be back yet."""
        return self._opened_at is not None and self._clock() - self._opened_at < SETTLING_S

    @property
    def unmet(self) -> bool:
        """Whether the upstream may still be on its way back, and was not seen."""
        return self.settling and not self.met

    async def wait(self, own_s: float) -> None:
        """Return once the gate is open. Raises `ApiError` 529 after the hold's `wait_s`, or after `own_s` without."""
        if not self.held:
            return
        began = asyncio.get_running_loop().time()
        limit = asyncio.timeout_at(self._end_of_wait(began, own_s))
        self.waiting += 1
        try:
            async with limit:
                self._waits[limit] = began, own_s
                while self.held:
                    await self._opened.wait()
        except TimeoutError:
            if self.held:
                why = f" ({self.reason})" if self.reason else ""
                message = f"the proxy is held{why}; nothing was sent upstream"
                raise ApiError(529, message, retry_after=_RETRY_S) from None
        finally:
            self.waiting -= 1
            self._waits.pop(limit, None)

    def _end_of_wait(self, began: float, own_s: float) -> float:
        return began + (self.wait_s if self.wait_s is not None else own_s)

    def _expire(self) -> None:
        _LOG.warning("HOLD: lifted by itself after %g s without a resume: %s", self.limit_s or 0, self.reason)
        self._open()

    def _open(self) -> None:
        self._cancel_expiry()
        self.held, self.reason, self.since, self.limit_s, self.wait_s = False, "", None, None, None
        self._opened_at = self._clock()
        self.met = False
        if self.on_open is not None:
            self.on_open()
        self._opened.set()

    def _cancel_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
