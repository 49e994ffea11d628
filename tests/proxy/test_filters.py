"""Each filter changes its one thing and passes everything else as it came."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.answer.blocks import Filter, MessageBuilder
from specdash.proxy.answer.filters import PrefillEcho, ThinkingGate, stop_reason_of
from support.recording_sink import RecordingSink


def cut(text: str, at: list[int]) -> list[str]:
    marks = sorted({0, len(text), *(number % (len(text) + 1) for number in at)})
    return [text[a:b] for a, b in itertools.pairwise(marks)]


def without_echo(prefill: str, pieces: list[str]) -> str:
    sink = RecordingSink()
    echo = PrefillEcho(prefill, sink)
    for piece in pieces:
        echo.text(piece)
    echo.flush()
    return sink.all_text


CUTS = st.lists(st.integers(0, 50), max_size=5)
WORDS = st.text("ab {\n", max_size=8)


@given(WORDS, WORDS, CUTS)
def test_the_prefill_is_taken_off_exactly(prefill: str, rest: str, at: list[int]) -> None:
    if prefill.strip():
        assert without_echo(prefill, cut(prefill + rest, at)) == rest


@given(WORDS, WORDS, CUTS)
def test_how_the_text_is_cut_makes_no_difference(prefill: str, text: str, at: list[int]) -> None:
    assert without_echo(prefill, cut(text, at)) == without_echo(prefill, [text])


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
    assert without_echo(prefill, list(text)) == left


def test_an_echo_is_taken_off_once() -> None:
    assert without_echo("ab", ["ab", "ab", "ab"]) == "abab"


def test_text_after_the_echo_passes_piece_for_piece() -> None:
    sink = RecordingSink()
    echo = PrefillEcho("ab", sink)
    for piece in ("a", "bc", "d", "e"):
        echo.text(piece)
    assert sink.texts == ["c", "d", "e"]


def test_a_tool_call_comes_after_text_that_was_held_as_an_echo() -> None:
    sink = MessageBuilder()
    echo = PrefillEcho("abc", sink)
    echo.thinking("hm")
    echo.text("ab")
    echo.tool(0, "toolu_0", "f")
    echo.arguments(0, "{}")
    assert [entry["type"] for entry in sink.content()] == ["thinking", "text", "tool_use"]


@pytest.mark.parametrize(("wanted", "shown", "held"), [(True, "hm", ""), (False, None, "hm")])
def test_thinking_goes_to_those_who_want_it(wanted: bool, shown: str | None, held: str) -> None:
    sink = RecordingSink()
    gate = ThinkingGate(wanted, sink)
    gate.thinking("h")
    gate.thinking("m")
    gate.text("so")
    assert gate.held == held
    assert "".join(text for kind, text in sink.pieces if kind == "thinking") == (shown or "")
    assert sink.all_text == "so"


def test_a_plain_filter_changes_nothing() -> None:
    direct, through = MessageBuilder(), MessageBuilder()
    for sink in (direct, Filter(through)):
        sink.thinking("hm")
        sink.text("so")
        sink.tool(0, "toolu_0", "f")
        sink.arguments(0, "{}")
    assert through.content() == direct.content()


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
