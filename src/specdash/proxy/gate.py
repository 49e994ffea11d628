"""The gate that requests pass before they go upstream: an operator holds it while the backend restarts."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from specdash.proxy.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG = logging.getLogger("specdash.proxy")
_RETRY_S = 5


class Gate:
    """Open, or held for a reason. A hold that nobody lifts ends by itself: a crashed tool must not block for ever.

    `since` is Unix time; `waiting` counts the requests that wait now.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self.held = False
        self.reason = ""
        self.since: float | None = None
        self.limit_s: float | None = None
        self.waiting = 0
        self._wall = wall
        self._opened = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None

    def hold(self, reason: str, limit_s: float) -> None:
        """Let nothing pass until `resume`, or for `limit_s` seconds. A second hold replaces reason and limit."""
        self._cancel_expiry()
        if not self.held:
            self.since = self._wall()
            self._opened = asyncio.Event()
        self.held, self.reason, self.limit_s = True, reason, limit_s
        self._expiry = asyncio.get_running_loop().call_later(limit_s, self._expire)
        _LOG.info("HOLD: new requests wait up to %g s: %s", limit_s, reason or "no reason given")

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

    async def wait(self, timeout: float) -> None:  # noqa: ASYNC109 - the wait ends in an error of ours
        """Return once the gate is open. Raises `ApiError` 529 after `timeout` seconds."""
        if not self.held:
            return
        self.waiting += 1
        try:
            async with asyncio.timeout(timeout):
                while self.held:
                    await self._opened.wait()
        except TimeoutError:
            said = f" ({self.reason})" if self.reason else ""
            raise ApiError(529, f"the proxy is held{said}; nothing was sent upstream", retry_after=_RETRY_S) from None
        finally:
            self.waiting -= 1

    def _expire(self) -> None:
        _LOG.warning("HOLD: lifted by itself after %g s, nobody resumed it: %s", self.limit_s or 0, self.reason)
        self._open()

    def _open(self) -> None:
        self._cancel_expiry()
        self.held, self.reason, self.since, self.limit_s = False, "", None, None
        self._opened.set()

    def _cancel_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
