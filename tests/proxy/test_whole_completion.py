"""Whole answers made of streams."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from specdash.proxy.answer.assembler import AnswerAssembler
from specdash.proxy.answer.passthrough import WholeCompletion, streaming_fields

FULL = {
    "created": 5,
    "id": "chatcmpl-1",
    "model": "m",
    "system_fingerprint": "b1",
    "object": "chat.completion.chunk",
}
USAGE = {"completion_tokens": 4, "prompt_tokens": 9, "total_tokens": 13, "prompt_tokens_details": {"cached_tokens": 1}}


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"finish_reason": finish, "index": 0, "delta": delta}], **FULL, **more}


def whole(*chunks: dict[str, Any]) -> WholeCompletion:
    completion = WholeCompletion(AnswerAssembler())
    for entry in chunks:
        completion.chunk(entry)
    return completion


def usage(**more: Any) -> dict[str, Any]:
    return {"choices": [], **FULL, "usage": USAGE, "timings": {"predicted_n": 4}, **more}


def test_an_error_in_the_stream_is_the_answer() -> None:
    error = {"code": 503, "message": "m", "type": "unavailable_error"}
    completion = whole(chunk({"content": "a"}), {"error": error})
    assert completion.is_complete
    assert completion.response() == (503, msgspec.json.encode({"error": error}))


def test_a_stream_without_an_end_is_not_complete() -> None:
    assert not whole(chunk({"content": "a"})).is_complete


@pytest.mark.parametrize(
    ("chunks", "lacks"),
    [
        ([chunk({"content": "a"}), chunk({}, "length"), usage()], False),
        ([chunk({}, "length"), usage()], True),
        ([chunk({}, "stop"), usage()], True),
        ([chunk({}, "stop"), usage(usage={**USAGE, "completion_tokens": 1})], False),
        ([{"error": {"code": 500}}], False),
    ],
)
def test_an_empty_stream_may_hide_text(chunks: list[dict[str, Any]], *, lacks: bool) -> None:
    assert whole(*chunks).may_lack_text is lacks


class TestFields:
    @pytest.mark.parametrize("more", [{}, {"stream": False}, {"stream": None}, {"n": 1}, {"logprobs": False}])
    def test_a_stream_is_asked_for_with_everything_the_whole_has(self, more: dict[str, Any]) -> None:
        assert streaming_fields({"messages": [], **more}) == {
            "stream": True,
            "timings_per_token": True,
            "return_progress": True,
            "stream_options": {"include_usage": True},
        }

    @pytest.mark.parametrize(
        "more",
        [
            {"n": 2},
            {"n_cmpl": 2},
            {"logprobs": True},
            {"top_logprobs": 3},
            {"n_probs": 1},
            {"verbose": True},
            {"response_fields": ["content"]},
            {"reasoning_format": "deepseek-legacy"},
            {"messages": [{"role": "assistant", "content": "Sure"}]},
            {"stream": 0},
            {"stream": "no"},
            {"stream_options": 3},
            {"timings_per_token": "x"},
        ],
    )
    def test_what_a_stream_cannot_carry_is_asked_for_as_it_is(self, more: dict[str, Any]) -> None:
        assert streaming_fields(more) is None
