"""Any pieces make a Messages stream that keeps its grammar and has the same as the whole answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.answer.blocks import (
    Arguments,
    MessageBuilder,
    SseWriter,
    Text,
    Thinking,
    ToolStart,
    Usage,
)
from specdash.proxy.http.responses import ApiError
from support.anthropic_stream import checked

if TYPE_CHECKING:
    from specdash.proxy.answer.blocks import BlockOrder

Given = tuple[Any, ...]

TEXTS = st.sampled_from(["", "a", "b\n\ndata: x", "\u2028", "\U0001f9ea", "e\u0301", "\u05d0", '"\\'])
PIECES = st.sampled_from(["", "{", "}", "{}", '{"a":1}', '"a":', "1", " ", "\n", '"\\ud83e\\uddea"', "x"])
TELLING = st.one_of(
    st.tuples(st.just("text"), TEXTS),
    st.tuples(st.just("thinking"), TEXTS),
    st.tuples(st.just("tool"), st.integers(0, 3)),
    st.tuples(st.just("arguments"), st.integers(0, 3), PIECES),
    st.tuples(st.just("ping")),
)


PIECE: dict[str, Any] = {"text": Text, "thinking": Thinking, "arguments": Arguments}


def tool(index: int) -> ToolStart:
    return ToolStart(index, f"toolu_{index}", f"tool{index}")


def tell(order: BlockOrder, given_pieces: list[Given]) -> None:
    """Add it as far as it is allowed: a call begins once, and its arguments follow it."""
    begun: set[int] = set()
    last = None
    for kind, *values in given_pieces:
        if kind == "ping":
            if isinstance(order, SseWriter):
                order.ping()
        elif kind == "tool":
            if values[0] not in begun:
                begun.add(values[0])
                last = values[0]
                order.add(tool(last))
        elif kind != "arguments" or values[0] == last:
            last = None if values[0] and kind != "arguments" else last
            order.add(PIECE[kind](*values))


def begun_writer() -> SseWriter:
    writer = SseWriter()
    writer.start("msg_1", "m", Usage(10, 4, 0))
    return writer


def written(given_pieces: list[Given]) -> bytes:
    writer = begun_writer()
    tell(writer, given_pieces)
    writer.finish("max_tokens", None, Usage(10, 4, 3))
    return writer.take()


def content_of(body: bytes) -> list[dict[str, Any]]:
    """Blocks as a client accumulates them, an input that is not an object being {} as in a whole answer."""
    blocks = checked(body).content
    return [
        block | {"input": block["input"] if type(block["input"]) is dict else {}} if "input" in block else block
        for block in blocks
    ]


@given(st.lists(TELLING, max_size=25))
def test_any_answer_is_a_valid_stream_that_adds_up_to_the_whole_answer(given_pieces: list[Given]) -> None:
    builder = MessageBuilder()
    tell(builder, given_pieces)
    assert content_of(written(given_pieces)) == builder.content()


@given(st.lists(TELLING, max_size=25))
def test_a_replayed_answer_is_the_same_answer(given_pieces: list[Given]) -> None:
    builder, again = MessageBuilder(), MessageBuilder()
    tell(builder, given_pieces)
    for piece in builder.pieces():
        again.add(piece)
    assert again.content() == builder.content()


@given(st.lists(TELLING, max_size=25), st.integers(0, 25))
def test_an_error_ends_a_valid_stream_anywhere(given_pieces: list[Given], at: int) -> None:
    writer = begun_writer()
    tell(writer, given_pieces[:at])
    writer.error(ApiError(529, "gone").envelope("req_1"))
    found = checked(writer.take())
    assert found.error == {"type": "overloaded_error", "message": "gone"}
    assert writer.finished


def events(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(frame.split("\ndata: ", 1)[1]) for frame in body.decode().split("\n\n") if frame]


def test_each_piece_is_a_frame_of_its_own_and_leaves_at_once() -> None:
    writer = begun_writer()
    for kind in ("thinking", "text"):
        for piece in "abc":
            writer.take()
            writer.add(PIECE[kind](piece))
            assert events(writer.take())[-1]["delta"] == {"type": f"{kind}_delta", kind: piece}
    writer.add(tool(0))
    for piece in '{"a":1}':
        writer.take()
        writer.add(Arguments(0, piece))
        assert events(writer.take()) == [
            {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": piece}}
        ]


def test_arguments_of_a_call_that_has_ended_are_an_error_of_the_upstream() -> None:
    for order in (begun_writer(), MessageBuilder()):
        tell(order, [("tool", 0), ("arguments", 0, '{"a":'), ("tool", 1)])
        with pytest.raises(ApiError, match="after another has begun"):
            order.add(Arguments(0, "1}"))
