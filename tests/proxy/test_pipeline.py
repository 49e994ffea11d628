"""What the request guardrails leave in a session."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.answer.turn import prepare
from specdash.proxy.sessions import ProxySession
from specdash.proxy.settings import settings_from_env
from specdash.proxy.translate.parse import Message, MessagesRequest

SETTINGS = settings_from_env({})


def conversation(sizes: list[int]) -> tuple[Message, ...]:
    """A conversation of messages of so many words, user and assistant in turn, the user last."""
    roles = ("user", "assistant")
    return tuple(
        Message(roles[at % 2], ({"type": "text", "text": f"{at} " + "word " * size},)) for at, size in enumerate(sizes)
    )


@given(st.lists(st.integers(1, 400), min_size=20, max_size=80))
def test_prunes_counts_cuts_and_not_the_requests_that_are_pruned_at_one(sizes: list[int]) -> None:
    session = ProxySession("s", 0.0)
    cuts: list[object] = []
    for length in range(1, len(sizes) + 1, 2):
        request = MessagesRequest("m", conversation(sizes[:length]), 10)
        for _ in range(2):
            prepared = prepare(request, session, SETTINGS, window=4000, model="m")
            (note,) = [note for note in prepared.notes if note.guardrail == "context_prune"] or (None,)
            if note is not None:
                cut = note.facts["removed"]
                if not cuts or cuts[-1] != cut:
                    cuts.append(cut)
    assert session.prunes == len(cuts)
