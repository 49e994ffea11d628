"""POST /v1/chat/completions: passed through, both ways, and watched on the way for telemetry.

This endpoint speaks OpenAI's language, also in its errors; the client gets what the upstream answers to its request. A
llama.cpp server is asked to tell its progress besides (`llama_stream`), and for a stream where the client wants a
whole answer (`whole_completion`); with any other, and where that could change the answer, bytes pass as they are.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import orjson

from specdash.core.proxy_events import Outcome
from specdash.proxy.answer import Answer
from specdash.proxy.body import read_body
from specdash.proxy.chat_stream import ChatDecoder
from specdash.proxy.client_watch import ClientLeftError, ClientWatch
from specdash.proxy.errors import ApiError
from specdash.proxy.fields import check_pieces, dumped
from specdash.proxy.identity import chat_session_id
from specdash.proxy.llama_stream import PING_S, Additions, Restorer, additions_to, status_of, with_fields
from specdash.proxy.models import ANY, learn_models, upstream_model
from specdash.proxy.responses import client_host, send_bytes
from specdash.proxy.restarts import Patience, meet_upstream
from specdash.proxy.upstream import UpstreamBrokenError
from specdash.proxy.whole_completion import WholeCompletion, streaming_body

if TYPE_CHECKING:
    from specdash.proxy.app import Proxy
    from specdash.proxy.responses import Receive, Scope, Send
    from specdash.proxy.telemetry import ActiveRequest
    from specdash.proxy.upstream import Reply

PATH = "/v1/chat/completions"
HELD_COMMENT = b": held\n\n"
_EVENT_STREAM = "text/event-stream"
_NOT_READY = 503
_LARGEST_WATCHED = 64 << 20
_PASSED_HEADERS = ("content-type", "retry-after")
_LLAMA_JSON = "application/json; charset=utf-8"


async def handle(proxy: Proxy, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one request."""
    body = await read_body(scope, receive, proxy.settings.max_body_mib << 20)
    chat = _parsed(body)
    check_pieces(chat, proxy.settings.max_blocks)
    active = _begin(proxy, scope, chat)
    exchange = _Exchange(proxy, active, send, body, chat)
    try:
        async with ClientWatch(receive) as watch:
            await exchange.run()
            watch.answered = True
    except ClientLeftError:
        exchange.finish(Outcome.CLIENT_LEFT, 499)
    except ApiError as error:
        exchange.finish(Outcome.ERROR, error.status, error.type)
        if not exchange.begun:
            raise
        await exchange.fail(error)
    except BaseException:
        exchange.finish(Outcome.ERROR, 500, "api_error")
        raise


