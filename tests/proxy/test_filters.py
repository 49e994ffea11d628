"""Each filter changes its one thing and passes everything else as it came."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.answer.blocks import END, Arguments, Text, Thinking, ToolStart
from specdash.proxy.answer.filters import (
    stop_reason_of,
    until_repeated,
    with_allowed_calls,
    without_echo,
)
from support.pieces import text_of, texts, through

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.proxy.answer.blocks import Piece
    from specdash.proxy.answer.filters import Attempt, Pieces


def cut(text: str, at: list[int]) -> list[str]:
    marks = sorted({0, len(text), *(number % (len(text) + 1) for number in at)})
    return [text[a:b] for a, b in itertools.pairwise(marks)]


def echo_free(prefill: str, pieces: list[str]) -> str:
    return text_of(through(lambda source, _: without_echo(source, prefill), texts(*pieces))[0])


CUTS = st.lists(st.integers(0, 50), max_size=5)
WORDS = st.text("ab {\n", max_size=8)


@given(WORDS, WORDS, CUTS)
def test_the_prefill_is_taken_off_exactly(prefill: str, rest: str, at: list[int]) -> None:
    if prefill.strip():
        assert echo_free(prefill, cut(prefill + rest, at)) == rest


@given(WORDS, WORDS, CUTS)
def test_how_the_text_is_cut_makes_no_difference(prefill: str, text: str, at: list[int]) -> None:
    assert echo_free(prefill, cut(text, at)) == echo_free(prefill, [text])


@pytest.mark.parametrize(
    ("prefill", "text", "left"),
    [
        ("abc \n", "abcdef", "def"),
        ("abc \n", "abc def", "def"),
        ("abc \n", "abc", ""),
        ("abc", "abc def", " def"),
        ("abc", "abd", "abd"),
        ("abc", "ab", "ab"),
        ("abc", "xabc", "xabc"),
        ("", "abc", "abc"),
        (" \n", " \nabc", " \nabc"),
        ("{", "{", ""),
    ],
)
def test_an_echo_may_lack_white_space_at_its_end_and_what_is_no_echo_passes(prefill: str, text: str, left: str) -> None:
    assert echo_free(prefill, list(text)) == left


CALL: list[Piece] = [ToolStart(0, "toolu_0", "f"), Arguments(0, "{}")]


def test_a_tool_call_comes_after_text_that_was_held_as_an_echo() -> None:
    passed, _ = through(lambda source, _: without_echo(source, "abc"), [Thinking("hm"), Text("ab"), *CALL])
    assert passed == [Thinking("hm"), Text("ab"), *CALL]


def test_the_repetition_ends_the_answer_and_calls_are_not_watched() -> None:
    sent = [Thinking("First some thought. "), *CALL, *texts(*["I need to check the file again. "] * 1500)]
    passed, attempt = through(until_repeated, sent)
    assert attempt.has_repeated
    assert 10_000 <= len(text_of(passed)) <= 10_600
    reasoned, attempt = through(until_repeated, [Thinking("hm, ")] * 9000)
    assert attempt.has_repeated
    assert len(reasoned) < 2700


SECOND: list[Piece] = [ToolStart(1, "toolu_1", "g"), Arguments(1, "{}")]


@pytest.mark.parametrize(
    ("names", "limit", "passed"),
    [
        (None, None, [*CALL, *SECOND, Text("x")]),
        ({"g"}, None, [*SECOND, Text("x")]),
        (None, 1, CALL),
        ({"g"}, 1, [*SECOND, Text("x")]),
        (None, 0, []),
    ],
)
def test_calls_pass_up_to_the_limit_and_only_of_offered_tools(
    names: set[str] | None, limit: int | None, passed: list[Piece]
) -> None:
    def make(source: Pieces, attempt: Attempt) -> Pieces:
        attempt.limit = limit
        return with_allowed_calls(source, attempt, names)

    assert through_cut(make, [*CALL, *SECOND, Text("x")]) == passed


def through_cut(make: Callable[[Any, Attempt], Pieces], sent: list[Piece]) -> list[Piece]:
    """Like `through`, for a filter behind which nothing waits for an end."""
    return through(lambda source, attempt: with_end(make(source, attempt)), sent)[0]


async def with_end(source: Pieces) -> Pieces:
    async for piece in source:
        if piece is not END:
            yield piece
    yield END


@pytest.mark.parametrize(
    ("finish_reason", "has_calls", "stop_text", "reason"),
    [
        ("stop", False, None, "end_turn"),
        ("stop", False, "END", "stop_sequence"),
        ("length", False, None, "max_tokens"),
        ("length", False, "END", "stop_sequence"),
        ("length", True, None, "max_tokens"),
        ("tool_calls", True, None, "tool_use"),
        ("stop", True, None, "tool_use"),
        (None, True, "END", "tool_use"),
        ("tool_calls", False, None, "end_turn"),
        ("content_filter", False, None, "refusal"),
        ("content_filter", True, None, "refusal"),
        (None, False, None, "end_turn"),
        (None, False, "END", "stop_sequence"),
        ("something_new", False, None, "end_turn"),
    ],
)
def test_the_stop_reason_of_every_end(
    finish_reason: str | None, has_calls: bool, stop_text: str | None, reason: str
) -> None:
    assert stop_reason_of(finish_reason, has_calls, stop_text) == reason
