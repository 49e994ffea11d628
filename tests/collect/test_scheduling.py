"""Specdash knows when it gets no CPU itself, says so while it lasts, and takes no silence of then for another's."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collect.seen import routes
from specdash.collect.hub import SPAN_S, TICK_S, SchedulingWatch
from specdash.core.readings import STARVED_SHARE
from support.clock import Clock
from support.fault_server import FaultServer
from support.waiting import until


class Watched(SchedulingWatch):
    """A watch with a clock, and what it published."""

    def __init__(self) -> None:
        self.clock, self.states = Clock(), list[bool]()
        super().__init__(lambda reading: self.states.append(reading.value.is_starved), self.clock)  # type: ignore[union-attr]

    def sleep(self, *late: float) -> None:
        """Wake up so late each time."""
        for value in late:
            self.clock.now += TICK_S + value
            self.woke()


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=80))
def test_it_counts_as_starved_by_what_was_late_within_the_span(late: list[float]) -> None:
    watch, wakes = Watched(), list[tuple[float, float]]()
    for value in late:
        watch.sleep(value)
        wakes.append((watch.clock.now, value))
        in_span = sum(delay for at, delay in wakes if at > watch.clock.now - SPAN_S)
        if abs(in_span - STARVED_SHARE * SPAN_S) > 1e-6:
            assert watch.states[-1] == (in_span > STARVED_SHARE * SPAN_S)


def test_it_is_published_at_first_while_it_lasts_and_when_it_is_over() -> None:
    watch = Watched()
    watch.sleep(*[0.005] * 4000)
    assert watch.states == [False]
    watch.sleep(*[0.5] * 20, *[0.0] * 60)
    _, *during, last = watch.states
    assert (set(during), last) == ({True}, False)
    assert len(during) > 20


def test_a_silence_is_its_own_doing_where_it_slept_through_it_also_before_it_woke() -> None:
    watch = Watched()
    watch.sleep(*[0.0] * 10)
    asked = watch.clock.now
    watch.clock.now += 3.0
    assert watch.slept_since(asked), "it has not even woken yet"
    watch.woke()
    assert watch.slept_since(asked)
    later = watch.clock.now
    watch.sleep(*[0.0] * 8)
    assert not watch.slept_since(later)


@pytest.mark.slow
def test_a_specdash_that_is_stopped_and_goes_on_blames_itself_alone() -> None:
    with FaultServer(routes()) as server:
        command = [sys.executable, "-m", "specdash", "check", "--url", server.url, "--for", "20", "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        until(lambda: server.count("/metrics") >= 3, 60)
        for _ in range(3):
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(2.5)
            os.kill(process.pid, signal.SIGCONT)
            time.sleep(0.2)
        out, _ = process.communicate(timeout=90)
    rules = {alert["rule"] for alert in json.loads(out)["alerts"]}
    assert "cpu_starved" in rules
    assert rules.isdisjoint({"server_hung", "backend_down", "slot_hung", "port_taken"}), rules
