"""POST /v1/chat/completions: passed through, both ways, and watched on the way for telemetry.

This endpoint speaks OpenAI's language, also in its errors; the client gets what the upstream answers to its request.
llama-server (b11549, every endpoint that generates) stops when the connection of a stream is closed, and goes on to the
end with a whole answer: so it is asked for a stream where the client wants the whole, which is put together here.
Where that could change the answer, the request passes as it is.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from specdash.core.proxy_events import RequestEvent, RequestOutcome
from specdash.proxy.answer.assembler import AnswerAssembler, ChatDecoder
from specdash.proxy.answer.blocks import Thinking
from specdash.proxy.gate import RetryPolicy, admitted
from specdash.proxy.http.responses import ApiError, EventStream, client_host, load_object, object_of, read_body
from specdash.proxy.sessions import session_id
from specdash.proxy.telemetry import LONGEST_NAME
from specdash.proxy.translate.translate import TELLING
from specdash.proxy.upstream.upstream import UpstreamBrokenError
from specdash.proxy.upstream.window import ANY, use_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from starlette.requests import Request

    from specdash.proxy.http.app import Proxy
    from specdash.proxy.telemetry import ActiveRequest
    from specdash.proxy.upstream.upstream import UpstreamReply

PATH = "/v1/chat/completions"
HELD_COMMENT = b": held\n\n"
_NOT_READY = 503
_LARGEST_ANSWER = 1 << 30
_PASSED_HEADERS = ("content-type", "retry-after")
_LLAMA_JSON = "application/json; charset=utf-8"


async def handle_chat(request: Request) -> Response:
    """Serve one request: the upstream's answer; a stream as it comes, with comments while the proxy is held."""
    proxy: Proxy = request.state.proxy
    settings = proxy.settings
    body = await read_body(request, settings.max_body_mib << 20)
    chat = load_object(body)
    messages, tools, model = chat.get("messages"), chat.get("tools"), chat.get("model")
    session = proxy.sessions.get(session_id(request.headers, chat.get("user"), messages, client_host(request)))
    event = RequestEvent(
        time.time(), session.id, request.state.request_id, PATH, stream=chat.get("stream") is True,
        model=model[:LONGEST_NAME] if isinstance(model, str) else "",
        messages=len(messages) if isinstance(messages, list) else 0, tools=len(tools) if isinstance(tools, list) else 0,
    )  # fmt: skip
    exchange = _Exchange(proxy, proxy.telemetry.begin(session, event), bytes(body), chat)
    return EventStream(
        exchange.asked,
        commit_s=settings.commit_delay if event.stream else math.inf,
        ping_s=settings.ping_interval,
        idle=lambda: HELD_COMMENT if proxy.gate.held and not exchange.is_passing else b"",
        failure=lambda error: exchange.line_end + b"data: " + msgspec.json.encode(error.openai()) + b"\n\n",
        ended=exchange.ended,
    )


