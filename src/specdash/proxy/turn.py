"""One turn of POST /v1/messages: the client on one side, the upstream on the other, and every way it can end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from specdash.core.proxy_events import Outcome
from specdash.proxy.body import read_body
from specdash.proxy.client_stream import ClientStream
from specdash.proxy.client_watch import ClientLeftError, ClientWatch
from specdash.proxy.errors import ApiError, ProxyStoppingError
from specdash.proxy.generation import Generation
from specdash.proxy.identity import session_id
from specdash.proxy.models import upstream_model
from specdash.proxy.parse import parse_messages
from specdash.proxy.pipeline import prepare
from specdash.proxy.responses import client_host, send_json
from specdash.proxy.sse import SseWriter

if TYPE_CHECKING:
    from specdash.proxy.app import Proxy
    from specdash.proxy.responses import Receive, Scope, Send

AT_ONCE_S = 0.25
"""How long a stream that will wait long has before message_start: enough for an upstream that refuses at once."""
NEARLY_FULL = 0.8
"""Share of the context window from which a refusal is worth waiting for: its status makes clients compact."""


async def handle(proxy: Proxy, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one request. Raises `ApiError` while nothing was sent; afterwards errors are events of the stream."""
    body = await read_body(scope, receive, proxy.settings.max_body_mib << 20)
    request = parse_messages(body)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    session = proxy.sessions.get(session_id(headers, request, client_host(scope)))
    settings = proxy.settings
    await proxy.window.refresh()
    prepared = prepare(
        request,
        session,
        settings,
        window=proxy.window.tokens,
        model=upstream_model(request.model, proxy.window),
    )
    strict = request.stream and (
        settings.force_non_stream or (settings.malformed_tool_stream_strict and bool(request.tools))
    )
    active = proxy.telemetry.begin(
        session,
        request_id=scope["request_id"],
        path="/v1/messages",
        stream=request.stream,
        strict=strict,
        model=request.model,
        messages=len(request.messages),
        tools=len(request.tools),
    )
    for note in prepared.notes:
        proxy.telemetry.note(active, session, note)
    turn = Generation(proxy, session, prepared, active, client_model=request.model, strict=strict)
    try:
        async with ClientWatch(receive) as watch:
            if request.stream:
                await _stream(turn, send, watch, strict=strict)
            else:
                await _whole(turn, send, watch)
    except ClientLeftError:
        turn.failed(Outcome.CLIENT_LEFT, 499, None)
    except asyncio.CancelledError:
        turn.failed(Outcome.ERROR, 529, "overloaded_error")
        raise
    except ApiError as error:
        turn.failed(Outcome.ERROR, error.status, error.type, error)
        raise
    except Exception:
        turn.failed(Outcome.ERROR, 500, "api_error")
        raise


async def _whole(turn: Generation, send: Send, watch: ClientWatch) -> None:
    async with _deadline(turn.settings.generation_timeout):
        message = await turn.message()
    watch.answered = True
    await send_json(send, message)
    turn.done()


async def _stream(turn: Generation, send: Send, watch: ClientWatch, *, strict: bool) -> None:
    settings = turn.settings
    writer = SseWriter()
    async with ClientStream(send, writer, lambda: turn.begin(writer), ping_interval=settings.ping_interval) as client:
        at_once = turn.proxy.gate.held or (strict and turn.fullness < NEARLY_FULL)
        client.commit_after(min(settings.commit_delay, AT_ONCE_S) if at_once else settings.commit_delay)
        try:
            async with _deadline(settings.generation_timeout):
                await turn.stream(writer, client)
        except ApiError as error:
            if not client.started:
                raise
            watch.answered = True
            writer.error(error.envelope(turn.active.request_id))
            await client.close()
            turn.failed(Outcome.ERROR, error.status, error.type, error)
            return
        except asyncio.CancelledError:
            if client.started and not watch.left:
                writer.error(ProxyStoppingError().envelope(turn.active.request_id))
                await client.close()
            raise
        except Exception:
            if client.started:
                watch.answered = True
                writer.error(ApiError(500, "internal error of the proxy").envelope(turn.active.request_id))
                await client.close()
            raise
        watch.answered = True
        await client.close()
        turn.done()


@contextlib.asynccontextmanager
async def _deadline(seconds: float) -> Any:
    if not seconds:
        yield
        return
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise ApiError(504, f"the turn took longer than PROXY_GENERATION_TIMEOUT={seconds:g} s") from None
