"""Each filter changes its one thing and passes everything else as it came."""

from __future__ import annotations

import base64
import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specdash.proxy.answer.blocks import END, PAUSE, Arguments, Text, Thinking, ToolStart
from specdash.proxy.answer.filters import (
    stop_reason_of,
    until_repeated,
    until_stop,
    with_allowed_calls,
    without_echo,
)
from support.pieces import content_of, text_of, texts, through

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


QUOTING: list[Piece] = [ToolStart(0, "toolu_0", "f"), Arguments(0, '{"STOP":1}')]


def test_a_tool_call_and_thinking_come_after_the_text_held_before_them() -> None:
    sent = [Text("aST"), Thinking("hm"), Text("bSTO"), *QUOTING, Text("P")]
    passed, attempt = through(lambda source, found: until_stop(source, found, ["STOP"]), sent)
    found = [block.get("text", block["type"]) for block in content_of(passed)]
    assert found == ["aST", "thinking", "bSTO", "tool_use", "P"]
    assert attempt.stop_text is None
    passed, attempt = through(lambda source, found: until_stop(source, found, ["abcd", "bc"]), [Text("xabc"), *QUOTING])
    assert (attempt.stop_text, content_of(passed)) == ("bc", [{"type": "text", "text": "xa"}])


SENTENCE = "I need to check the file again. "


def passed(pieces: list[str]) -> tuple[int, bool]:
    """How many characters pass, and whether the rest was cut."""
    out, attempt = through(until_repeated, texts(*pieces))
    return len(text_of(out)), attempt.has_repeated


def tripped(text: str, size: int = 5) -> bool:
    return passed([text[at : at + size] for at in range(0, len(text), size)])[1]


ENDLESS = [
    SENTENCE * 1500,
    "a" * 20_000 + SENTENCE * 120,
    "".join(f"step {number} is done, " for number in range(25)) * 30,
    "的文件再检查一次。" * 1200,
    "再检查文件。\n" * 1500,
    "</parameter>\n</function>\nyou must call a tool\n" * 300,
    "0, " * 4000,
    "!" * 11_000,
    "INSERT INTO orders (id, state) VALUES (DEFAULT, 'pending');\n" * 200,
    "```python\nx = 1\n```\n" + "So I will read the file once more.\n" * 400,
]
HEALTHY = [
    "=" * 3000 + "\n" + "-" * 3000,
    "0, " * 3000,
    base64.b64encode(random.Random(1).randbytes(20_000)).decode(),
    SENTENCE * 300,
    "INSERT INTO orders (id, state) VALUES (DEFAULT, 'pending');\n" * 160,
    "```text\n" + "All work and no play makes Jack a dull boy.\n" * 200 + "```\n",
    "".join(f"{SENTENCE}({number})\n" for number in range(1000)),
    ("        self.count += 1\n        self.update()\n" * 30 + "    def other(self):\n") * 2,
    "".join(random.Random(2).choices("abcde ", k=60_000)),
]


@pytest.mark.parametrize("text", ENDLESS, ids=lambda text: text[:20])
def test_endless_repetition_is_noticed(text: str) -> None:
    assert tripped(text)
    assert tripped(text, size=100_000)


@pytest.mark.parametrize("text", HEALTHY, ids=lambda text: text[:20])
def test_regular_text_is_left_alone(text: str) -> None:
    assert not tripped(text)
    assert not tripped(text, size=100_000)


def test_it_is_noticed_soon_after_the_limit_and_a_unit_of_more_than_five_hundred_characters_is_none() -> None:
    assert passed([SENTENCE] * 1000) == (10_240, True), "the first whole block of 256 behind the limit"
    assert tripped("".join(random.Random(3).choices("abcdefghij klm", k=500)) * 40)
    assert not tripped("".join(random.Random(3).choices("abcdefghij klm", k=501)) * 40)


@given(st.lists(st.integers(1, 700), min_size=1, max_size=40), st.sampled_from([0, 1, 37, 500]))
def test_fragments_do_not_decide_whether_it_trips(sizes: list[int], offset: int) -> None:
    text = "x" * offset + SENTENCE * 400
    pieces: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    assert passed([text])[1]
    assert passed(pieces)[1]
