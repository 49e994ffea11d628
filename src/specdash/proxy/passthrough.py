"""POST /v1/chat/completions: passed through byte for byte, both ways, and watched on the way for telemetry.

This endpoint speaks OpenAI's language, also in its errors; what the upstream answers is never changed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson

from specdash.core.proxy_events import Outcome
from specdash.proxy.answer import Answer
from specdash.proxy.body import read_body
from specdash.proxy.chat_stream import ChatDecoder
from specdash.proxy.client_watch import ClientLeftError, ClientWatch
from specdash.proxy.errors import ApiError
from specdash.proxy.identity import chat_session_id
from specdash.proxy.responses import client_host, send_json

if TYPE_CHECKING:
    from specdash.proxy.app import Proxy
    from specdash.proxy.responses import Receive, Scope, Send
    from specdash.proxy.telemetry import ActiveRequest
    from specdash.proxy.upstream import Reply

PATH = "/v1/chat/completions"
HELD_COMMENT = b": held\n\n"
_EVENT_STREAM = "text/event-stream"
_LARGEST_WATCHED = 64 << 20
_PASSED_HEADERS = ("content-type", "retry-after")


async def handle(proxy: Proxy, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one request."""
    try:
        body = await read_body(scope, receive, proxy.settings.max_body_mib << 20)
        chat = _parsed(body)
    except ApiError as error:
        await _send_error(send, error)
        return
    active = _begin(proxy, scope, chat)
    exchange = _Exchange(proxy, active, send, streams=active.stream)
    try:
        async with ClientWatch(receive) as watch:
            await exchange.run(body)
            watch.answered = True
    except ClientLeftError:
        exchange.finish(Outcome.CLIENT_LEFT, 499)
    except ApiError as error:
        exchange.finish(Outcome.ERROR, error.status, error.type)
        await exchange.fail(error)
    except BaseException:
        exchange.finish(Outcome.ERROR, 500, "api_error")
        raise


class _Exchange:
    """One request on its way through."""

    def __init__(self, proxy: Proxy, active: ActiveRequest, send: Send, *, streams: bool) -> None:
        self._proxy = proxy
        self._active = active
        self._send = send
        self._streams = streams
        self._begun = False
        self._answered = False
        self._witness = _Witness()
        self._status = 200

    async def run(self, body: bytes) -> None:
        """Send the body upstream and the answer back.

        Waits while the proxy is held; a call that breaks off because the upstream is being restarted meanwhile is made
        again when the proxy is resumed, unless a part of its answer is on its way to the client.
        """
        while True:
            await self._pass_gate()
            self._active.sent()
            self._witness = _Witness()
            try:
                async with await self._proxy.upstream.open(body, PATH) as reply:
                    await self._copy(reply)
            except ApiError:
                if not self._proxy.gate.held or self._answered:
                    raise
                continue
            break
        if self._status // 100 == 2:
            self._witness.end()
            self._active.update(self._witness.answer)
            self.finish(Outcome.OK, self._status)
        else:
            self.finish(Outcome.ERROR, self._status, "api_error" if self._status >= 500 else "invalid_request_error")

    async def fail(self, error: ApiError) -> None:
        """Tell the client, in the way that is still open."""
        if not self._begun:
            await _send_error(self._send, error)
        elif self._streams:
            event = b"data: " + orjson.dumps(openai_error(error)) + b"\n\n"
            await self._send({"type": "http.response.body", "body": event})
        # A whole answer that breaks off has its length promised: closing without it is how the client learns.

    def finish(self, outcome: Outcome, status: int, error_type: str | None = None) -> None:
        """Record the end, once."""
        if self._active.ended:
            return
        answer = self._witness.answer
        window = self._proxy.window.tokens
        if outcome is Outcome.OK:
            self._active.session.turn_done(answer.usage, None, window)
        self._proxy.telemetry.finish(
            self._active,
            outcome=outcome,
            status=status,
            error_type=error_type,
            stop_reason=answer.finish_reason,
            tool_calls=tuple(one.name for one in answer.tool_calls()),
        )

    async def _pass_gate(self) -> None:
        gate, settings = self._proxy.gate, self._proxy.settings
        if not gate.held:
            return
        self._active.held()
        if not self._streams:
            await gate.wait(settings.hold_limit)
            return
        waiting = asyncio.ensure_future(gate.wait(settings.hold_limit))
        try:
            await asyncio.wait({waiting}, timeout=settings.commit_delay)
            while not waiting.done():
                await self._begin(200, [(b"content-type", _EVENT_STREAM.encode())])
                await self._send({"type": "http.response.body", "body": HELD_COMMENT, "more_body": True})
                await asyncio.wait({waiting}, timeout=settings.ping_interval)
            waiting.result()
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _copy(self, reply: Reply) -> None:
        self._status = reply.status
        if self._begun and (reply.status != 200 or not reply.content_type.startswith(_EVENT_STREAM)):
            # The head says 200 and a stream since the hold: what came instead can only be an event.
            raise await reply.error()
        named = {name: reply.headers[name] for name in _PASSED_HEADERS if name in reply.headers}
        self._streams = reply.content_type.startswith(_EVENT_STREAM)
        if self._streams:
            named |= {"cache-control": "no-cache", "x-accel-buffering": "no"}
        elif (length := reply.headers.get("content-length")) is not None:
            named["content-length"] = length
        head = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
        self._witness.streams = self._streams
        active, witness, send = self._active, self._witness, self._send
        first = await reply.read()
        await self._begin(reply.status, head)
        data = first
        while data:
            self._answered = True
            await send({"type": "http.response.body", "body": data, "more_body": True})
            witness.feed(data)
            active.update(witness.answer)
            if active.ttft_s is None and self._status == 200 and witness.has_content:
                active.first_content()
            data = await reply.read()
        await send({"type": "http.response.body", "body": b""})

    async def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if not self._begun:
            self._begun = True
            await self._send({"type": "http.response.start", "status": status, "headers": headers})


