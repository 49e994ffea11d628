"""Connections to the upstream: bounded, closed at once; and what its errors mean."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.http.responses import ApiError, PromptTooLongError
from specdash.proxy.upstream.upstream import Upstream, UpstreamBrokenError, api_error, stream_error
from support.fault_server import free_port, full_backlog, says, writes
from support.proxy_app import settings_for
from support.scripted_server import Call, ScriptedServer
from support.waiting import until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.scripted_server import Behaviour


@contextlib.asynccontextmanager
async def connected(behave: Behaviour, **texts: str) -> AsyncIterator[tuple[Upstream, ScriptedServer]]:
    async with ScriptedServer(behave) as server:
        upstream = Upstream(settings_for(server.url, **texts))
        try:
            yield upstream, server
        finally:
            await upstream.close()


says_ok = says(200, '{"ok":true}')


async def endless(call: Call) -> None:
    await call.begin()
    while True:
        await call.chunk(b"data: {}\n\n")
        await asyncio.sleep(0.001)


async def whole(upstream: Upstream, body: bytes = b"{}") -> bytes:
    async with upstream.open(body) as reply:
        return await reply.body(1 << 24)


class TestCalls:
    async def test_a_body_arrives_as_it_is(self) -> None:
        bodies = [b'{"a":1}', json.dumps({"text": "ü" * 1_500_000}).encode()]
        async with connected(says_ok) as (upstream, server):
            assert [await whole(upstream, body) for body in bodies] == [b'{"ok":true}'] * 2
            assert [call.raw for call in server.calls] == bodies

    async def test_a_head_that_breaks_off_is_not_asked_for_again(self) -> None:
        async with connected(writes(b"HTTP/1.1 200 OK\r\ncontent-ty")) as (upstream, server):
            with pytest.raises(UpstreamBrokenError):
                await whole(upstream)
            assert len(server.calls) == 1

    async def test_more_requests_than_connections_wait_their_turn(self) -> None:
        running = most = 0

        async def counted(call: Call) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            await call.answer()

        async with connected(counted, PROXY_MAX_CONNECTIONS="3") as (upstream, server):
            await asyncio.gather(*(whole(upstream) for _ in range(12)))
            assert most == 3
            assert len(server.calls) == 12
            assert upstream.in_flight == 0


class TestFailures:
    async def test_a_refused_connection_names_the_upstream_to_the_log_only_and_without_its_secrets(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        port = free_port()
        upstream = Upstream(settings_for(f"http://user:secret@127.0.0.1:{port}"))
        with pytest.raises(ApiError) as caught:
            await whole(upstream)
        await upstream.close()
        error = caught.value
        assert (error.status, error.type, error.headers) == (529, "overloaded_error", {"retry-after": "2"})
        assert error.message == "the upstream cannot be reached: connection refused"
        assert caplog.messages == [f"http://127.0.0.1:{port}: {error.message}"]

    async def test_a_connection_that_is_never_made_ends_in_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("specdash.proxy.upstream.upstream.CONNECT_S", 0.2)
        with full_backlog() as url:
            upstream = Upstream(settings_for(url))
            with pytest.raises(ApiError, match="no connection in time") as caught:
                await whole(upstream)
            await upstream.close()
        assert caught.value.status == 529

    async def test_what_is_not_http_is_named_and_a_slow_answer_ends_in_time(self) -> None:
        async with connected(writes(b"220 smtp ready\r\n\r\n")) as (upstream, _):
            with pytest.raises(ApiError, match="does not answer in HTTP"):
                await whole(upstream)
        async with connected(Call.hang) as (upstream, _):
            with pytest.raises(ApiError) as caught:
                await upstream.get_json("/props", 0.05)
            assert caught.value.status == 504

    async def test_an_error_body_of_any_size_is_read_within_bounds(self) -> None:
        async def floods(call: Call) -> None:
            await call.begin("text/plain")
            for _ in range(10_000):
                await call.chunk(b"x" * 65536)

        async with connected(floods) as (upstream, server):
            async with upstream.open(b"{}") as reply:
                assert len((await reply.error()).message) < 1000
            await until_async(lambda: server.open == 0)


class TestAbort:
    async def test_an_answer_that_is_left_closes_its_connection(self) -> None:
        async with connected(endless) as (upstream, server):
            async with upstream.open(b"{}") as reply:
                assert await reply.read()
            await until_async(lambda: server.open == 0)
            assert upstream.in_flight == 0

    @pytest.mark.parametrize("behave", [endless, Call.hang])
    async def test_cancelling_closes_the_connection_at_any_moment(self, behave: Behaviour) -> None:
        async with connected(behave) as (upstream, server):
            task = asyncio.create_task(whole(upstream))
            await until_async(lambda: len(server.calls) == 1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await until_async(lambda: server.open == 0)
            assert upstream.in_flight == 0

    async def test_cancelling_a_request_that_waits_for_its_turn_frees_it(self) -> None:
        async with connected(endless, PROXY_MAX_CONNECTIONS="1") as (upstream, _):
            async with upstream.open(b"{}"):
                task = asyncio.create_task(whole(upstream))
                await asyncio.sleep(0.01)
                assert upstream.in_flight == 2
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert upstream.in_flight == 1
            async with upstream.open(b"{}") as reply:
                assert await reply.read()

    async def test_drained_waits_for_what_is_running(self) -> None:
        async with connected(endless) as (upstream, _):
            assert await upstream.drained(0)
            task = asyncio.create_task(whole(upstream))
            await until_async(lambda: upstream.in_flight == 1)
            assert not await upstream.drained(0.01)
            asyncio.get_running_loop().call_later(0.01, task.cancel)
            assert await upstream.drained(5)


def said(message: str, **more: object) -> bytes:
    return json.dumps({"error": {"message": message, **more}}).encode()


class TestPromptTooLong:
    def test_llama_cpp_names_both_numbers(self) -> None:
        error = api_error(400, said("x", type="exceed_context_size_error", n_prompt_tokens=36014, n_ctx=4096))
        assert isinstance(error, PromptTooLongError)
        assert error.message == "prompt is too long: 36014 tokens > 4096 maximum"


class TestStatus:
    @pytest.mark.parametrize(
        ("code", "status"), [(503, 529), (400, 400), ("server_error", 500), (None, 500), (12, 500)]
    )
    def test_an_error_inside_a_stream_has_its_code_for_a_status(self, code: object, status: int) -> None:
        assert stream_error({"code": code, "message": "x"}).status == status

    @pytest.mark.parametrize(
        ("status", "body", "expected", "kind"),
        [
            (503, b"", 529, "overloaded_error"),
            (403, b"{}", 502, "api_error"),
            (404, said("File Not Found", type="not_found_error"), 502, "api_error"),
            (429, said("slow down"), 429, "rate_limit_error"),
            (413, b"", 413, "request_too_large"),
            (422, said("bad"), 400, "invalid_request_error"),
            (500, said("image input is not supported - hint: you may need to provide the mmproj"), 400, None),
            (500, said("Value is not callable: null at row 1, jinja template"), 400, None),
            (502, b"<html><body><h1>502 Bad Gateway</h1></body></html>", 500, "api_error"),
            (301, b"", 502, "api_error"),
        ],
    )
    def test_maps_to_what_clients_act_on(self, status: int, body: bytes, expected: int, kind: str | None) -> None:
        error = api_error(status, body)
        assert error.status == expected
        assert kind is None or error.type == kind

    def test_a_refused_key_is_the_operators_and_trying_again_does_not_help(self) -> None:
        error = api_error(401, said("Invalid API Key"))
        assert "PROXY_UPSTREAM_API_KEY" in error.message
        assert error.headers == {"x-should-retry": "false"}


@given(st.integers(300, 599), st.one_of(st.binary(max_size=200), st.text(max_size=50).map(str.encode)))
def test_any_body_is_an_error_with_words(status: int, body: bytes) -> None:
    error = api_error(status, body)
    assert isinstance(error, ApiError)
    assert error.status >= 400
    assert error.message
