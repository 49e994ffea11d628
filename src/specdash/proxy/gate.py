"""The gate that requests pass before they go upstream: an operator holds it while the backend restarts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from specdash.core.proxy_events import UpstreamStatus as State
from specdash.core.structs import json_of
from specdash.proxy.http.responses import ApiError, json_response, read_body
from specdash.proxy.upstream.upstream import UpstreamBrokenError
from specdash.proxy.upstream.window import REFRESH_S

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from specdash.proxy.http.app import Proxy
    from specdash.proxy.telemetry import ActiveRequest

_LOG = logging.getLogger("specdash.proxy")
_RETRY_S = 5
SETTLING_S = 15.0
"""How long after a hold the upstream may still be on its way back."""


class Gate:
    """Open, or held for a reason. A hold that is not lifted ends by itself: a crashed tool must not block for ever.

    `since` is the Unix time of the hold; `limit_s` says how long it lasts from the latest `hold` on, `wait_s` how long
    a request may wait in it in all.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.since: float | None = None
        self.limit_s: float | None = None
        self.wait_s: float | None = None
        self._opened_at = -math.inf
        self._changed = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self._waits: list[float] = []
        """When each of the waits began that are under way, by the loop's clock."""

    def hold(self, reason: str, limit_s: float, wait_s: float) -> None:
        """Let nothing pass until `resume`, or for `limit_s` seconds from now.

        While held, this renews the hold: its reason and limits are replaced, also for the requests that wait already.
        """
        if not self.held or reason != self.reason:
            _LOG.info("HOLD: new requests wait, for up to %g s: %s", limit_s, reason or "no reason given")
        self._set(reason, self.since if self.held else time.time(), limit_s, wait_s)
        self._expiry = asyncio.get_running_loop().call_later(limit_s, self._expire)

    def resume(self) -> bool:
        """Let everything pass; False when nothing was held."""
        if not self.held:
            return False
        _LOG.info("RESUME: %d waiting requests go on after %.1f s", self.waiting, self.held_s)
        self._set()
        return True

    @property
    def held(self) -> bool:
        """Whether nothing passes now."""
        return self.since is not None

    @property
    def held_s(self) -> float:
        """Seconds since the hold began, 0 without one."""
        return round(max(0.0, time.time() - self.since), 3) if self.since is not None else 0.0

    @property
    def waiting(self) -> int:
        """How many requests wait now."""
        return len(self._waits)

    @property
    def longest_wait_s(self) -> float | None:
        """Seconds that the oldest of the waiting requests has waited, None without one."""
        return round(asyncio.get_running_loop().time() - min(self._waits), 3) if self._waits else None

    @property
    def settling(self) -> bool:
        """Whether a hold ended so recently that the upstream may not be back yet."""
        return time.monotonic() - self._opened_at < SETTLING_S

    async def wait(self) -> None:
        """Return once the gate is open. Raises `ApiError` 529 after the hold's `wait_s`."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._waits.append(began)
        try:
            while self.held:
                left_s = began + (self.wait_s or 0.0) - loop.time()
                if left_s <= 0:
                    why = f" ({self.reason})" if self.reason else ""
                    raise ApiError(529, f"the proxy is held{why}; nothing was sent upstream", retry_after=_RETRY_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), left_s)
        finally:
            self._waits.remove(began)

    def _expire(self) -> None:
        _LOG.warning("HOLD: lifted by itself after %g s without a resume: %s", self.limit_s or 0, self.reason)
        self._set()

    def _set(
        self, reason: str = "", since: float | None = None, limit_s: float | None = None, wait_s: float | None = None
    ) -> None:
        """Hold, or open where no `since` is given; those who wait look again."""
        if self._expiry is not None:
            self._expiry.cancel()
        self.reason, self.since, self.limit_s, self.wait_s = reason, since, limit_s, wait_s
        self._opened_at = time.monotonic() if since is None else -math.inf
        self._changed.set()
        self._changed = asyncio.Event()


# Riding out a restart of the upstream: what a request puts up with while the proxy is held, and right after it.

_RESTARTS_AGAIN_S = 0.1
_ON_ITS_WAY = frozenset({State.LOADING, State.UNREACHABLE})


class RetryPolicy:
    """That of one request: which failed call is made again instead of telling the client."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._broken = False

    async def again(self, error: ApiError) -> bool:
        """Whether a call that failed with `error` before its answer began shall be made again; waits until it may be.

        While the proxy is held, yes: the upstream is being restarted. For some seconds after a hold, when the upstream
        cannot be reached or is loading, and once when it breaks off: a request that kills it must not do so for ever.
        """
        if self._gate.held:
            return error.status >= 500
        is_broken = isinstance(error, UpstreamBrokenError)
        if not self._gate.settling or (self._broken if is_broken else error.status != 529):
            return False
        self._broken = self._broken or is_broken
        await asyncio.sleep(_RESTARTS_AGAIN_S)
        return True


