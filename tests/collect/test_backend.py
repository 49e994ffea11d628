"""The poller watches every endpoint at its own pace, survives every fault, and changes nothing by looking."""

import asyncio
import itertools
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from specdash.collect.backend import MAX_INTERVAL_S, MIN_INTERVAL_S, BackendPoller, PollPace
from specdash.core.readings import Counters, FailureKind, HealthStatus, Reading, ReadingStatus, Slots, Source
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
PATIENCE_S = 15.0


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

    def take(self, reading: Reading[Any]) -> None:
        self.readings[reading.source].append(reading)

    def last(self, source: Source) -> Reading[Any] | None:
        return self.readings[source][-1] if self.readings[source] else None

    def kind(self, source: Source) -> FailureKind | None:
        last = self.last(source)
        return last.failure.kind if last is not None and last.failure is not None else None

    def known(self, source: Source) -> bool:
        last = self.last(source)
        return last is not None and last.status is ReadingStatus.KNOWN


@asynccontextmanager
async def watching(server: FaultServer, interval_s: float = 0.25, pace: PollPace = QUICK) -> AsyncIterator[Watched]:
    watched = Watched()
    client = LlamaClient(Target(server.url))
    poller = BackendPoller(client, watched.take, interval_s=interval_s, pace=pace, deadlines_s=DEADLINES)
    task = asyncio.create_task(poller.run())
    try:
        yield watched
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.aclose()


@pytest.fixture
def server() -> Iterator[FaultServer]:
    routes = {"/health": OK, "/props": props(), "/metrics": metrics(), "/slots": slots()}
    with FaultServer(routes) as running:
        yield running


