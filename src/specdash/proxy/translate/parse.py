"""The body of a Messages request, from bytes to `MessagesRequest`. Raises `InvalidRequestError`.

Source of the shapes: docs.anthropic.com, "Messages". The wording of refusals is the Anthropic API's, which is
pydantic's (`messages.0.role: Field required`). JSON null counts as an absent field. Paths hold the API's own field
names and indexes only, never a client's text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from msgspec import Struct, field
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model, model_validator

from specdash.proxy.http.responses import InvalidRequestError, load_object

if TYPE_CHECKING:
    from collections.abc import Collection

# A request after validation, in the client's own terms; guardrails replace it, translation renders it. Values here are
# never changed in place.

Block = dict[str, Any]
"""One content block as the client sent it, its `type` known and its fields of the right kinds."""


class Message(Struct, frozen=True):
    """One turn. `role` is user, assistant, or system for an instruction in the middle of a conversation.

    A content given as a string is one text block.
    """

    role: str
    content: tuple[Block, ...]


class Tool(Struct, frozen=True):
    """One tool the client runs. `schema` is its `input_schema`, a JSON schema of an object."""

    name: str
    description: str
    schema: dict[str, Any]


class ToolChoice(Struct, frozen=True):
    """`kind` is auto, any, tool or none; `name` belongs to tool; `parallel` False allows one call a turn.

    `is_ours` says that a guardrail asks for it: calls that come all the same are the client's to take.
    """

    kind: str = "auto"
    name: str | None = None
    parallel: bool = True
    is_ours: bool = False


class MessagesRequest(Struct, frozen=True):
    """The body of POST /v1/messages.

    `thinking` is enabled, adaptive, disabled, or None where the client leaves it open; `thinking_budget` is in tokens.
    Tools that only Anthropic could run are accepted and left out. `schema` is what the answer's JSON has to fit.
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
    schema: dict[str, Any] | None = None

    @property
    def wants_thinking(self) -> bool:
        """True when thinking blocks may be part of the answer."""
        return self.thinking in {"enabled", "adaptive"}

    @property
    def last_user(self) -> Message | None:
        """The latest user turn."""
        return next((message for message in reversed(self.messages) if message.role == "user"), None)


# The same as the client's JSON has it.

MAX_INT = 2**31 - 1
"""Largest number llama.cpp takes where it wants an integer; a larger one is lowered to it."""
JsonObject = dict[str, Any]


def _whole(value: Any) -> Any:
    """A number such as 1024.0 counts as an integer."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0:
        return min(int(value), MAX_INT)
    return value


Filled = Annotated[str, Field(min_length=1)]
Whole = Annotated[int, BeforeValidator(_whole)]


class _Shape(BaseModel):
    """Fields of an object; others are left alone."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return {key: entry for key, entry in value.items() if entry is not None} if isinstance(value, dict) else value


class _Body(_Shape):
    model: Filled
    messages: list[Any]
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    system: Any = None
    tools: list[Any] = []
    tool_choice: JsonObject | None = None
    stream: bool = False
    stop_sequences: list[str] = []
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=0)] | None = None
    thinking: JsonObject | None = None
    metadata: JsonObject = {}
    output_format: JsonObject | None = None
    output_config: JsonObject = {}


class _Turn(_Shape):
    role: Literal["user", "assistant", "system"]
    content: Any


class _Tool(_Shape):
    type: str = ""
    name: str = ""
    description: str = ""
    input_schema: JsonObject | None = None


class _Choice(_Shape):
    type: Literal["auto", "any", "tool", "none"]
    name: Any = None
    disable_parallel_tool_use: bool = False


class _Thinking(_Shape):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[Whole, Field(ge=0)] | None = None


class _Format(_Shape):
    type: Literal["json_schema"]
    wanted: JsonObject = Field(alias="schema")


# Content blocks: which are known, and which fields each needs.
#
# A block keeps the fields the client sent, except `cache_control`, which moves from block to block between turns and
# would make equal blocks differ. Blocks of unknown types are left out: clients send new ones before servers know them.


