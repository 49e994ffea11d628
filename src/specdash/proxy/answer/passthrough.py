"""POST /v1/chat/completions: passed through, both ways, and watched on the way for telemetry.

This endpoint speaks OpenAI's language, also in its errors; the client gets what the upstream answers to its request. A
llama.cpp server is asked to tell its progress besides (`llama_stream`), and for a stream where the client wants a
whole answer (`whole_completion`); with any other, and where that could change the answer, bytes pass as they are.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any

import orjson

from specdash.core.proxy_events import RequestEvent, RequestOutcome
from specdash.proxy.answer.assembler import AnswerAssembler, ChatDecoder
from specdash.proxy.http.client import ClientLeftError, ClientWatch
from specdash.proxy.http.responses import ApiError, client_host, header_map, read_body, send_bytes
from specdash.proxy.sessions import chat_session_id
from specdash.proxy.telemetry import LONGEST_NAME
from specdash.proxy.translate.parse import check_pieces, dumped
from specdash.proxy.upstream.upstream import UpstreamBrokenError
from specdash.proxy.upstream.window import ANY, RetryPolicy, admitted, learn_models, upstream_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.proxy.answer.assembler import CallRecord
    from specdash.proxy.http.app import Proxy
    from specdash.proxy.http.responses import Receive, Scope, Send
    from specdash.proxy.telemetry import ActiveRequest
    from specdash.proxy.upstream.upstream import Body, UpstreamReply


# What llama.cpp is asked to tell besides a client's answer, and how that is taken out of the answer again.
#
# `timings_per_token` and `return_progress` make a running request visible. Measured on b11434 and b11549: the first
# adds a `timings` member to each chunk; unasked it stands in the last one only, which has a `finish_reason` or (the
# usage chunk) no choices. The second adds chunks with a `prompt_progress` member before the first chunk of the
# answer.
#
# Two kinds of request are asked for less, because their additions cannot be told from the answer: the chunk in which
# a stop word was found carries `timings` unasked, and b11434 echoes a prefill inside a chunk of progress.

PING_S = 30.0
"""After this much silence llama.cpp sends a comment (`--sse-ping-interval`); progress chunks take its place."""
_PING = b":"
_LARGEST_EVENT = 16 << 20
_TIMINGS = b',"timings":{'


TIMINGS, PROGRESS = "timings_per_token", "return_progress"
ALL = frozenset({TIMINGS, PROGRESS})


def additions_to(chat: Mapping[str, Any]) -> frozenset[str] | None:
    """The fields of `ALL` that the proxy may set; None where the client's own values are ones the server refuses."""
    if not all(chat.get(name) is None or isinstance(chat[name], bool) for name in ALL):
        return None
    taken = {name for name in ALL if chat.get(name)}
    taken |= {TIMINGS} if chat.get("stop") else set()
    return ALL - taken - ({PROGRESS} if is_prefilled(chat) else set())


def fields_of(added: frozenset[str] | None) -> dict[str, Any]:
    """The members of a body that ask for the additions."""
    return {name: True for name in (TIMINGS, PROGRESS) if name in (added or ())}


def is_prefilled(chat: Mapping[str, Any]) -> bool:
    """True when the answer is to continue a message of the request."""
    messages = chat.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return isinstance(last, dict) and last.get("role") == "assistant"


def with_fields(body: bytes | bytearray, chat: Mapping[str, Any], fields: Mapping[str, Any]) -> Body:
    """The body that `chat` was read from, with `fields` set; its own bytes stay unless it has one of them.

    Raises `InvalidRequestError` when it is nested too deeply to be written.
    """
    if not fields:
        return body
    if fields.keys() & chat.keys():
        return dumped({**orjson.loads(body), **fields})
    return memoryview(body)[: body.rindex(b"}")], (b"," if chat else b"") + orjson.dumps(dict(fields))[1:]


