from __future__ import annotations

import pytest

from specdash.core.proxy_events import Guardrail, GuardrailAction
from specdash.proxy.guardrails.tools import RULES, supplemented
from specdash.proxy.settings import settings_from_env
from specdash.proxy.translate.parse import Message, MessagesRequest, Tool

TOOLS = (Tool("Read", "reads a file", {"type": "object"}),)
SYSTEM = ({"type": "text", "text": "You are helpful."},)


def request(tools: tuple[Tool, ...] = TOOLS) -> MessagesRequest:
    messages = (Message("user", ({"type": "text", "text": "go"},)),)
    return MessagesRequest("m", messages, 100, system=SYSTEM, tools=tools)


@pytest.mark.parametrize("mode", sorted(RULES))
def test_the_rules_become_the_last_system_block(mode: str) -> None:
    settings = settings_from_env({"PROXY_AGENTIC_SUPPLEMENT_MODE": mode})
    made, note = supplemented(request(), settings)
    assert made.system[:-1] == SYSTEM
    block = made.system[-1]
    assert block["type"] == "text"
    assert block["text"].startswith("<agentic-protocol>\n1. ")
    assert block["text"].endswith("\n</agentic-protocol>")
    assert all(rule in block["text"] for rule in RULES[mode])
    assert note is not None
    assert (note.guardrail, note.action, note.facts) == (Guardrail.SUPPLEMENT, GuardrailAction.APPLIED, {"mode": mode})


@pytest.mark.parametrize("mode", sorted(RULES))
def test_a_request_without_tools_is_left_alone(mode: str) -> None:
    settings = settings_from_env({"PROXY_AGENTIC_SUPPLEMENT_MODE": mode})
    given = request(tools=())
    made, note = supplemented(given, settings)
    assert made is given
    assert note is None
