"""Which tools are offered, and the rules that go with them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.proxy_events import Guardrail, GuardrailAction
from specdash.proxy.guardrails.tools import RULES, narrow, supplemented
from specdash.proxy.settings import settings_from_env
from specdash.proxy.translate.parse import Message, MessagesRequest, Tool, ToolChoice
from support.histories import request, tool_turn, user

ON = settings_from_env({"PROXY_TOOL_NARROWING": "on", "PROXY_TOOL_NARROWING_KEEP": "3"})
NAMES = [f"tool_{index}" for index in range(14)]
OFFERED = (
    *(Tool(name, "does something to files", {"type": "object"}) for name in NAMES),
    Tool("WebFetch", "downloads files from an address on the internet", {"type": "object"}),
    Tool("sql_query", "asks the database", {"type": "object"}),
)
TASK = user("Please download the page and store it in the databases")


def names(made: MessagesRequest) -> list[str]:
    return [tool.name for tool in made.tools]


def asked(*messages: Message, offered: tuple[Tool, ...] = OFFERED, choice: ToolChoice | None = None) -> MessagesRequest:
    return request(messages or (TASK,), tools=offered, tool_choice=choice or ToolChoice())


def test_the_relevant_tools_stay_in_the_clients_order() -> None:
    made, chosen, note = narrow(asked(), None, ON)
    assert names(made) == ["tool_0", "WebFetch", "sql_query"]
    assert chosen == frozenset(names(made))
    assert note is not None
    assert (note.guardrail, note.action) == (Guardrail.TOOL_NARROWING, GuardrailAction.APPLIED)
    assert note.facts == {"before": 16, "after": 3}


def test_without_anything_to_go_by_the_first_tools_stay() -> None:
    reminder = user("<system-reminder>use sql_query and WebFetch</system-reminder>")
    assert names(narrow(asked(reminder), None, ON)[0]) == NAMES[:3]


def test_tools_in_use_stay_besides_those_kept() -> None:
    messages = [TASK, *tool_turn(0, "tool_9", {}, "x"), *tool_turn(1, "gone", {}, "x")]
    made, chosen, _ = narrow(asked(*messages, choice=ToolChoice("tool", "tool_12")), None, ON)
    assert names(made) == ["tool_0", "tool_9", "tool_12", "WebFetch", "sql_query"]
    assert chosen == frozenset(names(made))


def test_a_choice_whose_tools_are_gone_is_filled_up() -> None:
    made, chosen, _ = narrow(asked(), frozenset({"WebFetch", "gone", "lost"}), ON)
    assert names(made) == ["tool_0", "WebFetch", "sql_query"]
    assert chosen == frozenset({"WebFetch", "gone", "lost", "tool_0", "sql_query"})


@pytest.mark.parametrize(
    ("env", "offered"),
    [
        ({}, OFFERED),
        ({"PROXY_TOOL_NARROWING": "on"}, OFFERED[:11]),
        ({"PROXY_TOOL_NARROWING": "on", "PROXY_TOOL_NARROWING_KEEP": "16"}, OFFERED),
        ({"PROXY_TOOL_NARROWING": "on", "PROXY_TOOL_NARROWING_MIN_TOOLS": "17"}, OFFERED),
    ],
)
def test_few_tools_are_all_offered(env: dict[str, str], offered: tuple[Tool, ...]) -> None:
    given_request = asked(offered=offered)
    assert narrow(given_request, None, settings_from_env(env)) == (given_request, None, None)


USED = st.lists(st.sampled_from([tool.name for tool in OFFERED]), max_size=12)


@given(USED, st.text(max_size=40))
def test_the_choice_only_grows_and_never_misses_a_tool_in_use(used: list[str], words: str) -> None:
    messages = [user(words)]
    chosen: frozenset[str] | None = None
    offers = []
    for turn, name in enumerate(["", *used]):
        if name:
            messages += tool_turn(turn, name, {}, "x")
        made, chosen, _ = narrow(asked(*messages), chosen, ON)
        assert set(used[:turn]) <= set(names(made))
        assert len(made.tools) >= 3
        assert [tool for tool in OFFERED if tool in made.tools] == list(made.tools)
        offers.append(set(names(made)))
    assert all(before <= after for before, after in pairwise(offers))


TOOLS = (Tool("Read", "reads a file", {"type": "object"}),)
SYSTEM = ({"type": "text", "text": "You are helpful."},)


def asked_with(tools: tuple[Tool, ...]) -> MessagesRequest:
    return request([user("go")], system=SYSTEM, tools=tools)


@pytest.mark.parametrize("mode", sorted(RULES))
def test_the_rules_become_the_last_system_block_of_a_request_with_tools(mode: str) -> None:
    settings = settings_from_env({"PROXY_AGENTIC_SUPPLEMENT_MODE": mode})
    made, note = supplemented(asked_with(TOOLS), settings)
    assert made.system[:-1] == SYSTEM
    block = made.system[-1]
    assert block["type"] == "text"
    assert block["text"].startswith("<agentic-protocol>\n1. ")
    assert block["text"].endswith("\n</agentic-protocol>")
    assert all(rule in block["text"] for rule in RULES[mode])
    assert note is not None
    assert (note.guardrail, note.action, note.facts) == (Guardrail.SUPPLEMENT, GuardrailAction.APPLIED, {"mode": mode})
    without_tools = asked_with(())
    assert supplemented(without_tools, settings) == (without_tools, None)
