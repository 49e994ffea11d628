from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.guardrails.history import (
    MARKER_TOKENS,
    prune,
    request_tokens,
)
from specdash.proxy.settings import settings_from_env
from specdash.proxy.translate.parse import Message
from support.histories import (
    are_pairs_whole,
    assistant,
    do_roles_alternate,
    growing,
    request,
    system,
    tool_turn,
    tools,
    user,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.proxy.translate.parse import MessagesRequest

SETTINGS = settings_from_env({})
THRESHOLD, TARGET = SETTINGS.context_prune_threshold, SETTINGS.context_prune_target_fraction
WINDOWS = st.sampled_from((2500, 5000, 9000, 20_000))
SCALES = st.sampled_from((0.7, 1.0, 1.5))


def pruned(messages: Sequence[Message], window: int, scale: float = 1.0) -> tuple[MessagesRequest, int]:
    """The request and how many messages it lost."""
    made, note = prune(request(messages), window, SETTINGS, scale)
    return made, note.facts["removed"] if note else 0


def long_history(turns: int, size: int = 1400) -> list[Message]:
    found = [user("the task")]
    for turn in range(turns):
        found += tool_turn(turn, "Read", {"path": f"/{turn}"}, "r" * size)
    return found


@given(growing(), WINDOWS, SCALES)
def test_calls_keep_their_results_and_roles_alternate(history: list[list[Message]], window: int, scale: float) -> None:
    made, _ = pruned(history[-1], window, scale)
    assert are_pairs_whole(made.messages)
    assert do_roles_alternate(made.messages)


@given(growing(), WINDOWS, SCALES)
def test_first_message_and_last_exchange_stay(history: list[list[Message]], window: int, scale: float) -> None:
    messages = history[-1]
    made, removed = pruned(messages, window, scale)
    first, kept = messages[0], made.messages[0]
    assert (kept.role, kept.content[: len(first.content)]) == (first.role, first.content)
    last_call = max(index for index, message in enumerate(messages) if message.role == "assistant")
    last_user = max(index for index, message in enumerate(messages) if message.role == "user")
    assert made.messages[last_call - removed] is messages[last_call]
    assert made.messages[last_user - removed] is messages[last_user]
    assert [message.role for message in made.messages[last_call - removed :]] == [
        message.role for message in messages[last_call:]
    ]


@given(growing(), WINDOWS, SCALES)
def test_pruning_again_changes_nothing(history: list[list[Message]], window: int, scale: float) -> None:
    made, _ = pruned(history[-1], window, scale)
    again, note = prune(made, window, SETTINGS, scale)
    assert again is made
    assert note is None


@given(growing(least=6, most=16), WINDOWS, SCALES)
def test_the_kept_prefix_is_identical_until_something_must_go(
    history: list[list[Message]], window: int, scale: float
) -> None:
    before, removed = request(history[0]), 0
    for earlier, messages in pairwise(history):
        made, note = prune(request(messages), window, SETTINGS, scale)
        now = note.facts["removed"] if note else 0
        assert now >= removed
        if now == removed:
            assert made.messages[: len(before.messages)] == before.messages
        else:
            reached = request_tokens(request([*before.messages, *messages[len(earlier) :]]))
            assert (reached + MARKER_TOKENS) * scale >= THRESHOLD * window, "the marker's size is reckoned, not counted"
        before, removed = made, now


@given(growing(least=6, most=16), WINDOWS, SCALES)
def test_it_fits_unless_nothing_more_can_go(history: list[list[Message]], window: int, scale: float) -> None:
    messages = history[-1]
    made, removed = pruned(messages, window, scale)
    head = next(index for index, message in enumerate(messages) if message.role == "assistant")
    fixed = request_tokens(request(messages[:head])) * scale
    limit = THRESHOLD * window if fixed < TARGET * window else fixed + THRESHOLD * (window - fixed)
    if fixed >= window or request_tokens(made) * scale < limit:
        return
    last_call = max(index for index, message in enumerate(messages) if message.role == "assistant")
    assert removed == last_call - head


@given(growing(), WINDOWS, SCALES)
def test_below_the_threshold_the_request_is_the_same_object(
    history: list[list[Message]], window: int, scale: float
) -> None:
    given_request = request(history[-1])
    made, note = prune(given_request, window, SETTINGS, scale)
    if request_tokens(given_request) * scale < THRESHOLD * window:
        assert made is given_request
    assert (note is None) == (made is given_request)


def test_the_marker_says_what_is_gone() -> None:
    made, removed = pruned(long_history(60), 16_000)
    marker = made.messages[0].content[-1]["text"]
    assert marker.startswith(f"[CONTEXT PRUNED: {removed} older messages (~")
    assert marker.endswith(
        " tokens) were removed to fit within the context window. The conversation continues from recent context below.]"
    )


def test_the_latest_removed_instruction_is_not_forgotten() -> None:
    messages = [*long_history(10), assistant("done"), user("now fix the tests"), *long_history(60)[1:]]
    made, removed = pruned(messages, 16_000)
    assert removed > 22
    assert made.messages[0].content[-1]["text"].endswith("removed messages:]\nnow fix the tests")


@pytest.mark.parametrize("window", [2000, 10_000])
def test_a_system_prompt_above_the_target_leaves_its_room_to_the_conversation(window: int) -> None:
    offered = tools("Read")
    prompt = ({"type": "text", "text": "s" * int(3.5 * 0.8 * window)},)
    history = long_history(60, size=window // 20)
    made, note = prune(request(history, system=prompt, tools=offered), window, SETTINGS)
    assert note is not None
    assert note.facts["after"] < window
    assert len(made.messages) > 5
    cuts = [prune(request(history[:end], system=prompt, tools=offered), window, SETTINGS)[1] for end in range(101, 121)]
    assert len({note.facts["removed"] for note in cuts if note is not None}) < 8, "a cut lasts for more than a turn"


def test_no_room_at_all_leaves_the_overflow_to_the_upstream() -> None:
    prompt = ({"type": "text", "text": "s" * 40_000},)
    given_request = request(long_history(10), system=prompt)
    assert prune(given_request, 10_000, SETTINGS) == (given_request, None)


def test_no_cut_falls_between_a_call_and_results_that_come_after_a_reminder() -> None:
    messages = [user("the task")]
    for turn in range(60):
        made, answer = tool_turn(turn, "Read", {"path": f"/{turn}"}, "r" * 1400)
        messages += [made, system("reminder"), answer]
    kept, removed = pruned(messages, 16_000)
    assert removed
    assert are_pairs_whole(kept.messages)


def test_a_prefilled_answer_stays_with_the_question() -> None:
    messages = [*long_history(60), assistant("The answer is")]
    made, removed = pruned(messages, 16_000)
    assert removed == pruned(messages[:-1], 16_000)[1] > 0
    assert made.messages[-3:] == tuple(messages[-3:])
