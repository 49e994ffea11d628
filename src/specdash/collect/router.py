"""Watches the models of a server in router mode, and says which one to look at when the user named none.

GET /models loads and wakes nothing. The model looked at is the resident one that was used last, by what the router
tells; it stays the same as long as it is resident, so that figures do not jump between models.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from specdash.core.readings import Failure, Reading, Source
from specdash.core.router import RouterModels, most_recent_resident

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

EVERY_S = 2.0
DEADLINE_S = 3.0
NO_ROUTER_S = 30.0
"""How long until a server that was no router is asked again, by a user who named a model."""


class RouterWatch:
    """Publishes ROUTER readings until its `run` is cancelled; silent for a server that is no router.

    `ask` is GET /models; `look_at` is told the model to look at, None: the router itself.
    """

    def __init__(
        self,
        ask: Callable[[float], Awaitable[RouterModels | Failure]],
        publish: Callable[[Reading[Any]], None],
        look_at: Callable[[str | None], None],
        *,
        named: str | None,
    ) -> None:
        self._ask = ask
        self._publish = publish
        self._look_at = look_at
        self._named = named
        self._looks_at: str | None = named
        self.seen = asyncio.Event()
        """Set when the server said that it is a router."""
        self.chosen = asyncio.Event()
        """Set when it is known which model to look at, or that there is none."""
        if named is not None:
            self.seen.set()
            self.chosen.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self.seen.wait()
            result = await self._ask(DEADLINE_S)
            await asyncio.sleep(self._take(result))

    def _take(self, result: RouterModels | Failure) -> float:
        """Use an answer; seconds until the next look."""
        now = time.monotonic()
        if isinstance(result, Failure):
            self._publish(Reading.unknown(Source.ROUTER, now, result.kind, result.detail))
            return EVERY_S
        if not result.models and self._named is not None:
            return NO_ROUTER_S
        if not result.models:
            self.seen.clear()
        self._publish(Reading.known(Source.ROUTER, now, result))
        if self._named is None:
            self._choose(result)
        return EVERY_S

    def _choose(self, found: RouterModels) -> None:
        if any(one.id == self._looks_at and one.resident for one in found.models):
            return
        best = most_recent_resident(found.models)
        chosen = best.id if best is not None else None
        if chosen != self._looks_at:
            self._looks_at = chosen
            self._look_at(chosen)
        self.chosen.set()
