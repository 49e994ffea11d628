"""Scripts of the fault upstream: what one request is answered, piece by piece, as data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from support.scripted_server import SSE, Behaviour, Call

JSON_TYPE = "application/json; charset=utf-8"
MOMENT_S = 0.002
"""Long enough for the kernel to hand over what was written as a read of its own."""


class Delta(Struct, frozen=True):
    """One chunk of a stream: its delta, and the finish reason when it ends the answer."""

    delta: dict[str, Any]
    finish: str | None = None


class Pause(Struct, frozen=True):
    """Say nothing for some seconds."""

    seconds: float


class Raw(Struct, frozen=True):
    """Bytes sent as they are, between events."""

    data: bytes


class Hang(Struct, frozen=True):
    """Say nothing more, until the other side goes away."""


class Drop(Struct, frozen=True):
    """Close the connection here, in the middle of the answer."""


class Endless(Struct, frozen=True):
    """The same text again and again, until the other side goes away."""

    text: str = " word"
    pause_s: float = 0.001


Act = Delta | Pause | Raw | Hang | Drop | Endless


class Script(Struct, frozen=True):
    """How one request is answered.

    A chat completion plays `acts`; with `body`, that is the whole answer instead. The flags leave out what a server may
    leave out. `split` sends the stream's bytes in pieces of that many bytes, `cut` in two at that offset.
    """

    acts: tuple[Act, ...] = ()
    status: int = 200
    body: bytes | None = None
    content_type: str = JSON_TYPE
    headers: tuple[str, ...] = ()
    delay_s: float = 0.0
    """Before the head of the answer."""
    hangs: bool = False
    """Never answer at all."""
    drops: bool = False
    """Close instead of answering."""
    resets: bool = False
    """Close with a TCP reset, where the script closes."""
    usage: bool = True
    timings: bool = True
    claims: dict[str, Any] = field(default_factory=dict)
    """Over the timings that are so; None leaves one out."""
    tokens: int | None = None
    """How many were generated, where not one by chunk."""
    done: bool = True
    crlf: bool = False
    split: int = 0
    cut: int = 0
    chat_id: str = "chatcmpl-scripted0001"
    prompt_tokens: int = 120
    cached_tokens: int = 100
    progress: tuple[int, ...] = (100, 120)
    """Values of `prompt_progress.processed` before the answer, when it was asked for."""
    prefill_pause_s: float = 0.0
    """Between the progress chunks."""

    async def __call__(self, call: Call) -> None:
        """Answer; the connection may be used again when the answer is whole."""
        if self.hangs:
            await call.hang()
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.drops or not await self._answer(call):
            call.hang_up(reset=self.resets)

    async def _answer(self, call: Call) -> bool:
        asked = call.body if isinstance(call.body, dict) else {}
        if self.body is None and asked.get("stream"):
            return await self._stream(call, asked)
        body = self.body if self.body is not None else json.dumps(await self.whole()).encode()
        if any(isinstance(act, Hang | Endless) for act in self.acts):
            await call.hang()
        broken = any(isinstance(act, Drop) for act in self.acts)
        head = self._head(self.content_type, f"Content-Length: {len(body)}")
        await call.write(head + (body[: len(body) // 2] if broken else body))
        return not broken

    def _head(self, kind: str, *more: str) -> bytes:
        lines = (f"HTTP/1.1 {self.status} X", "Server: llama.cpp", f"Content-Type: {kind}", *more, *self.headers)
        return "\r\n".join(lines).encode() + b"\r\n\r\n"

    async def _stream(self, call: Call, asked: dict[str, Any]) -> bool:
        await call.write(self._head(SSE, "X-Accel-Buffering: no", "Transfer-Encoding: chunked"))
        if self.split or self.cut:
            return await self._in_pieces(call, asked)
        async for data in self._events(asked):
            if data is None:
                return False
            await call.chunk(data)
        await call.chunk()
        return True

    async def _in_pieces(self, call: Call, asked: dict[str, Any]) -> bool:
        whole, broken = b"", False
        async for data in self._events(asked):
            broken = data is None
            whole += data or b""
        size = self.split or self.cut
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        if self.cut:
            pieces = [whole[:size], whole[size:]]
        for piece in pieces:
            if piece:
                await call.chunk(piece)
                await asyncio.sleep(MOMENT_S if self.cut else 0)
        if not broken:
            await call.chunk()
        return not broken

    async def _events(self, asked: dict[str, Any]) -> AsyncIterator[bytes | None]:
        """Bytes of each event; None where the connection is dropped."""
        state = _Numbers(self, asked)
        for processed in self.progress if asked.get("return_progress") else ():
            yield self._event(state.chunk(Delta({"role": "assistant", "content": None}), processed=processed))
            if self.prefill_pause_s:
                await asyncio.sleep(self.prefill_pause_s)
        yield self._event(state.chunk(Delta({"role": "assistant", "content": None})))
        for act in self.acts:
            async for data in self._act(act, state):
                yield data
                if data is None:
                    return
        if self.usage and (asked.get("stream_options") or {}).get("include_usage"):
            yield self._event(state.usage_chunk())
        if self.done:
            yield b"data: [DONE]\n\n"

    async def _act(self, act: Act, state: _Numbers) -> AsyncIterator[bytes | None]:
        match act:
            case Delta():
                state.chunks += bool(act.delta)
                yield self._event(state.chunk(act))
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case Raw(data):
                yield data
            case Hang():
                await asyncio.sleep(3600)
            case Drop():
                yield None
            case Endless(text, pause_s):
                while True:
                    state.chunks += 1
                    yield self._event(state.chunk(Delta({"content": text})))
                    await asyncio.sleep(pause_s)

    def _event(self, value: Any) -> bytes:
        end = b"\r\n\r\n" if self.crlf else b"\n\n"
        return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + end

    async def whole(self) -> dict[str, Any]:
        """The answer as one `chat.completion` object; pauses take their time."""
        text, reasoning, finish = "", "", "stop"
        calls: dict[int, dict[str, Any]] = {}
        predicted = 0
        for act in self.acts:
            if isinstance(act, Pause):
                await asyncio.sleep(act.seconds)
            if not isinstance(act, Delta):
                continue
            predicted += bool(act.delta)
            text += act.delta.get("content") or ""
            reasoning += act.delta.get("reasoning_content") or ""
            for part in act.delta.get("tool_calls", ()):
                _merge(calls.setdefault(part["index"], {"type": "function", "function": {}, "id": ""}), part)
            finish = act.finish or finish
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [calls[index] for index in sorted(calls)]
        state = _Numbers(self, {}, predicted)
        choice = {"finish_reason": finish, "index": 0, "message": message}
        value = {**state.head("chat.completion"), "choices": [choice]}
        if self.timings:
            value["timings"] = state.timings()
        return {**value, "usage": state.usage()} if self.usage else value


class _Numbers:
    """What the chunks of one answer count."""

    def __init__(self, script: Script, asked: dict[str, Any], chunks: int = 0) -> None:
        self.script, self.asked = script, asked
        self.chunks = chunks

    @property
    def predicted(self) -> int:
        return self.chunks if self.script.tokens is None else self.script.tokens

    def head(self, kind: str = "chat.completion.chunk") -> dict[str, Any]:
        names = {"id": self.script.chat_id, "model": "scripted", "system_fingerprint": "b11549-scripted"}
        return {"created": 1, "object": kind, **names}

    def chunk(self, act: Delta, processed: int | None = None) -> dict[str, Any]:
        value = {"choices": [{"finish_reason": act.finish, "index": 0, "delta": act.delta}], **self.head()}
        if self.script.timings and self.asked.get("timings_per_token") and (act.delta or processed is not None):
            value["timings"] = self.timings()
        if processed is not None:
            total, cache = self.script.prompt_tokens, self.script.cached_tokens
            value["prompt_progress"] = {"total": total, "cache": cache, "processed": processed, "time_ms": 1}
        return value

    def timings(self) -> dict[str, Any]:
        prompt = self.script.prompt_tokens - self.script.cached_tokens
        figures = {
            "cache_n": self.script.cached_tokens,
            "prompt_n": prompt,
            "prompt_ms": 10.0,
            "prompt_per_second": prompt * 100.0,
            "predicted_n": self.predicted,
            "predicted_ms": self.predicted * 2.0,
            "predicted_per_second": 500.0,
            "draft_n": self.predicted * 2,
            "draft_n_accepted": self.predicted,
            **self.script.claims,
        }
        return {name: value for name, value in figures.items() if value is not None}

    def usage(self) -> dict[str, Any]:
        total = self.script.prompt_tokens + self.predicted
        return {
            "completion_tokens": self.predicted,
            "prompt_tokens": self.script.prompt_tokens,
            "total_tokens": total,
            "prompt_tokens_details": {"cached_tokens": self.script.cached_tokens},
        }

    def usage_chunk(self) -> dict[str, Any]:
        value = {"choices": [], **self.head(), "usage": self.usage()}
        return {**value, "timings": self.timings()} if self.script.timings else value


def _merge(call: dict[str, Any], part: dict[str, Any]) -> None:
    call["id"] = part.get("id") or call["id"]
    for name, piece in part.get("function", {}).items():
        call["function"][name] = call["function"].get(name, "") + (piece or "")


def says(*pieces: str) -> tuple[Act, ...]:
    """Visible text, a chunk for each piece."""
    return tuple(Delta({"content": piece}) for piece in pieces)


def thinks(*pieces: str) -> tuple[Act, ...]:
    """Reasoning, a chunk for each piece."""
    return tuple(Delta({"reasoning_content": piece}) for piece in pieces)


def calls(name: str, arguments: str | dict[str, Any], *, index: int = 0, pieces: int = 3) -> tuple[Act, ...]:
    """A tool call; its arguments come in `pieces` fragments after the chunk with id and name, as llama.cpp does."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    size = max(1, -(-len(text) // pieces))
    first = {"index": index, "id": f"call{index:04d}", "type": "function", "function": {"name": name, "arguments": ""}}
    parts: list[dict[str, Any]] = [first]
    parts += [{"index": index, "function": {"arguments": text[at : at + size]}} for at in range(0, len(text), size)]
    return tuple(Delta({"tool_calls": [part]}) for part in parts)


