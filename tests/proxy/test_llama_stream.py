"""What is asked of llama.cpp besides, and the stream without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.answer.assembler import AnswerAssembler
from specdash.proxy.answer.passthrough import ALL, PROGRESS, TIMINGS, Restorer, additions_to, fields_of, with_fields

if TYPE_CHECKING:
    from specdash.proxy.upstream.upstream import Body

T = b',"timings":{"cache_n":0,"prompt_n":3,"prompt_ms":0.5,"predicted_n":1}'
P = b',"prompt_progress":{"total":9,"cache":0,"processed":4,"time_ms":1}'
ROLE = b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"id":"c"'
TEXT = rb'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"a\"},\"timings\":{}\u00fc"}}],"id":"c"'
LAST = b'data: {"choices":[{"finish_reason":"stop","index":0,"delta":{}}],"id":"c"'
USAGE = b'data: {"choices":[],"id":"c","usage":{"prompt_tokens":9}'
END = b"}\n\n"
DONE = b"data: [DONE]\n\n"
ASKED = [ROLE + T + P, ROLE + T + P, ROLE + T, b":", TEXT + T, TEXT + T, LAST, USAGE + T]
PLAIN = [ROLE, b":", TEXT, TEXT, LAST, USAGE + T]


def stream(chunks: list[bytes]) -> bytes:
    return b"".join(chunk + (b"\n\n" if chunk == b":" else END) for chunk in chunks) + DONE


def restored(data: bytes, added: frozenset[str] = ALL, cuts: tuple[int, ...] = ()) -> tuple[bytes, AnswerAssembler]:
    restorer = Restorer(AnswerAssembler(), added)
    told = b""
    for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        told += restorer.feed(data[start:end])
    return told + restorer.close(), restorer.answer


def joined(body: Body) -> bytes:
    """The bytes that are sent."""
    return b"".join(body) if isinstance(body, tuple) else bytes(body)


class TestBodies:
    def test_members_are_added_behind_the_clients_own_bytes(self) -> None:
        body = b' { "a": 1.50, "b":[] }\n'
        sent = joined(with_fields(body, orjson.loads(body), fields_of(ALL)))
        assert sent == b' { "a": 1.50, "b":[] ,"timings_per_token":true,"return_progress":true}'

    def test_an_empty_object_gets_no_comma(self) -> None:
        assert joined(with_fields(b"{ }", {}, {"stream": True})) == b'{ "stream":true}'

    def test_a_member_that_is_there_is_replaced(self) -> None:
        body = b'{"stream": false, "b": 1}'
        assert with_fields(body, orjson.loads(body), {"stream": True}) == b'{"stream":true,"b":1}'

    def test_nothing_to_add_leaves_the_bytes(self) -> None:
        assert with_fields(b"{ }", {}, {}) == b"{ }"

    @pytest.mark.parametrize(
        ("chat", "added"),
        [
            ({}, ALL),
            ({"timings_per_token": None, "return_progress": False}, ALL),
            ({"timings_per_token": True}, frozenset({PROGRESS})),
            ({"return_progress": True}, frozenset({TIMINGS})),
            ({"stop": ["a"]}, frozenset({PROGRESS})),
            ({"messages": [{"role": "assistant"}]}, frozenset({TIMINGS})),
            ({"timings_per_token": 1}, None),
            ({"return_progress": "yes"}, None),
        ],
    )
    def test_only_what_the_client_did_not_ask_for_is_added(
        self, chat: dict[str, Any], added: frozenset[str] | None
    ) -> None:
        assert additions_to(chat) == added


class TestRestoring:
    @given(st.lists(st.integers(0, len(stream(ASKED))), max_size=12).map(sorted).map(tuple))
    def test_the_additions_are_gone_wherever_the_reads_were_cut(self, cuts: tuple[int, ...]) -> None:
        told, answer = restored(stream(ASKED), cuts=cuts)
        assert told == stream(PLAIN)
        assert (answer.text_chars, answer.prompt_total, answer.finish_reason) == (34, 9, "stop")

    def test_what_the_client_asked_for_stays(self) -> None:
        progress = [ROLE + P, ROLE, TEXT + T, LAST + T]
        told, _ = restored(stream(progress), frozenset({PROGRESS}))
        assert told == stream([ROLE, TEXT + T, LAST + T])
        timings = [ROLE + T + P, ROLE + T, TEXT + T, LAST + T]
        told, _ = restored(stream(timings), frozenset({TIMINGS}))
        assert told == stream([ROLE + P, ROLE, TEXT, LAST + T])

    def test_a_chunk_that_cannot_be_cut_is_written_anew(self) -> None:
        spaced = TEXT.replace(b'"id":"c"', b'"timings": {"a": {"b": 1}}, "id":"c"')
        nested = TEXT + b',"timings":{"a":{"b":1}}'
        for chunk in (spaced, nested):
            told, _ = restored(chunk + END)
            assert orjson.loads(told[6:]) == orjson.loads((TEXT + END)[6:])

    def test_a_role_that_came_only_with_the_progress_is_not_lost(self) -> None:
        told, _ = restored(stream([ROLE + T + P, TEXT + T, LAST + T]))
        assert told == stream([ROLE, TEXT, LAST + T])

    def test_what_is_not_understood_passes_as_it_is(self) -> None:
        odd = b"event: x\ndata: {}\n\ndata: {bad\n\ndata: [1]\n\n: c\n\nid: 3"
        assert restored(odd)[0] == odd
        returns = b'data: {"a":1,"timings":{}}\r\n\r\n'
        assert restored(returns * 3, cuts=(5, 40))[0] == returns * 3

    def test_silence_is_broken_while_progress_is_held_back(self) -> None:
        clock = [0.0]
        restorer = Restorer(AnswerAssembler(), ALL, ping_s=30, clock=lambda: clock[0])

        def told_at(seconds: float) -> bytes:
            clock[0] = seconds
            return restorer.feed(ROLE + T + P + END)

        told = [told_at(seconds) for seconds in (10.0, 29.0, 30.0, 59.0, 61.0)]
        assert told == [b"", b"", b":\n\n", b"", b":\n\n"]

    def test_an_error_before_anything_else_is_known_as_such(self) -> None:
        restorer = Restorer(AnswerAssembler(), ALL)
        restorer.feed(ROLE + P + END)
        restorer.feed(b'data: {"error":{"code":500,"message":"m"}}\n\n')
        assert restorer.first_error == {"code": 500, "message": "m"}

    def test_an_error_after_content_is_an_event(self) -> None:
        restorer = Restorer(AnswerAssembler(), ALL)
        restorer.feed(ROLE + END)
        error = b'data: {"error":{"code":500,"message":"m"}}\n\n'
        assert restorer.feed(error) == error
        assert restorer.first_error is None