async def admitted(proxy: Proxy, active: ActiveRequest | None = None) -> None:
    """Return in the moment in which a request may be sent; raises `ApiError` 529 when a hold outlasts its wait.

    Right after a hold this waits until it is seen what is there now, and so how large its window is.
    """
    gate, window = proxy.gate, proxy.window
    while True:
        if gate.held:
            if active is not None:
                active.held()
            await gate.wait()
        await window.refresh(0 if gate.settling else REFRESH_S)
        while gate.settling and window.status in _ON_ITS_WAY:
            await asyncio.sleep(_RESTARTS_AGAIN_S)
            await window.refresh(0)
        if not gate.held:
            return


# The operator's endpoints: hold new requests while the backend restarts, let them go on, and say how it stands.

LONGEST_S = 86400.0
_LARGEST_BODY = 64 << 10
_LONGEST_REASON = 200


def state(proxy: Proxy) -> dict[str, Any]:
    """How it stands. `active` counts requests that are upstream now; `drained` says that there is none."""
    gate = proxy.gate
    return {
        **json_of(gate, "held reason since held_s limit_s wait_s waiting longest_wait_s"),
        "active": proxy.upstream.in_flight,
        "drained": not proxy.upstream.in_flight,
    }


async def handle_state(request: Request) -> Response:
    """GET /admin/state."""
    return json_response(state(request.state.proxy))


class _Hold(Struct, forbid_unknown_fields=True):
    """The body of a hold, every field optional."""

    reason: str = ""
    limit_s: Annotated[float, Meta(gt=0, le=LONGEST_S)] | None = None
    wait_s: Annotated[float, Meta(ge=0, le=LONGEST_S)] | None = None
    drain_s: Annotated[float, Meta(ge=0, le=LONGEST_S)] = 0.0


async def handle_hold(request: Request) -> Response:
    """POST /admin/hold with `reason`, `limit_s`, `wait_s` and `drain_s`, all optional.

    The hold ends by itself after `limit_s`; a request waits in it for at most `wait_s` in all. One asked for again is
    renewed: both limits are replaced, `limit_s` counts from now on, and `wait_s`, when it is not given, stays what it
    is. With `drain_s` the answer comes once no request is upstream any more, or after that many seconds.
    """
    proxy: Proxy = request.state.proxy
    try:
        asked = msgspec.json.decode(await read_body(request, _LARGEST_BODY) or b"{}", type=_Hold)
    except ValueError as error:
        raise ApiError(400, str(error)) from None
    gate, default_s = proxy.gate, proxy.settings.hold_limit
    wait_s = next(limit for limit in (asked.wait_s, gate.wait_s, default_s) if limit is not None)
    gate.hold(" ".join(asked.reason.split())[:_LONGEST_REASON], asked.limit_s or default_s, wait_s)
    await proxy.upstream.drained(asked.drain_s)
    return json_response(state(proxy))


async def handle_resume(request: Request) -> Response:
    """POST /admin/resume. What is known of the upstream is forgotten: it may be another now."""
    proxy: Proxy = request.state.proxy
    proxy.window.forget()
    resumed = proxy.gate.resume()
    return json_response({"resumed": resumed, **state(proxy)})