class _Exchange:
    """One request on its way through."""

    def __init__(self, proxy: Proxy, active: ActiveRequest, send: Send, body: bytes, chat: dict[str, Any]) -> None:
        self._proxy = proxy
        self._active = active
        self._send = send
        self._body = body
        self._chat = chat
        self._streams = active.stream
        self.begun = False
        self._answered = False
        self._answer = Answer(_Nowhere())
        self._status = 200

    async def run(self) -> None:
        """Send the body upstream and the answer back.

        Waits while the proxy is held; a call that breaks off because the upstream is being restarted is made again, see
        `Patience`, unless a part of its answer is on its way to the client.
        """
        patience = Patience(self._proxy.gate)
        while True:
            await self._admitted()
            await self._name_model()
            self._active.sent()
            try:
                await self._ask()
            except ApiError as error:
                if self._answered or not await patience.again(error):
                    raise
                continue
            break
        if self._status // 100 == 2:
            self._active.update(self._answer)
            self.finish(Outcome.OK, self._status)
        else:
            self.finish(Outcome.ERROR, self._status, "api_error" if self._status >= 500 else "invalid_request_error")

    async def fail(self, error: ApiError) -> None:
        """Tell the client of a stream that has begun."""
        if self._streams:
            event = b"data: " + orjson.dumps(error.openai()) + b"\n\n"
            await self._send({"type": "http.response.body", "body": event})
        # A whole answer that breaks off has its length promised: closing without it is how the client learns.

    def finish(self, outcome: Outcome, status: int, error_type: str | None = None) -> None:
        """Record the end, once."""
        if self._active.ended:
            return
        answer = self._answer
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

    async def _admitted(self) -> None:
        """Return in the moment in which the request may be sent."""
        await self._pass_gate()
        await meet_upstream(self._proxy)
        while self._proxy.gate.held:
            await self._pass_gate()
            await meet_upstream(self._proxy)

    async def _name_model(self) -> None:
        """Name the model that `any` means, and note what is used: a router does not know the one nor tell the other."""
        window, requested = self._proxy.window, self._chat.get("model")
        if not window.router or not isinstance(requested, str):
            return
        if requested == ANY:
            await learn_models(requested, window)
            self._chat = {**self._chat, "model": upstream_model(requested, window)}
            self._body = dumped(self._chat)
        window.note_use(str(self._chat["model"]))

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

    async def _ask(self) -> None:
        if not self._proxy.upstream.is_llama_cpp:
            await self._pass(self._body)
        elif self._active.stream:
            added = additions_to(self._chat)
            fields = added.fields if added is not None else {}
            await self._pass(with_fields(self._body, self._chat, fields), added if fields else None)
        else:
            body = streaming_body(self._body, self._chat)
            if body is None or not await self._rebuild(body):
                await self._pass(self._body)

    async def _pass(self, body: bytes, added: Additions | None = None) -> None:
        self._answer = Answer(_Nowhere())
        async with await self._proxy.upstream.open(body, PATH) as reply:
            await self._copy(reply, added)

    async def _rebuild(self, body: bytes) -> bool:
        """Answer with the whole that a stream makes; False when it has to be asked for after all."""
        self._answer = Answer(_Nowhere())
        active, whole = self._active, WholeCompletion(self._answer)
        async with await self._proxy.upstream.open(body, PATH) as reply:
            if not _is_stream(reply):
                await self._copy(reply, None)
                return True
            while data := await reply.read():
                whole.feed(data)
                active.update(self._answer)
        whole.end()
        if not whole.is_complete:
            raise UpstreamBrokenError(502, "the upstream broke off its answer")
        if whole.is_unsaid:
            active.next_attempt()
            return False
        self._status, told = whole.response()
        self.begun = self._answered = True
        await send_bytes(self._send, self._status, told, _LLAMA_JSON)
        if self._status == 200:
            active.first_content()
        return True

    async def _copy(self, reply: Reply, added: Additions | None) -> None:
        self._status = reply.status
        self._streams = reply.content_type.startswith(_EVENT_STREAM)
        if self.begun and not _is_stream(reply):
            # The head says 200 and a stream since the hold: what came instead can only be an event.
            self._streams = True
            raise await reply.error()
        if reply.status == _NOT_READY and (self._proxy.gate.held or self._proxy.gate.settling):
            raise await reply.error()
        head = self._head(reply)
        active, answer = self._active, self._answer
        reader: Restorer | _Witness = _Witness(answer, streams=self._streams)
        if added is not None and _is_stream(reply):
            reader = Restorer(answer, added, ping_s=self._ping_s)
        while data := await reply.read():
            told = reader.feed(data)
            active.update(answer)
            if not told:
                continue
            if reader.first_error is not None and not self.begun:
                self._status = status_of(reader.first_error)
                told = orjson.dumps({"error": reader.first_error})
                self.begun = self._answered = True
                await send_bytes(self._send, self._status, told, _LLAMA_JSON)
                return
            await self._begin(reply.status, head)
            self._answered = True
            await self._send({"type": "http.response.body", "body": told, "more_body": True})
            if active.ttft_s is None and self._status == 200 and (answer.started or not self._streams):
                active.first_content()
        await self._begin(reply.status, head)
        rest = reader.close() if self._status // 100 == 2 else b""
        await self._send({"type": "http.response.body", "body": rest})

    def _head(self, reply: Reply) -> list[tuple[bytes, bytes]]:
        named = {name: reply.headers[name] for name in _PASSED_HEADERS if name in reply.headers}
        if self._streams:
            named |= {"cache-control": "no-cache", "x-accel-buffering": "no"}
        elif (length := reply.headers.get("content-length")) is not None:
            named["content-length"] = length
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]

    @property
    def _ping_s(self) -> float:
        """Silence after which the server would have sent a comment."""
        wanted = self._chat.get("sse_ping_interval")
        if not isinstance(wanted, (int, float)) or isinstance(wanted, bool):
            return PING_S
        return float(wanted) if wanted > 0 else math.inf

    async def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if not self.begun:
            self.begun = True
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
    """Reads an answer that passes as it is, streamed or whole, into an `Answer`."""

    first_error: dict[str, Any] | None = None

    def __init__(self, answer: Answer, *, streams: bool) -> None:
        self._answer = answer
        self._streams = streams
        self._decoder = ChatDecoder(answer.chunk)
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> bytes:
        """The next bytes, there and back."""
        if self._streams:
            self._decoder.feed(data)
            return data
        self._size += len(data)
        if self._size <= _LARGEST_WATCHED:
            self._pieces.append(data)
        return data

    def close(self) -> bytes:
        """No bytes follow; none are left."""
        if self._streams:
            self._decoder.close()
            self._answer.end()
            return b""
        try:
            value = orjson.loads(b"".join(self._pieces))
        except orjson.JSONDecodeError:
            return b""
        if isinstance(value, dict):
            self._answer.whole(value)
        return b""


def _is_stream(reply: Reply) -> bool:
    return reply.status == 200 and reply.content_type.startswith(_EVENT_STREAM)


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
