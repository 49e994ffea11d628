"""What changed in a prompt since the one it goes on from."""

from __future__ import annotations

from typing import Any

import pytest

from specdash.core.proxy_events import PromptChange
from specdash.proxy.telemetry import MOST_OF_SESSION, prompt_change


def body(*texts: str, system: str = "Help.", tools: str = "Read") -> dict[str, Any]:
    messages = [{"role": "user", "content": text} for text in texts]
    return {"messages": [{"role": "system", "content": system}, *messages], "tools": [{"name": tools}]}


@pytest.mark.parametrize(
    ("later", "what"),
    [
        (body("a", "b", "c"), ""),
        (body("a", "b", "c", system="Help me."), "system"),
        (body("a", "b", "c", tools="Grep"), "tools"),
        (body("a", "x", "c"), "message 2"),
        (body("a"), "messages left out"),
    ],
)
def test_the_first_piece_that_differs_is_named(later: dict[str, Any], what: str) -> None:
    kept: list[tuple[int, ...]] = []
    assert prompt_change(kept, body("a", "b")) is None
    change = prompt_change(kept, later)
    assert isinstance(change, PromptChange)
    assert change.what == what
    assert 0 <= change.at <= change.known <= 1


def test_other_conversations_of_the_session_do_not_count() -> None:
    kept: list[tuple[int, ...]] = []
    prompt_change(kept, body("a", "b"))
    assert prompt_change(kept, body("title")) is None
    change = prompt_change(kept, body("a", "b", "c"))
    assert change is not None
    assert change.what == ""


def test_what_is_remembered_is_bounded() -> None:
    kept: list[tuple[int, ...]] = []
    for text in range(MOST_OF_SESSION + 3):
        prompt_change(kept, body(f"{text}"))
    assert len(kept) == MOST_OF_SESSION
