"""The client's bytes are a function of the upstream's bytes: where the network cut them makes no difference."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.answer.assembler import ChatDecoder
from specdash.proxy.answer.blocks import END, SseWriter, Usage
from specdash.proxy.answer.filters import Attempt, filtered, stop_reason_of
from specdash.proxy.answer.turn import PreparedRequest
from specdash.proxy.settings import settings_from_env
from specdash.proxy.translate.parse import MessagesRequest
from specdash.proxy.upstream.upstream import stream_error
from support.anthropic_stream import checked

if TYPE_CHECKING:
    from specdash.proxy.answer.filters import Pieces


def translated(reads: list[bytes], *, stops: list[str], prefill: str, thinking: bool) -> bytes:
    """The stream core as a turn strings it together."""
    writer = SseWriter()
    writer.start("msg_1", "m", Usage())
    attempt = Attempt()
    answer = attempt.answer

    async def source() -> Pieces:
        decoder = ChatDecoder()
        for chunk in itertools.chain(*(decoder.feed(read) for read in reads), decoder.close()):
            for piece in answer.chunk(chunk):
                yield piece
                if attempt.is_cut:
                    return
        yield END

    async def run() -> None:
        request = MessagesRequest("m", (), 100, stop_sequences=tuple(stops))
        prepared = PreparedRequest(request, {}, 0, prefill, ())
        async for piece in filtered(source(), attempt, prepared, settings_from_env({}), thinking=thinking):
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


@given(st.lists(st.binary(max_size=20) | st.sampled_from([b"data: ", b"\n\n", b"\r", b"error: {}", b"{"]), max_size=20))
def test_no_bytes_however_odd_break_the_stream(reads: list[bytes]) -> None:
    whole = translated([b"".join(reads)], **WAYS[0])
    checked(whole)
    assert translated(reads, **WAYS[0]) == whole
