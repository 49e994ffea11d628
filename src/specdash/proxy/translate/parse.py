"""The body of a Messages request, from bytes to `MessagesRequest`. Raises `InvalidRequestError`, or `ApiError` 413."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import orjson

from specdash.proxy.http.responses import ApiError, InvalidRequestError, read_json
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


# A Messages request after validation, in the client's own terms; guardrails replace it, translation renders it.
#
# Source of the shapes: docs.anthropic.com, "Messages". Values here are never changed in place.

Block = dict[str, Any]
"""One content block as the client sent it, its `type` known and its fields of the right kinds."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `role` is user, assistant, or system for an instruction in the middle of a conversation.

    A content given as a string is one text block.
    """

    role: str
    content: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool the client runs. `schema` is its `input_schema`, a JSON schema of an object."""

    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`kind` is auto, any, tool or none; `name` belongs to tool; `parallel` False allows one call a turn.

    `is_ours` says that a guardrail asks for it: calls that come all the same are the client's to take.
    """

    kind: str = "auto"
    name: str | None = None
    parallel: bool = True
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """The body of POST /v1/messages.

    `thinking` is enabled, adaptive, disabled, or None when the client said nothing; `thinking_budget` is in tokens.
    `server_tools` are names of tools only Anthropic could run; they are accepted and left out.
    """

    model: str
    messages: tuple[Message, ...]
    max_tokens: int
    system: tuple[Block, ...] = ()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    stream: bool = False
    stop_sequences: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    thinking: str | None = None
    thinking_budget: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    server_tools: tuple[str, ...] = ()

    @property
    def wants_thinking(self) -> bool:
        """True when thinking blocks may be part of the answer."""
        return self.thinking in {"enabled", "adaptive"}

    @property
    def last_user(self) -> Message | None:
        """The latest user turn."""
        return next((message for message in reversed(self.messages) if message.role == "user"), None)


# Reading values out of a client's JSON: each accessor returns the right kind or names the path of the wrong one.
#
# The wording follows the Anthropic API (`messages.0.role: Field required`). JSON null counts as an absent field.
# Paths hold the API's own field names and indexes only, never a client's text.

MAX_INT = 2**31 - 1
"""Largest number llama.cpp takes where it wants an integer; a larger one is lowered to it."""

JsonObject = dict[str, Any]

MOST_PIECES = 10_000


def load_object(body: bytes | bytearray) -> JsonObject:
    """The JSON object of a request body.

    Half a surrogate pair (a client cut a text inside an emoji) becomes U+FFFD: the whole conversation would be lost
    over it otherwise. Everything else that is not JSON raises `InvalidRequestError`.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        try:
            value = read_json(body.decode())
        except ValueError:
            raise InvalidRequestError("", f"The request body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequestError("", "The request body is not a JSON object")
    return value


def writable(value: Any, where: str) -> None:
    """Refuse what can be read but not sent on: a nesting beyond what the JSON library writes (about 250 levels)."""
    # The levels the value lies deeper in what is sent upstream than here.
    dumped([[[[[[[[value]]]]]]]], where)


def check_pieces(source: JsonObject) -> None:
    """Raise `ApiError` 413 when a body has more than `MOST_PIECES` messages, content blocks, tools and stop words.

    Each takes a while to look at, in which no other client is served.
    """
    lists = ("messages", "system", "tools", "stop_sequences", "stop")
    left: list[Any] = [source.get(name) for name in lists]
    count = 0
    while left:
        value = left.pop()
        if isinstance(value, list):
            count += len(value)
            if count > MOST_PIECES:
                what = "messages, content blocks, tools and stop sequences"
                raise ApiError(413, f"the request has more than {MOST_PIECES} {what}")
            left += value
        elif isinstance(value, dict):
            left += (value.get("content"), value.get("source"))


def dumped(value: Any, where: str = "") -> bytes:
    """The JSON text of what a client sent. Raises `InvalidRequestError` when it is nested too deeply."""
    try:
        return orjson.dumps(value)
    except TypeError:
        raise InvalidRequestError(where, "Input is nested too deeply") from None


def required(source: JsonObject, key: str, where: str) -> Any:
    """The value of a field that has to be there."""
    value = source.get(key)
    if value is None:
        raise InvalidRequestError(at(where, key), "Field required")
    return value


def at(where: str, key: str | int) -> str:
    """The path of `key` inside `where`."""
    return f"{where}.{key}" if where else str(key)


def _optional(source: JsonObject, key: str, where: str, kind: type, noun: str) -> Any:
    value = source.get(key)
    if value is None or isinstance(value, kind):
        return value
    raise InvalidRequestError(at(where, key), f"Input should be a valid {noun}")


def text(source: JsonObject, key: str, where: str) -> str:
    """A required string; it may be empty."""
    required(source, key, where)
    return optional_text(source, key, where)


def filled_text(source: JsonObject, key: str, where: str, *, longest: int | None = None) -> str:
    """A required string of at least one and at most `longest` characters."""
    value = text(source, key, where)
    if not value:
        raise InvalidRequestError(at(where, key), "String should have at least 1 character")
    if longest is not None and len(value) > longest:
        raise InvalidRequestError(at(where, key), f"String should have at most {longest} characters")
    return value


def optional_text(source: JsonObject, key: str, where: str) -> str:
    """A string, or "" when absent."""
    return _optional(source, key, where, str, "string") or ""


def optional_object(source: JsonObject, key: str, where: str) -> JsonObject | None:
    """An object, or None when absent."""
    found: JsonObject | None = _optional(source, key, where, dict, "dictionary")
    return found


def required_object(source: JsonObject, key: str, where: str) -> JsonObject:
    """An object that has to be there."""
    required(source, key, where)
    return optional_object(source, key, where) or {}


def optional_list(source: JsonObject, key: str, where: str) -> list[Any]:
    """A list, empty when absent."""
    return _optional(source, key, where, list, "list") or []


def an_object(value: Any, where: str) -> JsonObject:
    """`value` itself, which has to be an object."""
    if isinstance(value, dict):
        return value
    raise InvalidRequestError(where, "Input should be a valid dictionary")


def flag(source: JsonObject, key: str, where: str) -> bool:
    """A boolean, False when absent."""
    return bool(_optional(source, key, where, bool, "boolean"))


def optional_integer(source: JsonObject, key: str, where: str, least: int) -> int | None:
    """An integer of at least `least`, at most `MAX_INT`; a number such as 1024.0 counts as one. None when absent."""
    value = source.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or (isinstance(value, float) and value % 1):
        raise InvalidRequestError(at(where, key), "Input should be a valid integer")
    if value < least:
        raise InvalidRequestError(at(where, key), f"Input should be greater than or equal to {least}")
    return min(int(value), MAX_INT)


def optional_number(source: JsonObject, key: str, where: str, most: float) -> float | None:
    """A number from 0 to `most`, or None when absent."""
    value = source.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequestError(at(where, key), "Input should be a valid number")
    if not 0 <= value <= most:
        raise InvalidRequestError(at(where, key), f"Input should be between 0 and {most:g}")
    return value


def choice(source: JsonObject, key: str, where: str, allowed: tuple[str, ...]) -> str:
    """A required string out of `allowed`."""
    value = required(source, key, where)
    if isinstance(value, str) and value in allowed:
        return value
    names = [f"'{name}'" for name in allowed]
    raise InvalidRequestError(at(where, key), f"Input should be {', '.join(names[:-1])} or {names[-1]}")


# Content blocks of a message: which are known, and which fields each needs. Source: docs.anthropic.com, "Messages".
#
# A block keeps the fields the client sent, except `cache_control`, which moves from block to block between turns and
# would make equal blocks differ. Blocks of unknown types are left out: clients send new ones before servers know
# them.


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


ROLES = ("user", "assistant", "system")
TOOL_NAME_MAX = 256


def parse_messages(body: bytes | bytearray) -> MessagesRequest:
    """The request of POST /v1/messages."""
    request = _request(body, counts=False)
    _check_answered(request)
    return request


def parse_count_tokens(body: bytes | bytearray) -> MessagesRequest:
    """The request of POST /v1/messages/count_tokens: `max_tokens` may be missing, and calls may be unanswered."""
    return _request(body, counts=True)


def _request(body: bytes | bytearray, *, counts: bool) -> MessagesRequest:
    source = load_object(body)
    check_pieces(source)
    if not counts:
        required(source, "max_tokens", "")
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
