"""The poller watches every endpoint at its own pace, survives every fault, and changes nothing by looking."""

import asyncio
import itertools
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from specdash.collect.backend import MAX_INTERVAL_S, MIN_INTERVAL_S, BackendPoller, PollPace
from specdash.core.readings import Counters, FailureKind, Health, HealthStatus, Reading, ReadingStatus, Slots, Source
from specdash.core.target import Target
from specdash.llama.client import LlamaClient
from support.fault_server import FaultServer, answer, drips, floods, hangs, resets, says, writes
from support.waiting import until_async

OK = says(200, '{"status":"ok"}')
LOADING = says(503, '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}')
DISABLED = says(501, '{"error":{"message":"not supported","code":501}}')
DENIED = says(401, '{"error":{"message":"Invalid API Key","code":401}}')

QUICK = PollPace(props=0.2, props_asleep=0.1, first_retry=0.1, last_retry=0.2, settled=5.0)
DEADLINES = {Source.HEALTH: 0.5, Source.PROPS: 0.5, Source.METRICS: 0.5, Source.SLOTS: 0.5}
ALL = tuple(DEADLINES)
OTHERS = ("/metrics", "/slots", "/props")


def metrics(decodes: int = 5, processing: int = 0, gauge: float = 0.0) -> Any:
    return says(
        200,
        f"llamacpp:n_decode_total {decodes}\nllamacpp:requests_processing {processing}\n"
        f"llamacpp:requests_deferred 0\nllamacpp:predicted_tokens_seconds {gauge}\n",
    )


def slots(processing: bool = False) -> Any:
    return says(200, json.dumps([{"id": 0, "is_processing": processing, "speculative": True}]))


def props(sleeping: bool = False) -> Any:
    return says(200, json.dumps({"total_slots": 1, "is_sleeping": sleeping}))


class Watched:
    """What the poller published."""

    def __init__(self) -> None:
        self.readings: dict[Source, list[Reading[Any]]] = defaultdict(list)
        self.poller: BackendPoller | None = None

    def take(self, reading: Reading[Any]) -> None:
        self.readings[reading.source].append(reading)

    def last(self, source: Source) -> Reading[Any] | None:
        return self.readings[source][-1] if self.readings[source] else None

    def kind(self, source: Source) -> FailureKind | None:
        last = self.last(source)
        return last.failure.kind if last is not None and last.failure is not None else None

    def known(self, *sources: Source) -> bool:
        lasts = [self.last(source) for source in sources]
        return all(last is not None and last.status is ReadingStatus.KNOWN for last in lasts)

    @property
    def is_processing(self) -> bool:
        last = self.last(Source.SLOTS)
        return last is not None and last.value is not None and any(slot.is_processing for slot in last.value.slots)

    async def beats(self, source: Source, count: int) -> None:
        """So many more readings."""
        before = len(self.readings[source])
        await until_async(lambda: len(self.readings[source]) >= before + count)


@asynccontextmanager
async def watching(
    server: FaultServer,
    interval_s: float = 0.25,
    pace: PollPace = QUICK,
    slept_since: Callable[[float], bool] = lambda _: False,
) -> AsyncIterator[Watched]:
    watched, client = Watched(), LlamaClient(Target(server.url))
    watched.poller = BackendPoller(
        client, watched.take, interval_s=interval_s, pace=pace, deadlines_s=DEADLINES, slept_since=slept_since
    )
    task = asyncio.create_task(watched.poller.run())
    try:
        yield watched
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.aclose()


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer({"/health": OK, "/props": props(), "/metrics": metrics(), "/slots": slots()}) as running:
        yield running


FAULTS = {
    "silence": (hangs(), FailureKind.TIMEOUT),
    "a drip": (drips(answer(200, b"x" * 500), 0.1), FailureKind.TIMEOUT),
    "garbage": (writes(b"\x00\x01\x02garbage\r\n\r\n"), FailureKind.GARBAGE),
    "another service": (says(200, "<html>welcome</html>"), FailureKind.GARBAGE),
    "50 MB": (floods(b"HTTP/1.1 200 OK\r\n\r\n", b"llamacpp:x 1\n" * 5000, 800), FailureKind.TOO_LARGE),
    "no number": (says(200, "llamacpp:n_decode_total NaN\n"), FailureKind.GARBAGE),
    "below zero": (says(200, "llamacpp:n_decode_total -5\n"), FailureKind.GARBAGE),
    "half a line": (says(200, "llamacpp:n_decode_total 5\nllamacpp:requests_proc"), FailureKind.GARBAGE),
    "another type": (says(200, "llamacpp:n_decode_total 5\n", "Content-Type: text/html"), FailureKind.GARBAGE),
    "nothing": (says(200, ""), FailureKind.GARBAGE),
    "a reset": (resets(), FailureKind.RESET),
    "401": (DENIED, FailureKind.UNAUTHORIZED),
    "501": (DISABLED, FailureKind.DISABLED),
    "loading": (LOADING, FailureKind.LOADING),
    "404": (says(404, ""), FailureKind.NOT_FOUND),
}


