"""POST /v1/messages: a request read, its turn run, and the answer sent, whole or as events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from specdash.core.proxy_events import RequestEvent
from specdash.proxy.answer.blocks import SseWriter
from specdash.proxy.answer.turn import Turn, prepared_for
from specdash.proxy.http.responses import client_host, json_response, read_body
from specdash.proxy.http.stream import EventStream, record_end, unless_gone
from specdash.proxy.sessions import session_id
from specdash.proxy.telemetry import LONGEST_NAME
from specdash.proxy.translate.parse import parse_messages
from specdash.proxy.upstream.window import learn_models, must_wait

if TYPE_CHECKING:
    from typing import Any

    from starlette.requests import Request
    from starlette.responses import Response

    from specdash.proxy.http.app import Proxy
    from specdash.proxy.http.responses import ApiError


async def handle_messages(request: Request) -> Response:
    """Serve one request. Raises `ApiError` while nothing was sent; afterwards errors are events of the stream."""
    turn = await _received(request)
    if turn.is_stream:
        return _stream(turn)
    try:
        answer = json_response(await unless_gone(request.receive, _message(turn)))
    except BaseException as error:
        record_end(error, turn.failed)
        raise
    turn.done()
    return answer


async def _received(request: Request) -> Turn:
    """Read a request, and find its session."""
    proxy: Proxy = request.app.state.proxy
    settings = proxy.settings
    parsed = parse_messages(await read_body(request, settings.max_body_mib << 20))
    session = proxy.sessions.get(session_id(request.headers, parsed, client_host(request)))
    session.note_arrival(len(parsed.messages), time.monotonic())
    if not must_wait(proxy):
        await learn_models(parsed.model, proxy.window)
    prepared = None if must_wait(proxy) else prepared_for(proxy, parsed, session)
    strict = parsed.stream and settings.malformed_tool_stream_strict and bool(parsed.tools)
    event = RequestEvent(
        time.time(), session.id, request.state.request_id, stream=parsed.stream, strict=strict,
        model=parsed.model[:LONGEST_NAME], messages=len(parsed.messages), tools=len(parsed.tools),
    )  # fmt: skip
    turn = Turn(proxy, parsed, session, proxy.telemetry.begin(session, event))
    if prepared is not None:
        turn.starts(prepared)
    return turn


async def _message(turn: Turn) -> dict[str, Any]:
    await turn.admitted()
    async with turn.deadline.running():
        return await turn.message()


def _stream(turn: Turn) -> EventStream:
    settings, writer = turn.proxy.settings, SseWriter()

    async def produce(stream: EventStream) -> None:
        async def flush() -> None:
            await stream.write(writer.take())

        await turn.admitted()
        async with turn.deadline.running():
            await turn.stream(writer, flush)
        await flush()
        turn.done()

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
        commit_s=settings.commit_delay,
        ping_s=settings.ping_interval,
        idle=idle,
        failure=failure,
        ended=turn.failed,
    )
