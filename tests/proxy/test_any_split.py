"""The client's bytes are a function of the upstream's bytes: where the network cut them makes no difference."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.answer.assembler import AnswerAssembler, ChatDecoder
from specdash.proxy.answer.blocks import END, SseWriter, Usage
from specdash.proxy.answer.filters import Attempt, filtered, stop_reason_of
from specdash.proxy.settings import settings_from_env
from specdash.proxy.translate.parse import MessagesRequest
from specdash.proxy.upstream.upstream import stream_error
from support.anthropic_stream import checked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from specdash.proxy.answer.blocks import Piece


def translated(reads: list[bytes], *, stops: list[str], prefill: str, thinking: bool) -> bytes:
    """The stream core as a turn strings it together."""
    writer = SseWriter()
    writer.start("msg_1", "m", Usage())
    attempt = Attempt(AnswerAssembler())
    answer = attempt.answer

    async def source() -> AsyncIterator[Piece]:
        decoder = ChatDecoder()
        for chunk in itertools.chain(*(decoder.feed(read) for read in reads), decoder.close()):
            for piece in answer.chunk(chunk):
                yield piece
                if attempt.is_cut:
                    return
        yield END

    async def run() -> None:
        request = MessagesRequest("m", (), 100, stop_sequences=tuple(stops))
        settings = settings_from_env({})
        async for piece in filtered(source(), attempt, request, (), settings, prefill=prefill, thinking=thinking):
            writer.add(piece)

    asyncio.run(run())
    if answer.error is not None:
        writer.error(stream_error(answer.error).envelope("req_1"))
    else:
        cut = stop_reason_of(answer.finish_reason, False, attempt.stop_text)
        writer.finish(
            "max_tokens" if writer.has_content and cut == "end_turn" else cut, attempt.stop_text, answer.usage
        )
    return writer.take()


def sse(chunks: list[Any], newline: bytes = b"\n", *, escaped: bool = False) -> bytes:
    events = [b"data: " + json.dumps(chunk, ensure_ascii=escaped).encode() + newline * 2 for chunk in chunks]
    return b": hello" + newline * 2 + b"".join(events) + b"data: [DONE]" + newline * 2


def delta(**fields: Any) -> dict[str, Any]:
    timings = {"cache_n": 3, "prompt_n": 4, "predicted_n": len(str(fields))}
    return {"id": "chatcmpl-a", "choices": [{"index": 0, "delta": fields, "finish_reason": None}], "timings": timings}


def call(index: int, **fields: Any) -> dict[str, Any]:
    return delta(tool_calls=[{"index": index, **fields}])


WAYS: list[dict[str, Any]] = [
    {"stops": [], "prefill": "", "thinking": True},
    {"stops": ["STOP"], "prefill": "prefill", "thinking": False},
]


TEXT = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    ["STOP", "ST", "OP", "\u05d0", "e\u0301", "\U0001f9ea"]
)
ARGUMENTS = st.dictionaries(TEXT, TEXT, max_size=2).map(json.dumps)
CHUNKS = st.lists(
    st.one_of(
        TEXT.map(lambda text: delta(content=text)),
        TEXT.map(lambda text: delta(reasoning_content=text)),
        st.builds(
            lambda at, args: call(at, id=f"c{at}", function={"name": "f", "arguments": args}),
            st.integers(0, 3),
            ARGUMENTS,
        ),
        st.builds(lambda at, text: call(at, function={"arguments": text}), st.integers(0, 3), TEXT),
    ),
    max_size=12,
)  # fmt: skip


@given(
    CHUNKS,
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
    st.sampled_from(WAYS),
    st.lists(st.integers(0, 5000), max_size=30),
)
def test_any_cuts_of_any_answer_make_no_difference(
    chunks: list[Any], newline: bytes, escaped: bool, way: dict[str, Any], cuts: list[int]
) -> None:
    body = sse(chunks, newline, escaped=escaped)
    marks = sorted({0, len(body), *(cut % len(body) for cut in cuts)})
    whole = translated([body], **way)
    checked(whole)
    assert translated([body[a:b] for a, b in itertools.pairwise(marks)], **way) == whole


NAMES = st.sampled_from([
    "id", "choices", "delta", "message", "content", "reasoning_content", "reasoning", "tool_calls", "index", "function",
    "name", "arguments", "finish_reason", "stop_reason", "usage", "prompt_tokens", "prompt_tokens_details", "timings",
    "cache_n", "predicted_n", "prompt_progress", "total", "error", "type", "text",
])  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
ANYTHING = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5))
CALL = st.fixed_dictionaries({}, optional={"index": ANYTHING, "id": ANYTHING, "function": ANYTHING})
DELTA = st.fixed_dictionaries({}, optional={"content": ANYTHING, "tool_calls": ANYTHING | st.lists(CALL, max_size=3)})
CHOICE = st.fixed_dictionaries({}, optional={"delta": DELTA, "message": DELTA, "finish_reason": ANYTHING})
CHUNK = st.fixed_dictionaries(
    {},
    optional={
        "id": ANYTHING,
        "choices": ANYTHING | st.lists(CHOICE, max_size=2),
        "usage": ANYTHING,
        "timings": ANYTHING,
    },
)


@pytest.mark.slow
@given(st.lists(CHUNK | ANYTHING, max_size=8), st.sampled_from(WAYS))
def test_no_chunk_however_odd_breaks_the_stream(chunks: list[Any], way: dict[str, Any]) -> None:
    checked(translated([sse(chunks)], **way))


@given(st.lists(st.binary(max_size=20) | st.sampled_from([b"data: ", b"\n\n", b"\r", b"error: {}", b"{"]), max_size=20))
def test_no_bytes_however_odd_break_the_stream(reads: list[bytes]) -> None:
    whole = translated([b"".join(reads)], **WAYS[0])
    checked(whole)
    assert translated(reads, **WAYS[0]) == whole
