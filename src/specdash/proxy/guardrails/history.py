"""A conversation as guardrails cut and compare it: what is one exchange, where it can be cut, what is equal.

A history can be cut before an assistant message that answers a user one: then every call keeps its results and the
roles still alternate. Whether a message is such a boundary depends on what is before it only, never on what follows.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import orjson

from specdash.proxy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.proxy.messages import Block

REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
"""What a client, not its user, says within a user message."""
RECALL_CHARS = 4000
"""Longest text of a removed instruction that is kept beside the marker."""
SHORTENED = "\n...[TRUNCATED]...\n"


def shorten(text: str, head: int, tail: int) -> str:
    """`head` characters from the start and `tail` from the end, with a mark between."""
    return text[:head] + SHORTENED + text[len(text) - tail :]


def is_boundary(messages: Sequence[Message], index: int) -> bool:
    """True when the history can be cut before `messages[index]`."""
    if messages[index].role != "assistant":
        return False
    before = index - 1
    while before >= 0 and messages[before].role == "system":
        before -= 1
    return before >= 0 and messages[before].role == "user"


def head_end(messages: Sequence[Message]) -> int:
    """How many messages are always kept: those before the first answer to a user."""
    return next((index for index in range(len(messages)) if is_boundary(messages, index)), len(messages))


def instruction_of(message: Message) -> str:
    """What a user asks for in words; empty for results of tools and for reminders of the client."""
    if message.role != "user" or results_of(message):
        return ""
    texts = (REMINDER.sub("", block["text"]).strip() for block in message.content if block["type"] == "text")
    return "\n".join(filter(None, texts))


def recalled(messages: Sequence[Message], start: int, end: int) -> str:
    """The latest instruction in `messages[start:end]` as text for the model, which must not forget its task."""
    for index in range(end - 1, start - 1, -1):
        text = instruction_of(messages[index])
        if text:
            kept = text if len(text) <= RECALL_CHARS else shorten(text, RECALL_CHARS * 3 // 4, RECALL_CHARS // 4)
            return f"[The user's latest instruction among the removed messages:]\n{kept}"
    return ""


def cut(messages: Sequence[Message], at: int, marker: str) -> tuple[Message, ...]:
    """The messages always kept, with `marker` at the end of their last user message, and those from boundary `at`."""
    head = list(messages[: head_end(messages)])
    place = max(index for index, message in enumerate(head) if message.role == "user")
    texts = filter(None, (marker, recalled(messages, len(head), at)))
    head[place] = with_text(head[place], *texts)
    return (*head, *messages[at:])


def with_text(message: Message, *texts: str) -> Message:
    """The message with text blocks added at its end."""
    return Message(message.role, (*message.content, *({"type": "text", "text": text} for text in texts)))


def digest(*values: Any) -> str:
    """A short name of JSON values; equal for equal values, whatever the order of their keys."""
    return blake2b(orjson.dumps(values, option=orjson.OPT_SORT_KEYS), digest_size=12).hexdigest()


def calls_of(message: Message) -> list[Block]:
    """The tool calls of a message."""
    return [block for block in message.content if block["type"] == "tool_use"]


def results_of(message: Message) -> list[Block]:
    """The tool results of a message."""
    return [block for block in message.content if block["type"] == "tool_result"]
