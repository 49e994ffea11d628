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

from specdash.collect.model_files import ModelFiles
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
from specdash.llama.client import LlamaClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from specdash.core.target import Target

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
ROUTER_S, ROUTER_DEADLINE_S = 2.0, 3.0
NO_ROUTER_S = 30.0
"""How long until a server that was no router is asked again, by a user who named a model."""
WHICH_MODEL_S = 0.5
"""How long the first look at a server waits to learn whether it is a router, and which model to look at."""
HEALTH_PATIENCE = 4
"""So many deadlines is an answer of /health waited for after one that did not come in time: one that comes late shows a
slow server, where another question would show one that never answers."""

NOT_THERE = frozenset({FailureKind.REFUSED, FailureKind.UNREACHABLE, FailureKind.RESET})
"""Nothing has answered, and it need not be asked every second whether something does by now."""
NOT_IN_TIME = frozenset({FailureKind.TIMEOUT, FailureKind.UNREACHABLE})
"""Failures that rest on time alone: where specdash itself got no CPU meanwhile, they say nothing."""

_TOTALS = ("prompt_tokens", "predicted_tokens", "decode_calls", "draft_tokens", "accepted_tokens")


class PollPace(Struct, frozen=True):
    """How often to ask when it is not the nominal interval. Seconds."""

    props: float = 30.0
    props_asleep: float = 5.0
    first_retry: float = 2.0
    last_retry: float = 5.0
    settled: float = 30.0
    """After the answer of a disabled endpoint, which will not change by itself."""

    def retry(self, misses: int) -> float:
        """The pause after so many failures in a row."""
        return min(self.last_retry, self.first_retry * 1.5 ** min(misses - 1, 10))


async def poll(
    source: Source,
    ask: Callable[[], Awaitable[Any]],
    publish: Callable[[Reading[Any]], None],
    pause: Callable[[Any], float | None],
    wake: asyncio.Event,
) -> None:
    """Publish what `ask` brings until cancelled, and again after the `pause` that its value or `Failure` asks for, or
    at `wake`. Where that is None, the answer says nothing and is asked for again at once."""
    due = time.monotonic()
    while True:
        wake.clear()
        result = await ask()
        now = time.monotonic()
        rest = pause(result)
        if rest is None:
            due = now
            continue
        if isinstance(result, Failure):
            publish(Reading.unknown(source, now, result.kind, result.detail))
        else:
            publish(Reading.known(source, now, result))
        # Counting from when it was due keeps the cadence; a look that took too long skips beats, none pile up.
        due = max(due + rest, now)
        try:
            async with asyncio.timeout(due - now):
                await wake.wait()
        except TimeoutError:
            continue
        due = time.monotonic()


class _Known(Struct):
    """What the endpoints tell each other."""

    healthy: bool | None = None
    """None before the first answer."""
    late: bool = False
    """The last question about the health was not answered in time."""
    asleep: bool | None = None
    counters: Counters | None = None
    quiet: bool | None = None
    """From /metrics: nothing runs and nothing moved since the scrape before. None when /metrics does not tell."""
    slots: Slots | None = None


class _Endpoint(Struct):
    ask: Callable[[], Awaitable[Any]]
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    misses: int = 0


