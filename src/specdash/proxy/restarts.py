"""Riding out a restart of the upstream: what a request puts up with while the proxy is held, and right after it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from specdash.core.proxy_status import Upstream as State
from specdash.proxy.upstream import UpstreamBrokenError

if TYPE_CHECKING:
    from specdash.proxy.app import Proxy
    from specdash.proxy.errors import ApiError
    from specdash.proxy.gate import Gate

_AGAIN_S = 0.1
_ON_ITS_WAY = frozenset({State.LOADING, State.UNREACHABLE})


class Patience:
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
        if not self._gate.settling:
            return False
        if isinstance(error, UpstreamBrokenError):
            if self._broken:
                return False
            self._broken = True
        elif error.status != 529:
            return False
        await asyncio.sleep(_AGAIN_S)
        return True


def must_wait(proxy: Proxy) -> bool:
    """Whether nothing may be sent upstream yet: the proxy is held, or has not seen since a hold what is there now."""
    return proxy.gate.held or (proxy.gate.settling and not proxy.gate.met)


async def meet_upstream(proxy: Proxy) -> None:
    """See to it that the window is known, as `Window.refresh` does; right after a hold, wait until it can be."""
    gate, window = proxy.gate, proxy.window
    await window.refresh(force=must_wait(proxy))
    while must_wait(proxy) and not gate.held and window.status in _ON_ITS_WAY:
        await asyncio.sleep(_AGAIN_S)
        await window.refresh(force=True)
    gate.met = not gate.held