def stops(reason: str = "stop") -> tuple[Act, ...]:
    """The chunk with the finish reason."""
    return (Delta({}, reason),)


def answers(*pieces: str, **changes: Any) -> Script:
    """A healthy text answer."""
    return Script((*says(*pieces), *stops()), **changes)


def tool_turn(name: str, arguments: dict[str, Any], **changes: Any) -> Script:
    """A healthy tool call."""
    return Script((*calls(name, arguments), *stops("tool_calls")), **changes)


def timed(
    prefill_s: float = 0.004,
    decode_s: float = 0.02,
    *,
    cached: int = 0,
    drafted: int = 40,
    accepted: int = 20,
    claims: dict[str, Any] | None = None,
    **changes: Any,
) -> Script:
    """An answer that takes these times, and says so in its timings unless it `claims` something else."""
    acts = (Pause(prefill_s), *says("to"), Pause(decode_s), *says('ken "timings" finish_reason'), *stops("length"))
    figures = {
        "prompt_ms": prefill_s * 1000,
        "predicted_ms": decode_s * 1000,
        "draft_n": drafted,
        "draft_n_accepted": accepted,
        **(claims or {}),
    }
    return Script(acts, **{"prompt_tokens": 100, "cached_tokens": cached, "tokens": 32, "claims": figures, **changes})


