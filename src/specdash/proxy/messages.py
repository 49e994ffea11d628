"""A Messages request after validation, in the client's own terms; guardrails replace it, translation renders it.

Source of the shapes: docs.anthropic.com, "Messages". Values here are never changed in place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
        return next((one for one in reversed(self.messages) if one.role == "user"), None)
