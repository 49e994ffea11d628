"""A whole answer as the Messages API shows it. That it equals the stream is a property in test_sse."""

from __future__ import annotations

import pytest

from specdash.proxy.answer.blocks import MessageBuilder, SseWriter, ToolCall, Usage, signature_of


def test_pieces_of_a_kind_in_a_row_are_one_block() -> None:
    builder = MessageBuilder()
    for piece in ("h", "m"):
        builder.thinking(piece)
    for piece in ("s", "", "o"):
        builder.text(piece)
    builder.tool(0, "toolu_0", "f")
    builder.tool(1, "toolu_1", "g")
    builder.arguments(1, '{"b":2}')
    builder.arguments(0, '{"a":')
    builder.arguments(0, "1}")
    builder.text("end")
    assert builder.content() == [
        {"type": "thinking", "thinking": "hm", "signature": signature_of("hm")},
        {"type": "text", "text": "so"},
        {"type": "tool_use", "id": "toolu_0", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "toolu_1", "name": "g", "input": {"b": 2}},
        {"type": "text", "text": "end"},
    ]
    assert builder.tool_calls() == [ToolCall("toolu_0", "f", '{"a":1}'), ToolCall("toolu_1", "g", '{"b":2}')]


@pytest.mark.parametrize("arguments", ["", "[1]", '"x"', "null", '{"a":', "{} x"])
def test_an_input_that_is_not_an_object_is_an_empty_one(arguments: str) -> None:
    builder = MessageBuilder()
    builder.tool(0, "toolu_0", "f")
    builder.arguments(0, arguments)
    assert builder.content()[0]["input"] == {}
    assert builder.tool_calls()[0].arguments == arguments


def test_an_empty_answer_has_no_blocks() -> None:
    assert MessageBuilder().content() == []


def test_a_replay_is_one_delta_for_each_block() -> None:
    builder = MessageBuilder()
    for piece in "abc":
        builder.text(piece)
    builder.tool(5, "toolu_5", "f")
    for piece in ("{", "}"):
        builder.arguments(5, piece)
    writer = SseWriter()
    writer.start("msg_1", "m", Usage())
    builder.replay(writer)
    writer.finish("tool_use", None, Usage())
    assert writer.take().count(b"event: content_block_delta") == 2