class BackendPoller:
    """Publishes HEALTH, PROPS, METRICS, SLOTS and, of a router, ROUTER readings until its `run` is cancelled."""

    def __init__(
        self,
        target: Target,
        publish: Callable[[Reading[Any]], None],
        *,
        interval_s: float = 1.0,
        pace: PollPace | None = None,
        deadlines_s: dict[Source, float] | None = None,
        known: Callable[[], Target] | None = None,
        slept_since: Callable[[float], bool] = lambda _: False,
    ) -> None:
        """Where the server names paths of this machine, `known` returns it as it is known now: its models' files are
        looked into. Of a router, the model that the target names is looked at, else the resident one that was used
        last. `slept_since` is whether specdash itself was kept from looking for much of the time since a moment."""
        self._target = target
        self._files = ModelFiles(known) if known is not None else None
        self._publish = publish
        self._pace = pace or PollPace()
        self._deadlines = deadlines_s or DEADLINES_S
        self._slept_since = slept_since
        self._known = _Known()
        self._props_told, self._is_router, self._model_chosen = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._named = self._model = target.model
        if target.model is not None:
            self._is_router.set()
            self._model_chosen.set()
        self._endpoints = {
            Source.HEALTH: _Endpoint(self._health),
            Source.PROPS: _Endpoint(self._props),
            Source.METRICS: _Endpoint(self._metrics),
            Source.SLOTS: _Endpoint(self._slots),
        }
        self.set_interval(interval_s)

    async def run(self) -> None:
        """Poll until cancelled."""
        async with contextlib.aclosing(LlamaClient(self._target)) as self._client, asyncio.TaskGroup() as group:
            group.create_task(self._poll_router())
            for source in (Source.HEALTH, Source.PROPS):
                group.create_task(self._poll(source))
            # A router answers only for a model that is named; which one to look at is known a moment after the start.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WHICH_MODEL_S):
                    await self._props_told.wait()
                    if self._is_router.is_set():
                        await self._model_chosen.wait()
            for source in (Source.METRICS, Source.SLOTS):
                group.create_task(self._poll(source))

    def set_interval(self, interval_s: float) -> None:
        """Seconds between two looks at a healthy server; kept within `MIN_INTERVAL_S` and `MAX_INTERVAL_S`."""
        self._interval = min(max(interval_s, MIN_INTERVAL_S), MAX_INTERVAL_S)
        self._wake(Source.HEALTH, Source.METRICS, Source.SLOTS)

    async def _poll(self, source: Source) -> None:
        endpoint, asked_at = self._endpoints[source], 0.0

        def ask() -> Awaitable[Any]:
            nonlocal asked_at
            asked_at = time.monotonic()
            return endpoint.ask()

        def pause(result: object) -> float | None:
            if not isinstance(result, Failure):
                if endpoint.misses:
                    # A key that is taken again, or a server that is there again, is so for all of them.
                    self._wake_missing(source)
                endpoint.misses = 0
                if source is not Source.PROPS:
                    return self._interval
                soon = self._known.asleep or (self._files is not None and self._files.pending)
                return self._pace.props_asleep if soon else self._pace.props
            if result.kind in NOT_IN_TIME and self._slept_since(asked_at):
                return None
            endpoint.misses += 1
            kind = result.kind
            is_slow = kind is FailureKind.TIMEOUT and self._known.healthy
            if is_slow or kind is FailureKind.SLEEPING or (source is Source.HEALTH and kind not in NOT_THERE):
                # What is slow has had its deadline; what answers for the health may be another process soon.
                return self._interval
            return self._pace.settled if kind is FailureKind.DISABLED else self._pace.retry(endpoint.misses)

        await poll(source, ask, self._publish, pause, endpoint.wake)

    def _wake(self, *sources: Source) -> None:
        for source in sources:
            self._endpoints[source].wake.set()

    def _wake_missing(self, but: Source) -> None:
        self._wake(*(source for source, endpoint in self._endpoints.items() if endpoint.misses and source is not but))

    async def _health(self) -> Health | Failure:
        known = self._known
        result = await self._client.health(self._deadlines[Source.HEALTH] * (HEALTH_PATIENCE if known.late else 1))
        known.late = isinstance(result, Failure) and result.kind is FailureKind.TIMEOUT
        healthy = isinstance(result, Health) and result.status is HealthStatus.OK
        if healthy and known.healthy is False:
            self._wake_missing(Source.HEALTH)
        if not healthy:
            known.quiet = None
        known.healthy = healthy
        return result

    async def _props(self) -> Props | Failure:
        result = await self._client.props(self._deadlines[Source.PROPS])
        asleep = result.is_sleeping if isinstance(result, Props) else None
        if isinstance(result, Props) and result.role == ROUTER:
            self._is_router.set()
        if self._known.asleep and not asleep:
            self._wake(Source.SLOTS)
        self._known.asleep = asleep
        self._props_told.set()
        if self._files is None or not isinstance(result, Props):
            return result
        return await self._files.described(result)

    async def _metrics(self) -> Counters | Failure:
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
        was_quiet, known.quiet = known.quiet, _quiet(before, result)
        if known.quiet is False and (was_quiet or known.asleep):
            if known.asleep:
                # What sent it work has woken the server.
                known.asleep = None
                self._wake(Source.PROPS)
            self._wake(Source.SLOTS)
        return result

    async def _slots(self) -> Slots | Failure:
        known = self._known
        await self._props_told.wait()
        is_idle = known.slots is not None and not any(slot.is_processing for slot in known.slots.slots)
        if known.quiet is None and is_idle:
            # Only /slots itself could tell of work now, and the server may have fallen asleep since.
            await self._props()
        if known.asleep:
            return Failure(FailureKind.SLEEPING, "not asked, because asking would wake the server")
        if known.quiet and is_idle and known.slots is not None:
            return known.slots
        result = await self._client.slots(self._deadlines[Source.SLOTS])
        known.slots = result if isinstance(result, Slots) else None
        return result

    async def _poll_router(self) -> None:
        """Publish ROUTER readings; none of any other server."""
        while True:
            await self._is_router.wait()
            found, now = await self._client.models(ROUTER_DEADLINE_S), time.monotonic()
            is_router = isinstance(found, RouterModels) and bool(found.models)
            if isinstance(found, Failure):
                self._publish(Reading.unknown(Source.ROUTER, now, found.kind, found.detail))
            elif is_router or self._named is None:
                self._publish(Reading.known(Source.ROUTER, now, found))
            if isinstance(found, RouterModels) and self._named is None:
                self._choose_model(found)
                if not is_router:
                    self._is_router.clear()
            await asyncio.sleep(ROUTER_S if is_router or isinstance(found, Failure) else NO_ROUTER_S)

    def _choose_model(self, found: RouterModels) -> None:
        if any(model.id == self._model and model.resident for model in found.models):
            return
        best = most_recent_resident(found.models)
        chosen = best.id if best is not None else None
        if chosen != self._model:
            self._model = chosen
            self._client.look_at(chosen)
            self._known = _Known(healthy=self._known.healthy)
            self._props_told.clear()
            self._wake(Source.PROPS, Source.METRICS, Source.SLOTS)
        self._model_chosen.set()


def _quiet(before: Counters | None, now: Counters) -> bool | None:
    if now.requests_processing or now.requests_deferred:
        return False
    if before is None or now.requests_processing is None:
        return None
    # The throughput gauges move without any work, because every scrape resets them.
    gauges = {"prompt_tokens_per_second": None, "predicted_tokens_per_second": None}
    return before is now or replace(before, **gauges) == replace(now, **gauges)


def _lost(before: Counters | None, now: Counters) -> list[str]:
    """Totals that had grown and are not there any more, of a server that goes on: a part of an answer."""
    if before is None or _went_back(before, now):
        return []
    return [name for name in _TOTALS if getattr(before, name) and getattr(now, name) is None]


def _went_back(before: Counters, now: Counters) -> bool:
    pairs = ((getattr(before, name), getattr(now, name)) for name in _TOTALS)
    return any(old is not None and new is not None and new < old for old, new in pairs)
