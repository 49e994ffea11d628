"""The body of a Messages request, from bytes to `MessagesRequest`. Raises `InvalidRequestError`, or `ApiError` 413."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdash.proxy.content import IN_SYSTEM, block_list, content_blocks
from specdash.proxy.errors import InvalidRequestError
from specdash.proxy.fields import (
    JsonObject,
    an_object,
    check_pieces,
    choice,
    filled_text,
    flag,
    load_object,
    optional_integer,
    optional_list,
    optional_number,
    optional_object,
    optional_text,
    required,
    writable,
)
from specdash.proxy.messages import Message, MessagesRequest, Tool, ToolChoice

if TYPE_CHECKING:
    from specdash.proxy.messages import Block

ROLES = ("user", "assistant", "system")
TOOL_NAME_MAX = 256


def parse_messages(body: bytes, most_blocks: int | None = None) -> MessagesRequest:
    """The request of POST /v1/messages; see `check_pieces` for `most_blocks`."""
    source = load_object(body)
    if most_blocks is not None:
        check_pieces(source, most_blocks)
    required(source, "max_tokens", "")
    request = _request(source)
    _check_answered(request)
    return request


def parse_count_tokens(body: bytes, most_blocks: int | None = None) -> MessagesRequest:
    """The request of POST /v1/messages/count_tokens: `max_tokens` may be missing, and calls may be unanswered."""
    source = load_object(body)
    if most_blocks is not None:
        check_pieces(source, most_blocks)
    return _request(source)


def _request(source: JsonObject) -> MessagesRequest:
    tools, server_tools = _tools(source)
    thinking, budget = _thinking(source)
    return MessagesRequest(
        model=filled_text(source, "model", ""),
        messages=_messages(source),
        max_tokens=optional_integer(source, "max_tokens", "", 1) or 1,
        system=_system(source),
        tools=tools,
        tool_choice=_tool_choice(source, tools, server_tools),
        stream=flag(source, "stream", ""),
        stop_sequences=_stop_sequences(source),
        temperature=optional_number(source, "temperature", "", 2.0),
        top_p=optional_number(source, "top_p", "", 1.0),
        top_k=optional_integer(source, "top_k", "", 0),
        thinking=thinking,
        thinking_budget=budget,
        metadata=optional_object(source, "metadata", "") or {},
        server_tools=server_tools,
    )


def _messages(source: JsonObject) -> tuple[Message, ...]:
    required(source, "messages", "")
    values = optional_list(source, "messages", "")
    if not values:
        raise InvalidRequestError("messages", "at least one message is required")
    return tuple(_message(value, f"messages.{index}") for index, value in enumerate(values))


def _message(value: Any, where: str) -> Message:
    source = an_object(value, where)
    role = choice(source, "role", where, ROLES)
    return Message(role, content_blocks(required(source, "content", where), f"{where}.content", role))


def _check_answered(request: MessagesRequest) -> None:
    """An answer cannot continue a tool call: llama.cpp refuses it, and Anthropic does."""
    last = request.messages[-1]
    if last.role == "assistant" and any(block["type"] == "tool_use" for block in last.content):
        raise InvalidRequestError(
            f"messages.{len(request.messages) - 1}",
            "`tool_use` blocks were found without `tool_result` blocks in the next message",
        )


def _system(source: JsonObject) -> tuple[Block, ...]:
    value = source.get("system")
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        return ({"type": "text", "text": value},)
    return tuple(block_list(value, "system", IN_SYSTEM))


def _tools(source: JsonObject) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    tools: dict[str, Tool] = {}
    server_tools: list[str] = []
    for index, value in enumerate(optional_list(source, "tools", "")):
        where = f"tools.{index}"
        tool = an_object(value, where)
        kind = optional_text(tool, "type", where)
        if kind not in {"", "custom", "function"} and tool.get("input_schema") is None:
            server_tools.append(optional_text(tool, "name", where) or kind)
            continue
        name = filled_text(tool, "name", where, longest=TOOL_NAME_MAX)
        if name in tools:
            raise InvalidRequestError(f"{where}.name", "Tool names must be unique")
        schema = optional_object(tool, "input_schema", where)
        if schema is None:
            schema = {"type": "object", "properties": {}}
        writable(schema, f"{where}.input_schema")
        tools[name] = Tool(name, optional_text(tool, "description", where), schema)
    return tuple(tools.values()), tuple(server_tools)


def _tool_choice(source: JsonObject, tools: tuple[Tool, ...], server_tools: tuple[str, ...]) -> ToolChoice:
    chosen = optional_object(source, "tool_choice", "")
    if chosen is None:
        return ToolChoice()
    kind = choice(chosen, "type", "tool_choice", ("auto", "any", "tool", "none"))
    parallel = not flag(chosen, "disable_parallel_tool_use", "tool_choice")
    if kind != "tool":
        return ToolChoice(kind, None, parallel)
    name = filled_text(chosen, "name", "tool_choice")
    if name in server_tools:
        raise InvalidRequestError("tool_choice.name", "this tool runs at Anthropic only, no local model can call it")
    if all(tool.name != name for tool in tools):
        raise InvalidRequestError("tool_choice.name", "no tool of this name is in `tools`")
    return ToolChoice(kind, name, parallel)


def _stop_sequences(source: JsonObject) -> tuple[str, ...]:
    stops = optional_list(source, "stop_sequences", "")
    for index, stop in enumerate(stops):
        if not isinstance(stop, str):
            raise InvalidRequestError(f"stop_sequences.{index}", "Input should be a valid string")
    return tuple(stop for stop in stops if stop.strip())


def _thinking(source: JsonObject) -> tuple[str | None, int | None]:
    thinking = optional_object(source, "thinking", "")
    if thinking is None:
        return None, None
    kind = choice(thinking, "type", "thinking", ("enabled", "adaptive", "disabled"))
    return kind, optional_integer(thinking, "budget_tokens", "thinking", 0)