def _shape(**fields: Any) -> type[_Shape]:
    """A shape of these fields, each its type with its default, `...` for none."""
    return create_model("_Fields", __base__=_Shape, **fields)


_TYPED, _NAMED = _shape(type=(str, ...)), _shape(name=(Filled, ...))
_TOOL_NAMED = _shape(name=(Annotated[str, Field(min_length=1, max_length=256)], ...))
_KINDS: dict[str, type[_Shape]] = {
    "text": _shape(text=(str, ...)),
    "thinking": _shape(thinking=(str, ...)),
    "image": _shape(source=(_shape(type=(Literal["base64", "url", "file"], ...)), ...)),
    "tool_use": _shape(id=(Filled, ...), name=(Filled, ...), input=(JsonObject, {})),
    "tool_result": _shape(tool_use_id=(Filled, ...), is_error=(bool, False)),
}
"""Known types. Redacted thinking and the calls and results of server tools are not among them: no other model than
Anthropic's can read the former, and the latter name tools that do not run here."""
_SOURCES: dict[str, type[_Shape]] = {
    "base64": _shape(media_type=(Filled, ...), data=(Filled, ...)),
    "url": _shape(url=(Filled, ...)),
}
_UNREADABLE = frozenset({"document", "search_result"})
"""Types of which no more than a plain text is read."""
_OF_ROLE = {"tool_use": "assistant", "tool_result": "user"}
"""The one role whose turns may hold such a block."""
_IN_MESSAGE = _KINDS.keys() | _UNREADABLE
_IN_SYSTEM = frozenset({"text"})
_IN_RESULT = frozenset({"text", "image"}) | _UNREADABLE
_URL_SCHEMES = ("https://", "http://", "data:")
_S = TypeVar("_S", bound=_Shape)


def _read(shape: type[_S], value: Any, where: str) -> _S:
    """`value` as `shape`. Raises `InvalidRequestError` with the path of the first wrong field."""
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        row = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ".".join(str(part) for part in (where, *row["loc"]) if part != "")
    message = row["msg"].partition(", got")[0].partition(" or instance")[0].partition(", unable")[0]
    raise InvalidRequestError(path, message)


def parse_messages(body: bytes | bytearray, *, counts: bool = False) -> MessagesRequest:
    """The request of POST /v1/messages; where it `counts` tokens, of count_tokens.

    There `max_tokens` may be missing, and calls may be unanswered.
    """
    source = load_object(body)
    found = _read(_Body, source, "")
    if found.max_tokens is None and not counts:
        raise InvalidRequestError("max_tokens", "Field required")
    if not found.messages:
        raise InvalidRequestError("messages", "at least one message is required")
    messages = []
    for index, value in enumerate(found.messages):
        turn = _read(_Turn, value, f"messages.{index}")
        messages.append(Message(turn.role, _blocks(turn.content, f"messages.{index}.content", _IN_MESSAGE, turn.role)))
    if not counts and turn.role == "assistant" and any(block["type"] == "tool_use" for block in messages[-1].content):
        # An answer cannot continue a tool call: llama.cpp refuses it, and Anthropic does.
        raise InvalidRequestError(
            f"messages.{len(messages) - 1}",
            "`tool_use` blocks were found without `tool_result` blocks in the next message",
        )
    tools = _tools(found.tools)
    thinking = _read(_Thinking, found.thinking, "thinking") if found.thinking is not None else None
    output = found.output_config.get("format") or found.output_format
    return MessagesRequest(
        messages=tuple(messages),
        max_tokens=found.max_tokens or 1,
        system=_blocks(found.system, "system", _IN_SYSTEM) if found.system else (),
        tools=tools,
        tool_choice=_tool_choice(found.tool_choice, tools, found.tools),
        stop_sequences=tuple(stop for stop in found.stop_sequences if stop.strip()),
        thinking=thinking.type if thinking is not None else None,
        thinking_budget=thinking.budget_tokens if thinking is not None else None,
        schema=_read(_Format, output, "output_config.format").wanted if output else None,
        **{name: getattr(found, name) for name in ("model", "stream", "temperature", "top_p", "top_k", "metadata")},
    )


