"""What the upstream says of itself: its context window, its models, what media it takes, and whether it is there."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specdash.core.proxy_status import Upstream as State
from specdash.llama.models import router_models
from specdash.proxy.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.core.router import RouterModel
    from specdash.proxy.settings import ProxySettings
    from specdash.proxy.upstream import Upstream

_LOG = logging.getLogger("specdash.proxy")
LONGEST_WAIT_S = 2.0
"""What a request may be delayed to learn the window."""
_AGAIN_S = 2.0
"""Time between two attempts that learn nothing."""


class Window:
    """The upstream's facts, read when requests flow. `tokens` is None until it said its context window.

    Looking never wakes a sleeping server: /props and /v1/models answer for it, /slots is left alone.
    """

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
        self.media: frozenset[str] = frozenset()
        self.build: str | None = None
        self.status = State.UNKNOWN
        self.read_at: float | None = None
        """Clock time of the last reading that told the window; None when it has to be read anew."""
        self._upstream = upstream
        self._clock = clock
        self._said: int | None = None
        self._tried_at: float | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def tokens(self) -> int | None:
        """The context window of one conversation: `PROXY_CONTEXT_WINDOW`, else what the upstream said."""
        return self.settings.context_window or self._said

    async def refresh(self, *, force: bool = False) -> None:
        """See to it that the window is known and not older than `context_refresh`.

        Waits, at most 2 s, only while nothing is known or when forced; otherwise reading goes on in the background.
        Never fails: what cannot be read stays unknown.
        """
        now = self._clock()
        if not force:
            if self.read_at is not None and now - self.read_at < self.settings.context_refresh:
                return
            if self._tried_at is not None and now - self._tried_at < _AGAIN_S and self._reading is None:
                return
        if self._reading is None:
            self._tried_at = now
            self._reading = asyncio.get_running_loop().create_task(self._read())
        if force or self.tokens is None or not self.models:
            await asyncio.wait({self._reading}, timeout=LONGEST_WAIT_S)

    def note_use(self, model: str) -> None:
        """A request for this model of the upstream is about to be sent."""
        if self.router:
            self._used[model] = time.time()

    def resident_models(self) -> tuple[RouterModel, ...]:
        """The router's models that are in memory, each with its last use as far as the router or this proxy knows."""
        return tuple(
            replace(one, last_used=max(one.last_used or 0.0, self._used.get(one.id, 0.0)) or None)
            for one in self.router
            if one.resident
        )

    def forget(self) -> None:
        """The upstream may have restarted: read again before the next request relies on it."""
        self.read_at = None
        self._said = None

    async def check(self, max_age_s: float = 1.0) -> State:
        """Whether the upstream answers now; an answer up to `max_age_s` old counts. Does not wake a sleeping server."""
        now = self._clock()
        if self._tried_at is None or now - self._tried_at >= max_age_s:
            await self.refresh(force=True)
        elif self._reading is not None:
            await asyncio.wait({self._reading}, timeout=LONGEST_WAIT_S)
        return self.status

    async def close(self) -> None:
        """End a reading under way."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        before = (self._said, self.model_id, self.build)
        try:
            await self._ask()
        except ApiError as error:
            self.status = State.LOADING if "loading" in error.message else State.UNREACHABLE
            if self.status is State.UNREACHABLE and error.status == 504:
                # Busy, not gone: what it said before still holds.
                self.status = State.OK if self.read_at is not None else State.UNKNOWN
        finally:
            self._reading = None
        after = (self._said, self.model_id, self.build)
        if self._said is not None and before != after and before[1] is not None:
            _LOG.info("Context window: %d tokens, read again from the upstream", self._said)

    async def _ask(self) -> None:
        props: Any
        models: Any
        props, models = await asyncio.gather(
            self._upstream.get_json("/props", LONGEST_WAIT_S),
            self._upstream.get_json("/v1/models", LONGEST_WAIT_S),
            return_exceptions=True,
        )
        if isinstance(models, BaseException) and isinstance(props, BaseException):
            raise models
        facts = props if isinstance(props, dict) else {}
        rows = _rows(models)
        self.router = router_models(models).models
        self._used = {name: at for name, at in self._used.items() if any(one.id == name for one in self.router)}
        self.models = tuple(str(row["id"]) for row in rows) or self.models
        self.model_id = _loaded(rows) or self.model_id
        self.build = _text(facts.get("build_info")) or self.build
        self.media = _media(facts, rows)
        said = _size(facts.get("default_generation_settings")) or _size(_meta(rows, self.model_id))
        if said is None and not facts.get("is_sleeping") and facts.get("role") != "router" and facts:
            said = await self._ask_slots()
        self.status = State.OK
        if said is not None:
            self._said = said
            self.read_at = self._clock()

    async def _ask_slots(self) -> int | None:
        try:
            slots = await self._upstream.get_json("/slots", LONGEST_WAIT_S)
        except ApiError:
            return None
        return _size(slots[0]) if isinstance(slots, list) and slots else None


def _rows(models: Any) -> list[dict[str, Any]]:
    data = models.get("data") if isinstance(models, dict) else None
    rows = data if isinstance(data, list) else []
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]


def _loaded(rows: list[dict[str, Any]]) -> str | None:
    """The id of the only model, or of the one a router has loaded, or of the first."""
    loaded = [row for row in rows if isinstance(row.get("status"), dict) and row["status"].get("value") == "loaded"]
    return next((str(row["id"]) for row in (*loaded, *rows)), None)


def _meta(rows: list[dict[str, Any]], model_id: str | None) -> Any:
    return next((row.get("meta") for row in rows if row["id"] == model_id), None)


def _size(values: Any) -> int | None:
    size = values.get("n_ctx") if isinstance(values, dict) else None
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None


def _media(props: dict[str, Any], rows: list[dict[str, Any]]) -> frozenset[str]:
    modalities = props.get("modalities")
    if isinstance(modalities, dict):
        return frozenset(name for name in ("vision", "audio", "video") if modalities.get(name) is True)
    named: set[str] = set()
    for row in rows:
        architecture = row.get("architecture")
        inputs = architecture.get("input_modalities") if isinstance(architecture, dict) else None
        named.update(one for one in inputs if isinstance(one, str)) if isinstance(inputs, list) else None
    return frozenset({"image": "vision"}.get(one, one) for one in named if one != "text")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
