"""Holding new requests, and letting them go."""

from __future__ import annotations

import asyncio
import logging

import pytest

from specdash.proxy.gate import SETTLING_S, Gate
from specdash.proxy.http.responses import ApiError


async def test_a_request_that_waits_too_long_is_told_to_come_back_and_the_hold_stays() -> None:
    gate = Gate()
    gate.hold("new model", 60)
    with pytest.raises(ApiError, match=r"held \(new model\)") as caught:
        await gate.wait(0.01)
    assert (caught.value.status, caught.value.type) == (529, "overloaded_error")
    assert "retry-after" in caught.value.headers
    assert (gate.held, gate.waiting) == (True, 0)
    gate.resume()


async def test_a_hold_that_nobody_lifts_ends_by_itself_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    gate.hold("crashed tool", 0.02)
    with caplog.at_level(logging.WARNING, "specdash.proxy"):
        await gate.wait(5)
    assert not gate.held
    assert "crashed tool" in caplog.text


async def test_a_second_hold_replaces_limit_and_reason_and_keeps_the_beginning() -> None:
    now = [100.0]
    gate = Gate(wall=lambda: now[0])
    gate.hold("first", 0.02)
    now[0] = 107.0
    gate.hold("second", 60)
    await asyncio.sleep(0.05)
    assert (gate.held, gate.reason, gate.since, gate.held_s) == (True, "second", 100.0, 7.0)
    gate.resume()


async def test_a_renewed_hold_gives_those_who_wait_its_own_time_without_waking_them() -> None:
    gate = Gate()
    gate.hold("apply", 60, wait_s=0.1)
    waiting = asyncio.create_task(gate.wait(60))
    for _ in range(6):
        await asyncio.sleep(0.05)
        gate.hold("apply", 60, wait_s=30)
    assert (waiting.done(), gate.waiting, gate.wait_s) == (False, 1, 30)
    gate.hold("apply", 60)
    assert gate.wait_s == 30
    gate.resume()
    await waiting
    assert gate.wait_s is None


async def test_a_gate_is_settling_for_a_while_after_a_hold_and_never_before() -> None:
    now = [0.0]
    gate = Gate(clock=lambda: now[0])
    seen = [gate.settling]
    gate.hold("", 60)
    gate.resume()
    seen.append(gate.settling)
    now[0] = SETTLING_S
    seen.append(gate.settling)
    assert seen == [False, True, False]
