"""The bodies of second tries, and what a turn of nothing but reasoning shows."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from specdash.core.proxy_events import Guardrail
from specdash.proxy.answer.repair import fallback_text, retry_body
from specdash.proxy.settings import ProxySettings, settings_from_env

TOOLS = [{"type": "function", "function": {"name": "Read"}}]
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": TOOLS,
    "tool_choice": "auto",
    "max_tokens": 8000,
    "temperature": 1.0,
    "chat_template_kwargs": {"enable_thinking": False, "x": 1},
    "stream": True,
}


def changed(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    assert before.keys() <= after.keys()
    return {key: value for key, value in after.items() if key not in before or before[key] != value}


def again(chat: dict[str, Any], fault: Guardrail, number: int = 1, *, thought: bool = False, **env: str) -> Any:
    settings = settings_from_env({f"PROXY_MALFORMED_TOOL_{name}": value for name, value in env.items()})
    return retry_body(chat, fault, settings, number, has_thought=thought)


def test_a_malformed_turn_must_call_soberly_and_short() -> None:
    after = again(CHAT, Guardrail.MALFORMED_TOOL)
    assert changed(CHAT, after) == {"tool_choice": "required", "temperature": 0.0, "max_tokens": 2048}


@pytest.mark.parametrize(("setting", "number", "used"), [("0", 1, 0), ("0", 2, 0.5), ("0", 3, 0.5), ("0.8", 2, 0.8)])
def test_a_later_attempt_is_never_greedy_again(setting: str, number: int, used: float) -> None:
    assert again(CHAT, Guardrail.MALFORMED_TOOL, number, RETRY_TEMPERATURE=setting)["temperature"] == used


@pytest.mark.parametrize(("cap", "current", "sent"), [("2048", 100, 100), ("1", 9, 1), ("0", 8000, 8000)])
def test_the_cap_only_lowers(cap: str, current: int, sent: int) -> None:
    after = again({**CHAT, "max_tokens": current}, Guardrail.MALFORMED_TOOL, RETRY_MAX_TOKENS=cap)
    assert after["max_tokens"] == sent


def test_an_announced_call_changes_only_the_choice_and_one_of_none_stands() -> None:
    assert changed(CHAT, again(CHAT, Guardrail.UNEXPECTED_END)) == {"tool_choice": "required"}
    none = {**CHAT, "tool_choice": "none"}
    assert again(none, Guardrail.UNEXPECTED_END) == none


def test_a_turn_of_nothing_but_reasoning_is_tried_without_and_never_greedily() -> None:
    chat = {**CHAT, "chat_template_kwargs": {"x": 1}, "temperature": 0.1}
    after = again(chat, Guardrail.EMPTY_RESPONSE, thought=True)
    assert changed(chat, after) == {"chat_template_kwargs": {"x": 1, "enable_thinking": False}, "temperature": 0.5}
    bare = {key: value for key, value in CHAT.items() if key not in ("temperature", "chat_template_kwargs")}
    assert again(bare, Guardrail.EMPTY_RESPONSE) == bare


@pytest.mark.parametrize("fault", [Guardrail.MALFORMED_TOOL, Guardrail.UNEXPECTED_END, Guardrail.EMPTY_RESPONSE])
def test_no_retry_touches_its_argument_or_the_messages(fault: Guardrail) -> None:
    before = copy.deepcopy(CHAT)
    after = again(CHAT, fault, 2, thought=True)
    assert after["messages"] is CHAT["messages"]
    assert after["tools"] is TOOLS
    assert before == CHAT


THOUGHT = " <think>\nI should  read\n\tthe file.</think> <Thinking>Then</THINKING> fix it.\n"


def settings(mode: str, longest: int = 240) -> ProxySettings:
    return settings_from_env({
        "PROXY_STREAM_REASONING_FALLBACK": mode,
        "PROXY_STREAM_REASONING_MAX_CHARS": str(longest),
    })  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "thought", "shown"),
    [
        ("off", THOUGHT, ""),
        ("visible", THOUGHT, THOUGHT),
        ("visible", "", ""),
        ("sanitized", THOUGHT, "I should read the file. Then fix it."),
        ("sanitized", "<think>\n</think>", ""),
    ],
)
def test_what_a_turn_of_nothing_but_reasoning_shows(mode: str, thought: str, shown: str) -> None:
    assert fallback_text(thought, settings(mode)) == shown
    assert fallback_text(thought, settings_from_env({})) == ""


@pytest.mark.parametrize(("longest", "shown"), [(4, "abcd"), (3, "abc..."), (1, "a...")])
def test_sanitized_is_cut_at_the_limit(longest: int, shown: str) -> None:
    assert fallback_text("abcd", settings("sanitized", longest)) == shown
