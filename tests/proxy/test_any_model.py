"""The model name `any`: the resident model of a router that was used last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.proxy_app import proxied, running_proxy, settings_for
from support.router import running_router

if TYPE_CHECKING:
    from pathlib import Path

    from support.scripted_server import Call


class Upstream:
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
            message = {"role": "assistant", "content": "hello"}
            await call.json({"choices": [{"index": 0, "finish_reason": "stop", "message": message}], "usage": {}})
        else:
            await call.json({"role": "router"})


def turn(model: str) -> dict[str, Any]:
    return {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": "the"}]}


PATHS = pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])


@PATHS
async def test_one_that_is_awake_comes_before_one_that_sleeps(path: str) -> None:
    upstream = Upstream(a="unloaded", b="sleeping", c="loaded")
    upstream.used = {"b": 9000}
    async with proxied(upstream) as (proxy, _):
        assert (await proxy.post(path, turn("any"))).status_code == 200
    assert upstream.asked == ["c"]


@PATHS
async def test_of_several_the_one_used_last_through_this_proxy(path: str) -> None:
    upstream = Upstream(a="loaded", b="loaded", c="loaded")
    async with proxied(upstream) as (proxy, _):
        for model in ("c", "b", "any", "c", "any"):
            assert (await proxy.post(path, turn(model))).status_code == 200
    assert upstream.asked == ["c", "b", "b", "c", "c"]


async def test_a_router_that_tells_when_each_was_used_is_believed() -> None:
    upstream = Upstream(a="loaded", b="loaded")
    upstream.used = {"a": 5000, "b": 9000}
    async with proxied(upstream) as (proxy, _):
        await proxy.post("/v1/messages", turn("any"))
    assert upstream.asked == ["b"]


@PATHS
async def test_while_none_is_resident_it_is_refused_and_nothing_is_loaded(path: str) -> None:
    upstream = Upstream(a="unloaded", b="loading")
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
