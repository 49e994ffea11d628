"""Estimates of prompt tokens from the size of what is sent; the session's scale calibrates them with real counts.

A message's estimate depends on that message alone, so that a growing history keeps its estimates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from specdash.proxy.parts import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.proxy.messages import Block, Message, MessagesRequest, Tool

BYTES_PER_TOKEN = 3.5
"""UTF-8 bytes of a token: near the truth for code and prose, and on the safe side of it for scripts of 3-byte signs."""
IMAGE_TOKENS = 1000
MESSAGE_TOKENS = 4
"""What a chat template writes around a message, a call, a result or a tool."""


def text_tokens(text: str) -> int:
    """Tokens of a text; 0 only for an empty one."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return _tokens(size)


def message_tokens(message: Message) -> int:
    """Tokens of one message, its frame included. Thinking counts: it is sent back as reasoning."""
    return MESSAGE_TOKENS + sum(_block_tokens(block) for block in message.content)


def overhead_tokens(request: MessagesRequest) -> int:
    """Tokens of what is sent besides the messages: the system prompt and the tools that can be called."""
    system = sum(text_tokens(block["text"]) for block in request.system)
    choice = request.tool_choice
    sent = [tool for tool in request.tools if choice.kind != "tool" or tool.name == choice.name]
    return system + sum(_tool_tokens(tool) for tool in sent) + (MESSAGE_TOKENS if request.system else 0)


def request_tokens(request: MessagesRequest) -> int:
    """Tokens of the whole prompt."""
    return overhead_tokens(request) + sum(message_tokens(message) for message in request.messages)


def _tokens(size: int) -> int:
    return -int(-size // BYTES_PER_TOKEN)


def _block_tokens(block: Block) -> int:
    match block["type"]:
        case "text":
            return text_tokens(block["text"])
        case "tool_use":
            return MESSAGE_TOKENS + text_tokens(block["name"]) + _json_tokens(block["input"])
        case "tool_result":
            return MESSAGE_TOKENS + _content_tokens(block.get("content") or "")
        case "thinking":
            return text_tokens(block["thinking"])
        case "image":
            return IMAGE_TOKENS
        case _:
            return _shown_tokens((block,))


def _content_tokens(content: str | list[Block]) -> int:
    return text_tokens(content) if isinstance(content, str) else sum(_block_tokens(block) for block in content)


def _shown_tokens(blocks: Iterable[Block]) -> int:
    return sum(text_tokens(part) if isinstance(part, str) else IMAGE_TOKENS for part in parts_of(blocks))


def _tool_tokens(tool: Tool) -> int:
    return MESSAGE_TOKENS + text_tokens(tool.name) + text_tokens(tool.description) + _json_tokens(tool.schema)


def _json_tokens(value: Any) -> int:
    return _tokens(len(orjson.dumps(value)))
