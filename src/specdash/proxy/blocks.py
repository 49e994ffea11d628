"""Where an answer goes as it arrives: the one interface between what the upstream says and what the client gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class BlockSink(Protocol):
    """Takes an answer piece by piece, in the order of the model; a sink opens and closes blocks itself.

    `index` numbers tool calls as the upstream does, from 0. Two pieces of the same kind in a row belong to one block.
    """

    def thinking(self, text: str) -> None:
        """Reasoning text."""

    def text(self, text: str) -> None:
        """Visible text."""

    def tool(self, index: int, call_id: str, name: str) -> None:
        """A tool call begins; its id and name are complete."""

    def arguments(self, index: int, fragment: str) -> None:
        """A piece of the JSON text of that call's input."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete tool call; `arguments` is JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class Usage:
    """Tokens of one upstream call, or of several when added up. `prompt` includes `cached`."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def add(self, other: Usage) -> None:
        """Count another call too."""
        self.prompt += other.prompt
        self.cached += other.cached
        self.completion += other.completion

    def anthropic(self) -> dict[str, Any]:
        """As the Messages API counts: input without the cached part."""
        return {
            "input_tokens": max(0, self.prompt - self.cached),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached,
            "output_tokens": self.completion,
        }
