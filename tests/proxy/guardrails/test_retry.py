"""The bodies of second tries, and what a turn of nothing but reasoning shows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.answer.repair import empty_retry, fallback_text, malformed_retry, required_retry
from specdash.proxy.settings import ProxySettings, settings_from_env

SETTINGS = settings_from_env({})
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


def test_a_malformed_turn_must_call_soberly_and_short() -> None:
    after = malformed_retry(CHAT, SETTINGS, 1)
    assert changed(CHAT, after) == {"tool_choice": "required", "temperature": 0.0, "max_tokens": 2048}


@pytest.mark.parametrize(("setting", "attempt", "used"), [("0", 1, 0), ("0", 2, 0.5), ("0", 3, 0.5), ("0.8", 2, 0.8)])
def test_a_later_attempt_is_never_greedy_again(setting: str, attempt: int, used: float) -> None:
    settings = settings_from_env({"PROXY_MALFORMED_TOOL_RETRY_TEMPERATURE": setting})
    assert malformed_retry(CHAT, settings, attempt)["temperature"] == used


@pytest.mark.parametrize(("cap", "current", "sent"), [(2048, 100, 100), (2048, None, 2048), (1, 9, 1), (0, 8000, 8000)])
def test_the_cap_only_lowers(cap: int, current: int | None, sent: int) -> None:
    chat = {key: value for key, value in CHAT.items() if key != "max_tokens"}
    if current is not None:
        chat["max_tokens"] = current
    settings = settings_from_env({"PROXY_MALFORMED_TOOL_RETRY_MAX_TOKENS": str(cap)})
    assert malformed_retry(chat, settings, 1)["max_tokens"] == sent


def test_a_required_retry_changes_only_the_choice() -> None:
    assert changed(CHAT, required_retry(CHAT)) == {"tool_choice": "required"}
    assert required_retry({"tools": TOOLS})["tool_choice"] == "required"


@pytest.mark.parametrize("choice", ["none", "required", {"type": "function", "function": {"name": "Read"}}])
def test_a_choice_of_the_client_that_says_more_stands(choice: Any) -> None:
    chat = {**CHAT, "tool_choice": choice}
    assert required_retry(chat) == chat
    assert malformed_retry(chat, SETTINGS, 1)["tool_choice"] == choice


def test_a_turn_of_nothing_but_reasoning_is_tried_without() -> None:
    chat = {**CHAT, "chat_template_kwargs": {"x": 1}}
    after = empty_retry(chat, reasoning_only=True)
    assert changed(chat, after) == {"chat_template_kwargs": {"x": 1, "enable_thinking": False}}
    assert empty_retry({}, reasoning_only=True) == {"chat_template_kwargs": {"enable_thinking": False}}


_BODIES = st.fixed_dictionaries({
    "messages": st.just(CHAT["messages"]),
    "tools": st.sampled_from([[], TOOLS]),
}, optional={
    "tool_choice": st.sampled_from(["auto", "none", "required", {"type": "function"}]),
    "temperature": st.sampled_from([0, 0.2, 1.0]),
    "max_tokens": st.integers(1, 5000),
    "chat_template_kwargs": st.sampled_from([{}, {"enable_thinking": True}, {"enable_thinking": False}]),
})  # fmt: skip


@given(_BODIES, st.integers(1, 4), st.booleans())
def test_no_retry_touches_its_argument_or_the_messages(chat: dict[str, Any], attempt: int, thought: bool) -> None:
    before = copy.deepcopy(chat)
    for after in (malformed_retry(chat, SETTINGS, attempt), required_retry(chat), empty_retry(chat, thought)):
        assert after["messages"] is chat["messages"]
        assert after.get("tools") is chat.get("tools")
    assert chat == before


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
