"""Whether answers become empty once their prompt comes from the cache: what the calls show together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.bench.repro_empty import (
    NONCE_LENGTH,
    CallPair,
    ReproOutcome,
    ReproReply,
    calls,
    judge,
    messages,
    tool_result,
)
from specdash.core.errors import ExitCode

GOOD = ReproReply(content_chars=20, completion_tokens=5, prompt_tokens=100, cached_tokens=0, ttft_s=0.2, wall_s=0.4)
WARM = replace(GOOD, cached_tokens=90, ttft_s=0.02)
EMPTY = ReproReply(completion_tokens=0, prompt_tokens=100, cached_tokens=90, wall_s=9.7, finish="stop")
FAILED = ReproReply(error="HTTP 500: Compute error.")
GONE = ReproReply(error="nothing listens there any more", gone=True)


def pairs(*sides: tuple[ReproReply | None, ReproReply | None]) -> tuple[CallPair, ...]:
    return tuple(CallPair(number + 1, 100 * number, None, off, on) for number, (off, on) in enumerate(sides))


replies = st.builds(
    ReproReply,
    content_chars=st.sampled_from((0, 0, 7)),
    reasoning_chars=st.sampled_from((0, 0, 7)),
    tool_calls=st.sampled_from((0, 0, 1)),
    completion_tokens=st.sampled_from((None, 0, 5)),
    cached_tokens=st.sampled_from((None, 0, 90)),
    wall_s=st.floats(0, 100),
    error=st.sampled_from((None, None, None, "HTTP 500")),
)


BLIND = replace(GOOD, cached_tokens=None)


@pytest.mark.parametrize(
    ("reply", "how"),
    [
        (replace(EMPTY, content_chars=1), ""),
        (replace(EMPTY, reasoning_chars=1), ""),
        (replace(EMPTY, tool_calls=1), ""),
        (FAILED, ""),
        (EMPTY, "no tokens"),
        (replace(EMPTY, completion_tokens=3), "nothing but white space or special tokens"),
        (replace(EMPTY, wall_s=0.012), "no tokens, within 12 ms"),
    ],
)
def test_only_what_says_nothing_is_empty_and_how_is_told(reply: ReproReply, how: str) -> None:
    assert (reply.is_empty, reply.how_empty) == (bool(how), how)


class TestJudgement:
    @pytest.mark.parametrize(
        ("sides", "outcome", "code", "words"),
        [
            (((GOOD, WARM), (GOOD, EMPTY), (GOOD, EMPTY)), "reproduced", ExitCode.OK, "calls 2 and 3 are empty with"),
            (((EMPTY, EMPTY), (GOOD, EMPTY)), "reproduced", ExitCode.OK, "call 2 is empty"),
            (((GOOD, GOOD), (GOOD, WARM)), "not_reproduced", ExitCode.FAILED, "90 tokens came from the cache"),
            (((BLIND, BLIND), (BLIND, BLIND)), "not_reproduced", ExitCode.FAILED, "DID NOT REPRODUCE"),
            (((EMPTY, EMPTY), (EMPTY, EMPTY)), "control_empty", ExitCode.INCONCLUSIVE, "CONTROL EMPTY"),
            (((GOOD, GOOD), (GOOD, GOOD)), "inconclusive", ExitCode.INCONCLUSIVE, "never used"),
            (((GOOD, WARM), (FAILED, WARM)), "inconclusive", ExitCode.INCONCLUSIVE, "call 2 failed"),
            (((GOOD, WARM), (GOOD, FAILED)), "inconclusive", ExitCode.INCONCLUSIVE, "call 2 failed"),
            ((), "inconclusive", ExitCode.INCONCLUSIVE, ""),
            (((GOOD, None),), "inconclusive", ExitCode.INCONCLUSIVE, ""),
            (((GOOD, WARM), (GOOD, None)), "inconclusive", ExitCode.INCONCLUSIVE, ""),
            (((GOOD, WARM), (GOOD, GONE), (GOOD, None)), "unreachable", ExitCode.UNREACHABLE, "call 2 with the cache"),
        ],
    )  # fmt: skip
    def test_what_the_calls_show_together(
        self, sides: tuple[tuple[ReproReply, ReproReply | None], ...], outcome: str, code: ExitCode, words: str
    ) -> None:
        found = judge(pairs(*sides))
        assert (found.outcome, found.exit_code) == (outcome, code)
        assert words in found.sentence

    @given(st.lists(st.tuples(st.none() | replies, st.none() | replies), max_size=6))
    def test_it_never_says_reproduced_without_a_whole_control_nor_clean_with_an_empty_answer(
        self, sides: list[tuple[ReproReply | None, ReproReply | None]]
    ) -> None:
        made = pairs(*sides)
        found = judge(made)
        shown = any(
            off is not None and off.error is None and not off.is_empty and on is not None and on.is_empty
            for off, on in sides
        )
        assert (found.outcome is ReproOutcome.REPRODUCED) == shown
        if found.outcome is ReproOutcome.NOT_REPRODUCED:
            assert all(off is not None and on is not None and not off.is_empty and not on.is_empty for off, on in sides)
            assert all(repro_reply is not None and repro_reply.error is None for side in sides for repro_reply in side)


class TestPrompts:
    @given(st.integers(1, 12), st.integers(1, 4000))
    def test_every_call_begins_with_the_whole_call_before(self, turns: int, chars: int) -> None:
        before, after = messages(turns - 1, chars, "n"), messages(turns, chars, "n")
        assert after[: len(before)] == before
        assert len(after) == len(before) + 2

    @given(st.integers(0, 50), st.integers(1, 9000))
    def test_a_tool_result_is_as_long_as_asked_and_the_same_every_time(self, turn: int, chars: int) -> None:
        assert len(tool_result(turn, chars)) == chars
        assert tool_result(turn, chars) == tool_result(turn, chars)

    def test_the_prefix_grows_from_a_hundred_characters_to_26_thousand(self) -> None:
        lengths = [call.chars for call in calls(6, 5150)]
        assert 90 <= lengths[0] <= 150
        assert [round(length / 1000) for length in lengths[1:]] == [5, 10, 16, 21, 26]

    def test_conversations_differ_from_their_first_words(self) -> None:
        name, other = ("a" * NONCE_LENGTH, "b" * NONCE_LENGTH)
        first = [str(messages(0, 1, nonce)[0]["content"]) for nonce in (name, other)]
        assert first[0][:2] != first[1][:2]
        assert len(first[0]) == len(first[1])

    def test_results_are_structured_tool_messages(self) -> None:
        _, _, call, result = messages(1, 50, "n")
        assert call["tool_calls"][0]["id"] == result["tool_call_id"]
        assert result["role"] == "tool"
