"""Routes, envelopes and request ids, over real connections."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from starlette.routing import Route

from specdash.proxy.http import app as app_module
from support.fault_server import free_port
from support.proxy_app import proxied, running_proxy, settings_for
from support.scripted_server import tells
from support.upstream_script import loading

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MODELS = {"data": [{"id": "/models/Qwen3-8B.gguf"}]}
ROUTES = {"/props": tells({"default_generation_settings": {"n_ctx": 4096}}), "/v1/models": tells(MODELS)}
ANSWERS = tells({"input_tokens": 7, "choices": []})


def assert_envelope(answer: Any, status: int, kind: str) -> None:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == kind
    assert body["error"]["message"]
    assert body["request_id"] == answer.headers["request-id"]


class TestErrors:
    @pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
    async def test_a_body_that_is_too_large_is_refused_by_its_length(self, path: str) -> None:
        async with proxied(ANSWERS, ROUTES, PROXY_MAX_BODY_MIB="1") as (proxy, server):
            head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {10 << 30}\r\n\r\n"
            reader, writer = await proxy.send(head.encode())
            status = await reader.readline()
            writer.close()
            assert b"413" in status
            assert server.calls == []

    async def test_a_body_that_grows_too_large_is_refused(self) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(40):
                yield b"x" * 65536

        async with proxied(ANSWERS, ROUTES, PROXY_MAX_BODY_MIB="1") as (proxy, _):
            answer = await proxy.client.post("/v1/messages", content=pieces())
            assert_envelope(answer, 413, "request_too_large")

    async def test_an_unexpected_error_tells_the_log_everything_and_the_client_nothing(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def broken(*_: Any) -> None:
            raise KeyError("a secret of ours")

        monkeypatch.setattr(app_module, "ROUTES", [Route("/", broken)])
        async with proxied(ANSWERS, ROUTES) as (proxy, _):
            with caplog.at_level(logging.ERROR, "specdash.proxy"):
                answer = await proxy.get("/")
            assert_envelope(answer, 500, "api_error")
            assert "secret" not in answer.text
            assert "a secret of ours" in caplog.text
            assert answer.headers["request-id"] in caplog.text


class TestHealth:
    async def test_a_healthy_proxy(self) -> None:
        async with proxied(ANSWERS, ROUTES) as (proxy, _):
            answer = (await proxy.get("/health")).json()
            assert answer == {
                "status": "ok",
                "proxy": "ok",
                "upstream": "ok",
                "held": False,
                "context_window": 4096,
                "problems": [],
            }

    async def test_an_unreachable_upstream_degrades_it_and_it_still_answers(self) -> None:
        async with running_proxy(settings_for(f"http://127.0.0.1:{free_port()}")) as proxy:
            answer = await proxy.get("/health")
            assert answer.status_code == 200
            assert (answer.json()["status"], answer.json()["upstream"]) == ("degraded", "unreachable")

    async def test_a_loading_upstream_is_told(self) -> None:
        async with proxied(loading()) as (proxy, _):
            assert (await proxy.get("/health")).json()["status"] == "loading"


class TestKey:
    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"x-api-key": "wrong"},
            {"authorization": "Bearer wrong"},
            {"authorization": "Basic right"},
            {"authorization": "right"},
            {"x-api-key": ""},
        ],
    )
    @pytest.mark.parametrize("path", ["/v1/models", "/v1/context", "/metrics", "/admin/state", "/", "/nope"])
    async def test_without_the_key_nothing_is_told(self, headers: dict[str, str], path: str) -> None:
        async with proxied(ANSWERS, ROUTES, PROXY_API_KEY="right") as (proxy, server):
            assert_envelope(await proxy.get(path, headers=headers), 401, "authentication_error")
            assert server.calls == []
