"""Measuring while users are served: whom it waits for, and what it leaves out."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from specdash.bench.load.samples import EngineAddress, MeasureOptions, WorkloadPrompt
from specdash.core.flag import Flag
from specdash.tune.run import measuring
from specdash.tune.run.loop import Pulse
from specdash.tune.run.measuring import EngineLoad, GentleRunner, QuietMoments, Surroundings, proxies_load, together
from support.fault_upstream import FaultUpstream
from support.scripted_llama import Behaviour, ScriptedLlama
from support.upstream_script import Script, timed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROMPTS = tuple(
    WorkloadPrompt(f"{kind}-{number}", kind, ({"role": "user", "content": "write"},))
    for kind in ("coding", "prose")
    for number in range(2)
)
IDLE, BUSY, QUEUE = EngineLoad(0, 0, 0, 0), EngineLoad(1, 0, 0, 1), EngineLoad(1, 2, 1, 1)


class Loads:
    """What the engine and the proxies say, one look after the other; the last for ever."""

    def __init__(self, *loads: EngineLoad) -> None:
        self.loads = list(loads)
        self.looks = 0

    def __call__(self, place: EngineAddress, env: Mapping[str, str]) -> EngineLoad:
        self.looks += 1
        return self.loads.pop(0) if len(self.loads) > 1 else self.loads[0]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_POLL_S", 0.01)


@pytest.fixture
def server() -> Iterator[FaultUpstream]:
    with FaultUpstream(timed()) as found:
        yield found


def calm(server: FaultUpstream, *loads: EngineLoad, stop: Flag | None = None) -> QuietMoments:
    return QuietMoments(lambda: EngineAddress(server.url), stop or Flag(), {}, quiet_s=0.02, look=Loads(*loads))


def trickle(found: QuietMoments, **more: Any) -> GentleRunner:
    return GentleRunner(PROMPTS, MeasureOptions(max_tokens=32), found, **more)


def test_a_restart_waits_until_nobody_asked_anything_for_a_while(server: FaultUpstream) -> None:
    said: list[str] = []
    found = calm(server, QUEUE, BUSY, IDLE, BUSY, IDLE)
    found.wait(said.append)
    assert said == [
        "3 requests of users wait", "requests of users run", "waiting for a quiet moment", "requests of users run",
        "waiting for a quiet moment",
    ]  # fmt: skip


def test_waiting_ends_when_a_stop_is_asked_for(server: FaultUpstream) -> None:
    stop = Flag()
    found = calm(server, BUSY, stop=stop)
    threading.Timer(0.05, stop.set).start()
    with pytest.raises(KeyboardInterrupt):
        found.wait(lambda _: None)


def test_unknown_is_taken_for_idle_and_queues_are_seen_at_either_end() -> None:
    assert EngineLoad().idle
    assert not EngineLoad(0, 0, 1, 0).idle
    assert EngineLoad(0, 0, 1, 0).queues
    assert EngineLoad(1, 1).queues
    assert not EngineLoad(1, 0).queues


def test_each_prompt_is_asked_once_in_its_order_after_one_warm_up(
    server: FaultUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QuietMoments, "wait", lambda *_: None)
    done: list[tuple[int, int]] = []
    found = trickle(calm(server, IDLE))(EngineAddress(server.url), lambda *told: done.append(told))
    assert len(server.bodies) == len(PROMPTS) + 1
    assert [sample.prompt for sample in found.samples] == [prompt.id for prompt in PROMPTS]
    assert done == [(number, 4) for number in range(1, 5)]
    assert found.problem == ""
    assert not found.seen.foreign_tokens


def test_it_steps_aside_for_users_that_queue_and_does_not_ask_that_prompt_again(
    server: FaultUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QuietMoments, "wait", lambda *_: None)
    server.scripts = [timed(), timed(), Script(hangs=True)]
    told: list[EngineLoad] = []

    def look(_place: EngineAddress, _env: Mapping[str, str]) -> EngineLoad:
        """Somebody queues once, while the second prompt runs."""
        if len(server.bodies) < 3 or told:
            return IDLE
        told.append(QUEUE)
        return QUEUE

    found = calm(server, IDLE)
    found.look = look
    measured = trickle(found)(EngineAddress(server.url), lambda *_: None)
    assert [sample.prompt for sample in measured.samples] == ["coding-0", "prose-0", "prose-1"]
    assert "1 of 4 prompts left out because users came" in measured.notes
    assert measured.problem == ""
    assert not measured.seen.foreign_tokens


def test_where_users_come_all_the_time_the_boot_counts_as_disturbed(
    server: FaultUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QuietMoments, "wait", lambda *_: None)
    monkeypatch.setattr(GentleRunner, "_told", lambda *_, **__: None)
    measured = trickle(calm(server, QUEUE))(EngineAddress(server.url), lambda *_: None)
    assert measured.seen.disturbance()
    assert "users came whenever coding, prose was asked" in measured.problem


def test_what_was_just_seen_is_shown_without_another_look(
    server: FaultUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = calm(server, QUEUE, IDLE)
    assert found.lately() == QUEUE
    assert found.lately() == QUEUE
    monkeypatch.setattr(measuring, "_FRESH_S", 0.0)
    assert found.lately() == IDLE


def test_a_look_at_the_proxies_alone_asks_the_engine_nothing() -> None:
    with ScriptedLlama(Behaviour()) as engine:
        assert proxies_load(EngineAddress(engine.url), {"HOME": "/none"}) == EngineLoad()
        assert not engine.calls


def test_a_pulse_spends_little_time_however_long_a_beat_takes() -> None:
    beats: list[float] = []

    def beat() -> None:
        beats.append(time.monotonic())
        time.sleep(0.02)

    with Pulse(beat, 0.001):
        time.sleep(0.5)
    assert beats
    assert all(later - value >= 0.2 for value, later in itertools.pairwise(beats))
    ended = len(beats)
    time.sleep(0.05)
    assert len(beats) == ended


def test_several_looks_come_to_means_and_the_tightest_memory() -> None:
    seen = together(
        [
            Surroundings(others_cores=0.2, memory_free_bytes=10, memory_used_bytes=5, watts=100.0),
            Surroundings(others_cores=0.4, memory_free_bytes=7, memory_used_bytes=9),
        ]
    )
    assert seen.others_cores == pytest.approx(0.3)
    assert (seen.memory_free_bytes, seen.memory_used_bytes, seen.watts) == (7, 9, 100.0)
    assert together([]) == Surroundings()
