"""Requests that meet an upstream in the middle of its restart: held, broken off, refused, or loading."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from specdash.proxy import gate as gates
from support.fault_server import free_port, writes
from support.proxy_app import RunningProxy, running_proxy, settings_for
from support.scripted_server import ScriptedServer
from support.upstream_script import loading
from support.waiting import until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.scripted_server import Behaviour, Call

MESSAGES, CHAT, COUNT = "/v1/messages", "/v1/chat/completions", "/v1/messages/count_tokens"
COUNTED = "/v1/chat/completions/input_tokens"
ASKED = [{"role": "user", "content": "hi"}]
STREAM_PIECES = [
    b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"role":"assistant","content":"Hello"}}]}\n\n',
    b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
]
WAYS = [
    pytest.param(MESSAGES, {"model": "m", "max_tokens": 9, "messages": ASKED}, id="messages"),
    pytest.param(MESSAGES, {"model": "m", "max_tokens": 9, "messages": ASKED, "stream": True}, id="messages-stream"),
    pytest.param(CHAT, {"messages": ASKED}, id="chat"),
    pytest.param(CHAT, {"messages": ASKED, "stream": True}, id="chat-stream"),
    pytest.param(COUNT, {"model": "m", "messages": ASKED}, id="count"),
]


class Server:
    """What an upstream does, and its trouble while there is one."""

    def __init__(self, windows: int = 4096) -> None:
        self.trouble: Behaviour | None = None
        self.window = windows
        self.asked = 0

    async def __call__(self, call: Call) -> None:
        generates = call.path in {CHAT, COUNTED}
        self.asked += generates
        if self.trouble is not None:
            await self.trouble(call)
        elif call.path == "/props":
            await call.json({"default_generation_settings": {"n_ctx": self.window}})
        elif call.path == "/v1/models":
            await call.json({"data": [{"id": "m"}]})
        elif call.path == COUNTED:
            await call.json({"input_tokens": 3})
        elif b'"stream":true' in call.raw:
            await call.begin()
            for piece in STREAM_PIECES:
                await call.chunk(piece)
            await call.chunk()
        else:
            message = {"role": "assistant", "content": "Hello"}
            await call.json({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


@contextlib.asynccontextmanager
async def proxied(**texts: str) -> AsyncIterator[tuple[RunningProxy, Server, ScriptedServer]]:
    behave = Server()
    async with ScriptedServer(behave) as upstream, running_proxy(settings_for(upstream.url, **texts)) as proxy:
        yield proxy, behave, upstream


def check(path: str, answer: Any) -> None:
    assert answer.status_code == 200, answer.text
    wanted = '"input_tokens":3' if path == COUNT else "Hello"
    assert wanted in answer.text
    assert "error" not in answer.text


@pytest.mark.parametrize(("path", "body"), WAYS)
@pytest.mark.parametrize("trouble", [writes(b""), loading()])
async def test_what_a_restart_breaks_while_held_is_sent_again_after_it(
    path: str, body: dict[str, Any], trouble: Behaviour
) -> None:
    async with proxied() as (proxy, behave, _):
        await proxy.get("/health")
        inside, go_on = asyncio.Event(), asyncio.Event()

        async def restarts(call: Call) -> None:
            if call.path in {CHAT, COUNTED}:
                inside.set()
            await go_on.wait()
            await trouble(call)

        behave.trouble = restarts
        request = asyncio.create_task(proxy.post(path, body))
        await inside.wait()
        await proxy.post("/admin/hold", {"wait_s": 30})
        assert not (await proxy.get("/admin/state")).json()["drained"]
        go_on.set()
        await until_async(lambda: proxy.proxy.gate.waiting == 1)
        behave.trouble = None
        await proxy.post("/admin/resume")
        check(path, await request)


@pytest.mark.parametrize(("path", "body"), WAYS)
async def test_right_after_a_hold_a_request_waits_for_an_upstream_that_still_loads(
    path: str, body: dict[str, Any]
) -> None:
    async with proxied() as (proxy, behave, _):
        await proxy.post("/admin/hold")
        behave.trouble = loading()
        held = asyncio.create_task(proxy.post(path, body))
        await until_async(lambda: proxy.proxy.gate.waiting == 1)
        await proxy.post("/admin/resume")
        later = asyncio.create_task(proxy.post(path, body))
        await asyncio.sleep(0.3)
        assert (held.done(), later.done()) == (False, False)
        behave.trouble = None
        check(path, await held)
        check(path, await later)


@pytest.mark.parametrize(("path", "body"), WAYS)
async def test_right_after_a_hold_a_request_waits_for_an_upstream_that_does_not_listen_yet(
    path: str, body: dict[str, Any]
) -> None:
    port = free_port()
    async with running_proxy(settings_for(f"http://127.0.0.1:{port}")) as proxy:
        await proxy.post("/admin/hold")
        request = asyncio.create_task(proxy.post(path, body))
        await until_async(lambda: proxy.proxy.gate.waiting == 1)
        await proxy.post("/admin/resume")
        await asyncio.sleep(0.3)
        assert not request.done()
        async with ScriptedServer(Server(), port=port):
            check(path, await request)


@pytest.mark.parametrize(("path", "body"), WAYS)
async def test_patience_with_an_upstream_that_stays_away_ends(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "SETTLING_S", 0.3)
    async with proxied(PROXY_COMMIT_DELAY="30") as (proxy, behave, _):
        behave.trouble = loading()
        await proxy.post("/admin/hold")
        await proxy.post("/admin/resume")
        async with asyncio.timeout(5):
            answer = await proxy.post(path, body)
        assert answer.status_code == (503 if path == CHAT else 529)


@pytest.mark.parametrize(("path", "body"), WAYS)
async def test_a_request_that_kills_the_upstream_is_repeated_only_once(path: str, body: dict[str, Any]) -> None:
    async with proxied(PROXY_COMMIT_DELAY="30") as (proxy, behave, _):
        await proxy.post("/admin/hold")
        await proxy.post("/admin/resume")
        await proxy.get("/health")

        async def dies(call: Call) -> None:
            if call.path in {CHAT, COUNTED}:
                call.hang_up()
            else:
                await call.json({})

        behave.trouble = dies
        answer = await proxy.post(path, body)
        assert answer.status_code == 502
        assert behave.asked <= 2 * 2


async def test_a_request_of_the_hold_is_made_for_the_window_that_is_there_after_it() -> None:
    history = [{"role": "user" if at % 2 == 0 else "assistant", "content": "word " * 200} for at in range(41)]
    body = {"model": "m", "max_tokens": 9, "messages": history, "stream": True}
    async with proxied(PROXY_COMMIT_DELAY="0.01") as (proxy, behave, upstream):
        behave.window = 100_000
        await proxy.get("/health")
        await proxy.post("/admin/hold")
        requests = [asyncio.create_task(proxy.post(MESSAGES, {**body, "stream": streams})) for streams in (True, False)]
        await until_async(lambda: proxy.proxy.gate.waiting == 2)
        behave.window = 4096
        await proxy.post("/admin/resume")
        for request in requests:
            check(MESSAGES, await request)
        sizes = [len(call.raw) for call in upstream.calls if call.path == CHAT]
        assert max(sizes) < 20_000
