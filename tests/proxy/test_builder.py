"""A whole answer as the Messages API shows it. That it equals the stream is a property in test_sse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdash.proxy.answer.blocks import Arguments, MessageBuilder, Text, Thinking, ToolStart, signature_of

if TYPE_CHECKING:
    from specdash.proxy.answer.blocks import Piece


def built(*pieces: Piece) -> MessageBuilder:
    builder = MessageBuilder()
    for piece in pieces:
        builder.add(piece)
    return builder


def test_pieces_of_a_kind_in_a_row_are_one_block() -> None:
    builder = built(
        *map(Thinking, "hm"),
        *(Text(piece) for piece in ("s", "", "o")),
        ToolStart(0, "toolu_0", "f"),
        ToolStart(1, "toolu_1", "g"),
        Arguments(1, '{"b":2}'),
        Arguments(0, '{"a":'),
        Arguments(0, "1}"),
        Text("end"),
    )
    assert builder.content() == [
        {"type": "thinking", "thinking": "hm", "signature": signature_of("hm")},
        {"type": "text", "text": "so"},
        {"type": "tool_use", "id": "toolu_0", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "toolu_1", "name": "g", "input": {"b": 2}},
        {"type": "text", "text": "end"},
    ]
    assert builder.has_calls


@pytest.mark.parametrize("arguments", ["", "[1]", '"x"', "null", '{"a":', "{} x"])
def test_an_input_that_is_not_an_object_is_an_empty_one(arguments: str) -> None:
    assert built(ToolStart(0, "toolu_0", "f"), Arguments(0, arguments)).content()[0]["input"] == {}


def test_an_empty_answer_has_no_blocks() -> None:
    assert MessageBuilder().content() == []
    assert not MessageBuilder().has_calls


def test_a_block_comes_out_in_one_piece() -> None:
    builder = built(*map(Text, "abc"), ToolStart(5, "toolu_5", "f"), Arguments(5, "{"), Arguments(5, "}"))
    assert list(builder.pieces()) == [Text("abc"), ToolStart(5, "toolu_5", "f"), Arguments(5, "{}")]
