"""POST /v1/messages: a request read, its turn run, and the answer sent, whole or as events."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from specdash.core.proxy_events import RequestEvent
from specdash.proxy.answer.blocks import SseWriter
from specdash.proxy.answer.turn import Turn
from specdash.proxy.http.responses import client_host, json_response, read_body
from specdash.proxy.http.stream import EventStream
from specdash.proxy.sessions import session_id
from specdash.proxy.telemetry import LONGEST_NAME
from specdash.proxy.translate.parse import parse_messages

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from specdash.proxy.http.app import Proxy
    from specdash.proxy.http.responses import ApiError


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
        turn.done()
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
        ended=turn.failed,
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
