"""Whether answers become empty once their prompt comes from the cache: what the calls show together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.bench.repro_empty import Outcome, Pair, Reply, judge
from specdash.bench.repro_prompts import NONCE_LENGTH, calls, messages, tool_result
from specdash.core.errors import ExitCode

GOOD = Reply(content_chars=20, completion_tokens=5, prompt_tokens=100, cached_tokens=0, ttft_s=0.2, wall_s=0.4)
WARM = replace(GOOD, cached_tokens=90, ttft_s=0.02)
EMPTY = Reply(completion_tokens=0, prompt_tokens=100, cached_tokens=90, wall_s=9.7, finish="stop")
FAILED = Reply(error="HTTP 500: Compute error.")
GONE = Reply(error="nothing listens there any more", gone=True)


def pairs(*sides: tuple[Reply | None, Reply | None]) -> tuple[Pair, ...]:
    return tuple(Pair(number + 1, 100 * number, None, off, on) for number, (off, on) in enumerate(sides))


replies = st.builds(
    Reply,
    content_chars=st.sampled_from((0, 0, 7)),
    reasoning_chars=st.sampled_from((0, 0, 7)),
    tool_calls=st.sampled_from((0, 0, 1)),
    completion_tokens=st.sampled_from((None, 0, 5)),
    cached_tokens=st.sampled_from((None, 0, 90)),
    wall_s=st.floats(0, 100),
    error=st.sampled_from((None, None, None, "HTTP 500")),
)


class TestEmpty:
    @pytest.mark.parametrize(
        "said",
        [replace(EMPTY, content_chars=1), replace(EMPTY, reasoning_chars=1), replace(EMPTY, tool_calls=1)],
    )
    def test_text_reasoning_or_a_tool_call_is_an_answer(self, said: Reply) -> None:
        assert not said.is_empty

    def test_a_call_that_failed_is_not_an_empty_answer(self) -> None:
        assert not FAILED.is_empty

    def test_tokens_that_say_nothing_are_told_from_no_tokens(self) -> None:
        assert EMPTY.how_empty == "no tokens"
        assert "white space" in replace(EMPTY, completion_tokens=3).how_empty

    def test_an_answer_that_came_at_once_says_so(self) -> None:
        assert replace(EMPTY, wall_s=0.012).how_empty == "no tokens, within 12 ms"


class TestJudgement:
    def test_empty_with_the_cache_alone_is_reproduced(self) -> None:
        found = judge(pairs((GOOD, WARM), (GOOD, EMPTY), (GOOD, EMPTY)))
        assert (found.outcome, found.exit_code) == (Outcome.REPRODUCED, ExitCode.OK)
        assert found.sentence.startswith("REPRODUCED: calls 2 and 3 are empty with the cache on")

    def test_no_empty_answer_is_not_reproduced_in_words_too(self) -> None:
        found = judge(pairs((GOOD, GOOD), (GOOD, WARM)))
        assert (found.outcome, found.exit_code) == (Outcome.NOT_REPRODUCED, ExitCode.FAILED)
        assert found.sentence.startswith("DID NOT REPRODUCE")
        assert "90 tokens came from the cache" in found.sentence

    def test_an_empty_control_is_another_problem_with_a_code_of_its_own(self) -> None:
        found = judge(pairs((EMPTY, EMPTY), (EMPTY, EMPTY)))
        assert (found.outcome, found.exit_code) == (Outcome.CONTROL_EMPTY, ExitCode.INCONCLUSIVE)

    def test_one_call_with_a_whole_control_is_enough(self) -> None:
        assert judge(pairs((EMPTY, EMPTY), (GOOD, EMPTY))).outcome is Outcome.REPRODUCED

    def test_a_cache_that_was_never_used_shows_nothing(self) -> None:
        assert judge(pairs((GOOD, GOOD), (GOOD, GOOD))).outcome is Outcome.INCONCLUSIVE

    def test_a_server_that_tells_no_cached_tokens_is_believed(self) -> None:
        blind = replace(GOOD, cached_tokens=None)
        assert judge(pairs((blind, blind), (blind, blind))).outcome is Outcome.NOT_REPRODUCED

    @pytest.mark.parametrize("sides", [(FAILED, WARM), (GOOD, FAILED)])
    def test_a_call_that_failed_shows_nothing(self, sides: tuple[Reply, Reply]) -> None:
        found = judge(pairs((GOOD, WARM), sides))
        assert found.outcome is Outcome.INCONCLUSIVE
        assert "call 2 failed" in found.sentence

    def test_a_server_that_is_gone_is_unreachable(self) -> None:
        found = judge(pairs((GOOD, WARM), (GOOD, GONE), (GOOD, None)))
        assert (found.outcome, found.exit_code) == (Outcome.UNREACHABLE, ExitCode.UNREACHABLE)
        assert "call 2 with the cache on" in found.sentence

    @pytest.mark.parametrize("made", [(), ((GOOD, None),), ((GOOD, WARM), (GOOD, None))])
    def test_a_run_that_was_cut_short_shows_nothing(self, made: tuple[tuple[Reply, Reply | None], ...]) -> None:
        assert judge(pairs(*made)).outcome is Outcome.INCONCLUSIVE

    @given(st.lists(st.tuples(st.none() | replies, st.none() | replies), max_size=6))
    def test_it_never_says_reproduced_without_a_whole_control_nor_clean_with_an_empty_answer(
        self, sides: list[tuple[Reply | None, Reply | None]]
    ) -> None:
        made = pairs(*sides)
        found = judge(made)
        shown = any(
            off is not None and off.error is None and not off.is_empty and on is not None and on.is_empty
            for off, on in sides
        )
        assert (found.outcome is Outcome.REPRODUCED) == shown
        if found.outcome is Outcome.NOT_REPRODUCED:
            assert all(off is not None and on is not None and not off.is_empty and not on.is_empty for off, on in sides)
            assert all(one is not None and one.error is None for side in sides for one in side)


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
        one, other = ("a" * NONCE_LENGTH, "b" * NONCE_LENGTH)
        first = [str(messages(0, 1, nonce)[0]["content"]) for nonce in (one, other)]
        assert first[0][:2] != first[1][:2]
        assert len(first[0]) == len(first[1])

    def test_results_are_structured_tool_messages(self) -> None:
        _, _, call, result = messages(1, 50, "n")
        assert call["tool_calls"][0]["id"] == result["tool_call_id"]
        assert result["role"] == "tool"

    def test_flat_messages_have_no_tools_and_the_same_result(self) -> None:
        flat = messages(1, 50, "n", flat=True)
        assert [one["role"] for one in flat] == ["system", "user", "assistant", "user"]
        assert tool_result(0, 50) in flat[-1]["content"]
