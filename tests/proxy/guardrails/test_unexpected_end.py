"""Turns that end a tool loop although they announce a call, and turns that end it properly."""

from __future__ import annotations

import pytest

from specdash.proxy.guardrails.malformed import announces_action, is_unexpected_end
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


ANNOUNCED = [
    "Let me read the file:",
    "Let me read the file.",
    "Let me read src/app.py",
    "Now I'll run the tests.",
    "Now, I’ll run the tests:",
    "I will check the configuration",
    "I'm going to fix the import.",
    "The import is missing. Let me add it:",
    "The import is missing, so I'll add it.",
    "The test fails because of a typo.\n\nLet me fix that:",
    "## Findings\n\n- one\n- two\n\nNow let me write the file:",
    "Good. Next, let me quickly re-run the suite...",
    "Let's search for its callers:",
    "I'll start by reading the template:",
    "Let me take a closer look at the log:",
    "Let me try a different approach:",
    "**Let me check the output:**",
    "Let me check if the file exists:",
    "```\nold output\n```\n\nI'll run it again:",
    "Now running the tests:",
    "   Let me read the file:",
]
PROPER = [
    "Done.",
    "All tests pass.",
    "I fixed the import. All tests pass now.",
    "Let me know if you want me to run the tests.",
    "Let me know what to check next:",
    "Shall I run the tests?",
    "I'll run the tests. Is that fine?",
    "Would you like me to fix it, or let me check something else?",
    "I'll run the deployment once you confirm.",
    "I'll fix it when CI is green.",
    "I'll check back later.",
    "I'll update you tomorrow.",
    "I'll get back to you.",
    "I will be happy to help with that.",
    "Next time I'll run the formatter first.",
    "I'll wait for your approval.",
    "Let me summarize what was done.",
    "Let me check the output: all 12 tests pass.",
    "They let me read the file.",
    "The function lets me read the file.",
    "I ran the tests and they pass.",
    "Here is the summary:\n\n- I'll keep the name\n- Let me read the file",
    "1. Let me read the file:",
    "    Let me read the file:",
    "Run it with:\n\n```\nmake test\n```",
    "I'll run this:\n```\nmake test",
    "| step | result |\n|---|---|\n| Let me run | ok |",
    "> Let me read the file:",
    "The answer is:",
    "The script reads the file and then runs the tests.",
    "Reading the file takes 3 seconds.",
    "You can now run `make`.",
    "From now on I'll use tabs.",
    "word " * 200 + "let me read it.",
    "Let me read the file first. It was fine, everything is done.",
]


@pytest.mark.parametrize("text", ANNOUNCED)
def test_an_announcement_without_its_call_is_an_unexpected_end(text: str) -> None:
    assert is_unexpected_end(request(), text, [], "stop")


@pytest.mark.parametrize("text", ["", " ", "\n\n"])
def test_a_blank_end_is_one_too(text: str) -> None:
    assert is_unexpected_end(request(), text, [], "stop")


@pytest.mark.parametrize("text", PROPER)
def test_a_proper_end_is_none(text: str) -> None:
    assert not is_unexpected_end(request(), text, [], "stop")


@pytest.mark.parametrize("text", ["", "Let me read the file:"])
def test_outside_a_tool_loop_nothing_is_unexpected(text: str) -> None:
    assert not is_unexpected_end(request(SAID), text, [], "stop")
    assert not is_unexpected_end(request(tools=()), text, [], "stop")
    assert not is_unexpected_end(request(tool_choice=ToolChoice("none")), text, [], "stop")
    assert not is_unexpected_end(request(), text, [call("Read", "{}")], "stop")
    for reason in ("length", "tool_calls", None):
        assert not is_unexpected_end(request(), text, [], reason)


def test_a_tool_result_counts_beside_other_blocks() -> None:
    assert is_unexpected_end(request(RESULT, SAID), "Let me read the file:", [], "stop")


def test_a_prefilled_answer_is_the_clients_own() -> None:
    asked = request()
    prefilled = request(messages=(*asked.messages, Message("assistant", (SAID,))))
    assert not is_unexpected_end(prefilled, "", [], "stop")


@pytest.mark.parametrize("text", ["Let me " * 20_000, "so " * 30_000, "I'll run" + " a" * 40_000, ". " * 50_000])
def test_long_texts_cost_little(text: str) -> None:
    assert not announces_action(text + "done and over")
