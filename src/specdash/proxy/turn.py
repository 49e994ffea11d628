"""One turn of POST /v1/messages: the client on one side, the upstream on the other, and every way it can end."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from specdash.core.proxy_events import Outcome
from specdash.proxy.blocks import Usage
from specdash.proxy.body import read_body
from specdash.proxy.client_stream import ClientStream
from specdash.proxy.client_watch import ClientLeftError, ClientWatch
from specdash.proxy.errors import ApiError, ProxyStoppingError
from specdash.proxy.generation import Generation
from specdash.proxy.guardrails import estimate
from specdash.proxy.identity import session_id
from specdash.proxy.models import learn_models, upstream_model
from specdash.proxy.parse import parse_messages
from specdash.proxy.pipeline import Prepared, prepare
from specdash.proxy.responses import client_host, send_json
from specdash.proxy.restarts import meet_upstream, must_wait
from specdash.proxy.sse import SseWriter

if TYPE_CHECKING:
    from specdash.proxy.app import Proxy
    from specdash.proxy.messages import MessagesRequest
    from specdash.proxy.responses import Receive, Scope, Send
    from specdash.proxy.sessions import Session
    from specdash.proxy.telemetry.active import ActiveRequest

AT_ONCE_S = 0.25
"""How long a stream that will wait long has before message_start: enough for an upstream that refuses at once."""
NEARLY_FULL = 0.8
"""Share of the context window from which a refusal is worth waiting for: its status makes clients compact."""


async def handle(proxy: Proxy, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one request. Raises `ApiError` while nothing was sent; afterwards errors are events of the stream."""
    body = await read_body(scope, receive, proxy.settings.max_body_mib << 20)
    request = parse_messages(body, proxy.settings.max_blocks)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    session = proxy.sessions.get(session_id(headers, request, client_host(scope)))
    session.note_arrival(len(request.messages), time.monotonic())
    settings = proxy.settings
    if not must_wait(proxy):
        await learn_models(request.model, proxy.window)
    prepared = None if must_wait(proxy) else _prepared(proxy, request, session)
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
    turn = _Turn(proxy, request, session, active)
    if prepared is not None:
        turn.begins(prepared)
    try:
        async with ClientWatch(receive) as watch:
            if request.stream:
                await _stream(turn, send, watch)
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


def _prepared(proxy: Proxy, request: MessagesRequest, session: Session) -> Prepared:
    model = upstream_model(request.model, proxy.window)
    proxy.window.note_use(model)
    return prepare(request, session, proxy.settings, window=proxy.window.tokens, model=model)


class _Turn:
    """A turn from its arrival on. One that comes while the proxy is held, or before it has met the upstream again, is
    prepared after that: how much the upstream takes may be another then.
    """

    def __init__(self, proxy: Proxy, request: MessagesRequest, session: Session, active: ActiveRequest) -> None:
        self.proxy = proxy
        self.active = active
        self.generation: Generation | None = None
        self._request = request
        self._session = session

    def begins(self, prepared: Prepared) -> Generation:
        """The request is ready to be sent."""
        active, request = self.active, self._request
        for note in prepared.notes:
            self.proxy.telemetry.note(active, self._session, note)
        self.generation = Generation(
            self.proxy, self._session, prepared, active, client_model=request.model, strict=active.strict
        )
        return self.generation

    async def admitted(self) -> Generation:
        """The generation, once the request may be sent. Raises `ApiError` 529 when the hold outlasts its wait."""
        if self.generation is not None:
            return self.generation
        while must_wait(self.proxy):
            if self.proxy.gate.held:
                self.active.held()
                await self.proxy.gate.wait(self.proxy.settings.hold_limit)
            await meet_upstream(self.proxy)
        return self.begins(_prepared(self.proxy, self._request, self._session))

    def begin(self, writer: SseWriter) -> None:
        """Write message_start unless it is written."""
        if self.generation is not None:
            self.generation.begin(writer)
        elif not writer.started:
            prompt = round(estimate.request_tokens(self._request) * self._session.scale)
            identity = f"msg_{self.active.request_id.removeprefix('req_')}"
            writer.start(identity, self._request.model, Usage(prompt=max(1, prompt)))

    def failed(self, outcome: Outcome, status: int, error_type: str | None, error: ApiError | None = None) -> None:
        """The turn ended without a complete answer."""
        if self.generation is not None:
            self.generation.failed(outcome, status, error_type, error)
        else:
            self.proxy.telemetry.finish(self.active, outcome=outcome, status=status, error_type=error_type)


async def _whole(turn: _Turn, send: Send, watch: ClientWatch) -> None:
    generation = await turn.admitted()
    async with generation.deadline.running():
        message = await generation.message()
    watch.answered = True
    await send_json(send, message)
    generation.done()


async def _stream(turn: _Turn, send: Send, watch: ClientWatch) -> None:
    settings = turn.proxy.settings
    writer = SseWriter()
    async with ClientStream(send, writer, lambda: turn.begin(writer), ping_interval=settings.ping_interval) as client:
        early = turn.generation
        at_once = turn.proxy.gate.held or (turn.active.strict and early is not None and early.fullness < NEARLY_FULL)
        client.commit_after(min(settings.commit_delay, AT_ONCE_S) if at_once else settings.commit_delay)
        try:
            generation = await turn.admitted()
            async with generation.deadline.running():
                await generation.stream(writer, client)
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
        generation.done()
