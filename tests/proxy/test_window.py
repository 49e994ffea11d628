"""What the proxy knows of its upstream, when it looks, and what a name of a model means."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from specdash.core.proxy_events import UpstreamStatus as State
from specdash.proxy.upstream.upstream import Upstream
from specdash.proxy.upstream.window import ContextWindow, use_model
from support.clock import Clock
from support.fault_server import free_port
from support.proxy_app import proxied, running_proxy, settings_for
from support.router import running_router
from support.scripted_server import Call, ScriptedServer, tells
from support.upstream_script import answers, loading

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from support.scripted_server import Behaviour, Call

PROPS = {"default_generation_settings": {"n_ctx": 4096}, "build_info": "b11549", "modalities": {"vision": True}}
MODELS = {"data": [{"id": "/models/Qwen3.gguf", "meta": {"n_ctx": 2048}}]}


@contextlib.asynccontextmanager
async def watched(
    props: Behaviour | None = None, models: Behaviour | None = None, clock: Clock | None = None, **texts: str
) -> AsyncIterator[tuple[ContextWindow, ScriptedServer]]:
    routes = {"/props": props or tells(PROPS), "/v1/models": models or tells(MODELS)}
    async with ScriptedServer(tells({}, 404), routes) as server:
        settings = settings_for(server.url, **texts)
        upstream = Upstream(settings)
        window = ContextWindow(upstream, settings, clock or Clock())
        upstream.on_lost = window.forget
        try:
            yield window, server
        finally:
            await upstream.close()


UNLOADED = {"id": "a", "status": {"value": "unloaded"}}
LOADED = {"id": "b", "status": {"value": "loaded"}, "meta": {"n_ctx": 512}}


@pytest.mark.parametrize(
    ("props", "models", "tokens", "model"),
    [
        (tells(PROPS), tells(MODELS), 4096, "/models/Qwen3.gguf"),
        (tells({"error": {"message": "no"}}, 404), tells(MODELS), 2048, "/models/Qwen3.gguf"),
        (tells({"role": "router"}), tells({"data": [UNLOADED, LOADED]}), 512, "b"),
        (tells({"is_sleeping": True}), tells({"data": [{"id": "m"}]}), None, "m"),
        (tells({"default_generation_settings": 3}), tells("x"), None, None),
        (tells({"default_generation_settings": {"n_ctx": True}}), tells([]), None, None),
        (tells(None), tells(None), None, None),
    ],
)
async def test_props_have_the_window_else_the_models(
    props: Behaviour, models: Behaviour, tokens: int | None, model: str | None
) -> None:
    async with watched(props, models) as (window, server):
        assert (window.tokens, window.status) == (None, State.UNKNOWN)
        await window.refresh()
        assert (window.tokens, window.model_id) == (tokens, model)
        # A server that sleeps is not woken.
        assert {call.path for call in server.calls} == {"/props", "/v1/models"}


async def test_many_requests_at_once_ask_once_and_after_a_minute_again() -> None:
    clock = Clock()
    async with watched(clock=clock) as (window, server):
        await asyncio.gather(*(window.refresh() for _ in range(20)))
        clock.now += 59
        await window.refresh()
        assert server.count("/props") == 1
        server.routes["/props"] = tells({"default_generation_settings": {"n_ctx": 9000}})
        clock.now += 2
        await window.refresh()
        assert window.tokens == 9000


async def test_what_comes_while_the_first_reading_is_under_way_waits_for_it() -> None:
    async with watched() as (window, server):
        reading = asyncio.create_task(window.refresh())
        await asyncio.sleep(0)
        await window.refresh(1)
        assert (window.status, window.tokens) == (State.OK, 4096)
        await reading
        assert len(server.calls) == 2


async def test_after_a_restart_of_the_upstream_the_old_window_does_not_count() -> None:
    clock = Clock()
    async with watched(clock=clock) as (window, server):
        await window.refresh()
        window.forget()
        assert window.tokens is None
        server.routes["/props"] = tells({"default_generation_settings": {"n_ctx": 777}})
        clock.now += 3
        await window.refresh()
        assert window.tokens == 777


async def test_an_unreachable_upstream_is_not_asked_for_every_request() -> None:
    settings = settings_for(f"http://127.0.0.1:{free_port()}")
    upstream, clock = Upstream(settings), Clock()
    window = ContextWindow(upstream, settings, clock)
    tries = []
    upstream.on_lost = lambda: tries.append(clock.now)
    await window.refresh()
    before = len(tries)
    await window.refresh()
    assert (window.tokens, window.status, len(tries)) == (None, State.UNREACHABLE, before)
    clock.now += 3
    await window.refresh()
    assert len(tries) == 2 * before
    await upstream.close()


async def test_checking_asks_at_most_once_in_a_while_and_distinguishes_loading() -> None:
    async with watched(loading(), loading()) as (window, _):
        await window.refresh(1)
        assert window.status is State.LOADING
    clock = Clock()
    async with watched(clock=clock) as (window, server):
        for _ in range(5):
            await window.refresh(1)
        assert window.status is State.OK
        assert server.count("/props") == 1
        clock.now += 1.5
        await window.refresh(1)
        assert server.count("/props") == 2


@pytest.mark.slow
async def test_a_hanging_upstream_delays_a_request_by_two_seconds_at_most() -> None:
    async with watched(Call.hang, Call.hang) as (window, _):
        async with asyncio.timeout(3):
            await window.refresh()
        assert window.tokens is None


IDS = ["/models/Qwen3 8B.gguf", "claude-local", "org/Gemma:12b"]


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ("/models/Qwen3 8B.gguf", "/models/Qwen3 8B.gguf"),
        ("org/Gemma:12b", "org/Gemma:12b"),
        ("org/Gemma:12b[1m]", "org/Gemma:12b"),
        ("claude-local", "claude-local"),
        ("claude-sonnet-4-5-20250929", "/models/Qwen3 8B.gguf"),
        ("", "/models/Qwen3 8B.gguf"),
    ],
)
async def test_an_id_of_the_upstream_means_that_model_and_any_other_name_the_loaded_one(
    requested: str, expected: str
) -> None:
    async with watched(models=tells({"data": [{"id": name} for name in IDS]})) as (window, _):
        assert await use_model(requested, window) == expected


class Router:
    """A router's answers, and the models that were asked for."""

    def __init__(self, **states: str) -> None:
        self.states = states
        self.asked: list[str] = []
        self.used: dict[str, int] = {}

    async def __call__(self, call: Call) -> None:
        if call.path == "/v1/models":
            rows = [
                {"id": name, "status": {"value": state}, "last_used_ms": self.used.get(name, 0)}
                for name, state in self.states.items()
            ]
            await call.json({"data": rows})
        elif call.path == "/v1/chat/completions":
            self.asked.append(call.body["model"])
            await answers("hello")(call)
        else:
            await call.json({"role": "router"})


