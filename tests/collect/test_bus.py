"""The bus hands every reading to every sink, and no sink can harm another."""

import threading
from typing import Any

import pytest

from specdash.collect.hub import Bus
from specdash.core.readings import Reading, Source

READING: Reading[Any] = Reading.known(Source.HEALTH, 1.0, "fine")


def test_every_sink_gets_every_reading() -> None:
    first: list[Reading[Any]] = []
    second: list[Reading[Any]] = []
    bus = Bus([first.append, second.append])
    bus.publish(READING)
    assert first == second == [READING]


def test_a_sink_that_raises_is_reported_once_and_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    got: list[Reading[Any]] = []

    def broken(_: Reading[Any]) -> None:
        raise ValueError("boom")

    bus = Bus([broken, got.append])
    bus.publish(READING)
    bus.publish(READING)
    assert got == [READING, READING]
    assert bus.errors == 2
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_closed_bus_is_silent() -> None:
    got: list[Reading[Any]] = []
    bus = Bus([got.append])
    bus.close()
    bus.publish(READING)
    assert got == []


def test_sinks_are_called_one_at_a_time() -> None:
    inside, most = [0], [0]
    entered = threading.Barrier(4, timeout=5)

    def sink(_: Reading[Any]) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.01)
        inside[0] -= 1

    bus = Bus([sink])

    def publish() -> None:
        entered.wait()
        bus.publish(READING)

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert most == [1]