class TestFaults:
    @pytest.mark.parametrize("fault", FAULTS)
    async def test_a_fault_of_metrics_is_named_and_the_others_keep_their_cadence(
        self, server: FaultServer, fault: str
    ) -> None:
        server.routes["/metrics"], kind = FAULTS[fault]
        async with watching(server) as watched:
            await until_async(lambda: watched.last(Source.METRICS) is not None, 15)
            assert watched.kind(Source.METRICS) is kind
            await watched.beats(Source.HEALTH, 4)
            assert len(watched.readings[Source.SLOTS]) >= 3
            assert watched.known(Source.HEALTH, Source.PROPS, Source.SLOTS)

    async def test_every_fault_of_slots_ends_when_the_fault_ends(self, server: FaultServer) -> None:
        async with watching(server) as watched:
            server.routes["/metrics"] = metrics(processing=1)
            for behaviour, kind in (FAULTS["silence"], FAULTS["a reset"], FAULTS["garbage"]):
                server.routes["/slots"] = behaviour
                await until_async(lambda kind=kind: watched.kind(Source.SLOTS) is kind)  # type: ignore[misc]
                server.routes["/slots"] = slots(processing=True)
                await until_async(lambda: watched.known(Source.SLOTS))

    async def test_totals_that_vanish_from_a_server_that_goes_on_are_no_metrics(self, server: FaultServer) -> None:
        async with watching(server) as watched:
            await until_async(lambda: watched.known(Source.METRICS))
            server.routes["/metrics"] = says(200, "llamacpp:requests_processing 0\n", "Content-Type: text/plain")
            await until_async(lambda: watched.kind(Source.METRICS) is FailureKind.GARBAGE)
            assert "decode_calls were there before" in str(watched.readings[Source.METRICS][-1].failure)
            server.routes["/metrics"] = metrics(decodes=7)
            await until_async(lambda: watched.known(Source.METRICS))

    async def test_a_dead_server_is_refused_and_a_new_one_is_found(self, server: FaultServer) -> None:
        async with watching(server) as watched:
            await until_async(lambda: watched.known(*ALL))
            server.close()
            await until_async(lambda: all(watched.kind(source) is FailureKind.REFUSED for source in ALL))
            with FaultServer(server.routes, port=server.port):
                await until_async(lambda: watched.known(*ALL))
                await watched.beats(Source.HEALTH, 2)

    @pytest.mark.parametrize(
        ("health", "others", "kind"),
        [
            (LOADING, DISABLED, FailureKind.DISABLED),
            (OK, DENIED, FailureKind.UNAUTHORIZED),
            (says(404, ""), says(404, ""), FailureKind.NOT_FOUND),
        ],
        ids=["a server that comes back", "a key that is taken again", "a stranger that makes way"],
    )
    async def test_a_server_that_is_well_again_is_asked_everything_at_once(
        self, server: FaultServer, health: Any, others: Any, kind: FailureKind
    ) -> None:
        before = dict(server.routes)
        server.routes.update({"/health": health, **dict.fromkeys(OTHERS, others)})
        async with watching(server, pace=replace(QUICK, settled=1e6)) as watched:
            await until_async(lambda: all(watched.kind(Source(path[1:])) is kind for path in OTHERS))
            await until_async(lambda: watched.last(Source.HEALTH) is not None)
            server.routes.update(before)
            await until_async(lambda: watched.known(*ALL))

    async def test_an_answer_of_health_that_comes_late_is_one(self, server: FaultServer) -> None:
        server.routes["/health"] = drips(answer(200, b'{"status":"ok"}'), 0.02)
        async with watching(server) as watched:
            await until_async(lambda: watched.known(Source.HEALTH))
        failures = [reading.failure for reading in watched.readings[Source.HEALTH][:2]]
        assert [failure and failure.kind for failure in failures] == [FailureKind.TIMEOUT, None]

    async def test_what_ran_out_of_time_while_specdash_slept_is_not_published(self, server: FaultServer) -> None:
        server.routes["/metrics"] = hangs()
        starved = True
        async with watching(server, slept_since=lambda _: starved) as watched:
            await until_async(lambda: server.count("/metrics") >= 3)
            assert watched.readings[Source.METRICS] == []
            starved = False
            await until_async(lambda: watched.kind(Source.METRICS) is FailureKind.TIMEOUT)

    async def test_a_loading_server_is_known_to_be_loading(self, server: FaultServer) -> None:
        server.routes = dict.fromkeys(server.routes, LOADING)
        async with watching(server) as watched:
            await until_async(lambda: watched.known(Source.HEALTH) and watched.last(Source.METRICS) is not None)
            health = watched.readings[Source.HEALTH][-1].value
            assert isinstance(health, Health)
            assert health.status is HealthStatus.LOADING
            assert watched.kind(Source.METRICS) is FailureKind.LOADING

    async def test_a_server_that_is_down_is_asked_less_and_less_and_a_disabled_endpoint_hardly(
        self, server: FaultServer
    ) -> None:
        server.routes.update({"/health": resets(), "/metrics": DISABLED})
        async with watching(server, pace=PollPace(first_retry=0.1, last_retry=0.6)) as watched:
            await until_async(lambda: len(watched.readings[Source.HEALTH]) >= 7)
            assert server.count("/metrics") == 1
        times = [reading.at for reading in watched.readings[Source.HEALTH]]
        pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
        assert pauses[-1] > 2 * pauses[0]

    async def test_counters_that_go_back_make_the_poller_ask_again_who_is_there(self, server: FaultServer) -> None:
        server.routes["/metrics"] = metrics(decodes=500)
        async with watching(server, pace=PollPace(props=60.0)) as watched:
            await until_async(lambda: len(watched.readings[Source.METRICS]) >= 3)
            before = server.count("/props"), server.count("/slots")
            server.routes["/metrics"] = metrics(decodes=0)
            await until_async(lambda: server.count("/props") > before[0] and server.count("/slots") > before[1])
            value = watched.readings[Source.METRICS][-1].value
            assert isinstance(value, Counters)
            assert value.decode_calls == 0


