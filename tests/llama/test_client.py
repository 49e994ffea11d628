"""Over real sockets, the client ends every question in time in a value or in a failure of the right kind."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from specdash.core.errors import UsageError
from specdash.core.readings import Counters, Failure, FailureKind, Health, HealthStatus, Props, Slots
from specdash.core.target import Target, normalise_url
from specdash.llama.client import LlamaClient
from support.fault_server import FaultServer, free_port, hangs, resets, says, writes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


LOADING = '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'
KEY = "sk-not-for-your-eyes"


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


@asynccontextmanager
async def asking(target: FaultServer | Target | str, connect_s: float = 10.0) -> AsyncIterator[LlamaClient]:
    if not isinstance(target, Target):
        target = Target(target.url if isinstance(target, FaultServer) else target)
    client = LlamaClient(target, connect_deadline_s=connect_s)
    try:
        yield client
    finally:
        await client.aclose()


async def failure_of_metrics(target: FaultServer | str, deadline_s: float = 10.0, connect_s: float = 10.0) -> Failure:
    async with asking(target, connect_s) as client:
        started = time.monotonic()
        result = await client.metrics(deadline_s)
        took = time.monotonic() - started
    assert isinstance(result, Failure)
    # Three times the deadline is a bug, not a slow machine.
    assert took < 3 * deadline_s + 1
    return result


class TestValues:
    async def test_each_endpoint_is_read_into_its_observation(self, server: FaultServer) -> None:
        server.routes = {
            "/health": says(200, '{"status":"ok"}'),
            "/props": says(200, '{"total_slots":2}'),
            "/slots": says(200, '[{"id":0,"is_processing":false}]'),
            "/metrics": says(200, "llamacpp:n_decode_total 7\n"),
        }
        async with asking(server) as client:
            health, props = await client.health(), await client.props()
            slots, metrics = await client.slots(), await client.metrics()
        assert isinstance(health, Health)
        assert health.status is HealthStatus.OK
        assert health.latency_s is not None
        assert health.latency_s > 0
        assert props == Props(total_slots=2)
        assert isinstance(slots, Slots)
        assert len(slots.slots) == 1
        assert metrics == Counters(decode_calls=7)

    async def test_one_connection_serves_many_questions(self, server: FaultServer) -> None:
        server.routes["/health"] = says(200, '{"status":"ok"}')
        async with asking(server) as client:
            for _ in range(5):
                assert isinstance(await client.health(), Health)
        assert server.connections == 1

    async def test_the_key_is_sent_as_a_bearer_token(self, server: FaultServer) -> None:
        server.routes["/metrics"] = says(200, "llamacpp:n_decode_total 7\n")
        async with asking(Target(server.url, api_key=KEY)) as client:
            await client.metrics()
        assert f"authorization: bearer {KEY}" in server.asked("/metrics")[0].head.lower()

    async def test_a_model_behind_a_router_is_named_and_never_loaded_by_looking(self, server: FaultServer) -> None:
        async with asking(Target(server.url, model="org/m 1&x")) as client:
            await client.metrics()
            await client.slots()
            await client.props()
            await client.health()
        for path in ("/metrics", "/slots", "/props"):
            assert f"GET {path}?model=org%2Fm+1%26x&autoload=false " in server.asked(path)[0].head
        assert "GET /health HTTP" in server.asked("/health")[0].head

    async def test_a_changed_body_is_read_again(self, server: FaultServer) -> None:
        async with asking(server) as client:
            for count in (1, 1, 2):
                server.routes["/metrics"] = says(200, f"llamacpp:n_decode_total {count}\n")
                assert await client.metrics() == Counters(decode_calls=count)

    async def test_the_environment_names_no_proxy(self, server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
        server.routes["/health"] = says(200, '{"status":"ok"}')
        async with asking(server) as client:
            assert isinstance(await client.health(), Health)


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "body", "kind"),
        [
            (401, '{"error":{"message":"Invalid API Key","code":401}}', FailureKind.UNAUTHORIZED),
            (403, "", FailureKind.UNAUTHORIZED),
            (404, "", FailureKind.NOT_FOUND),
            (501, '{"error":{"message":"start it with `--metrics`","code":501}}', FailureKind.DISABLED),
            (400, '{"error":{"message":"model name is missing from the request"}}', FailureKind.NO_MODEL),
            (400, '{"error":{"message":"model is not loaded"}}', FailureKind.NO_MODEL),
            (400, '{"error":{"message":"model \'x\' not found"}}', FailureKind.ERROR),
            (503, LOADING, FailureKind.LOADING),
            (503, "<html>busy</html>", FailureKind.ERROR),
            (500, '{"error":"boom"}', FailureKind.ERROR),
            (200, "<html>hello</html>", FailureKind.GARBAGE),
            (200, "", FailureKind.GARBAGE),
        ],
    )
    async def test_the_status_decides_the_kind(
        self, server: FaultServer, status: int, body: str, kind: FailureKind
    ) -> None:
        server.routes["/metrics"] = says(status, body)
        assert (await failure_of_metrics(server)).kind is kind

    async def test_a_redirect_is_not_followed(self, server: FaultServer) -> None:
        server.routes["/metrics"] = says(302, "", f"Location: {server.url}/elsewhere")
        assert (await failure_of_metrics(server)).kind is FailureKind.ERROR
        assert server.count("/elsewhere") == 0

    async def test_a_loading_server_has_a_health(self, server: FaultServer) -> None:
        server.routes["/health"] = says(503, LOADING)
        async with asking(server) as client:
            health = await client.health()
        assert isinstance(health, Health)
        assert health.status is HealthStatus.LOADING
        assert health.detail == "Loading model"

    async def test_the_key_never_appears_even_when_the_server_repeats_it(self, server: FaultServer) -> None:
        server.routes["/metrics"] = says(500, f'{{"error":{{"message":"bad key {KEY}"}}}}')
        async with asking(Target(server.url, api_key=KEY)) as client:
            result = await client.metrics()
        assert isinstance(result, Failure)
        assert "bad key" in result.detail
        assert KEY not in repr(result)

    async def test_words_of_the_server_become_one_clean_line(self, server: FaultServer) -> None:
        server.routes["/metrics"] = says(500, '{"error":{"message":"\\u001b[31mred\\nnext %s"}}' % ("x" * 999))
        result = await failure_of_metrics(server)
        assert result.detail.isprintable()
        assert len(result.detail) < 250


class TestFaults:
    async def test_silence_is_not_the_same_as_half_an_answer(self, server: FaultServer) -> None:
        server.routes["/metrics"] = hangs()
        failure = await failure_of_metrics(server, 0.5)
        assert failure == Failure(FailureKind.TIMEOUT, "accepts connections, no answer within 0.5 s")
        server.routes["/metrics"] = hangs(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nllama")
        failure = await failure_of_metrics(server, 1.5)
        assert failure == Failure(FailureKind.TIMEOUT, "the answer was not complete within 1.5 s")

    async def test_a_server_that_closes_without_an_answer_is_asked_once(self, server: FaultServer) -> None:
        server.routes = {"/health": says(200, '{"status":"ok"}'), "/metrics": writes(b"")}
        async with asking(server) as client:
            await client.health()
            failure = await client.metrics()
        assert isinstance(failure, Failure)
        assert failure.kind is FailureKind.RESET
        assert server.count("/metrics") == 1

    async def test_the_client_still_works_after_many_faults(self, server: FaultServer) -> None:
        server.routes = {"/metrics": hangs(), "/slots": resets(), "/health": says(200, '{"status":"ok"}')}
        async with asking(server) as client:
            for _ in range(12):
                assert isinstance(await client.metrics(0.03), Failure)
                assert isinstance(await client.slots(0.5), Failure)
            assert isinstance(await client.health(2.0), Health)


class TestAddress:
    @pytest.mark.parametrize(
        ("written", "meant"),
        [
            ("127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("localhost:8080/", "http://localhost:8080"),
            ("http://box", "http://box"),
            ("http://box:1/v1", "http://box:1"),
            ("http://box:1/v1/", "http://box:1"),
            ("https://box/llama/v1", "https://box/llama"),
            ("HTTP://Box:80", "http://box:80"),
            ("[::1]:8080", "http://[::1]:8080"),
            ("  http://box  ", "http://box"),
        ],
    )
    def test_what_users_write_is_made_one_form(self, written: str, meant: str) -> None:
        assert normalise_url(written) == meant
        assert normalise_url(meant) == meant

    @pytest.mark.parametrize(
        "written",
        [
            "",
            "  ",
            "ftp://box",
            "http://",
            "http://box:port",
            "http://box:99999",
            "http://a b",
            "http://[::1",
            "http://box/?x=1",
            "http://box/#x",
            "http://b<o>x",
            "://x",
        ],
    )
    def test_what_cannot_be_meant_is_a_usage_error(self, written: str) -> None:
        with pytest.raises(UsageError):
            normalise_url(written)

    @pytest.mark.parametrize("written", ["http://me:hunter2@box", "me:hunter2@box:80/", "ftp://hunter2@box"])
    def test_a_password_in_the_address_is_refused_and_not_repeated(self, written: str) -> None:
        with pytest.raises(UsageError) as refused:
            normalise_url(written)
        assert "hunter2" not in str(refused.value)
