"""A history and its size: what pruning and the contamination breaker cut, and how tokens are estimated."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import msgspec.structs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specdash.core.proxy_events import Guardrail, GuardrailAction
from specdash.proxy.guardrails.history import (
    MARKER_TOKENS,
    MESSAGE_TOKENS,
    RESET_MARKER,
    HistoryCut,
    cut_back,
    max_tokens,
    message_tokens,
    overhead_tokens,
    prune,
    request_tokens,
    text_tokens,
)
from specdash.proxy.settings import settings_from_env
from specdash.proxy.translate.parse import Message, Tool
from specdash.proxy.translate.translate import chat_body
from support.histories import (
    are_pairs_whole,
    assistant,
    calling,
    do_roles_alternate,
    growing,
    request,
    system,
    text,
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
def test_a_pruned_request_is_whole_and_stays_as_it_is(history: list[list[Message]], window: int, scale: float) -> None:
    """Calls keep their results, roles alternate, the first message and the last exchange stay."""
    messages = history[-1]
    made, removed = pruned(messages, window, scale)
    assert are_pairs_whole(made.messages)
    assert do_roles_alternate(made.messages)
    first, kept = messages[0], made.messages[0]
    assert (kept.role, kept.content[: len(first.content)]) == (first.role, first.content)
    last_call = max(index for index, message in enumerate(messages) if message.role == "assistant")
    assert made.messages[last_call - removed :] == tuple(messages[last_call:])
    given_request = request(messages)
    again, note = prune(made, window, SETTINGS, scale)
    assert again is made
    assert note is None
    untouched, note = prune(given_request, window, SETTINGS, scale)
    assert (note is None) == (untouched is given_request)
    if request_tokens(given_request) * scale < THRESHOLD * window:
        assert untouched is given_request


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
            assert (reached + MARKER_TOKENS) * scale >= THRESHOLD * window, (
                "the marker's size is estimated, not counted"
            )
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


def test_the_marker_says_what_is_gone_and_repeats_the_latest_removed_instruction() -> None:
    made, removed = pruned(long_history(60), 16_000)
    marker = made.messages[0].content[-1]["text"]
    assert marker.startswith(f"[CONTEXT PRUNED: {removed} older messages (~")
    assert marker.endswith("The conversation continues from recent context below.]")
    for more in ([], [system("a note")]):
        messages = [*long_history(10), assistant("done"), user("now fix the tests"), *more, *long_history(60)[1:]]
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

    no_room = request(long_history(10), system=({"type": "text", "text": "s" * 40_000},))
    assert prune(no_room, 10_000, SETTINGS) == (no_room, None), "the overflow is left to the upstream"


def test_a_prefilled_answer_stays_with_the_question() -> None:
    messages = [*long_history(60), assistant("The answer is")]
    made, removed = pruned(messages, 16_000)
    assert removed == pruned(messages[:-1], 16_000)[1] > 0
    assert made.messages[-3:] == tuple(messages[-3:])


STREAK = SETTINGS.session_contamination_threshold


def history(turns: int) -> list[Message]:
    return [user("the task"), *(m for t in range(turns) for m in tool_turn(t, "Read", {"path": f"/{t}"}, f"r{t}"))]


@given(growing(most=16), st.integers(2, 12))
def test_pairs_stay_whole_and_enough_is_kept(grown: list[list[Message]], keep: int) -> None:
    settings = settings_from_env({"PROXY_SESSION_CONTAMINATION_KEEP_LAST": str(keep)})
    messages = grown[-1]
    made, cut, note = cut_back(request(messages), STREAK, None, settings)
    assert are_pairs_whole(made.messages)
    assert do_roles_alternate(made.messages)
    assert (cut is None) == (note is None) == (made.messages == tuple(messages))
    if cut is not None:
        assert made.messages[0].content[: len(messages[0].content)] == messages[0].content
        assert made.messages[-keep:] == tuple(messages[-keep:])
        assert len(made.messages) <= len(messages)


@given(growing(least=6, most=16))
def test_a_cut_is_made_again_at_the_same_message_until_it_moves_forward(grown: list[list[Message]]) -> None:
    cut: HistoryCut | None = None
    before: tuple[Message, ...] = ()
    for turn, messages in enumerate(grown):
        last = cut
        made, cut, note = cut_back(request(messages), STREAK if turn in {5, 11} else 0, cut, SETTINGS)
        if last is not None:
            assert cut is not None
            assert cut.index >= last.index
            assert (note is not None) == (cut != last)
            if note is None:
                assert made.messages[: len(before)] == before
        before = made.messages


@pytest.mark.parametrize(("keep", "index"), [(8, 33), (9, 31), (10, 31)])
def test_the_first_message_says_so_and_the_note_counts(keep: int, index: int) -> None:
    given_request = request(history(20))
    settings = settings_from_env({"PROXY_SESSION_CONTAMINATION_KEEP_LAST": str(keep)})
    made, cut, note = cut_back(given_request, 4, None, settings)
    assert made.messages[0].content[-1] == {"type": "text", "text": RESET_MARKER}
    assert made.messages[1:] == given_request.messages[index:]
    assert cut is not None
    assert cut.index == index
    assert note is not None
    assert (note.guardrail, note.action) == (Guardrail.CONTAMINATION, GuardrailAction.APPLIED)
    assert note.facts == {"streak": 4, "removed": index - 1, "kept": 42 - index}


def test_nothing_is_cut_below_the_threshold_or_where_the_client_rewrote_its_history() -> None:
    whole = request(history(20))
    assert cut_back(whole, STREAK - 1, None, SETTINGS) == (whole, None, None)
    _, cut, _ = cut_back(whole, STREAK, None, SETTINGS)
    for rewritten in (request([user("summary"), *history(30)[5:]]), request(history(3))):
        assert cut_back(rewritten, 0, cut, SETTINGS) == (rewritten, None, None)


FLOOR = settings_from_env({"PROXY_MAX_TOKENS_FLOOR": "16384"})


@pytest.mark.parametrize(
    ("requested", "with_tools", "expected"),
    [(512, False, 512), (513, False, 16384), (64, True, 64), (65, True, 16384), (32_000, True, 32_000)],
)
def test_the_floor_lifts_all_but_tiny_probes(requested: int, with_tools: bool, expected: int) -> None:
    asked = request([user("hi")], max_tokens=requested, tools=tools("Read") if with_tools else ())
    found, note = max_tokens(asked, FLOOR)
    assert found == expected
    assert (note is None) == (found == requested)
    if note is not None:
        assert (note.guardrail, note.action) == (Guardrail.MAX_TOKENS, GuardrailAction.APPLIED)
        assert note.facts == {"requested": requested, "sent": found}


@given(st.text())
@example("文件" * 10)
def test_a_text_counts_by_its_bytes(words: str) -> None:
    size = len(words.encode())
    assert size / 3.5 <= text_tokens(words) < size / 3.5 + 1


def test_a_call_counts_its_name_and_arguments_and_system_and_tools_are_the_overhead() -> None:
    arguments = {"path": "/" + "p" * 700}
    size = len(msgspec.json.encode(arguments)) / 3.5
    assert size <= message_tokens(calling(0, ("Read", arguments))) < size + 20
    bare = request([user("hi")])
    assert overhead_tokens(bare) == 0
    offered = msgspec.structs.replace(bare, tools=(Tool("Read", "d" * 350, {"type": "object"}),))
    assert overhead_tokens(offered) == MESSAGE_TOKENS + text_tokens("Read") + 100 + text_tokens('{"type":"object"}')
    prompted = msgspec.structs.replace(bare, system=(text("s" * 350),))
    assert overhead_tokens(prompted) == 100 + MESSAGE_TOKENS


@given(growing())
def test_the_estimate_follows_what_is_sent(history: list[list[Message]]) -> None:
    messages = history[-1]
    sent = len(msgspec.json.encode(chat_body(request(messages), "m")["messages"]))
    estimated = request_tokens(request(messages)) * 3.5
    blocks = sum(len(message.content) for message in messages)
    assert sent - 130 * blocks < estimated < sent + 60 * blocks
