"""A stop ends the text exactly where it begins, however the text is cut into pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import example, given
from hypothesis import strategies as st

from specdash.proxy.answer.blocks import PAUSE, Arguments, Text, Thinking, ToolStart
from specdash.proxy.answer.filters import until_stop
from support.pieces import content_of, text_of, texts, through

if TYPE_CHECKING:
    from specdash.proxy.answer.blocks import Piece
    from specdash.proxy.answer.filters import Attempt

ALPHABET = "a\U0001f9ea"
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=4)


def run(stops: list[str], pieces: list[str]) -> tuple[list[Piece], Attempt]:
    return through(lambda source, attempt: until_stop(source, attempt, stops), texts(*pieces))


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
    passed, attempt = run(stops, pieces)
    assert (text_of(passed), attempt.stop_text) == expected(stops, "".join(pieces))


@given(STOPS, st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=12))
def test_only_what_may_become_a_stop_is_held_back(stops: list[str], pieces: list[str]) -> None:
    """Seen at each pause: what has come and is not out begins a stop."""
    sent: list[Piece] = [step for piece in pieces for step in (Text(piece), PAUSE)]
    passed, attempt = through(lambda source, found: until_stop(source, found, stops), sent)
    come, out, at = "", "", 0
    for piece in passed:
        if piece is PAUSE:
            come, at = come + pieces[at], at + 1
            held = come[len(out) :]
            assert not held or any(stop.startswith(held) for stop in stops)
        else:
            out += text_of([piece])
    assert at == len(pieces) or attempt.is_cut


@given(st.lists(st.text("cde", min_size=1), max_size=12))
def test_text_that_holds_no_beginning_of_a_stop_passes_piece_for_piece(pieces: list[str]) -> None:
    assert run(["aa", "b]^\\-"], pieces)[0] == texts(*pieces)


CALL: list[Piece] = [ToolStart(0, "toolu_0", "f"), Arguments(0, '{"STOP":1}')]


def test_a_tool_call_and_thinking_come_after_the_text_held_before_them() -> None:
    sent = [Text("aST"), Thinking("hm"), Text("bSTO"), *CALL, Text("P")]
    passed, attempt = through(lambda source, found: until_stop(source, found, ["STOP"]), sent)
    found = [block.get("text", block["type"]) for block in content_of(passed)]
    assert found == ["aST", "thinking", "bSTO", "tool_use", "P"]
    assert attempt.stop_text is None


def test_a_shorter_stop_inside_the_held_text_ends_it_when_the_text_ends() -> None:
    passed, attempt = through(lambda source, found: until_stop(source, found, ["abcd", "bc"]), [Text("xabc"), *CALL])
    assert attempt.stop_text == "bc"
    assert content_of(passed) == [{"type": "text", "text": "xa"}]
