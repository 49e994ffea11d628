"""Polls one llama-server: each endpoint at its own pace and with its own deadline, so that none holds up another.

Looking must not change the server. GET /slots wakes a sleeping server and restarts its idle timer, so while /metrics
(which does neither) shows an idle server, the last slots are confirmed by it and /slots is not asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from specdash.core.readings import (
    ROUTER,
    Counters,
    Failure,
    FailureKind,
    Health,
    HealthStatus,
    Props,
    Reading,
    RouterModels,
    Slots,
    Source,
    most_recent_resident,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Protocol

    from specdash.collect.model_files import ModelFiles

    class Asked(Protocol):
        """What of `LlamaClient` the poller uses."""

        async def health(self, deadline_s: float) -> Health | Failure: ...
        async def props(self, deadline_s: float) -> Props | Failure: ...
        async def metrics(self, deadline_s: float) -> Counters | Failure: ...
        async def slots(self, deadline_s: float) -> Slots | Failure: ...
        async def models(self, deadline_s: float) -> RouterModels | Failure: ...
        def look_at(self, model: str | None) -> None: ...


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
        if any(model.id == self._looks_at and model.resident for model in found.models):
            return
        best = most_recent_resident(found.models)
        chosen = best.id if best is not None else None
        if chosen != self._looks_at:
            self._looks_at = chosen
            self._look_at(chosen)
        self.chosen.set()


MIN_INTERVAL_S = 0.25
MAX_INTERVAL_S = 5.0
"""Slower than this, a dead server would be noticed too late."""

DEADLINES_S: dict[Source, float] = {
    # Asked every second, a server that hangs is known to within two and a half.
    Source.HEALTH: 1.5,
    Source.PROPS: 3.0,
    # Builds before b10420 answer these two between decode batches, which may take a while.
    Source.METRICS: 3.0,
    Source.SLOTS: 3.0,
}


class PollPace(Struct, frozen=True):
    """How often to ask when it is not the nominal interval. Seconds."""

    props: float = 30.0
    props_asleep: float = 5.0
    first_retry: float = 2.0
    """Also the pause of /metrics while the key is refused: it asks for all."""
    last_retry: float = 5.0
    settled: float = 30.0
    """After an answer that will not change by itself, such as a disabled endpoint; and of the other endpoints while the
    key is refused."""


WHICH_MODEL_S = 0.5
"""How long the first look at a server waits to learn whether it is a router, and which model to look at."""
HEALTH_PATIENCE = 4
"""So many deadlines is an answer of /health waited for: one that comes late shows a slow server, where asking anew
would show one that never answers."""

NOBODY_THERE = frozenset({FailureKind.REFUSED, FailureKind.UNREACHABLE, FailureKind.RESET})
"""Nobody has answered, and it need not be asked every second whether somebody does by now."""
NOT_IN_TIME = frozenset({FailureKind.TIMEOUT, FailureKind.UNREACHABLE})
"""Failures that rest on time alone: where specdash itself got no CPU meanwhile, they say nothing."""

_TOTALS = ("prompt_tokens", "predicted_tokens", "decode_calls", "draft_tokens", "accepted_tokens")


class _Known(Struct):
    """What the endpoints tell each other."""

    healthy: bool | None = None
    """None before the first answer."""
    asleep: bool | None = None
    counters: Counters | None = None
    quiet: bool | None = None
    """From /metrics: nothing runs and nothing moved since the scrape before. None when /metrics does not tell."""
    slots: Slots | None = None


class _Endpoint(Struct):
    source: Source
    observe: Callable[[], Awaitable[Any]]
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    misses: int = 0
    failure: FailureKind | None = None
    """Of the last look."""
    answered: bool = False
    """Whether the last look brought a value."""


class BackendPoller:
    """Publishes HEALTH, PROPS, METRICS and SLOTS readings of one server until its `run` is cancelled."""

    def __init__(
        self,
        client: Asked,
        publish: Callable[[Reading[Any]], None],
        *,
        interval_s: float = 1.0,
        pace: PollPace | None = None,
        deadlines_s: dict[Source, float] | None = None,
        files: ModelFiles | None = None,
        model: str | None = None,
        slept_since: Callable[[float], bool] = lambda _: False,
    ) -> None:
        """`files` looks into the paths that the server tells, where they are paths of this machine. `model` is the one
        that the user named, of a router; else of a router's models the resident one that was used last is looked at.
        `slept_since` tells whether specdash itself was kept from looking for much of the time since a moment."""
        self._client = client
        self._files = files
        self._publish = publish
        self._pace = pace or PollPace()
        self._deadlines = deadlines_s or DEADLINES_S
        self._interval = interval_s
        self._slept_since = slept_since
        self._known = _Known()
        self._props_told = asyncio.Event()
        self._settled = False
        """Whether it is known which model of a router to look at, or that the server is none."""
        self._endpoints = {
            Source.HEALTH: _Endpoint(Source.HEALTH, self._health),
            Source.PROPS: _Endpoint(Source.PROPS, self._props),
            Source.METRICS: _Endpoint(Source.METRICS, self._metrics),
            Source.SLOTS: _Endpoint(Source.SLOTS, self._slots),
        }
        self._router = RouterWatch(client.models, publish, self._look_at, named=model)
        self.set_interval(interval_s)

    async def run(self) -> None:
        """Poll until cancelled."""
        async with asyncio.TaskGroup() as group:
            for endpoint in self._endpoints.values():
                group.create_task(self._poll(endpoint), name=f"poll-{endpoint.source}")
            group.create_task(self._router.run(), name="poll-router")

    def set_interval(self, interval_s: float) -> None:
        """Seconds between two looks at a healthy server; kept within `MIN_INTERVAL_S` and `MAX_INTERVAL_S`."""
        self._interval = min(max(interval_s, MIN_INTERVAL_S), MAX_INTERVAL_S)
        self._wake(Source.HEALTH, Source.METRICS, Source.SLOTS)

    def _look_at(self, model: str | None) -> None:
        self._client.look_at(model)
        self._known = _Known(healthy=self._known.healthy)
        self._props_told.clear()
        self._wake(Source.PROPS, Source.METRICS, Source.SLOTS)

    async def _poll(self, endpoint: _Endpoint) -> None:
        due = time.monotonic()
        while True:
            endpoint.wake.clear()
            asked = time.monotonic()
            result = await endpoint.observe()
            now = time.monotonic()
            if self._is_own_doing(result, asked):
                due = now
                continue
            self._note(endpoint, result)
            if isinstance(result, Failure):
                self._publish(Reading.unknown(endpoint.source, now, result.kind, result.detail))
            else:
                self._publish(Reading.known(endpoint.source, now, result))
            # Counting from when it was due keeps the cadence; a look that took too long skips beats, none pile up.
            due = max(due + self._pause(endpoint, result), now)
            try:
                async with asyncio.timeout(due - now):
                    await endpoint.wake.wait()
            except TimeoutError:
                continue
            due = time.monotonic()

    def _is_own_doing(self, result: object, asked: float) -> bool:
        """Whether time ran out because specdash itself did not get to look."""
        return isinstance(result, Failure) and result.kind in NOT_IN_TIME and self._slept_since(asked)

    def _note(self, endpoint: _Endpoint, result: object) -> None:
        before = endpoint.failure
        endpoint.failure = result.kind if isinstance(result, Failure) else None
        endpoint.answered = endpoint.failure is None
        endpoint.misses = 0 if endpoint.answered else endpoint.misses + 1
        if before is FailureKind.UNAUTHORIZED and endpoint.failure is not before:
            # The key is the same for all of them.
            self._wake(
                *(
                    endpoint.source
                    for endpoint in self._endpoints.values()
                    if endpoint.failure is FailureKind.UNAUTHORIZED
                )
            )

    def _pause(self, endpoint: _Endpoint, result: object) -> float:
        if isinstance(result, Failure):
            return self._pause_after(result.kind, endpoint)
        if endpoint.source is Source.PROPS:
            soon = self._known.asleep or (self._files is not None and self._files.pending)
            return self._pace.props_asleep if soon else self._pace.props
        return self._interval

    def _pause_after(self, kind: FailureKind, endpoint: _Endpoint) -> float:
        if endpoint.source is Source.HEALTH and kind not in NOBODY_THERE:
            # Whoever answers for the server's health may be another process a moment later.
            return self._interval
        if self._is_settled(kind, endpoint):
            return self._pace.settled
        if kind is FailureKind.SLEEPING:
            return self._interval
        if kind is FailureKind.UNAUTHORIZED:
            return self._pace.first_retry
        # A server that is there but slow has already been given its deadline.
        if kind is FailureKind.TIMEOUT and self._known.healthy:
            return self._interval
        return min(self._pace.last_retry, self._pace.first_retry * 1.5 ** min(endpoint.misses - 1, 10))

    def _is_settled(self, kind: FailureKind, endpoint: _Endpoint) -> bool:
        """Whether the answer will not change by itself. That nothing is found there is one of a llama-server alone: as
        long as no other endpoint is answered as by one, it may be something else, and a llama-server again any moment.
        A refused key is asked for at one endpoint, for all."""
        if kind is FailureKind.UNAUTHORIZED:
            metrics = self._endpoints[Source.METRICS]
            return endpoint is not metrics and metrics.failure is FailureKind.UNAUTHORIZED
        is_llama_server = any(
            endpoint.answered for endpoint in self._endpoints.values() if endpoint.source is not Source.HEALTH
        )
        return kind is FailureKind.DISABLED or (kind is FailureKind.NOT_FOUND and is_llama_server)

    def _wake(self, *sources: Source) -> None:
        for source in sources:
            self._endpoints[source].wake.set()

    async def _health(self) -> Health | Failure:
        deadline_s = self._deadlines[Source.HEALTH]
        asked = time.monotonic()
        look = asyncio.ensure_future(self._client.health(HEALTH_PATIENCE * deadline_s))
        try:
            await asyncio.wait({look}, timeout=deadline_s)
            if not look.done():
                late = Failure(FailureKind.TIMEOUT, f"accepts connections, no answer within {deadline_s:.1f} s")
                if not self._is_own_doing(late, asked):
                    self._note_health(late)
                    self._publish(Reading.unknown(Source.HEALTH, time.monotonic(), late.kind, late.detail))
            result = await look
        finally:
            if look.cancel():
                # The connection is closed by the end of the task, which must not outlive the client.
                await asyncio.wait({look})
        self._note_health(result)
        return result

    def _note_health(self, result: Health | Failure) -> None:
        healthy = isinstance(result, Health) and result.status is HealthStatus.OK
        if healthy and self._known.healthy is False:
            self._wake(*(source for source in self._endpoints if self._endpoints[source].misses))
        if not healthy:
            self._known.quiet = None
        self._known.healthy = healthy

    async def _props(self) -> Props | Failure:
        result = await self._client.props(self._deadlines[Source.PROPS])
        asleep = result.is_sleeping if isinstance(result, Props) else None
        if isinstance(result, Props) and result.role == ROUTER:
            self._router.seen.set()
        if self._known.asleep and not asleep:
            self._wake(Source.SLOTS)
        self._known.asleep = asleep
        self._props_told.set()
        if self._files is None or not isinstance(result, Props):
            return result
        return await self._files.described(result)

    async def _metrics(self) -> Counters | Failure:
        await self._learn_which_model()
        known = self._known
        result = await self._client.metrics(self._deadlines[Source.METRICS])
        if isinstance(result, Counters) and (lost := _lost(known.counters, result)):
            result = Failure(FailureKind.GARBAGE, f"{', '.join(lost)} were there before and are missing now")
        if isinstance(result, Failure):
            if result.kind in (FailureKind.REFUSED, FailureKind.LOADING):
                # What answers next may be another build.
                known.counters = None
            if known.quiet is not None:
                self._wake(Source.HEALTH)
            known.quiet = None
            return result
        before, known.counters = known.counters, result
        if before is not None and _went_back(before, result):
            known.slots = None
            self._wake(Source.PROPS)
        was_quiet = known.quiet
        known.quiet = _quiet(before, result)
        if known.quiet is False and (was_quiet or known.asleep):
            if known.asleep:
                # Whoever sent it work has woken the server.
                known.asleep = None
                self._wake(Source.PROPS)
            self._wake(Source.SLOTS)
        return result

    async def _learn_which_model(self) -> None:
        """A router answers only for a model that is named; which one to look at is known a moment after the start."""
        if self._settled:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WHICH_MODEL_S):
                await self._props_told.wait()
                if self._router.seen.is_set():
                    await self._router.chosen.wait()
        self._settled = True

    async def _slots(self) -> Slots | Failure:
        await self._learn_which_model()
        known = self._known
        if not self._props_told.is_set():
            await self._props_told.wait()
        if known.quiet is None and known.slots is not None and _all_idle(known.slots):
            # Only /slots itself could tell of work now, and the server may have fallen asleep since.
            await self._props()
        if known.asleep:
            return Failure(FailureKind.SLEEPING, "not asked, because asking would wake the server")
        if known.quiet and known.slots is not None and _all_idle(known.slots):
            return known.slots
        result = await self._client.slots(self._deadlines[Source.SLOTS])
        known.slots = result if isinstance(result, Slots) else None
        return result


def _all_idle(slots: Slots) -> bool:
    return not any(slot.is_processing for slot in slots.slots)


def _quiet(before: Counters | None, now: Counters) -> bool | None:
    if now.requests_processing or now.requests_deferred:
        return False
    if before is None or now.requests_processing is None:
        return None
    return before is now or _without_gauges(before) == _without_gauges(now)


def _without_gauges(counters: Counters) -> Counters:
    """The throughput gauges move without any work, because every scrape resets them."""
    return replace(counters, prompt_tokens_per_second=None, predicted_tokens_per_second=None)


def _lost(before: Counters | None, now: Counters) -> list[str]:
    """Totals that had grown and are not there any more, of a server that goes on: a part of an answer."""
    if before is None or _went_back(before, now):
        return []
    return [name for name in _TOTALS if getattr(before, name) and getattr(now, name) is None]


def _went_back(before: Counters, now: Counters) -> bool:
    pairs = ((getattr(before, name), getattr(now, name)) for name in _TOTALS)
    return any(old is not None and new is not None and new < old for old, new in pairs)