def _blocks(content: Any, where: str, known: Collection[str], role: str = "") -> tuple[Block, ...]:
    """The blocks of a content, a string or a list, whose type is in `known`, each checked."""
    if isinstance(content, str):
        return ({"type": "text", "text": content},)
    if not isinstance(content, list):
        raise InvalidRequestError(where, "Input should be a valid string or a list of content blocks")
    found: list[Block] = []
    for index, block in enumerate(content):
        here = f"{where}.{index}"
        _read(_TYPED, block, here)
        kind = block["type"]
        if kind not in known:
            continue
        if role and _OF_ROLE.get(kind, role) != role:
            raise InvalidRequestError(where, f"`{kind}` blocks can only be in `{_OF_ROLE[kind]}` messages")
        block.pop("cache_control", None)
        if kind in _UNREADABLE:
            found.append(_plain(block))
            continue
        _read(_KINDS[kind], block, here)
        if kind == "tool_use":
            block["input"] = block.get("input") or {}
        elif kind == "tool_result":
            content = block.get("content") or ""
            if not isinstance(content, str):
                content = list(_blocks(content, f"{here}.content", _IN_RESULT))
            block["content"] = content
        elif kind == "image":
            block = _image(block, f"{here}.source")
        found.append(block)
    return tuple(found)


def _image(block: Block, where: str) -> Block:
    source = block["source"]
    shape = _SOURCES.get(source["type"])
    if shape is None:
        return _plain(block)
    _read(shape, source, where)
    if source["type"] == "url" and not source["url"].lower().startswith(_URL_SCHEMES):
        raise InvalidRequestError(f"{where}.url", "Only http, https and data URLs are supported")
    return block


def _plain(block: Block) -> Block:
    """The text of a document or a search result behind its title, or in its place that it cannot be read here."""
    source = block.get("source")
    held = source if isinstance(source, dict) else block
    content = held.get("data" if held.get("type") == "text" else "content")
    pieces = content if isinstance(content, list) else [{"text": content}]
    texts = [piece["text"] for piece in pieces if isinstance(piece, dict) and isinstance(piece.get("text"), str)]
    heads = [block[name] for name in ("title", "context") if isinstance(block.get(name), str)]
    return {"type": "text", "text": "\n\n".join([*heads, *(texts or [f"[{block['type']}: it cannot be read here]"])])}


def _tools(values: list[Any]) -> tuple[Tool, ...]:
    tools: dict[str, Tool] = {}
    for index, value in enumerate(values):
        where = f"tools.{index}"
        tool = _read(_Tool, value, where)
        if tool.type not in {"", "custom", "function"} and tool.input_schema is None:
            continue
        _read(_TOOL_NAMED, value, where)
        name = tool.name
        if name in tools:
            raise InvalidRequestError(f"{where}.name", "Tool names must be unique")
        schema = tool.input_schema if tool.input_schema is not None else {"type": "object", "properties": {}}
        tools[name] = Tool(name, tool.description, schema)
    return tuple(tools.values())


def _tool_choice(value: JsonObject | None, tools: tuple[Tool, ...], sent: list[Any]) -> ToolChoice:
    if value is None:
        return ToolChoice()
    chosen = _read(_Choice, value, "tool_choice")
    parallel = not chosen.disable_parallel_tool_use
    if chosen.type != "tool":
        return ToolChoice(chosen.type, None, parallel)
    _read(_NAMED, value, "tool_choice")
    name = chosen.name
    if all(tool.name != name for tool in tools):
        is_left_out = any(tool.get("name") == name for tool in sent)
        why = "this tool runs at Anthropic only, no local model can call it" if is_left_out else ""
        raise InvalidRequestError("tool_choice.name", why or "no tool of this name is in `tools`")
    return ToolChoice(chosen.type, name, parallel)
