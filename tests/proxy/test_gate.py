"""Holding and resuming, of the gate and of a running proxy."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from specdash.proxy import gate as gates
from specdash.proxy.gate import Gate
from specdash.proxy.http.responses import ApiError
from support.proxy_app import proxied
from support.scripted_server import tells
from support.waiting import until_async

if TYPE_CHECKING:
    from support.scripted_server import Behaviour, Call


async def test_a_request_that_waits_too_long_is_asked_to_come_back_and_the_hold_stays() -> None:
    gate = Gate()
    gate.hold("new model", 60, 0.01)
    with pytest.raises(ApiError, match=r"held \(new model\)") as caught:
        await gate.wait()
    assert (caught.value.status, caught.value.type) == (529, "overloaded_error")
    assert "retry-after" in caught.value.headers
    assert (gate.held, gate.waiting) == (True, 0)
    gate.resume()


async def test_a_hold_that_is_never_lifted_ends_by_itself_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    gate.hold("crashed tool", 0.02, 5)
    with caplog.at_level(logging.WARNING, "specdash.proxy"):
        await gate.wait()
    assert not gate.held
    assert "crashed tool" in caplog.text


async def test_a_second_hold_replaces_limit_and_reason_and_keeps_the_beginning() -> None:
    gate = Gate()
    gate.hold("first", 0.02, 60)
    since = gate.since
    gate.hold("second", 60, 60)
    await asyncio.sleep(0.05)
    assert (gate.held, gate.reason, gate.since) == (True, "second", since)
    assert gate.held_s >= 0.05
    gate.resume()


async def test_a_gate_is_settling_for_a_while_after_a_hold_and_never_before(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    seen = [gate.settling]
    gate.hold("", 60, 60)
    gate.resume()
    seen.append(gate.settling)
    monkeypatch.setattr(gates, "SETTLING_S", 0)
    seen.append(gate.settling)
    assert seen == [False, True, False]


CHAT = {"messages": [{"role": "user", "content": "hi"}]}
NOTHING = tells({"choices": []})


def after(release: asyncio.Event) -> Behaviour:
    async def behave(call: Call) -> None:
        if call.path == "/v1/chat/completions":
            await release.wait()
        await NOTHING(call)

    return behave


async def test_new_requests_wait_until_resumed() -> None:
    async with proxied(NOTHING) as (proxy, server):
        held = (await proxy.post("/admin/hold", {"reason": "new\nmodel", "limit_s": 30})).json()
        assert (held["held"], held["reason"], held["limit_s"]) == (True, "new model", 30)
        request = asyncio.create_task(proxy.post("/v1/chat/completions", CHAT))
        await until_async(lambda: proxy.proxy.gate.waiting == 1)
        assert server.count("/v1/chat/completions") == 0
        state = (await proxy.get("/admin/state")).json()
        assert state["waiting"] == 1
        assert state["longest_wait_s"] >= 0
        assert (await proxy.get("/health")).json()["status"] == "held"
        assert (await proxy.post("/admin/resume")).json()["resumed"] is True
        assert (await request).status_code == 200
        assert (await proxy.get("/admin/state")).json()["held"] is False


async def test_running_requests_go_on_and_draining_waits_for_them() -> None:
    release = asyncio.Event()
    async with proxied(after(release)) as (proxy, server):
        request = asyncio.create_task(proxy.post("/v1/chat/completions", CHAT))
        await until_async(lambda: server.count("/v1/chat/completions") == 1)
        state = (await proxy.post("/admin/hold", {"drain_s": 0.05})).json()
        assert (state["active"], state["drained"]) == (1, False)
        holding = asyncio.create_task(proxy.post("/admin/hold", {"drain_s": 10}))
        await asyncio.sleep(0.02)
        release.set()
        assert (await holding).json()["drained"] is True
        assert (await request).status_code == 200


async def test_how_long_a_request_may_wait_is_known_and_renewed_for_those_who_wait() -> None:
    async with proxied(NOTHING, PROXY_HOLD_LIMIT="0.1") as (proxy, _):
        assert (await proxy.post("/admin/hold")).json()["wait_s"] == 0.1
        assert (await proxy.post("/admin/hold", {"wait_s": 600, "limit_s": 30})).json()["wait_s"] == 600
        request = asyncio.create_task(proxy.post("/v1/chat/completions", CHAT))
        for _ in range(4):
            await asyncio.sleep(0.05)
            assert (await proxy.post("/admin/hold", {"limit_s": 30})).json()["wait_s"] == 600
        assert (await proxy.post("/admin/resume")).json()["wait_s"] is None
        assert (await request).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        *({"reason": 3}, {"limit_s": "10"}, {"limit_s": 0}, {"limit_s": True}, {"limit_s": 1e9}),
        *({"drain_s": None}, {"wait_s": -1}, {"wait_s": 86401}, {"seconds": 3}, [], "x"),
    ],
)
async def test_a_bad_body_holds_nothing(body: Any) -> None:
    async with proxied(NOTHING) as (proxy, _):
        answer = await proxy.post("/admin/hold", body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert not proxy.proxy.gate.held


async def test_the_key_of_clients_does_not_open_it_and_the_token_opens_nothing_else() -> None:
    async with proxied(NOTHING, PROXY_API_KEY="client", PROXY_ADMIN_TOKEN="operator") as (proxy, _):
        for headers in ({}, {"x-api-key": "client"}, {"authorization": "Bearer client"}):
            assert (await proxy.post("/admin/hold", {}, headers=headers)).status_code == 401
        assert (await proxy.get("/admin/state", headers={"x-admin-token": "operator"})).json()["held"] is False
        assert (await proxy.get("/v1/models", headers={"x-admin-token": "operator"})).status_code == 401


async def test_without_a_token_set_each_proxy_makes_its_own() -> None:
    async with proxied(NOTHING) as (one, _), proxied(NOTHING) as (other, _):
        assert len(one.proxy.admin_token) >= 32
        assert one.proxy.admin_token != other.proxy.admin_token
