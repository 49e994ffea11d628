"""Specdash knows when it gets no CPU itself, says so while it lasts, and takes no silence of then for another's."""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.collect.hub import SPAN_S, TICK_S, SchedulingWatch
from specdash.core.readings import STARVED_SHARE, Reading
from support.clock import Clock
from support.fault_server import FaultServer, says
from support.waiting import until


def woken(late: list[float]) -> tuple[SchedulingWatch, Clock, list[Reading[Any]]]:
    """A watch that woke so late each time."""
    told: list[Reading[Any]] = []
    clock = Clock()
    watch = SchedulingWatch(told.append, clock)
    for value in late:
        clock.now += TICK_S + value
        watch.woke()
    return watch, clock, told


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=80))
def test_it_counts_as_starved_by_what_was_late_within_the_span(late: list[float]) -> None:
    _, clock, told = woken([])
    watch = SchedulingWatch(told.append, clock)
    wakes: list[tuple[float, float]] = []
    for value in late:
        clock.now += TICK_S + value
        watch.woke()
        wakes.append((clock.now, value))
        in_span = sum(delay for at, delay in wakes if at > clock.now - SPAN_S)
        assert told[-1].value is not None
        if abs(in_span - STARVED_SHARE * SPAN_S) > 1e-6:
            assert told[-1].value.is_starved == (in_span > STARVED_SHARE * SPAN_S)


def test_it_is_published_at_first_while_it_lasts_and_when_it_is_over() -> None:
    _, _, told = woken([0.005] * 4000)
    assert [reading.value.is_starved for reading in told if reading.value is not None] == [False]
    _, _, told = woken([0.0, *[0.5] * 20, *[0.0] * 60])
    states = [reading.value.is_starved for reading in told if reading.value is not None]
    assert (states[0], states[-1]) == (False, False)
    assert set(states[1:-1]) == {True}
    assert len(states) > 20


def test_a_silence_is_its_own_doing_where_it_slept_through_it_also_before_it_woke() -> None:
    watch, clock, _ = woken([0.0] * 10)
    asked = clock.now
    clock.now += 3.0
    assert watch.slept_since(asked), "it has not even woken yet"
    watch.woke()
    assert watch.slept_since(asked)
    later = clock.now
    for _ in range(8):
        clock.now += TICK_S
        watch.woke()
    assert not watch.slept_since(later)


@pytest.mark.slow
def test_a_specdash_that_is_stopped_and_goes_on_blames_itself_alone() -> None:
    metrics = says(200, "llamacpp:n_decode_total 5\nllamacpp:requests_processing 0\n")
    routes = {
        "/health": says(200, '{"status":"ok"}'),
        "/metrics": metrics,
        "/slots": says(200, json.dumps([{"id": 0, "is_processing": False}])),
        "/props": says(200, json.dumps({"total_slots": 1})),
    }
    with FaultServer(routes) as server:
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
