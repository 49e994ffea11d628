"""The poller watches every endpoint at its own pace, survives every fault, and changes nothing by looking.

Which fault of an answer is which failure: tests/llama/test_client.py.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from collect.seen import Seen, metrics, props, routes, slots
from specdash.collect.backend import MAX_INTERVAL_S, MIN_INTERVAL_S, BackendPoller, PollPace
from specdash.core.readings import FailureKind, Slots, Source
from specdash.core.target import Target
from support.fault_server import FaultServer, answer, drips, floods, hangs, resets, says
from support.waiting import until_async

OK = says(200, '{"status":"ok"}')
LOADING = says(503, '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}')
DISABLED = says(501, '{"error":{"message":"not supported","code":501}}')
DENIED = says(401, '{"error":{"message":"Invalid API Key","code":401}}')

QUICK = PollPace(props=0.2, props_asleep=0.1, first_retry=0.1, last_retry=0.2, settled=5.0)
DEADLINES = {Source.HEALTH: 0.5, Source.PROPS: 0.5, Source.METRICS: 0.5, Source.SLOTS: 0.5}
ALL = tuple(DEADLINES)
OTHERS = ("/metrics", "/slots", "/props")


class Watched(Seen):
    """What the poller published."""

    poller: BackendPoller

    @property
    def is_processing(self) -> bool:
        last = self.last(Source.SLOTS)
        return last is not None and any(slot.is_processing for slot in last.slots)

    async def beats(self, source: Source, count: int) -> None:
        """So many more readings."""
        before = len(self.of(source))
        await until_async(lambda: len(self.of(source)) >= before + count)


@asynccontextmanager
async def watching(
    server: FaultServer,
    interval_s: float = 0.25,
    pace: PollPace = QUICK,
    slept_since: Callable[[float], bool] = lambda _: False,
) -> AsyncIterator[Watched]:
    watched, target = Watched(), Target(server.url)
    watched.poller = BackendPoller(
        target, watched.take, interval_s=interval_s, pace=pace, deadlines_s=DEADLINES, slept_since=slept_since
    )
    task = asyncio.create_task(watched.poller.run())
    try:
        yield watched
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class TestFaults:
    @pytest.mark.parametrize(
        ("fault", "kind"),
        [
            (hangs(), FailureKind.TIMEOUT),
            (drips(answer(200, b"x" * 500), 0.1), FailureKind.TIMEOUT),
            (floods(b"HTTP/1.1 200 OK\r\n\r\n", b"llamacpp:x 1\n" * 5000, 800), FailureKind.TOO_LARGE),
            (resets(), FailureKind.RESET),
        ],
        ids=["silence", "a drip", "50 MB", "a reset"],
    )
    async def test_a_fault_of_metrics_is_named_and_the_others_keep_their_cadence(
        self, server: FaultServer, fault: Any, kind: FailureKind
    ) -> None:
        server.routes["/metrics"] = fault
        async with watching(server) as watched:
            await until_async(lambda: bool(watched.of(Source.METRICS)), 15)
            assert watched.kind(Source.METRICS) is kind
            await watched.beats(Source.HEALTH, 4)
            assert len(watched.of(Source.SLOTS)) >= 3
            assert watched.known(Source.HEALTH, Source.PROPS, Source.SLOTS)
            server.routes["/metrics"] = metrics()
            await until_async(lambda: watched.known(Source.METRICS))

    async def test_totals_that_vanish_from_a_server_that_goes_on_are_no_metrics(self, server: FaultServer) -> None:
        async with watching(server) as watched:
            await until_async(lambda: watched.known(Source.METRICS))
            server.routes["/metrics"] = says(200, "llamacpp:requests_processing 0\n", "Content-Type: text/plain")
            await until_async(lambda: watched.kind(Source.METRICS) is FailureKind.GARBAGE)
            assert "decode_calls were there before" in watched.detail(Source.METRICS)
            server.routes["/metrics"] = metrics(decodes=7)
            await until_async(lambda: watched.known(Source.METRICS))

    async def test_a_dead_server_is_refused_and_a_new_one_is_found(self, server: FaultServer) -> None:
        async with watching(server) as watched:
            await until_async(lambda: watched.known(*ALL))
            server.close()
            await until_async(lambda: all(watched.kind(source) is FailureKind.REFUSED for source in ALL))
            with FaultServer(server.routes, port=server.port):
                await until_async(lambda: watched.known(*ALL))

    @pytest.mark.parametrize(
        ("health", "others", "kind"),
        [
            (LOADING, DISABLED, FailureKind.DISABLED),
            (OK, DENIED, FailureKind.UNAUTHORIZED),
        ],
        ids=["a server that comes back", "a key that is taken again"],
    )
    async def test_a_server_that_is_well_again_is_asked_everything_at_once(
        self, server: FaultServer, health: Any, others: Any, kind: FailureKind
    ) -> None:
        server.routes.update({"/health": health, **dict.fromkeys(OTHERS, others)})
        async with watching(server, pace=replace(QUICK, settled=1e6)) as watched:
            await until_async(lambda: all(watched.kind(Source(path[1:])) is kind for path in OTHERS))
            await until_async(lambda: bool(watched.of(Source.HEALTH)))
            server.routes.update(routes())
            await until_async(lambda: watched.known(*ALL))

    async def test_an_answer_of_health_that_comes_late_is_one(self, server: FaultServer) -> None:
        server.routes["/health"] = drips(answer(200, b'{"status":"ok"}'), 0.012)
        async with watching(server) as watched:
            await until_async(lambda: watched.known(Source.HEALTH))
        failures = [reading.failure for reading in watched.of(Source.HEALTH)[:2]]
        assert [failure and failure.kind for failure in failures] == [FailureKind.TIMEOUT, None]

    async def test_what_ran_out_of_time_while_specdash_slept_is_not_published(self, server: FaultServer) -> None:
        server.routes["/metrics"] = hangs()
        starved = True
        async with watching(server, slept_since=lambda _: starved) as watched:
            await until_async(lambda: server.count("/metrics") >= 3)
            assert watched.of(Source.METRICS) == []
            starved = False
            await until_async(lambda: watched.kind(Source.METRICS) is FailureKind.TIMEOUT)

    async def test_a_server_that_is_down_is_asked_less_and_less_and_a_disabled_endpoint_hardly(
        self, server: FaultServer
    ) -> None:
        server.routes.update({"/health": resets(), "/metrics": DISABLED})
        async with watching(server, pace=PollPace(first_retry=0.1, last_retry=0.6)) as watched:
            await until_async(lambda: len(watched.of(Source.HEALTH)) >= 7)
            assert server.count("/metrics") == 1
        times = [reading.at for reading in watched.of(Source.HEALTH)]
        pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
        assert pauses[-1] > 2 * pauses[0]

    async def test_counters_that_go_back_make_the_poller_ask_again_who_is_there(self, server: FaultServer) -> None:
        server.routes["/metrics"] = metrics(decodes=500)
        async with watching(server, pace=PollPace(props=60.0)) as watched:
            await until_async(lambda: len(watched.of(Source.METRICS)) >= 3)
            before = server.count("/props"), server.count("/slots")
            server.routes["/metrics"] = metrics(decodes=0)
            await until_async(lambda: server.count("/props") > before[0] and server.count("/slots") > before[1])
            assert watched.last(Source.METRICS).decode_calls == 0


class TestLookingChangesNothing:
    async def test_an_idle_server_is_not_kept_awake_by_asking_for_slots(self, server: FaultServer) -> None:
        server.routes["/metrics"] = metrics(gauge=99.0)
        async with watching(server) as watched:
            await until_async(lambda: len(watched.of(Source.METRICS)) >= 3)
            asked = server.count("/slots")
            # A gauge that a scrape resets is no sign of work.
            server.routes["/metrics"] = metrics(gauge=0.0)
            await watched.beats(Source.METRICS, 3)
            await watched.beats(Source.SLOTS, 3)
            assert server.count("/slots") == asked
            last = watched.of(Source.SLOTS)[-1]
            assert isinstance(last.value, Slots), "the last slots are still published, because /metrics confirms them"
            assert last.at == pytest.approx(time.monotonic(), abs=5)

    async def test_work_is_seen_at_once_and_its_end_is_looked_at(self, server: FaultServer) -> None:
        async with watching(server) as watched:
            await until_async(lambda: len(watched.of(Source.METRICS)) >= 3)
            server.routes.update({"/metrics": metrics(processing=1), "/slots": slots(processing=True)})
            await until_async(lambda: watched.is_processing)
            server.routes.update({"/metrics": metrics(decodes=90), "/slots": slots()})
            await until_async(lambda: not watched.is_processing)
            await watched.beats(Source.METRICS, 3)
            asked = server.count("/slots")
            server.routes["/metrics"] = metrics(decodes=91)
            # Work too short to be seen running is looked at too.
            await until_async(lambda: server.count("/slots") > asked)

    async def test_a_sleeping_server_is_not_woken_and_one_that_work_woke_is_seen(self, server: FaultServer) -> None:
        server.routes["/props"] = props(sleeping=True)
        async with watching(server, pace=PollPace(props_asleep=60.0)) as watched:
            await until_async(lambda: len(watched.of(Source.SLOTS)) >= 4)
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
    async def test_a_new_interval_holds_from_now_on_within_reason(self, server: FaultServer) -> None:
        async with watching(server, interval_s=60.0) as watched:
            await until_async(lambda: watched.known(Source.HEALTH))
            assert watched.poller._interval == MAX_INTERVAL_S
            watched.poller.set_interval(0.0)
            assert watched.poller._interval == MIN_INTERVAL_S
            await watched.beats(Source.HEALTH, 4)

    @pytest.mark.slow
    async def test_beats_neither_drift_nor_pile_up(self, server: FaultServer) -> None:
        async with watching(server) as watched:
            await until_async(lambda: len(watched.of(Source.HEALTH)) >= 10)
            # The first question waits for its client to be made.
            times = [call.at for call in server.asked("/health")][1:]
        # Eight beats of a quarter of a second; a beat that comes late must not delay those after it.
        assert times[8] - times[0] > 1.9
        assert len([at for at in times if at < times[0] + 1.9]) <= 9
