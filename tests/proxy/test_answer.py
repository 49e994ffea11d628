"""Any bytes of an upstream and any shape of its deltas come to the same few pieces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import astuple

from specdash.proxy.answer.assembler import AnswerAssembler, ChatDecoder
from specdash.proxy.answer.blocks import Arguments, Text, Thinking, ToolStart, Usage

if TYPE_CHECKING:
    from specdash.proxy.answer.blocks import Piece

NAMES = {Thinking: "thinking", Text: "text", ToolStart: "tool", Arguments: "arguments"}
Heard = list[tuple[Any, ...]]
WEATHER = '{"city":"Oslo"}'


def heard_of(pieces: list[Piece]) -> Heard:
    return [(NAMES[type(piece)], *astuple(piece)) for piece in pieces]


def delta(**fields: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-abc", "choices": [{"index": 0, "finish_reason": None, "delta": fields}]}


def call(index: int | None = None, id_: str | None = None, name: str | None = None, args: Any = None) -> dict[str, Any]:
    function = {"name": name, "arguments": args}
    entry = {"index": index, "id": id_, "function": {k: v for k, v in function.items() if v is not None}}
    return {k: v for k, v in entry.items() if v is not None}


def answered(*chunks: dict[str, Any]) -> tuple[AnswerAssembler, Heard]:
    answer = AnswerAssembler()
    pieces = [piece for chunk in chunks for piece in answer.chunk(chunk)]
    return answer, heard_of(pieces)


def calls_of(*deltas: list[dict[str, Any]]) -> tuple[list[tuple[str, str]], Heard]:
    """Name and arguments of each call, and the pieces without the ids."""
    answer, heard = answered(*(delta(tool_calls=row) for row in deltas))
    assert len({call.id for call in answer.tool_calls()}) == len(answer.tool_calls())
    calls = [(call.name, call.arguments) for call in answer.tool_calls()]
    return calls, [(*row[:2], *row[3:]) if row[0] == "tool" else row for row in heard]


def test_one_piece_for_each_delta_of_thinking_under_either_name_and_text() -> None:
    answer, heard = answered(
        delta(role="assistant", content=None),
        delta(reasoning_content="hm"),
        delta(reasoning="m", reasoning_content="m"),
        delta(reasoning="!"),
        delta(content="Hel"),
        delta(content="lo"),
    )
    assert heard == [("thinking", "hm"), ("thinking", "m"), ("thinking", "!"), ("text", "Hel"), ("text", "lo")]
    assert (answer.text(), answer.text_chars, answer.thinking_chars) == ("Hello", 5, 4)


def test_nothing_is_said_for_nulls_empty_strings_and_nonsense() -> None:
    nonsense: list[dict[str, Any]] = [
        {},
        {"choices": None},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{"delta": None}]},
        {"choices": "x", "usage": 3, "timings": [], "prompt_progress": "x", "error": None, "id": 4},
        delta(content=None, reasoning_content=None, tool_calls=None),
        delta(content="", reasoning_content="", tool_calls=[]),
        delta(content=5, reasoning={"x": 1}, tool_calls=[None, "x"]),
    ]
    answer, heard = answered(*nonsense)
    assert heard == []
    assert not answer.started
    assert answer.cost().usage == Usage()
    cost = answer.cost()
    assert (cost.prompt, cost.predicted, cost.draft, cost.prefill_ms) == (None, None, None, None)


def test_reasoning_under_either_name_is_heard_once() -> None:
    assert answered(delta(reasoning="hm"))[1] == [("thinking", "hm")]
    assert answered(delta(reasoning="hm", reasoning_content="hm"))[1] == [("thinking", "hm")]


def test_a_call_as_llama_cpp_streams_it() -> None:
    _, heard = calls_of([call(0, "Xy1", "weather", "")], [call(0, args='{"city"')], [call(0, args=':"Oslo"}')])
    assert heard == [
        ("tool", 0, "weather"),
        ("arguments", 0, '{"city"'),
        ("arguments", 0, ':"Oslo"}'),
    ]


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param(
            [[call(0, "a", "weather", "")], [call(0, args='{"city":')], [call(0, args='"Oslo"}')]], id="as llama.cpp"
        ),
        pytest.param([[call(0, "a", "weather", WEATHER)]], id="whole call in one chunk"),
        pytest.param(
            [
                [call(0, "a", "weather", '{"city":')],
                [call(0, "a", "weather", '"Oslo"}')],
                [call(0, "a", "weather", "")],
            ],
            id="name and id repeated",
        ),
        pytest.param(
            [[call(0, "a", "weather", '{"city":')], [call(0, None, "weather", '"Oslo"}')]], id="name repeated"
        ),
        pytest.param([[call(0, "a", "weather", None), call(0, args=WEATHER)]], id="one call twice in a chunk"),
        pytest.param([[call(0, "a", "weather", {"city": "Oslo"})]], id="an object instead of JSON"),
    ],
)
def test_one_call_in_any_shape_is_the_same_call(deltas: list[list[dict[str, Any]]]) -> None:
    calls, heard = calls_of(*deltas)
    assert calls == [("weather", WEATHER)]
    assert heard[0] == ("tool", 0, "weather")
    assert "".join(pair[2] for pair in heard[1:]) == WEATHER


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param([[call(0, "a", "f", "{}"), call(1, "b", "g", WEATHER)]], id="both in one chunk"),
        pytest.param(
            [[call(0, "a", "f"), call(1, "b", "g")], [call(1, args=WEATHER), call(0, args="{}")]], id="interleaved"
        ),
        pytest.param([[call(None, "a", "f", "{}"), call(None, "b", "g", WEATHER)]], id="no index"),
    ],
)
def test_two_calls_in_any_shape_are_two_calls(deltas: list[list[dict[str, Any]]]) -> None:
    calls, _ = calls_of(*deltas)
    assert calls == [("f", "{}"), ("g", WEATHER)]


@pytest.mark.parametrize("error", [{"code": 500, "message": "boom", "type": "server_error"}, {"message": "boom"}])
def test_an_error_in_the_stream_is_kept_and_the_first_one_counts(error: dict[str, Any]) -> None:
    answer, heard = answered(delta(content="so"), {"error": error}, {"error": "another"})
    assert answer.error == error
    assert heard == [("text", "so")]
    assert answered({"error": "boom"})[0].error == {"message": "boom"}


def test_progress_comes_before_there_is_content() -> None:
    for processed in (10, 30):
        progress = {"total": 42, "cache": 10, "processed": processed, "time_ms": 5}
        answer, _ = answered(delta(role="assistant", content=None) | {"prompt_progress": progress})
        cost = answer.cost()
        assert (cost.prompt, cost.prompt_done, cost.cached, answer.started) == (42, processed, 10, False)


def test_usage_comes_from_the_best_source_so_far() -> None:
    answer, _ = answered(delta(content="a"), delta(content="b"))
    assert answer.cost().usage == Usage(0, 0, 2)
    answer.chunk(delta(content="c") | {"timings": {"cache_n": 30, "prompt_n": 12, "predicted_n": 5}})
    assert answer.cost().usage == Usage(42, 30, 5)
    details = {"prompt_tokens_details": {"cached_tokens": 31}}
    answer.chunk({"choices": [], "usage": {"prompt_tokens": 42, "completion_tokens": 6, **details}})
    assert answer.cost().usage == Usage(42, 31, 6)


def test_a_real_llama_cpp_stream_with_timings_and_progress() -> None:
    answer, decoder = AnswerAssembler(), ChatDecoder()
    body = (Path(__file__).parent.parent / "data" / "http" / "chat_sse_timings_progress.txt").read_bytes()
    pieces = [piece for chunk in decoder.feed(body) for piece in answer.chunk(chunk)]
    assert decoder.done
    assert answer.text() == " and verifies them in one batch by means of large target whose"
    assert len(pieces) == 12
    assert answer.finish_reason == "length"
    assert answer.cost().usage == Usage(42, 0, 12)
    cost = answer.cost()
    assert (cost.prompt, cost.prompt_done, cost.cached, cost.predicted) == (42, 42, 0, 12)
    assert (cost.draft, cost.accepted, cost.prefill_ms, cost.decode_ms) == (11, 9, 6.793, 7.398)


def decoded(*reads: bytes) -> list[dict[str, Any]]:
    decoder = ChatDecoder()
    return [chunk for read in reads for chunk in decoder.feed(read)]


@pytest.mark.parametrize(
    "body",
    [
        b'data: {"a":1}\r\n\r\ndata: {"a":2}\r\n\r\n',
        b'data:{"a":1}\n\ndata:{"a":2}\n\n',
        b': waiting\n\ndata: {"a":1}\n\n: still\n: waiting\ndata: {"a":2}\n\n',
        b'\n\n\ndata: {"a":1}\n\n\n\n\ndata: {"a":2}\n\n',
        b'event: message\nid: 7\nretry: 9\ndata: {"a":1}\n\ndata: {"a":2}\n\n',
        b'data: {"a":1}\n\ndata:\n\ndata: {"a":2}\n\n',
        b'data: {"a":1}\r\n\r\nevent: message\r\ndata: {"a":2}\r\n\r\n',
    ],
)
def test_every_framing_the_format_allows_is_read_at_any_split(body: bytes) -> None:
    for cut in range(len(body) + 1):
        assert decoded(body[:cut], body[cut:]) == [{"a": 1}, {"a": 2}]
    assert decoded(*(body[at : at + 1] for at in range(len(body)))) == [{"a": 1}, {"a": 2}]


def test_an_upstream_error_is_a_chunk() -> None:
    error = {"error": {"code": 500, "message": "boom", "type": "server_error"}}
    assert decoded(b'data: {"error":{"code":500,"message":"boom","type":"server_error"}}\n\n') == [error]


@pytest.mark.parametrize("stray", [b"hello", b"{not json}", b"[1,2]", b'"text"', b"12"])
def test_a_stray_event_is_an_error_chunk_and_the_rest_is_still_read(stray: bytes) -> None:
    first, second = decoded(b"data: " + stray + b'\n\ndata: {"a":1}\n\n')
    assert first["error"]["type"] == "api_error"
    assert stray.decode() in first["error"]["message"]
    assert second == {"a": 1}


def test_nothing_counts_behind_the_done_mark_nor_a_torn_event() -> None:
    assert decoded(b'data: {"a":1}\n\ndata: [DONE]\n\ndata: {"a":2}\n\n') == [{"a": 1}]
    assert decoded(b'data: {"a":1}\n\ndata: {"a"') == [{"a": 1}]
