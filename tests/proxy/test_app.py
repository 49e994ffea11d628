"""Routes, envelopes and request ids, over real connections; and who counts as this machine."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from starlette.requests import Request
from starlette.routing import Route

from specdash.proxy.http import app as app_module
from specdash.proxy.http.access import check_admin, is_local
from specdash.proxy.http.responses import ApiError
from support.fault_server import free_port
from support.proxy_app import proxied, running_proxy, settings_for
from support.scripted_server import tells
from support.upstream_script import error, loading

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.scripted_server import Behaviour

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
    async def test_an_upstream_that_is_unreachable_or_loads_degrades_it_and_it_still_answers(self) -> None:
        async with running_proxy(settings_for(f"http://127.0.0.1:{free_port()}")) as proxy:
            answer = await proxy.get("/health")
            assert answer.status_code == 200
            assert (answer.json()["status"], answer.json()["upstream"]) == ("degraded", "unreachable")
        async with proxied(loading()) as (proxy, _):
            assert (await proxy.get("/health")).json()["status"] == "loading"


def test_loopback_is_this_machine_and_nothing_else() -> None:
    here = ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", ""]
    elsewhere = ["10.0.0.1", "0.0.0.0", "::", "fe80::1", "::ffff:10.0.0.1", "localhost.evil", "x"]
    assert [host for host in here + elsewhere if is_local(host)] == here


COUNT = "/v1/chat/completions/input_tokens"


@pytest.mark.parametrize(
    ("routes", "status"),
    [
        ({}, 502),
        ({COUNT: tells({"input_tokens": "many"})}, 502),
        ({COUNT: tells({"error": {"message": "bad template, jinja"}}, 500)}, 400),
        ({COUNT: tells({"error": {"message": "Loading model"}}, 503)}, 529),
    ],
)
async def test_what_the_upstream_cannot_count_is_an_error(routes: dict[str, Behaviour], status: int) -> None:
    body = {"model": "claude-x", "messages": [{"role": "user", "content": "hello"}]}
    async with proxied(error(404, "File Not Found", "not_found_error"), routes) as (proxy, _):
        answer = await proxy.post("/v1/messages/count_tokens", body)
        assert (answer.status_code, answer.json()["type"]) == (status, "error")


TOKEN = (b"x-admin-token", b"open sesame")
HERE = ("127.0.0.1", 1)


def asked(client: tuple[str, int], *headers: tuple[bytes, bytes]) -> Request:
    lower = [(name.lower(), value) for name, value in headers]
    return Request({"type": "http", "client": client, "headers": lower})


def refusal(client: tuple[str, int], *headers: tuple[bytes, bytes]) -> tuple[int, str]:
    with pytest.raises(ApiError) as caught:
        check_admin(asked(client, *headers), "open sesame")
    return caught.value.status, caught.value.type


@pytest.mark.parametrize(
    ("client", "headers"),
    [
        (("10.0.0.9", 1), []),
        (HERE, [(b"origin", b"http://localhost:8000")]),
        (HERE, [(b"origin", b"null")]),
    ],
)
def test_admin_refuses_other_machines_and_every_web_page(
    client: tuple[str, int], headers: list[tuple[bytes, bytes]]
) -> None:
    assert refusal(client, TOKEN, *headers) == (403, "permission_error")


@pytest.mark.parametrize(
    "headers",
    [[], [(b"x-admin-token", b"")], [(b"x-api-key", b"the client key")], [(b"authorization", b"open sesame")]],
)
def test_admin_wants_its_own_token(headers: list[tuple[bytes, bytes]]) -> None:
    assert refusal(HERE, *headers) == (401, "authentication_error")


@pytest.mark.parametrize("sent", [TOKEN, (b"x-api-key", b"open sesame"), (b"authorization", b"Bearer open sesame")])
def test_the_token_opens_it_for_a_program_of_this_machine(sent: tuple[bytes, bytes]) -> None:
    for host in ("127.0.0.1", "::1", ""):
        check_admin(asked((host, 1), (b"user-agent", b"curl"), (b"accept", b"*/*"), sent), "open sesame")