class _Nowhere:
    """A sink for answers that are only counted."""

    def thinking(self, text: str) -> None:
        """Nothing."""

    def text(self, text: str) -> None:
        """Nothing."""

    def tool(self, index: int, call_id: str, name: str) -> None:
        """Nothing."""

    def arguments(self, index: int, fragment: str) -> None:
        """Nothing."""


class _Witness:
    """Reads a passing answer, streamed or whole, into an `Answer`."""

    def __init__(self) -> None:
        self.answer = Answer(_Nowhere())
        self.streams = False
        self._decoder = ChatDecoder(self.answer.chunk)
        self._pieces: list[bytes] = []
        self._size = 0

    @property
    def has_content(self) -> bool:
        """True once something of the answer itself has come."""
        answer = self.answer
        return bool(answer.text_chars or answer.thinking_chars or answer.calls or self._pieces)

    def feed(self, data: bytes) -> None:
        """The next bytes."""
        if self.streams:
            self._decoder.feed(data)
            return
        self._size += len(data)
        if self._size <= _LARGEST_WATCHED:
            self._pieces.append(data)

    def end(self) -> None:
        """No bytes follow."""
        if self.streams:
            self._decoder.close()
            self.answer.end()
            return
        try:
            value = orjson.loads(b"".join(self._pieces))
        except orjson.JSONDecodeError:
            return
        if isinstance(value, dict):
            self.answer.whole(value)


def openai_error(error: ApiError) -> dict[str, Any]:
    """The error object as OpenAI's API has it."""
    return {"error": {"message": error.message, "type": error.type, "param": None, "code": error.status}}


async def _send_error(send: Send, error: ApiError) -> None:
    # 529 is Anthropic's own: clients of this endpoint know 503.
    await send_json(send, openai_error(error), 503 if error.status == 529 else error.status, error.headers)


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        chat = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(chat, dict):
        raise ApiError(400, "the body must be a JSON object")
    return chat


def _begin(proxy: Proxy, scope: Scope, chat: dict[str, Any]) -> ActiveRequest:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    messages, tools = chat.get("messages"), chat.get("tools")
    model = chat.get("model")
    return proxy.telemetry.begin(
        proxy.sessions.get(chat_session_id(headers, chat, client_host(scope))),
        request_id=scope["request_id"],
        path=PATH,
        stream=chat.get("stream") is True,
        strict=False,
        model=model[:200] if isinstance(model, str) else "",
        messages=len(messages) if isinstance(messages, list) else 0,
        tools=len(tools) if isinstance(tools, list) else 0,
    )