class Restorer:
    """The stream as it would have been without the additions, as it is where there are none (`added` is None). Reads it
    into `answer` on the way."""

    def __init__(
        self,
        answer: AnswerAssembler,
        added: frozenset[str] | None,
        *,
        ping_s: float = PING_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.answer = answer
        self.first_error: dict[str, Any] | None = None
        """The error that came before anything else: without `return_progress` it had been the status."""
        self._added = added or frozenset()
        self._ping_s = ping_s
        self._clock = clock
        self._told_at = clock()
        self._decoder = ChatDecoder()
        self._rest = b""
        self._is_foreign = added is None
        self._has_begun = False
        self._role: bytes | None = None

    def feed(self, data: bytes) -> bytes:
        """The next bytes of the stream, cut anywhere; the bytes for the client, whole events."""
        if self._is_foreign:
            for chunk in self._decoder.feed(data):
                self.answer.chunk(chunk)
            return data
        data = self._rest + data
        end = data.rfind(b"\n\n")
        if end < 0:
            self._rest = data
            # llama.cpp writes no CR, and no event of this size.
            return self._give_up() if b"\r" in data or len(data) > _LARGEST_EVENT else b""
        self._rest = data[end + 2 :]
        kept: list[bytes] = []
        for event in data[:end].split(b"\n\n"):
            self._event(event, kept)
        if not kept:
            return b""
        self._told_at = self._clock()
        kept.append(b"")
        return b"\n\n".join(kept)

    def close(self) -> bytes:
        """The stream has ended; what is left of it."""
        rest = self._give_up()
        for chunk in self._decoder.close():
            self.answer.chunk(chunk)
        self.answer.end()
        return rest

    def _give_up(self) -> bytes:
        self._is_foreign = True
        rest = self._rest
        self._rest = b""
        for chunk in self._decoder.feed(rest):
            self.answer.chunk(chunk)
        return rest

    def _event(self, event: bytes, kept: list[bytes]) -> None:
        chunk = _chunk(event)
        if chunk is None:
            for chunk in self._decoder.feed(event + b"\n\n"):
                self.answer.chunk(chunk)
            kept.append(event)
            return
        self.answer.chunk(chunk)
        if PROGRESS in self._added and "prompt_progress" in chunk:
            self._progress(chunk, kept)
            return
        if not self._has_begun:
            self._begin(chunk, kept)
        if TIMINGS in self._added and "timings" in chunk and not _is_last(chunk):
            event = _without_timings(event, chunk)
        kept.append(event)

    def _progress(self, chunk: dict[str, Any], kept: list[bytes]) -> None:
        if self._role is None and "role" in _delta(chunk):
            left = {key: value for key, value in chunk.items() if key not in ("timings", "prompt_progress")}
            self._role = b"data: " + orjson.dumps(left)
        if self._clock() - self._told_at >= self._ping_s:
            kept.append(_PING)

    def _begin(self, chunk: dict[str, Any], kept: list[bytes]) -> None:
        self._has_begun = True
        if isinstance(chunk.get("error"), dict):
            self.first_error = chunk["error"]
        elif self._role is not None and _delta(chunk) and "role" not in _delta(chunk):
            # A build that says the role only once has said it in a chunk that was dropped.
            kept.append(self._role)


def status_of(error: Mapping[str, Any]) -> int:
    """The HTTP status that llama.cpp would have answered an error with."""
    code = error.get("code")
    return code if isinstance(code, int) and 400 <= code <= 599 else 500


def _chunk(event: bytes) -> dict[str, Any] | None:
    if event[:7] != b"data: {" or b"\n" in event:
        return None
    try:
        chunk: dict[str, Any] = orjson.loads(event[6:])
    except orjson.JSONDecodeError:
        return None
    return chunk


def _choice(chunk: dict[str, Any]) -> dict[str, Any]:
    choices = chunk.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _delta(chunk: dict[str, Any]) -> dict[str, Any]:
    delta = _choice(chunk).get("delta")
    return delta if isinstance(delta, dict) else {}


def _is_last(chunk: dict[str, Any]) -> bool:
    """True for the chunks that carry `timings` unasked."""
    choice = _choice(chunk)
    return not choice or choice.get("finish_reason") is not None


def _without_timings(event: bytes, chunk: dict[str, Any]) -> bytes:
    """The event less its `timings`, cut out of the bytes and checked; written anew where that fails."""
    left = {key: value for key, value in chunk.items() if key != "timings"}
    at = event.rfind(_TIMINGS)
    if at > 0:
        cut = event[:at] + event[event.find(b"}", at) + 1 :]
        try:
            if orjson.loads(cut[6:]) == left:
                return cut
        except orjson.JSONDecodeError:
            pass
    return b"data: " + orjson.dumps(left)


# A whole chat completion of llama.cpp, made of its stream: the server aborts a stream when its client leaves, and
# nothing else.
#
# Source of the form: answers of b11434 and b11549, which differ in nothing but values.


_NOT_IN_A_STREAM = ("logprobs", "top_logprobs", "n_probs", "verbose", "response_fields", "modalities", "audio")
"""Fields whose effect on a whole answer cannot be told from the stream."""
_CHOICES = ("n", "n_cmpl")


def streaming_body(body: bytes | bytearray, chat: Mapping[str, Any]) -> Body | None:
    """The body that asks for the same answer as a stream; None when the whole could not be rebuilt from it."""
    stream, options = chat.get("stream"), chat.get("stream_options")
    if not (stream is None or stream is False) or not (options is None or isinstance(options, dict)):
        return None
    if additions_to(chat) is None or is_prefilled(chat):
        # Whether a stream echoes the prefill, which the whole does, differs between builds.
        return None
    if any(chat.get(name) for name in _NOT_IN_A_STREAM) or any(chat.get(name) not in (None, 1) for name in _CHOICES):
        return None
    if chat.get("reasoning_format") == "deepseek-legacy":
        # Some builds put the thoughts into the content of a stream, and of a stream only.
        return None
    fields = {"stream": True, **fields_of(ALL), "stream_options": {**(options or {}), "include_usage": True}}
    return with_fields(body, chat, fields)


class WholeCompletion:
    """Reads the stream into `answer` and knows what the server had said at once."""

    def __init__(self, answer: AnswerAssembler) -> None:
        self.answer = answer
        self._decoder = ChatDecoder()
        self._seen: dict[str, Any] = {}

    def feed(self, data: bytes) -> None:
        """The next bytes of the stream."""
        for chunk in self._decoder.feed(data):
            self._chunk(chunk)

    def end(self) -> None:
        """No bytes follow."""
        for chunk in self._decoder.close():
            self._chunk(chunk)
        self.answer.end()

    @property
    def is_complete(self) -> bool:
        """True when the stream told an end or an error."""
        return self.answer.finish_reason is not None or "error" in self._seen

    @property
    def is_unsaid(self) -> bool:
        """True when the whole answer may hold text that a stream never shows.

        llama.cpp parses the text; where nothing is left of it (a tool call or a thought cut off in its first words)
        a whole answer has the text itself as its content, and a stream nothing.
        """
        answer = self.answer
        if "error" in self._seen or answer.text_chars or answer.thinking_chars or answer.calls:
            return False
        return answer.finish_reason != "stop" or answer.usage.completion > 1

    def response(self) -> tuple[int, bytes]:
        """Status and body."""
        error = self._seen.get("error")
        if error is not None:
            status = status_of(error) if isinstance(error, dict) else 500
            return status, orjson.dumps({"error": error})
        answer, seen = self.answer, self._seen
        message: dict[str, Any] = {"role": "assistant", "content": answer.text()}
        if answer.thinking_chars:
            message["reasoning_content"] = answer.thinking_text()
        if answer.calls:
            message["tool_calls"] = [_call(call) for call in answer.calls]
        choice = {"finish_reason": answer.finish_reason, "index": 0, "message": message}
        whole = {"choices": [choice], "object": "chat.completion"}
        names = ("choices", "created", "model", "system_fingerprint", "object", "usage", "id", "timings")
        found = {**seen, **whole}
        return 200, orjson.dumps({name: found[name] for name in names if name in found})

    def _chunk(self, chunk: dict[str, Any]) -> None:
        self.answer.chunk(chunk)
        self._seen.update(chunk)


def _call(call: CallRecord) -> dict[str, Any]:
    told: dict[str, Any] = {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    if call.upstream_id:
        told["id"] = call.upstream_id
    return told


PATH = "/v1/chat/completions"
HELD_COMMENT = b": held\n\n"
_EVENT_STREAM = "text/event-stream"
_NOT_READY = 503
_LARGEST_WATCHED = 64 << 20
_PASSED_HEADERS = ("content-type", "retry-after")
_LLAMA_JSON = "application/json; charset=utf-8"


async def handle(proxy: Proxy, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one request."""
    exchange = await _received(proxy, scope, receive, send)
    try:
        async with ClientWatch(receive) as watch:
            await exchange.run()
            watch.answered = True
    except ClientLeftError:
        exchange.finish(RequestOutcome.CLIENT_LEFT, 499)
    except ApiError as error:
        exchange.finish(RequestOutcome.ERROR, error.status, error.type)
        if not exchange.begun:
            raise
        await exchange.fail(error)
    except BaseException:
        exchange.finish(RequestOutcome.ERROR, 500, "api_error")
        raise


async def _received(proxy: Proxy, scope: Scope, receive: Receive, send: Send) -> _Exchange:
    """Read a request; what its messages say is looked at here, and kept in its body alone."""
    body = await read_body(scope, receive, proxy.settings.max_body_mib << 20)
    try:
        chat = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(chat, dict):
        raise ApiError(400, "the body must be a JSON object")
    check_pieces(chat, proxy.settings.max_blocks)
    messages, tools, model = chat.get("messages"), chat.get("tools"), chat.get("model")
    headers = header_map(scope)
    session = proxy.sessions.get(chat_session_id(headers, chat, client_host(scope)))
    event = RequestEvent(
        time.time(), session.id, scope["request_id"], PATH, stream=chat.get("stream") is True,
        model=model[:LONGEST_NAME] if isinstance(model, str) else "",
        messages=len(messages) if isinstance(messages, list) else 0, tools=len(tools) if isinstance(tools, list) else 0,
    )  # fmt: skip
    active = proxy.telemetry.begin(session, event)
    if isinstance(messages, list):
        chat["messages"] = [{"role": last.get("role")} for last in messages[-1:] if isinstance(last, dict)]
    return _Exchange(proxy, active, send, body, chat)


class _Exchange:
    """One request on its way through; `chat` is what it says but for its messages, of which the last's role is left."""

    def __init__(
        self, proxy: Proxy, active: ActiveRequest, send: Send, body: bytes | bytearray, chat: dict[str, Any]
    ) -> None:
        self._proxy = proxy
        self._active = active
        self._send = send
        self._body = body
        self._chat = chat
        self._wants_stream = self._streams = bool(active.event.stream)
        self.begun = False
        self._answered = False
        self._answer = AnswerAssembler()
        self._status = 200

    async def run(self) -> None:
        """Send the body upstream and the answer back.

        Waits while the proxy is held; a call that breaks off because the upstream is being restarted is made again, see
        `RetryPolicy`, unless a part of its answer is on its way to the client.
        """
        patience = RetryPolicy(self._proxy.gate)
        while True:
            await admitted(self._proxy, self._wait_for_gate)
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
            self.finish(RequestOutcome.OK, self._status)
        else:
            self.finish(
                RequestOutcome.ERROR, self._status, "api_error" if self._status >= 500 else "invalid_request_error"
            )

    async def fail(self, error: ApiError) -> None:
        """Tell the client of a stream that has begun."""
        if self._streams:
            event = b"data: " + orjson.dumps(error.openai()) + b"\n\n"
            await self._send({"type": "http.response.body", "body": event})
        # A whole answer that breaks off has its length promised: closing without it is how the client learns.

    def finish(self, outcome: RequestOutcome, status: int, error_type: str | None = None) -> None:
        """Record the end, once."""
        if self._active.ended:
            return
        answer = self._answer
        window = self._proxy.window.tokens
        if outcome is RequestOutcome.OK:
            self._active.session.turn_done(answer.usage, None, window)
        self._proxy.telemetry.finish(
            self._active,
            outcome=outcome,
            status=status,
            error_type=error_type,
            stop_reason=answer.finish_reason,
            tool_calls=tuple(call.name for call in answer.tool_calls()),
        )

    async def _name_model(self) -> None:
        """Name the model that `any` means, and note what is used: a router does not know the one nor tell the other."""
        window, requested = self._proxy.window, self._chat.get("model")
        if not window.router or not isinstance(requested, str):
            return
        if requested == ANY:
            await learn_models(requested, window)
            named = {"model": upstream_model(requested, window)}
            self._body = dumped({**orjson.loads(self._body), **named})
            self._chat |= named
        window.note_use(str(self._chat["model"]))

    async def _wait_for_gate(self) -> None:
        gate, settings = self._proxy.gate, self._proxy.settings
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
        elif self._wants_stream:
            added = additions_to(self._chat)
            await self._pass(with_fields(self._body, self._chat, fields_of(added)), added or None)
        else:
            body = streaming_body(self._body, self._chat)
            if body is None or not await self._rebuild(body):
                await self._pass(self._body)

    async def _pass(self, body: Body, added: frozenset[str] | None = None) -> None:
        self._answer = AnswerAssembler()
        async with await self._proxy.upstream.open(body, PATH) as reply:
            await self._copy(reply, added)

    async def _rebuild(self, body: Body) -> bool:
        """Answer with the whole that a stream makes; False when it has to be asked for after all."""
        self._answer = AnswerAssembler()
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

    async def _copy(self, reply: UpstreamReply, added: frozenset[str] | None) -> None:
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
        reader: Restorer | _WholeReader = _WholeReader(answer)
        if self._streams:
            reader = Restorer(answer, added if reply.status == 200 else None, ping_s=self._ping_s)
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

    def _head(self, reply: UpstreamReply) -> list[tuple[bytes, bytes]]:
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


class _WholeReader:
    """Reads a whole answer that passes as it is into an `AnswerAssembler`."""

    first_error: dict[str, Any] | None = None

    def __init__(self, answer: AnswerAssembler) -> None:
        self._answer = answer
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> bytes:
        """The next bytes, there and back."""
        self._size += len(data)
        if self._size <= _LARGEST_WATCHED:
            self._pieces.append(data)
        return data

    def close(self) -> bytes:
        """No bytes follow; none are left."""
        try:
            value = orjson.loads(b"".join(self._pieces))
        except orjson.JSONDecodeError:
            return b""
        if isinstance(value, dict):
            self._answer.chunk(value)
            self._answer.end()
        return b""


def _is_stream(reply: UpstreamReply) -> bool:
    return reply.status == 200 and reply.content_type.startswith(_EVENT_STREAM)
