"""Turns that end a tool loop although they announce a call, and turns that end it properly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdash.proxy.guardrails.unexpected_end import (
    ADDED_ID,
    announces_action,
    has_been_added_to,
    is_unexpected_end,
)
from specdash.proxy.translate.parse import Block, Message, MessagesRequest, ToolChoice
from support.offered_tools import TOOLS, call

RESULT: Block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}
SAID: Block = {"type": "text", "text": "go on"}


def request(*last: Block, **changes: object) -> MessagesRequest:
    messages = (
        Message("user", (SAID,)),
        Message("assistant", ({"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}},)),
        Message("user", last or (RESULT,)),
    )
    values: dict[str, object] = {"model": "m", "messages": messages, "max_tokens": 100, "tools": TOOLS, **changes}
    return MessagesRequest(**values)  # type: ignore[arg-type]  # a test's shorthand


def test_the_corpus_of_endings_is_judged_at_the_rates_of_the_docs() -> None:
    """Rates of the answers that agents end with, in nine languages; docs/proxy.md has them."""
    tests = Path(__file__).parents[2]
    endings = json.loads((tests / "data" / "proxy_corpus" / "endings.json").read_text(encoding="utf-8"))
    tools = ["Read", "Edit", "Write", "Bash", "Grep", "Glob", "TodoWrite", "WebFetch", "Task"]
    left_alone = [text for text in endings["finished"] if not announces_action(text, tools)]
    noticed = [text for text in endings["announced"] if announces_action(text, tools)]
    assert len(left_alone) >= 0.99 * len(endings["finished"])
    assert len(noticed) >= 0.97 * len(endings["announced"])
    rates = f"{len(left_alone)} of {len(endings['finished'])} finished ones are left alone, and "
    rates += f"{len(noticed)} of {len(endings['announced'])} announcements noticed"
    docs = (tests.parent / "docs" / "proxy.md").read_text(encoding="utf-8")
    assert rates in " ".join(docs.split())


@pytest.mark.parametrize(
    ("text", "announces"),
    [
        ("All 42 tests pass. I'll stop here.", False),
        ("Once CI is green, I'll edit main.rs.", False),
        ("Next I would look at db.py.", False),
        ("The import is missing. Let me fix `src/app.py`:", True),
        ("Running `cargo clippy` next.", True),
        ("Fixing it:", True),
        ("Now the Dockerfile:", True),
        ("Lo arreglo en `auth.ts`.", True),
        ("Lo dejo así en `auth.ts`.", False),
    ],
)
def test_only_a_concrete_next_act_counts_as_broken_off(text: str, announces: bool) -> None:
    assert announces_action(text) is announces


@pytest.mark.parametrize("text", ["", "Let me read the file:"])
def test_outside_a_tool_loop_nothing_is_unexpected(text: str) -> None:
    assert not is_unexpected_end(request(SAID), text, [], "stop")
    assert not is_unexpected_end(request(tools=()), text, [], "stop")
    assert not is_unexpected_end(request(tool_choice=ToolChoice("none")), text, [], "stop")
    assert not is_unexpected_end(request(), text, [call("Read", "{}")], "stop")
    for reason in ("length", "tool_calls", None):
        assert not is_unexpected_end(request(), text, [], reason)


def test_a_prefilled_answer_is_the_clients_own() -> None:
    asked = request()
    prefilled = request(messages=(*asked.messages, Message("assistant", (SAID,))))
    assert not is_unexpected_end(prefilled, "", [], "stop")


@pytest.mark.parametrize("text", ["Let me " * 20_000, "so " * 30_000, "I'll run" + " a" * 40_000, ". " * 50_000])
def test_long_texts_cost_little(text: str) -> None:
    assert not announces_action(text + "done and over")


def added(text: str, call_id: str) -> Message:
    return Message("assistant", (
        {"type": "text", "text": text}, {"type": "tool_use", "id": call_id, "name": "Read", "input": {}}
    ))  # fmt: skip


def test_a_call_is_added_at_most_once_for_each_instruction() -> None:
    text = "Let me read src/b.py."
    fresh = request().messages
    assert not has_been_added_to(fresh, text)
    once = (*fresh, added("Let me read src/a.py.", ADDED_ID + "1"), Message("user", (RESULT,)))
    assert has_been_added_to(once, text)
    assert has_been_added_to((*once, added("", "toolu_2"), Message("user", (RESULT,))), text)
    assert not has_been_added_to((*once, Message("user", (SAID,)), added("", "toolu_3")), text)
    # A reminder of the client is no new instruction.
    reminder: Block = {"type": "text", "text": "<system-reminder>The date has changed.</system-reminder>"}
    reminded = (*fresh, added("", ADDED_ID + "1"), Message("user", (RESULT, reminder)), Message("user", (reminder,)))
    assert has_been_added_to(reminded, text)


def test_the_same_announcement_again_is_left_alone_under_any_id() -> None:
    text = "The first file is fine.\n\nLet me read src/a.py:"
    announced = (*request().messages, added(text, "toolu_7"), Message("user", (RESULT,)))
    assert has_been_added_to(announced, "Let me read  src/a.py:")
    assert not has_been_added_to(announced, "Let me read src/b.py:")