def queued(script: Script) -> Behaviour:
    """The same for one request after the other, as with one slot."""
    turn = asyncio.Lock()

    async def behave(call: Call) -> None:
        async with turn:
            await script(call)

    return behave


def gives(value: Any, status: int = 200) -> Script:
    """This JSON."""
    return Script(status=status, body=json.dumps(value).encode())


def error(status: int, message: str, kind: str, **extra: Any) -> Script:
    """An error as llama.cpp words it."""
    return gives({"error": {"code": status, "message": message, "type": kind, **extra}}, status)


def loading() -> Script:
    """The server is up, its model is not."""
    return error(503, "Loading model", "unavailable_error")


def overflow(tokens: int, n_ctx: int) -> Script:
    """The prompt does not fit."""
    message = f"request ({tokens} tokens) exceeds the available context size ({n_ctx} tokens), try increasing it"
    return error(400, message, "exceed_context_size_error", n_prompt_tokens=tokens, n_ctx=n_ctx)


def unauthorised() -> Script:
    """The upstream wants a key; llama.cpp does not wrap this one."""
    return Script(status=401, body=b'{"error":{"message":"Invalid API Key","type":"authentication_error","code":401}}')


def error_event(message: str = "Compute error.", kind: str = "server_error", code: int = 500) -> Raw:
    """An error in the middle of a stream, as llama.cpp sends it."""
    value = {"error": {"code": code, "message": message, "type": kind}}
    return Raw(b"data: " + json.dumps(value).encode() + b"\n\n")


def with_(script: Script, **changes: Any) -> Script:
    """The script with other values."""
    return replace(script, **changes)
