"""What the upstream says of itself: its context window, its models, what media it takes, and whether it is there."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from specdash.core.proxy_events import UpstreamStatus as State
from specdash.core.readings import most_recent_resident
from specdash.llama.server_answers import mapping, natural, router_models, text
from specdash.proxy.http.responses import ApiError, ModelLoadingError, json_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from specdash.core.readings import RouterModel
    from specdash.proxy.http.app import Proxy
    from specdash.proxy.settings import ProxySettings
    from specdash.proxy.upstream.upstream import Upstream


LONGEST_WAIT_S = 2.0
"""What a request may be delayed to learn the window."""
REFRESH_S = 60.0
_AGAIN_S = 2.0
"""Time between two attempts that learn nothing."""


class ContextWindow:
    """The upstream's facts, read when requests flow, from /props and /v1/models, which answer for a sleeping server."""

    def __init__(
        self, upstream: Upstream, settings: ProxySettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings
        self.model_id: str | None = None
        self.models: tuple[str, ...] = ()
        self.router: tuple[RouterModel, ...] = ()
        """The models of an upstream in router mode, with their states; empty for one that is none."""
        self._used: dict[str, float] = {}
        """When requests were last sent to each of them, in Unix time: b11434's router does not tell."""
        self.status = State.UNKNOWN
        self._upstream = upstream
        self._clock = clock
        self._size: int | None = None
        self._tried_at = -REFRESH_S
        self._reading = asyncio.Lock()

    @property
    def tokens(self) -> int | None:
        """The context window of one conversation: `PROXY_CONTEXT_WINDOW`, else the upstream's own."""
        return self.settings.context_window or self._size

    async def refresh(self, max_age_s: float = REFRESH_S) -> None:
        """Read what the upstream says unless that is younger than `max_age_s`; takes 2 s at most.

        Never fails: what cannot be read stays unknown, and is tried again soon. Never wakes a sleeping server.
        """
        asked = self._clock()
        if self._size and asked - self._tried_at < max_age_s:
            return
        async with self._reading:
            if asked - self._tried_at >= (max_age_s if self._size else min(max_age_s, _AGAIN_S)):
                self._tried_at = self._clock()
                await self._read()

    def note_use(self, model: str) -> None:
        """A request for this model of the upstream is about to be sent."""
        if self.router:
            self._used[model] = time.time()

    def most_recent(self) -> RouterModel | None:
        """The router's model in memory that was used last, as far as the router or this proxy knows."""
        resident = (
            replace(model, last_used=max(model.last_used or 0.0, self._used.get(model.id, 0.0)) or None)
            for model in self.router
            if model.resident
        )
        return most_recent_resident(tuple(resident))

    def forget(self) -> None:
        """The upstream may have restarted: read again before the next request relies on it."""
        self._size = None

    async def _read(self) -> None:
        props: Any
        models: Any
        props, models = await asyncio.gather(
            self._upstream.get_json("/props", LONGEST_WAIT_S),
            self._upstream.get_json("/v1/models", LONGEST_WAIT_S),
            return_exceptions=True,
        )
        if isinstance(models, ApiError) and isinstance(props, ApiError):
            if isinstance(models, ModelLoadingError):
                self.status = State.LOADING
            elif models.status == 504:
                # Busy, not gone: its earlier answer still holds.
                self.status = State.OK if self._size else State.UNKNOWN
            else:
                self.status = State.UNREACHABLE
            return
        data = mapping(models).get("data")
        rows = [row for row in data if isinstance(row, dict) and text(row.get("id"))] if isinstance(data, list) else []
        in_memory = [row for row in rows if mapping(row.get("status")).get("value") == "loaded"]
        # The only model, or the one that a router has loaded, or the first.
        model = next(iter((*in_memory, *rows)), {})
        self.router = router_models(models).models
        self._used = {name: at for name, at in self._used.items() if any(model.id == name for model in self.router)}
        self.models = tuple(row["id"] for row in rows) or self.models
        self.model_id = model.get("id") or self.model_id
        of_server = mapping(mapping(props).get("default_generation_settings"))
        size = natural(of_server.get("n_ctx")) or natural(mapping(model.get("meta")).get("n_ctx"))
        self.status = State.OK
        self._size = size or self._size


# The upstream's models, and what a client's name for one means.

ANY = "any"
"""Of a router's models whichever is in memory. A model that really has this name is meant before."""
_VARIANT = re.compile(r"\[[^\]]*\]$")
"""What Claude Code adds to a model's name for itself, as `[1m]`."""


async def use_model(requested: str, window: ContextWindow) -> str:
    """The upstream's id for a client's model name; it is noted as used.

    Its own id means a model; `any` of a router the resident model that was used last, else the only
    model there is; any other name (as claude-sonnet-4-5) means the model that is loaded, and is passed on as it is
    while the upstream's models are not known. Raises `ApiError` 400 for `any` while no model is resident.
    """
    # What is in memory may be another model after any request, of this proxy or of another client.
    await window.refresh(0 if requested == ANY and window.router else REFRESH_S)
    model = next((name for name in (requested, _VARIANT.sub("", requested)) if name in window.models), None)
    if model is None and requested == ANY and window.router:
        if (best := window.most_recent()) is None:
            names = ", ".join(router_model.id for router_model in window.router[:8])
            raise ApiError(400, f"model '{ANY}': the router has no model in memory; name one of: {names}")
        model = best.id
    model = model or window.model_id or requested
    window.note_use(model)
    return model


async def handle_models(request: Request) -> Response:
    """GET /v1/models, in the words of both APIs."""
    proxy: Proxy = request.state.proxy
    await proxy.window.refresh()
    started = int(proxy.telemetry.started)
    rows = [
        {
            "type": "model",
            "id": model,
            "display_name": model,
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
            "object": "model",
            "created": started,
            "owned_by": "llama.cpp",
        }
        for model in proxy.window.models
    ]
    ends = {"first_id": rows[0]["id"], "last_id": rows[-1]["id"]} if rows else {"first_id": None, "last_id": None}
    return json_response({"object": "list", "data": rows, "has_more": False, **ends})