FAULTS = {
    "silence": (hangs(), FailureKind.TIMEOUT),
    "silence after headers": (hangs(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"), FailureKind.TIMEOUT),
    "a drip": (drips(answer(200, b"x" * 500), 0.1), FailureKind.TIMEOUT),
    "garbage": (writes(b"\x00\x01\x02garbage\r\n\r\n"), FailureKind.GARBAGE),
    "another service": (says(200, "<html>welcome</html>"), FailureKind.GARBAGE),
    "50 MB": (floods(b"HTTP/1.1 200 OK\r\n\r\n", b"llamacpp:x 1\n" * 5000, 800), FailureKind.TOO_LARGE),
    "no number": (says(200, "llamacpp:n_decode_total NaN\n"), FailureKind.GARBAGE),
    "below zero": (says(200, "llamacpp:n_decode_total -5\n"), FailureKind.GARBAGE),
    "half a line": (says(200, "llamacpp:n_decode_total 5\nllamacpp:requests_proc"), FailureKind.GARBAGE),
    "another type": (says(200, "llamacpp:n_decode_total 5\n", "Content-Type: text/html"), FailureKind.GARBAGE),
    "nothing": (says(200, ""), FailureKind.GARBAGE),
    "a close within the body": (writes(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"), FailureKind.RESET),
    "a reset": (resets(), FailureKind.RESET),
    "401": (DENIED, FailureKind.UNAUTHORIZED),
    "501": (DISABLED, FailureKind.DISABLED),
    "loading": (LOADING, FailureKind.LOADING),
    "404": (says(404, ""), FailureKind.NOT_FOUND),
}


async def test_totals_that_vanish_from_a_server_that_goes_on_are_no_metrics(server: FaultServer) -> None:
    async with watching(server) as watched:
        await until_async(lambda: watched.known(Source.METRICS))
        server.routes["/metrics"] = says(200, "llamacpp:requests_processing 0\n", "Content-Type: text/plain")
        await until_async(lambda: watched.kind(Source.METRICS) is FailureKind.GARBAGE)
        last = watched.last(Source.METRICS)
        assert last is not None
        assert "decode_calls were there before" in str(last.failure)
        server.routes["/metrics"] = metrics(decodes=7)
        await until_async(lambda: watched.known(Source.METRICS))


class TestFaults:
    @pytest.mark.parametrize("fault", FAULTS)
    async def test_a_fault_of_metrics_is_named_and_the_others_are_known(self, server: FaultServer, fault: str) -> None:
        behaviour, kind = FAULTS[fault]
        server.routes["/metrics"] = behaviour
        async with watching(server) as watched:
            await until_async(lambda: watched.last(Source.METRICS) is not None, PATIENCE_S)
            assert watched.kind(Source.METRICS) is kind
            await until_async(
                lambda: all(watched.known(source) for source in DEADLINES if source is not Source.METRICS)
            )

    @pytest.mark.parametrize("fault", ["silence", "a drip", "50 MB", "a reset"])
    async def test_whatever_metrics_does_the_others_keep_their_cadence(self, server: FaultServer, fault: str) -> None:
        server.routes["/metrics"], _ = FAULTS[fault]
        async with watching(server) as watched:
            await until_async(lambda: watched.last(Source.METRICS) is not None)
            healths = len(watched.readings[Source.HEALTH])
            await until_async(lambda: len(watched.readings[Source.HEALTH]) >= healths + 4)
            # At a quarter of a second each, four beats of health are one second: the others moved on as well.
            assert len(watched.readings[Source.SLOTS]) >= 3

    async def test_every_fault_of_slots_ends_when_the_fault_ends(self, server: FaultServer) -> None:
        async with watching(server) as watched:
            server.routes["/metrics"] = metrics(processing=1)
            for behaviour, kind in (FAULTS["silence"], FAULTS["a reset"], FAULTS["garbage"]):
                server.routes["/slots"] = behaviour
                await until_async(lambda kind=kind: watched.kind(Source.SLOTS) is kind)  # type: ignore[misc]
                server.routes["/slots"] = slots(processing=True)
                await until_async(lambda: watched.known(Source.SLOTS))

    async def test_a_dead_server_is_refused_and_a_new_one_is_found(self, server: FaultServer) -> None:
        async with watching(server) as watched:
            await until_async(lambda: all(watched.known(source) for source in DEADLINES))
            server.close()
            await until_async(lambda: all(watched.kind(source) is FailureKind.REFUSED for source in DEADLINES))
            with FaultServer(server.routes, port=server.port):
                await until_async(lambda: all(watched.known(source) for source in DEADLINES))

    async def test_a_server_that_comes_back_healthy_is_asked_everything_at_once(self, server: FaultServer) -> None:
        server.routes = {"/health": LOADING, "/props": DISABLED, "/metrics": DISABLED, "/slots": DISABLED}
        async with watching(server) as watched:
            await until_async(lambda: watched.kind(Source.METRICS) is FailureKind.DISABLED)
            await until_async(lambda: watched.known(Source.HEALTH))
            server.routes = {"/health": OK, "/props": props(), "/metrics": metrics(), "/slots": slots()}
            # Disabled endpoints rest for five seconds in this pace, unless something wakes them.
            started = time.monotonic()
            await until_async(lambda: watched.known(Source.METRICS) and watched.known(Source.SLOTS))
            assert time.monotonic() - started < QUICK.settled

    async def test_a_port_that_a_stranger_had_is_asked_for_its_health_all_the_same(self, server: FaultServer) -> None:
        server.routes["/health"] = says(404, "")
        async with watching(server, pace=replace(QUICK, settled=1e6)) as watched:
            await until_async(lambda: watched.kind(Source.HEALTH) is FailureKind.NOT_FOUND)
            server.routes["/health"] = OK
            await until_async(lambda: watched.known(Source.HEALTH))

    async def test_a_key_that_is_taken_again_at_one_endpoint_is_tried_at_all(self, server: FaultServer) -> None:
        paths = ("/metrics", "/slots", "/props")
        before = {path: server.routes[path] for path in paths}
        server.routes.update(dict.fromkeys(paths, DENIED))
        async with watching(server) as watched:
            await until_async(lambda: all(watched.kind(Source(path[1:])) is FailureKind.UNAUTHORIZED for path in paths))
            server.routes.update(before)
            await until_async(lambda: all(watched.known(Source(path[1:])) for path in paths))

    async def test_a_stranger_that_is_healthy_is_asked_again_until_it_is_a_llama_server(
        self, server: FaultServer
    ) -> None:
        paths = ("/metrics", "/slots", "/props")
        before = {path: server.routes[path] for path in paths}
        server.routes.update(dict.fromkeys(paths, says(404, "")))
        async with watching(server, pace=replace(QUICK, settled=1e6)) as watched:
            await until_async(lambda: all(watched.kind(Source(path[1:])) is FailureKind.NOT_FOUND for path in paths))
            server.routes.update(before)
            await until_async(lambda: all(watched.known(Source(path[1:])) for path in paths))

    async def test_an_answer_of_health_that_comes_late_is_one(self, server: FaultServer) -> None:
        server.routes["/health"] = drips(answer(200, b'{"status":"ok"}'), 0.02)
        async with watching(server) as watched:
            await until_async(lambda: watched.known(Source.HEALTH))
        kinds = [
            reading.failure.kind if reading.failure is not None else None for reading in watched.readings[Source.HEALTH]
        ]
        assert kinds[:2] == [FailureKind.TIMEOUT, None], kinds

    async def test_what_ran_out_of_time_while_specdash_slept_is_not_told(self, server: FaultServer) -> None:
        server.routes["/metrics"] = hangs()
        starved = True
        watched = Watched()
        client = LlamaClient(Target(server.url))
        poller = BackendPoller(
            client, watched.take, pace=QUICK, deadlines_s=DEADLINES, slept_since=lambda _asked: starved
        )
        task = asyncio.create_task(poller.run())
        try:
            await until_async(lambda: server.count("/metrics") >= 3)
            assert watched.readings[Source.METRICS] == []
            starved = False
            await until_async(lambda: watched.kind(Source.METRICS) is FailureKind.TIMEOUT)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.aclose()

    async def test_a_loading_server_is_known_to_be_loading(self, server: FaultServer) -> None:
        server.routes = dict.fromkeys(server.routes, LOADING)
        async with watching(server) as watched:
            await until_async(lambda: None not in (watched.last(Source.METRICS), watched.last(Source.HEALTH)))
            last = watched.last(Source.HEALTH)
            assert last is not None
            assert last.value is not None
            assert last.value.status is HealthStatus.LOADING
            assert watched.kind(Source.METRICS) is FailureKind.LOADING

    async def test_a_server_that_is_down_is_asked_less_and_less(self, server: FaultServer) -> None:
        server.routes["/health"] = resets()
        pace = PollPace(first_retry=0.1, last_retry=0.6)
        async with watching(server, pace=pace) as watched:
            await until_async(lambda: len(watched.readings[Source.HEALTH]) >= 7)
            times = [reading.at for reading in watched.readings[Source.HEALTH]]
        pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
        assert pauses[-1] > 2 * pauses[0]

    async def test_a_disabled_endpoint_is_left_alone(self, server: FaultServer) -> None:
        server.routes["/metrics"] = DISABLED
        async with watching(server) as watched:
            await until_async(lambda: len(watched.readings[Source.HEALTH]) >= 6)
            assert server.count("/metrics") == 1


class TestRestart:
    async def test_counters_that_go_back_make_the_poller_ask_again_who_is_there(self, server: FaultServer) -> None:
        server.routes["/metrics"] = metrics(decodes=500)
        async with watching(server, pace=PollPace(props=60.0)) as watched:
            await until_async(lambda: len(watched.readings[Source.METRICS]) >= 3)
            props_before, slots_before = server.count("/props"), server.count("/slots")
            server.routes["/metrics"] = metrics(decodes=2)
            await until_async(lambda: server.count("/props") > props_before)
            await until_async(lambda: server.count("/slots") > slots_before)
            value = watched.last(Source.METRICS)
            assert value is not None
            assert isinstance(value.value, Counters)
            assert value.value.decode_calls == 2


class TestLookingChangesNothing:
    async def test_an_idle_server_is_not_kept_awake_by_asking_for_slots(self, server: FaultServer) -> None:
        async with watching(server) as watched:
            await until_async(lambda: len(watched.readings[Source.METRICS]) >= 3)
            asked, told = server.count("/slots"), len(watched.readings[Source.SLOTS])
            await until_async(lambda: len(watched.readings[Source.SLOTS]) >= told + 4)
            assert server.count("/slots") == asked
            # The last slots are still told, because /metrics confirms them.
            last = watched.last(Source.SLOTS)
            assert last is not None
            assert isinstance(last.value, Slots)
            assert last.at == pytest.approx(time.monotonic(), abs=5)

    async def test_gauges_that_a_scrape_resets_are_no_sign_of_work(self, server: FaultServer) -> None:
        server.routes["/metrics"] = metrics(gauge=99.0)
        async with watching(server) as watched:
            await until_async(lambda: len(watched.readings[Source.METRICS]) >= 3)
            asked = server.count("/slots")
            server.routes["/metrics"] = metrics(gauge=0.0)
            beats = len(watched.readings[Source.METRICS])
            await until_async(lambda: len(watched.readings[Source.METRICS]) >= beats + 3)
            assert server.count("/slots") == asked

    async def test_work_is_seen_at_once_and_its_end_is_looked_at(self, server: FaultServer) -> None:
        async with watching(server) as watched:
            await until_async(lambda: len(watched.readings[Source.METRICS]) >= 3)
            server.routes.update({"/metrics": metrics(processing=1), "/slots": slots(processing=True)})
            await until_async(lambda: _processing(watched))
            server.routes.update({"/metrics": metrics(decodes=90), "/slots": slots()})
            await until_async(lambda: not _processing(watched))

    async def test_work_too_short_to_be_seen_running_is_looked_at_too(self, server: FaultServer) -> None:
        async with watching(server) as watched:
            await until_async(lambda: len(watched.readings[Source.METRICS]) >= 3)
            asked = server.count("/slots")
            server.routes["/metrics"] = metrics(decodes=6)
            await until_async(lambda: server.count("/slots") > asked)

    async def test_a_sleeping_server_is_not_woken(self, server: FaultServer) -> None:
        server.routes["/props"] = props(sleeping=True)
        async with watching(server) as watched:
            await until_async(lambda: len(watched.readings[Source.SLOTS]) >= 4)
            assert server.count("/slots") == 0
            assert watched.kind(Source.SLOTS) is FailureKind.SLEEPING

    async def test_a_server_that_somebody_woke_is_looked_at_again(self, server: FaultServer) -> None:
        server.routes["/props"] = props(sleeping=True)
        async with watching(server, pace=PollPace(props_asleep=60.0)) as watched:
            await until_async(lambda: watched.kind(Source.SLOTS) is FailureKind.SLEEPING)
            await until_async(lambda: len(watched.readings[Source.METRICS]) >= 3)
            server.routes.update({"/props": props(), "/metrics": metrics(processing=1), "/slots": slots(True)})
            await until_async(lambda: _processing(watched))

    async def test_without_metrics_sleep_is_asked_for_before_an_idle_slot_is(self, server: FaultServer) -> None:
        server.routes["/metrics"] = DISABLED
        async with watching(server, pace=PollPace(props=60.0)) as watched:
            await until_async(lambda: server.count("/slots") >= 2)
            server.routes["/props"] = props(sleeping=True)
            await until_async(lambda: watched.kind(Source.SLOTS) is FailureKind.SLEEPING)
            asked = server.count("/slots")
            beats = len(watched.readings[Source.SLOTS])
            await until_async(lambda: len(watched.readings[Source.SLOTS]) >= beats + 3)
            assert server.count("/slots") == asked


def _processing(watched: Watched) -> bool:
    last = watched.last(Source.SLOTS)
    return last is not None and isinstance(last.value, Slots) and any(slot.is_processing for slot in last.value.slots)


class TestPace:
    async def test_a_new_interval_holds_from_now_on(self, server: FaultServer) -> None:
        watched, client = Watched(), LlamaClient(Target(server.url))
        poller = BackendPoller(client, watched.take, interval_s=5.0)
        task = asyncio.create_task(poller.run())
        try:
            await until_async(lambda: watched.known(Source.HEALTH))
            poller.set_interval(0.25)
            await until_async(lambda: len(watched.readings[Source.HEALTH]) >= 5)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.aclose()

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
