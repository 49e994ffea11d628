"""POST /v1/messages: a request read, its turn run, and the answer sent, whole or as events; and its tokens counted."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import msgspec

from specdash.core.proxy_events import RequestEvent, RequestOutcome
from specdash.proxy.answer.blocks import SseWriter
from specdash.proxy.answer.turn import Turn
from specdash.proxy.http.responses import ApiError, client_host, json_response, object_of, read_body
from specdash.proxy.http.stream import EventStream, unless_gone
from specdash.proxy.sessions import session_id
from specdash.proxy.telemetry import LONGEST_NAME
from specdash.proxy.translate.parse import parse_count_tokens, parse_messages
from specdash.proxy.translate.translate import chat_body
from specdash.proxy.upstream.upstream import api_error
from specdash.proxy.upstream.window import RetryPolicy, admitted, use_model

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from specdash.proxy.http.app import Proxy
    from specdash.proxy.translate.parse import MessagesRequest
    from specdash.proxy.upstream.upstream import Upstream


async def handle_messages(request: Request) -> Response:
    """Serve one request. Raises `ApiError` while nothing was sent; afterwards errors are events of the stream."""
    turn = await _received(request)
    settings, writer = turn.proxy.settings, SseWriter()

    async def produce(stream: EventStream) -> Response | None:
        async def flush() -> None:
            await stream.write(writer.take())

        answer = None
        await turn.admitted()
        async with turn.deadline.running():
            if turn.active.event.stream:
                await turn.stream(writer, flush)
            else:
                answer = json_response(await turn.message())
        await flush()
        turn.ended(RequestOutcome.OK, 200, None)
        return answer

    def idle() -> bytes:
        if not writer.finished:
            turn.begin(writer)
            writer.ping()
        return writer.take()

    def failure(error: ApiError) -> bytes:
        writer.error(error.envelope(turn.request_id))
        return writer.take()

    return EventStream(
        produce,
        commit_s=settings.commit_delay if turn.active.event.stream else math.inf,
        ping_s=settings.ping_interval,
        idle=idle,
        failure=failure,
        ended=turn.ended,
    )


async def _received(request: Request) -> Turn:
    """Read a request, and find its session."""
    proxy: Proxy = request.app.state.proxy
    settings = proxy.settings
    parsed = parse_messages(await read_body(request, settings.max_body_mib << 20))
    session = proxy.sessions.get(session_id(request.headers, parsed, client_host(request)))
    session.note_arrival(len(parsed.messages), time.monotonic())
    strict = parsed.stream and settings.malformed_tool_stream_strict and bool(parsed.tools)
    event = RequestEvent(
        time.time(), session.id, request.state.request_id, stream=parsed.stream, strict=strict,
        model=parsed.model[:LONGEST_NAME], messages=len(parsed.messages), tools=len(parsed.tools),
    )  # fmt: skip
    return Turn(proxy, parsed, session, proxy.telemetry.begin(session, event))


# POST /v1/messages/count_tokens: exact, by the upstream's own template and tokenizer.

COUNT_PATH = "/v1/chat/completions/input_tokens"
"""llama.cpp counts there what it would read of a chat completion."""


async def handle_count(request: Request) -> Response:
    """Serve one request."""
    proxy: Proxy = request.app.state.proxy
    parsed = parse_count_tokens(await read_body(request, proxy.settings.max_body_mib << 20))
    return json_response({"input_tokens": await unless_gone(request.receive, _count(proxy, parsed))})


async def _count(proxy: Proxy, request: MessagesRequest) -> int:
    patience = RetryPolicy(proxy.gate)
    while True:
        await admitted(proxy)
        body = chat_body(request, await use_model(request.model, proxy.window))
        try:
            return await count(proxy.upstream, body, proxy.settings.read_timeout)
        except ApiError as error:
            if not await patience.again(error):
                raise


async def count(upstream: Upstream, body: dict[str, Any], limit_s: float) -> int:
    """Prompt tokens of a chat completion. Raises `ApiError` when the upstream cannot tell."""
    status, answer = await upstream.exchange(COUNT_PATH, msgspec.json.encode(body), limit_s)
    if status != 200:
        raise api_error(status, answer)
    tokens = (object_of(answer.decode("utf-8", "replace")) or {}).get("input_tokens")
    if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0:
        return tokens
    raise ApiError(502, "the upstream does not say how many tokens the request has", retry=False)
