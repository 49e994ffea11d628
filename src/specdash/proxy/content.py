"""Content blocks of a message: which are known, and which fields each needs. Source: docs.anthropic.com, "Messages".

A block keeps the fields the client sent, except `cache_control`, which moves from block to block between turns and
would make equal blocks differ. Blocks of unknown types are left out: clients send new ones before servers know them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdash.proxy.errors import InvalidRequestError
from specdash.proxy.fields import (
    an_object,
    choice,
    filled_text,
    flag,
    optional_list,
    optional_object,
    optional_text,
    required,
    required_object,
    text,
    writable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from specdash.proxy.messages import Block

IN_SYSTEM = frozenset({"text"})
IN_DOCUMENT = frozenset({"text", "image"})
IN_RESULT = frozenset({"text", "image", "document", "search_result"})
OF_ROLE: dict[str, str] = {"tool_use": "assistant", "tool_result": "user"}
"""The one role whose turns may hold such a block."""

_URL_SCHEMES = ("https://", "http://", "data:")


def content_blocks(content: Any, where: str, role: str) -> tuple[Block, ...]:
    """The known blocks of one turn's `content`, a string or a list."""
    if isinstance(content, str):
        return ({"type": "text", "text": content},)
    blocks = block_list(content, where, _CHECKS)
    for block in blocks:
        only = OF_ROLE.get(block["type"])
        if only is not None and only != role:
            raise InvalidRequestError(where, f"`{block['type']}` blocks can only be in `{only}` messages")
    return tuple(blocks)


def block_list(content: Any, where: str, known: Collection[str]) -> list[Block]:
    """The blocks of a list whose type is in `known`, each checked."""
    if not isinstance(content, list):
        raise InvalidRequestError(where, "Input should be a valid string or a list of content blocks")
    found: list[Block] = []
    for index, value in enumerate(content):
        here = f"{where}.{index}"
        block = an_object(value, here)
        kind = text(block, "type", here)
        if kind not in known:
            continue
        block.pop("cache_control", None)
        _CHECKS[kind](block, here)
        found.append(block)
    return found


def _check_text(block: Block, where: str) -> None:
    text(block, "text", where)


def _check_thinking(block: Block, where: str) -> None:
    text(block, "thinking", where)


def _check_image(block: Block, where: str) -> None:
    source = required_object(block, "source", where)
    where = f"{where}.source"
    match choice(source, "type", where, ("base64", "url", "file")):
        case "base64":
            filled_text(source, "media_type", where)
            filled_text(source, "data", where)
        case "url":
            if not filled_text(source, "url", where).lower().startswith(_URL_SCHEMES):
                raise InvalidRequestError(f"{where}.url", "Only http, https and data URLs are supported")


def _check_document(block: Block, where: str) -> None:
    optional_text(block, "title", where)
    optional_text(block, "context", where)
    source = required_object(block, "source", where)
    where = f"{where}.source"
    match choice(source, "type", where, ("text", "content", "base64", "url", "file")):
        case "text":
            text(source, "data", where)
        case "content":
            content = required(source, "content", where)
            if not isinstance(content, str):
                source["content"] = block_list(content, f"{where}.content", IN_DOCUMENT)
        case "base64":
            optional_text(source, "media_type", where)
        case "url":
            filled_text(source, "url", where)


def _check_search_result(block: Block, where: str) -> None:
    optional_text(block, "title", where)
    optional_text(block, "source", where)
    block["content"] = block_list(optional_list(block, "content", where), f"{where}.content", IN_SYSTEM)


def _check_tool_use(block: Block, where: str) -> None:
    filled_text(block, "id", where)
    filled_text(block, "name", where)
    block["input"] = optional_object(block, "input", where) or {}
    writable(block["input"], f"{where}.input")


def _check_tool_result(block: Block, where: str) -> None:
    filled_text(block, "tool_use_id", where)
    flag(block, "is_error", where)
    content = block.get("content")
    if content is None:
        block["content"] = ""
    elif not isinstance(content, str):
        block["content"] = block_list(content, f"{where}.content", IN_RESULT)


_CHECKS: dict[str, Callable[[Block, str], None]] = {
    "text": _check_text,
    "thinking": _check_thinking,
    "image": _check_image,
    "document": _check_document,
    "search_result": _check_search_result,
    "tool_use": _check_tool_use,
    "tool_result": _check_tool_result,
}
"""Known types. Redacted thinking and the calls and results of server tools are not among them: no other model than
Anthropic's can read the former, and the latter name tools that do not run here."""
