"""What the client has been shown, recorded on the way to it; and sinks that let only a part through."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.proxy.blocks import BlockSink


class Shown:
    """Passes everything on, and remembers whether visible text, thinking and which calls were part of it.

    `begin` is called before the first piece.
    """

    def __init__(self, sink: BlockSink, begin: Callable[[], None] | None = None) -> None:
        self._sink = sink
        self._begin = begin
        self._thinking = sink.thinking
        self._text = sink.text
        self.arguments = sink.arguments
        self.has_text = False
        self.has_thinking = False
        self.calls: list[str] = []
        self.call_ids: set[str] = set()

    def thinking(self, text: str) -> None:
        """Reasoning text."""
        self._first()
        self.has_thinking = True
        self._thinking(text)

    def text(self, text: str) -> None:
        """Visible text; blanks alone do not count as shown."""
        if not self.has_text:
            self._first()
            self.has_text = bool(text) and not text.isspace()
        self._text(text)

    def tool(self, index: int, call_id: str, name: str) -> None:
        """A tool call begins."""
        self._first()
        self.calls.append(name)
        self.call_ids.add(call_id)
        self._sink.tool(index, call_id, name)

    def _first(self) -> None:
        if self._begin is not None:
            self._begin()
            self._begin = None


class WithoutCalls:
    """Passes thinking and text."""

    def __init__(self, sink: BlockSink) -> None:
        self.thinking = sink.thinking
        self.text = sink.text

    def tool(self, index: int, call_id: str, name: str) -> None:
        """Not passed."""

    def arguments(self, index: int, fragment: str) -> None:
        """Not passed."""


class OnlyCalls:
    """Passes tool calls."""

    def __init__(self, sink: BlockSink) -> None:
        self.tool = sink.tool
        self.arguments = sink.arguments

    def thinking(self, text: str) -> None:
        """Not passed."""

    def text(self, text: str) -> None:
        """Not passed."""
