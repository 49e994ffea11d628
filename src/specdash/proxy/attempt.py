"""One call of the upstream: its bytes through the decoder, the answer and the filters, as they come."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import orjson

from specdash.proxy.answer import Answer
from specdash.proxy.chat_stream import ChatDecoder
from specdash.proxy.errors import ApiError
from specdash.proxy.restarts import Patience
from specdash.proxy.upstream import UpstreamBrokenError
from specdash.proxy.upstream_errors import api_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from specdash.proxy.chain import Chain
    from specdash.proxy.generation import Generation
    from specdash.proxy.upstream import Reply

_FIRST_PIECE = 1 << 10
"""Bytes handled at once until there is content: what else was read with it must not delay the first token."""
_LARGE_PIECE = 1 << 15
_LAST_CHUNK_S = 0.05
_LARGEST_ANSWER = 64 << 20
_STATUS_OF_TYPE = {
    "exceed_context_size_error": 400,
    "invalid_request_error": 400,
    "not_supported_error": 400,
    "unavailable_error": 503,
    "authentication_error": 401,
}


async def call_upstream(
    turn: Generation,
    body: dict[str, Any],
    chain: Chain,
    on_data: Callable[[Answer], Awaitable[None]] | None = None,
) -> Answer:
    """Send `body` and feed the answer through `chain` until it ends, or until the chain wants no more of it.

    `on_data` is awaited after every read. Waits first while the proxy is held; a call that breaks because the upstream
    is being restarted, before it said anything, is made again: see `Patience`. Raises `ApiError`.
    """
    gate = turn.proxy.gate
    patience = Patience(gate)
    payload = orjson.dumps(body)
    while True:
        if gate.held:
            turn.active.held()
            with turn.deadline.paused():
                await gate.wait(turn.settings.hold_limit)
        answer = Answer(chain.head, fallback_id=turn.active.request_id)
        turn.attempt_begins(answer)
        turn.active.sent()
        try:
            await _exchange(turn, payload, chain, answer, on_data)
        except ApiError as error:
            if answer.started or not await patience.again(error):
                raise
            continue
        return answer


async def _exchange(
    turn: Generation,
    payload: bytes,
    chain: Chain,
    answer: Answer,
    on_data: Callable[[Answer], Awaitable[None]] | None,
) -> None:
    async with await turn.proxy.upstream.open(payload) as reply:
        if reply.status != 200:
            raise await reply.error()
        if reply.content_type == "application/json":
            _take_whole(answer, await reply.body(_LARGEST_ANSWER))
        else:
            await _take_stream(turn, reply, chain, answer, on_data)
    chain.end()
    turn.active.update(answer)


async def _take_stream(
    turn: Generation,
    reply: Reply,
    chain: Chain,
    answer: Answer,
    on_data: Callable[[Answer], Awaitable[None]] | None,
) -> None:
    decoder = ChatDecoder(answer.chunk)
    chain.on_cut = decoder.stop
    update = turn.active.update
    while data := await reply.read():
        at = 0
        while at < len(data):
            size = _LARGE_PIECE if answer.started else _FIRST_PIECE
            decoder.feed(data[at : at + size])
            at += size
            update(answer)
            if answer.error is not None:
                raise stream_error(*answer.error)
            if on_data is not None:
                await on_data(answer)
        if chain.cut_short:
            reply.abort()
            answer.end()
            return
        if decoder.done:
            await _read_to_the_end(reply)
            break
    else:
        decoder.close()
        if answer.error is not None:
            raise stream_error(*answer.error)
        if answer.finish_reason is None:
            raise _cut_off()
    if answer.finish_reason is None and not answer.started:
        raise _cut_off()
    answer.end()


def _cut_off() -> UpstreamBrokenError:
    return UpstreamBrokenError(502, "the upstream ended its answer before it was complete")


def stream_error(kind: str, message: str) -> ApiError:
    """The error that an upstream reported inside its stream."""
    body = orjson.dumps({"error": {"type": kind, "message": message}})
    return api_error(_STATUS_OF_TYPE.get(kind, 500), body)


async def _read_to_the_end(reply: Reply) -> None:
    """Let the connection be kept alive: its last chunk follows the last event at once, or not at all."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAST_CHUNK_S):
            await reply.read()


def _take_whole(answer: Answer, data: bytes) -> None:
    try:
        completion = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise ApiError(500, "the upstream's answer is not JSON") from None
    if isinstance(completion, dict):
        answer.whole(completion)
    if answer.error is not None:
        raise stream_error(*answer.error)
    if not answer.started and answer.finish_reason is None:
        raise ApiError(500, "the upstream's answer is not a chat completion")
    answer.end()
