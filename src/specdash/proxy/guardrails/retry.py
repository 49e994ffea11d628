"""The upstream body of a second try. The messages stay as they are, so that the upstream's prompt cache holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdash.proxy.settings import ProxySettings

LATER_TEMPERATURE = 0.5
"""Least temperature where the same sampling has already failed: it would only fail again."""


def malformed_retry(chat: dict[str, Any], settings: ProxySettings, attempt: int) -> dict[str, Any]:
    """A retry of a malformed tool turn: a call is required, sampled soberly and short. `attempt` counts from 1."""
    body = required_retry(chat)
    temperature = settings.malformed_tool_retry_temperature
    body["temperature"] = temperature if attempt <= 1 else max(temperature, LATER_TEMPERATURE)
    cap = settings.malformed_tool_retry_max_tokens
    if cap > 0:
        current = body.get("max_tokens")
        body["max_tokens"] = min(current, cap) if isinstance(current, int) else cap
    return body


def required_retry(chat: dict[str, Any]) -> dict[str, Any]:
    """A retry that must call a tool. A choice of none, or of one tool by name, stands."""
    body = dict(chat)
    if body.get("tools") and not isinstance(body.get("tool_choice"), dict) and body.get("tool_choice") != "none":
        body["tool_choice"] = "required"
    return body


def empty_retry(chat: dict[str, Any], reasoning_only: bool) -> dict[str, Any]:
    """A retry of a turn that showed nothing: without thinking when it did nothing else, and never greedy."""
    body = dict(chat)
    if reasoning_only:
        kwargs = body.get("chat_template_kwargs")
        body["chat_template_kwargs"] = {**(kwargs if isinstance(kwargs, dict) else {}), "enable_thinking": False}
    temperature = body.get("temperature")
    if isinstance(temperature, int | float) and temperature < LATER_TEMPERATURE:
        body["temperature"] = LATER_TEMPERATURE
    return body
