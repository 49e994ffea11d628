"""POST /v1/chat/completions: passed through, both ways, and watched on the way for telemetry.

This endpoint speaks OpenAI's language, also in its errors; the client gets what the upstream answers to its request.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response

from specdash.core.proxy_events import RequestEvent, RequestOutcome
from specdash.proxy.answer.assembler import AnswerAssembler, ChatDecoder
from specdash.proxy.http.responses import ApiError, client_host, read_body
from specdash.proxy.http.stream import EventStream
from specdash.proxy.sessions import chat_session_id
from specdash.proxy.telemetry import LONGEST_NAME
from specdash.proxy.translate.parse import check_pieces, dumped
from specdash.proxy.upstream.window import ANY, RetryPolicy, admitted, use_model

if TYPE_CHECKING:
    from starlette.requests import Request

    from specdash.proxy.http.app import Proxy
    from specdash.proxy.telemetry import ActiveRequest
    from specdash.proxy.upstream.upstream import UpstreamReply

PATH = "/v1/chat/completions"
HELD_COMMENT = b": held\n\n"
_NOT_READY = 503
_LARGEST_ANSWER = 1 << 30
_PASSED_HEADERS = ("content-type", "retry-after")


async def handle_chat(request: Request) -> Response:
    """Serve one request."""
    return (await _received(request)).response()


async def _received(request: Request) -> _Exchange:
    proxy: Proxy = request.app.state.proxy
    body = await read_body(request, proxy.settings.max_body_mib << 20)
    try:
        chat = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(chat, dict):
        raise ApiError(400, "the body must be a JSON object")
    check_pieces(chat)
    messages, tools, model = chat.get("messages"), chat.get("tools"), chat.get("model")
    session = proxy.sessions.get(chat_session_id(request.headers, chat, client_host(request)))
    event = RequestEvent(
        time.time(), session.id, request.state.request_id, PATH, stream=chat.get("stream") is True,
        model=model[:LONGEST_NAME] if isinstance(model, str) else "",
        messages=len(messages) if isinstance(messages, list) else 0, tools=len(tools) if isinstance(tools, list) else 0,
    )  # fmt: skip
    return _Exchange(proxy, proxy.telemetry.begin(session, event), bytes(body), chat)


class _Exchange:
    """One request on its way through."""

    def __init__(self, proxy: Proxy, active: ActiveRequest, body: bytes, chat: dict[str, Any]) -> None:
        self._proxy = proxy
        self._active = active
        self._body = body
        self._chat = chat
        proxy.telemetry.sends(active, chat)
        self._answer = AnswerAssembler()
        self._is_passing = False
        """Bytes of the upstream's stream are on their way to the client."""

    def response(self) -> EventStream:
        """The upstream's answer; a stream as it comes, with comments while the proxy is held."""
        settings = self._proxy.settings
        return EventStream(
            self._asked,
            commit_s=settings.commit_delay if self._active.event.stream else math.inf,
            ping_s=settings.ping_interval,
            idle=lambda: HELD_COMMENT if self._proxy.gate.held and not self._is_passing else b"",
            failure=lambda error: b"data: " + orjson.dumps(error.openai()) + b"\n\n",
            ended=self.ended,
        )

    def ended(self, outcome: RequestOutcome, status: int, error_type: str | None, _error: ApiError | None) -> None:
        """Record the end, once."""
        if self._active.ended:
            return
        answer = self._answer
        if outcome is RequestOutcome.OK:
            self._active.session.turn_done(answer.usage, None, self._proxy.window.tokens)
        self._proxy.telemetry.finish(
            self._active,
            outcome=outcome,
            status=status,
            error_type=error_type,
            stop_reason=answer.finish_reason,
            tool_calls=tuple(call.name for call in answer.tool_calls()),
        )

    async def _asked(self, stream: EventStream) -> Response | None:
        """Ask once the proxy is not held.

        A call that breaks off because the upstream is being restarted is made again, see `RetryPolicy`, unless a part
        of its answer is on its way to the client.
        """
        patience = RetryPolicy(self._proxy.gate)
        while True:
            await admitted(self._proxy, self._wait_for_gate)
            await self._name_model()
            self._active.sent()
            self._answer = AnswerAssembler()
            try:
                return await self._copied(stream)
            except ApiError as error:
                if self._is_passing or not await patience.again(error):
                    raise

    async def _wait_for_gate(self) -> None:
        self._active.held()
        await self._proxy.gate.wait(self._proxy.settings.hold_limit)

    async def _name_model(self) -> None:
        """Name the model that `any` means, and note what is used: a router knows neither."""
        window, requested = self._proxy.window, self._chat.get("model")
        if not window.router or not isinstance(requested, str):
            return
        if requested == ANY:
            self._chat["model"] = await use_model(requested, window)
            self._body = dumped(self._chat)
        else:
            window.note_use(requested)

    async def _copied(self, stream: EventStream) -> Response | None:
        """Copy the upstream's stream to the client; an answer that is none is returned."""
        async with await self._proxy.upstream.open(self._body, PATH) as reply:
            if reply.status != 200 or not reply.content_type.startswith("text/event-stream"):
                if stream.started:
                    # The head says 200 and a stream since the hold: what came instead can only be an event.
                    raise await reply.error()
                return await self._passed(reply)
            stream.headers["content-type"] = reply.headers["content-type"]
            decoder = ChatDecoder()
            while data := await reply.read():
                for chunk in decoder.feed(data):
                    self._answer.chunk(chunk)
                self._active.update(self._answer)
                self._is_passing = True
                await stream.write(data)
                if self._active.ttft_s is None and self._answer.started:
                    self._active.first_content()
            for chunk in decoder.close():
                self._answer.chunk(chunk)
        self.ended(RequestOutcome.OK, 200, None, None)
        return None

    async def _passed(self, reply: UpstreamReply) -> Response:
        """A whole answer of the upstream, its status and its bytes."""
        gate = self._proxy.gate
        if reply.status == _NOT_READY and (gate.held or gate.settling):
            raise await reply.error()
        text = await reply.body(_LARGEST_ANSWER)
        if reply.status // 100 == 2:
            try:
                value = orjson.loads(text)
            except orjson.JSONDecodeError:
                value = None
            if isinstance(value, dict):
                self._answer.chunk(value)
                self._active.update(self._answer)
            self._active.first_content()
            self.ended(RequestOutcome.OK, reply.status, None, None)
        else:
            kind = "api_error" if reply.status >= 500 else "invalid_request_error"
            self.ended(RequestOutcome.ERROR, reply.status, kind, None)
        headers = {name: reply.headers[name] for name in _PASSED_HEADERS if name in reply.headers}
        return Response(text, reply.status, headers)