class _Exchange:
    """One request on its way through."""

    def __init__(self, proxy: Proxy, active: ActiveRequest, body: bytes, chat: dict[str, Any]) -> None:
        self._proxy = proxy
        self._active = active
        self._body = body
        self._chat = chat
        proxy.telemetry.sends(active, chat)
        self._answer = AnswerAssembler()
        self.is_passing = False
        """Bytes of the upstream's stream are on their way to the client."""
        self.line_end = b""
        """What ends the event that broke off."""

    def ended(self, outcome: RequestOutcome, error: ApiError | None = None) -> None:
        """Record the end, once."""
        answer = self._answer
        if outcome is RequestOutcome.OK and not self._active.ended:
            self._active.session.turn_done(answer.cost().usage, None, self._proxy.window.tokens)
        self._proxy.telemetry.finish(
            self._active,
            outcome=outcome,
            error=error,
            stop_reason=answer.finish_reason,
            tool_calls=[call.name for call in answer.tool_calls()],
        )

    async def asked(self, stream: EventStream) -> Response | None:
        """Ask once the proxy is not held.

        A call that breaks off because the upstream is being restarted is made again, see `RetryPolicy`, unless a part
        of its answer is on its way to the client.
        """
        patience = RetryPolicy(self._proxy.gate)
        while True:
            await admitted(self._proxy, self._active)
            window, requested = self._proxy.window, self._chat.get("model")
            # A router knows neither which model `any` means nor when one was used.
            if window.router and requested == ANY:
                self._chat["model"] = await use_model(ANY, window)
                self._body = msgspec.json.encode(self._chat)
            elif window.router and isinstance(requested, str):
                window.note_use(requested)
            self._active.sent()
            self._active.answer = self._answer = AnswerAssembler()
            try:
                return await (self._copied(stream) if self._active.event.stream else self._whole())
            except ApiError as error:
                if self.is_passing or not await patience.again(error):
                    raise

    async def _copied(self, stream: EventStream) -> Response | None:
        """Copy the upstream's stream to the client; an answer that is none is returned."""
        async with self._proxy.upstream.open(self._body, PATH) as reply:
            if not _is_stream(reply):
                if stream.started:
                    # The head says 200 and a stream since the hold: what came instead can only be an event.
                    raise await reply.error()
                return await self._passed(reply)
            stream.headers["content-type"] = reply.headers["content-type"]
            async for data in _reads(reply, self._answer, self._answer.chunk):
                self.is_passing, self.line_end = True, b"" if data.endswith(b"\n") else b"\n\n"
                await stream.write(data)
                if self._active.ttft_s is None and self._answer.started:
                    self._active.first_content()
        await stream.write(b"", is_last=True)
        self.ended(RequestOutcome.OK)
        return None

    async def _whole(self) -> Response:
        """The whole answer, made of a stream where it can be."""
        answer, thoughts, seen = self._answer, list[str](), dict[str, Any]()

        def take(chunk: dict[str, Any]) -> None:
            thoughts.extend(piece.text for piece in answer.chunk(chunk) if isinstance(piece, Thinking))
            seen.update(chunk)

        wanted = streaming_fields(self._chat) if self._proxy.upstream.is_llama_cpp else None
        body = self._body if wanted is None else msgspec.json.encode({**self._chat, **wanted})
        async with self._proxy.upstream.open(body, PATH) as reply:
            if wanted is None or not _is_stream(reply):
                return await self._passed(reply)
            async for _ in _reads(reply, answer, take):
                pass
        status, text = whole_completion(answer, "".join(thoughts), seen)
        return self._done(status, text, {"content-type": _LLAMA_JSON})

    async def _passed(self, reply: UpstreamReply) -> Response:
        """A whole answer of the upstream, its status and its bytes."""
        gate = self._proxy.gate
        if reply.status == _NOT_READY and (gate.held or gate.settling):
            raise await reply.error()
        text = await reply.body(_LARGEST_ANSWER)
        if reply.status // 100 == 2:
            self._answer.chunk(object_of(text) or {})
        headers = {name: reply.headers[name] for name in _PASSED_HEADERS if name in reply.headers}
        return self._done(reply.status, text, headers)

    def _done(self, status: int, text: bytes, headers: dict[str, str]) -> Response:
        if status // 100 == 2:
            self._active.first_content()
            self.ended(RequestOutcome.OK)
        else:
            self.ended(RequestOutcome.ERROR, ApiError(status, ""))
        return Response(text, status, headers)


def _is_stream(reply: UpstreamReply) -> bool:
    return reply.status == 200 and reply.content_type.startswith("text/event-stream")


async def _reads(
    reply: UpstreamReply, answer: AnswerAssembler, take: Callable[[dict[str, Any]], object]
) -> AsyncIterator[bytes]:
    """The bytes of a stream as they come; `take` gets its chunks for `answer` before. Raises `UpstreamBrokenError`."""
    decoder = ChatDecoder()
    while data := await reply.read():
        for chunk in decoder.feed(data):
            take(chunk)
        yield data
    if answer.finish_reason is None and answer.error is None and not decoder.done:
        raise UpstreamBrokenError(502, "the upstream broke off its answer")


# A whole chat completion of llama.cpp, made of its stream. Its form is that of b11434 and b11549.

_IN_A_STREAM = frozenset({
    "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "max_tokens", "max_completion_tokens",
    "n_predict", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty",
    "response_format", "user", "metadata", "reasoning_effort", "chat_template_kwargs", "cache_prompt", "ignore_eos"
})  # fmt: skip
"""Fields whose effect on a whole answer can be read from its stream."""


def streaming_fields(chat: Mapping[str, Any]) -> dict[str, Any] | None:
    """What to ask for besides, to get the same answer as a stream; None when the whole could not be rebuilt from it."""
    messages = chat.get("messages")
    used = {name for name, value in chat.items() if not (value is None or value is False or (name, value) == ("n", 1))}
    if not used <= _IN_A_STREAM:
        return None
    last = messages[-1] if isinstance(messages, list) and messages else None
    if isinstance(last, dict) and last.get("role") == "assistant":
        # Whether a stream echoes the prefill, which the whole does, differs between builds.
        return None
    return TELLING


def whole_completion(answer: AnswerAssembler, thoughts: str, seen: Mapping[str, Any]) -> tuple[int, bytes]:
    """Status and body of what the server would have answered at once; `seen` has the latest of each field."""
    if answer.error is not None:
        code = answer.error.get("code")
        status = code if isinstance(code, int) and 400 <= code <= 599 else 500
        return status, msgspec.json.encode({"error": answer.error})
    message: dict[str, Any] = {"role": "assistant", "content": answer.text()}
    if thoughts:
        message["reasoning_content"] = thoughts
    calls = [
        {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        | ({"id": upstream_id} if upstream_id else {})
        for call, upstream_id in zip(answer.tool_calls(), answer.upstream_ids, strict=True)
    ]
    if calls:
        message["tool_calls"] = calls
    choice = {"finish_reason": answer.finish_reason, "index": 0, "message": message}
    found = {**seen, "choices": [choice], "object": "chat.completion"}
    names = ("choices", "created", "model", "system_fingerprint", "object", "usage", "id", "timings")
    return 200, msgspec.json.encode({name: found[name] for name in names if name in found})