class TestLookingChangesNothing:
    async def test_an_idle_server_is_not_kept_awake_by_asking_for_slots(self, server: FaultServer) -> None:
        server.routes["/metrics"] = metrics(gauge=99.0)
        async with watching(server) as watched:
            await until_async(lambda: len(watched.readings[Source.METRICS]) >= 3)
            asked = server.count("/slots")
            # A gauge that a scrape resets is no sign of work.
            server.routes["/metrics"] = metrics(gauge=0.0)
            await watched.beats(Source.METRICS, 3)
            await watched.beats(Source.SLOTS, 3)
            assert server.count("/slots") == asked
            last = watched.readings[Source.SLOTS][-1]
            assert isinstance(last.value, Slots), "the last slots are still published, because /metrics confirms them"
            assert last.at == pytest.approx(time.monotonic(), abs=5)

    async def test_work_is_seen_at_once_and_its_end_is_looked_at(self, server: FaultServer) -> None:
        async with watching(server) as watched:
            await until_async(lambda: len(watched.readings[Source.METRICS]) >= 3)
            server.routes.update({"/metrics": metrics(processing=1), "/slots": slots(processing=True)})
            await until_async(lambda: watched.is_processing)
            server.routes.update({"/metrics": metrics(decodes=90), "/slots": slots()})
            await until_async(lambda: not watched.is_processing)
            await watched.beats(Source.METRICS, 3)
            asked = server.count("/slots")
            server.routes["/metrics"] = metrics(decodes=91)
            # Work too short to be seen running is looked at too.
            await until_async(lambda: server.count("/slots") > asked)

    async def test_a_sleeping_server_is_not_woken_and_one_that_somebody_woke_is_looked_at(
        self, server: FaultServer
    ) -> None:
        server.routes["/props"] = props(sleeping=True)
        async with watching(server, pace=PollPace(props_asleep=60.0)) as watched:
            await until_async(lambda: len(watched.readings[Source.SLOTS]) >= 4)
            assert server.count("/slots") == 0
            assert watched.kind(Source.SLOTS) is FailureKind.SLEEPING
            server.routes.update({"/props": props(), "/metrics": metrics(processing=1), "/slots": slots(True)})
            await until_async(lambda: watched.is_processing)

    async def test_without_metrics_sleep_is_asked_for_before_an_idle_slot_is(self, server: FaultServer) -> None:
        server.routes["/metrics"] = DISABLED
        async with watching(server, pace=PollPace(props=60.0)) as watched:
            await until_async(lambda: server.count("/slots") >= 2)
            server.routes["/props"] = props(sleeping=True)
            await until_async(lambda: watched.kind(Source.SLOTS) is FailureKind.SLEEPING)
            asked = server.count("/slots")
            await watched.beats(Source.SLOTS, 3)
            assert server.count("/slots") == asked


class TestPace:
    async def test_a_new_interval_holds_from_now_on(self, server: FaultServer) -> None:
        async with watching(server, interval_s=5.0) as watched:
            await until_async(lambda: watched.known(Source.HEALTH))
            assert watched.poller is not None
            watched.poller.set_interval(0.25)
            await watched.beats(Source.HEALTH, 4)

    @pytest.mark.parametrize(("asked", "kept"), [(0.0, MIN_INTERVAL_S), (1.0, 1.0), (60.0, MAX_INTERVAL_S)])
    def test_intervals_are_kept_within_reason(self, asked: float, kept: float) -> None:
        poller = BackendPoller(LlamaClient(Target("http://127.0.0.1:1")), lambda _: None, interval_s=asked)
        assert poller._interval == kept

    @pytest.mark.slow
    async def test_beats_neither_drift_nor_pile_up(self, server: FaultServer) -> None:
        async with watching(server) as watched:
            await until_async(lambda: len(watched.readings[Source.HEALTH]) >= 9)
            times = [call.at for call in server.asked("/health")]
        # Eight beats of a quarter of a second; a beat that comes late must not delay those after it.
        assert times[8] - times[0] > 1.9
        assert len([at for at in times if at < times[0] + 1.9]) <= 9
