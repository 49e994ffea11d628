"""Chat completions that pass through, and whole answers made of streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from specdash.core.proxy_events import RequestPhase
from specdash.proxy.answer.passthrough import streaming_fields
from support import proxy_app
from support.fault_server import says
from support.scripted_server import Call, tells

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from support.proxy_app import RunningProxy
    from support.scripted_server import Behaviour, ScriptedServer

PATH = "/v1/chat/completions"
BODY = b'{ "messages": [{"role":"user","content":"\\u00fc"}],\n "stream": true, "unknown": {"kept": 1} }'
PIECES = [
    b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"role":"assistant","content":null}}]}\n\n',
    b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"h\xc3\xa4"}}]}\n\nda',
    b'ta: {"choices":[{"delta":{},"finish_reason":"stop"}],"timings":{"cache_n":5,"prompt_n":3,"predicted_n":2}}\n\n',
    b": a comment\r\n\r\ndata: [DONE]\n\n",
]


ROUTES = {
    "/props": tells({"default_generation_settings": {"n_ctx": 4096}}),
    "/v1/models": tells({"data": [{"id": "m"}]}),
}


def proxied(behave: Behaviour, **texts: str) -> AbstractAsyncContextManager[tuple[RunningProxy, ScriptedServer]]:
    return proxy_app.proxied(behave, ROUTES, **texts)


async def streams(call: Call) -> None:
    await call.begin()
    for piece in PIECES:
        await call.chunk(piece)
    await call.chunk()


class TestBytes:
    @pytest.mark.parametrize("path", [PATH, "/chat/completions"])
    async def test_a_stream_and_its_request_are_unchanged(self, path: str) -> None:
        async with proxied(streams) as (proxy, server):
            answer = await proxy.client.post(path, content=BODY)
            assert answer.content == b"".join(PIECES)
            assert answer.headers["content-type"] == "text/event-stream"
            assert answer.headers["request-id"].startswith("req_")
            assert server.asked(PATH)[0].raw == BODY

    async def test_each_piece_is_passed_on_as_it_comes(self) -> None:
        go_on = asyncio.Event()

        async def in_two(call: Call) -> None:
            await call.begin()
            await call.chunk(PIECES[0][:10])
            await go_on.wait()
            await call.chunk(PIECES[0][10:] + PIECES[3])
            await call.chunk()

        async with (
            proxied(in_two) as (proxy, _),
            proxy.client.stream("POST", PATH, content=BODY) as answer,
        ):
            pieces = answer.aiter_raw()
            assert await anext(pieces) == PIECES[0][:10]
            go_on.set()
            assert await anext(pieces) == PIECES[0][10:] + PIECES[3]

    async def test_a_stream_that_ends_within_an_event_ends_with_an_error(self) -> None:
        async with proxied(says_llama(PIECES[0], b'data: {"cho')) as (proxy, _):
            answer = await proxy.client.post(PATH, content=BODY)
            rest = answer.content.removeprefix(PIECES[0] + b'data: {"cho\n\ndata: ')
            assert msgspec.json.decode(rest)["error"]["message"] == "the upstream broke off its answer"

    @pytest.mark.parametrize("status", [200, 404])
    async def test_a_whole_answer_is_unchanged_whatever_its_status(self, status: int) -> None:
        body = b'{ "choices": [], "error": {"message": "as it is"} }'

        async def behave(call: Call) -> None:
            await call.answer(status, body, "application/json; charset=utf-8")

        async with proxied(behave) as (proxy, _):
            answer = await proxy.client.post(PATH, content=b"{}")
            assert (answer.status_code, answer.content) == (status, body)
            assert answer.headers["content-type"] == "application/json; charset=utf-8"


def says_llama(*events: bytes, breaks_off: bool = False) -> Behaviour:
    """An upstream that calls itself llama.cpp and streams `events`."""

    async def behave(call: Call) -> None:
        head = b"HTTP/1.1 200 OK\r\nserver: llama.cpp\r\ncontent-type: text/event-stream\r\n"
        await call.write(head + b"transfer-encoding: chunked\r\n\r\n")
        for event in events:
            await call.chunk(event)
        if breaks_off:
            call.hang_up()
        else:
            await call.chunk()

    return behave


llama_models = says(200, '{"data":[{"id":"m","meta":{"n_ctx":64}}]}')


class TestLlamaCpp:
    PROGRESS = b'data: {"choices":[{"delta":{"role":"assistant"}}],"prompt_progress":{"total":9,"processed":1}}\n\n'
    ERROR = b'{"error":{"code":503,"message":"m","type":"unavailable_error"}}'

    @staticmethod
    def as_llama(server: ScriptedServer) -> None:
        server.routes = {"/props": llama_models, "/v1/models": llama_models}

    async def test_an_error_after_the_progress_is_a_status(self) -> None:
        async with proxied(says_llama(self.PROGRESS, b"data: " + self.ERROR + b"\n\n")) as (proxy, server):
            self.as_llama(server)
            answer = await proxy.post(PATH, {})
            assert (answer.status_code, answer.content) == (503, self.ERROR)
            assert server.asked(PATH)[0].body["return_progress"] is True

    async def test_a_whole_answer_whose_stream_breaks_off_is_an_error(self) -> None:
        async with proxied(says_llama(self.PROGRESS, PIECES[0], breaks_off=True)) as (proxy, server):
            self.as_llama(server)
            answer = await proxy.post(PATH, {})
            assert answer.status_code == 502
            assert "broke off" in answer.json()["error"]["message"]


class TestTelemetry:
    WHOLE = tells({
        "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 4},
    })  # fmt: skip

    @pytest.mark.parametrize(("behave", "body", "counted"), [(streams, BODY, (8, 2)), (WHOLE, b"{}", (11, 4))])
    async def test_an_answer_is_counted(self, behave: Behaviour, body: bytes, counted: tuple[int, int]) -> None:
        async with proxied(behave) as (proxy, _):
            await proxy.client.post(PATH, content=body)
            (session,) = proxy.proxy.sessions.all()
            assert (session.last_prompt_tokens, session.last_output_tokens) == counted
            assert proxy.proxy.telemetry.active == []


class TestHeld:
    async def test_a_stream_is_kept_alive_with_comments_and_then_goes_on(self) -> None:
        async with proxied(streams, PROXY_COMMIT_DELAY="0.01", PROXY_PING_INTERVAL="0.05") as (proxy, _):
            proxy.proxy.gate.hold("", 60, 60)
            async with proxy.client.stream("POST", PATH, content=BODY) as answer:
                pieces = answer.aiter_raw()
                assert await anext(pieces) == b": held\n\n"
                assert proxy.proxy.telemetry.active[0].phase is RequestPhase.HELD
                proxy.proxy.gate.resume()
                rest = b"".join([piece async for piece in pieces])
            assert rest.replace(b": held\n\n", b"") == b"".join(PIECES)

    async def test_past_the_limit_the_client_gets_an_error_in_openais_words(self) -> None:
        async with proxied(streams) as (proxy, _):
            proxy.proxy.gate.hold("restart", 60, 0.05)
            answer = await proxy.client.post(PATH, content=BODY)
            assert answer.status_code == 503
            assert "held (restart)" in answer.json()["error"]["message"]
            assert "retry-after" in answer.headers
            proxy.proxy.gate.resume()

    async def test_past_the_limit_a_stream_that_has_begun_gets_an_error_event(self) -> None:
        async with proxied(streams, PROXY_COMMIT_DELAY="0.01", PROXY_PING_INTERVAL="0.05") as (proxy, _):
            proxy.proxy.gate.hold("restart", 60, 0.1)
            reader, writer = await proxy.send_post(PATH, BODY)
            async with asyncio.timeout(5):
                text = b""
                while b"data: " not in text:
                    text += await reader.read(65536)
            writer.close()
            event = text.partition(b"data: ")[2].partition(b"\n\n")[0]
            assert msgspec.json.decode(event)["error"]["type"] == "overloaded_error"
            proxy.proxy.gate.resume()


class TestFields:
    @pytest.mark.parametrize("more", [{}, {"stream": False}, {"stream": None}, {"n": 1}, {"logprobs": False}])
    def test_a_stream_is_asked_for_with_everything_the_whole_has(self, more: dict[str, Any]) -> None:
        assert streaming_fields({"messages": [], **more}) == {
            "stream": True,
            "timings_per_token": True,
            "return_progress": True,
            "stream_options": {"include_usage": True},
        }

    @pytest.mark.parametrize(
        "more",
        [
            *({"n": 2}, {"n_cmpl": 2}, {"logprobs": True}, {"top_logprobs": 3}, {"n_probs": 1}, {"verbose": True}),
            {"response_fields": ["content"]},
            {"reasoning_format": "deepseek-legacy"},
            {"messages": [{"role": "assistant", "content": "Sure"}]},
            *({"stream": 0}, {"stream": "no"}, {"stream_options": 3}, {"timings_per_token": "x"}),
        ],
    )
    def test_what_a_stream_cannot_carry_is_asked_for_as_it_is(self, more: dict[str, Any]) -> None:
        assert streaming_fields(more) is None
