"""A stop ends the text exactly where it begins, however the text is cut into pieces."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from specdash.proxy.answer.blocks import MessageBuilder
from specdash.proxy.answer.filters import StopSequences
from support.recording_sink import RecordingSink

ALPHABET = "a\U0001f9ea"
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=4)


def run(stops: list[str], pieces: list[str]) -> tuple[StopSequences, RecordingSink]:
    sink = RecordingSink()
    search = StopSequences(stops, sink)
    for piece in pieces:
        search.text(piece)
    search.flush()
    return search, sink


def expected(stops: list[str], text: str) -> tuple[str, str | None]:
    found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    at, _, stop = min(found)
    return text[:at], stop


@given(STOPS, st.lists(st.text(ALPHABET, max_size=5), max_size=12))
@example(["abcd", "bc"], ["xabc", "d"])
@example(["abcd", "bc"], ["xabc", "e"])
@example(["abc", "ab"], ["xabc"])
def test_the_text_ends_before_the_stop_that_begins_earliest(stops: list[str], pieces: list[str]) -> None:
    search, sink = run(stops, pieces)
    assert (sink.all_text, search.matched) == expected(stops, "".join(pieces))


@given(STOPS, st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=12))
def test_only_what_may_become_a_stop_is_held_back(stops: list[str], pieces: list[str]) -> None:
    sink = RecordingSink()
    search = StopSequences(stops, sink)
    said = ""
    for piece in pieces:
        said += piece
        search.text(piece)
        if search.matched is not None:
            break
        held = said[len(sink.all_text) :]
        assert not held or any(stop.startswith(held) for stop in stops)


@given(st.lists(st.text("cde", min_size=1), max_size=12))
def test_text_that_holds_no_beginning_of_a_stop_passes_piece_for_piece(pieces: list[str]) -> None:
    assert run(["aa", "b]^\\-"], pieces)[1].texts == pieces


def test_every_character_that_means_something_in_a_pattern_is_only_a_character() -> None:
    for character in "]^\\-[.*+?{}()|$#& ":
        search, sink = run([character * 2], ["x" + character, character + "y"])
        assert (sink.all_text, search.matched) == ("x", character * 2)


def test_nothing_passes_after_the_match_and_it_is_told_once() -> None:
    told: list[Any] = []
    sink = MessageBuilder()
    search = StopSequences(["STOP"], sink, lambda: told.append(search.matched))
    for piece in ("a", "ST", "OP b STOP"):
        search.text(piece)
    search.thinking("x")
    search.tool(0, "toolu_0", "f")
    search.arguments(0, "{}")
    search.flush()
    assert sink.content() == [{"type": "text", "text": "a"}]
    assert told == ["STOP"]


def test_a_tool_call_and_thinking_come_after_the_text_held_before_them() -> None:
    sink = MessageBuilder()
    search = StopSequences(["STOP"], sink)
    search.text("aST")
    search.thinking("hm")
    search.text("bSTO")
    search.tool(0, "toolu_0", "f")
    search.arguments(0, '{"STOP":1}')
    search.text("P")
    search.flush()
    assert [entry.get("text", entry["type"]) for entry in sink.content()] == [
        "aST",
        "thinking",
        "bSTO",
        "tool_use",
        "P",
    ]
    assert search.matched is None


def test_a_shorter_stop_inside_the_held_text_ends_it_when_the_text_ends() -> None:
    sink = MessageBuilder()
    search = StopSequences(["abcd", "bc"], sink)
    search.text("xabc")
    search.tool(0, "toolu_0", "f")
    search.arguments(0, "{}")
    assert search.matched == "bc"
    assert sink.content() == [{"type": "text", "text": "xa"}]
