from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.proxy_events import Guardrail, GuardrailAction
from specdash.proxy.guardrails.history import RESET_MARKER, HistoryCut, cut_back
from specdash.proxy.settings import settings_from_env
from specdash.proxy.translate.parse import Message
from support.histories import are_pairs_whole, do_roles_alternate, growing, request, tool_turn, user

SETTINGS = settings_from_env({})
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


def test_below_the_threshold_nothing_is_cut() -> None:
    given_request = request(history(20))
    made, cut, note = cut_back(given_request, STREAK - 1, None, SETTINGS)
    assert made is given_request
    assert cut is None
    assert note is None


def test_a_cut_is_forgotten_when_the_client_rewrote_its_history() -> None:
    _, cut, _ = cut_back(request(history(20)), STREAK, None, SETTINGS)
    compacted = request([user("summary"), *history(30)[5:]])
    made, forgotten, note = cut_back(compacted, 0, cut, SETTINGS)
    assert made is compacted
    assert forgotten is None
    assert note is None
    shorter = request(history(3))
    assert cut_back(shorter, 0, cut, SETTINGS) == (shorter, None, None)
