"""The tools that tests of answers offer, shaped like those of a coding agent."""

from typing import Any

from specdash.proxy.answer.blocks import ToolCall
from specdash.proxy.translate.parse import Tool


def tool(name: str, required: tuple[str, ...] = (), **properties: Any) -> Tool:
    """A tool whose properties are JSON schemas."""
    return Tool(name, "", {"type": "object", "properties": properties, "required": list(required)})


TEXT = {"type": "string"}
READ = tool("Read", ("file_path",), file_path=TEXT, limit={"type": "integer"}, offset={"type": "number"})
WRITE = tool("Write", ("file_path", "content"), file_path=TEXT, content=TEXT)
GREP = tool(
    "Grep",
    ("pattern",),
    pattern=TEXT,
    mode={"type": "string", "enum": ["content", "files"]},
    multiline={"type": "boolean"},
    globs={"type": "array", "items": {"type": "string"}},
    options={"type": "object", "properties": {"depth": {"type": "integer"}}, "required": ["depth"]},
    context={"type": ["integer", "null"]},
    kind={"const": "text"},
    anything={},
    either={"anyOf": [{"type": "string"}, {"type": "null"}]},
)
PING = tool("Ping")
TOOLS = (READ, WRITE, GREP, PING)


def call(name: str, arguments: str, call_id: str = "call_1") -> ToolCall:
    """A structured call as the upstream delivers it."""
    return ToolCall(call_id, name, arguments)