def turn(model: str) -> dict[str, Any]:
    return {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": "the"}]}


PATHS = pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])


@PATHS
async def test_one_that_is_awake_comes_before_one_that_sleeps(path: str) -> None:
    upstream = Router(a="unloaded", b="sleeping", c="loaded")
    upstream.used = {"b": 9000}
    async with proxied(upstream) as (proxy, _):
        assert (await proxy.post(path, turn("any"))).status_code == 200
    assert upstream.asked == ["c"]


@PATHS
async def test_of_several_the_one_used_last_by_the_router_or_through_this_proxy(path: str) -> None:
    upstream = Router(a="loaded", b="loaded", c="loaded")
    upstream.used = {"a": 9000, "b": 5000}
    async with proxied(upstream) as (proxy, _):
        for model in ("any", "c", "b", "any", "c", "any"):
            assert (await proxy.post(path, turn(model))).status_code == 200
    assert upstream.asked == ["a", "c", "b", "b", "c", "c"]


@PATHS
async def test_while_none_is_resident_it_is_refused_and_nothing_is_loaded(path: str) -> None:
    upstream = Router(a="unloaded", b="loading")
    async with proxied(upstream) as (proxy, _):
        answer = await proxy.post(path, turn("any"))
        assert answer.status_code == 400
        assert "no model in memory; name one of: a, b" in answer.json()["error"]["message"]
    assert upstream.asked == []


@pytest.mark.llama_server
async def test_on_the_real_router_it_is_the_model_used_last_and_no_other_is_loaded(tmp_path: Path) -> None:
    with running_router(tmp_path) as router:
        async with running_proxy(settings_for(router.url)) as proxy:
            assert (await proxy.post("/v1/messages", turn("any"))).status_code == 400
            assert set(router.states().values()) == {"unloaded"}
            assert (await proxy.post("/v1/chat/completions", turn("beta"))).status_code == 200
            answer = await proxy.post("/v1/chat/completions", turn("any"))
            assert answer.json()["model"] == "beta"
            assert (await proxy.post("/v1/messages", turn("alpha"))).status_code == 200
            answer = await proxy.post("/v1/chat/completions", turn("any"))
            assert answer.json()["model"] == "alpha"
            assert router.states() == {"alpha": "loaded", "beta": "loaded", "broken": "unloaded"}
