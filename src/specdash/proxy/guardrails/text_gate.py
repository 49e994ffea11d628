"""Holds a live stream's text back while it ends in what could be an unparsed tool call, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.proxy.guardrails.markup_search import MarkupSearch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.proxy.blocks import BlockSink
    from specdash.proxy.messages import Tool


class PseudoCallGate:
    """A `BlockSink` that hands on every fragment as it came, except those of call markup that reaches the text's end.

    What is held goes on, fragment by fragment, as soon as other text follows it. At the end `held` is what is
    suspicious: `flush` lets it through, `drop` takes it away. The gate holds whatever `malformed.text_fault` finds by
    its markup, since both ask `MarkupSearch`; only judging the whole answer settles it.
    """

    __slots__ = ("_is_open", "_passed", "_pending", "_search", "_sink")

    def __init__(self, tools: Sequence[Tool], sink: BlockSink, *, rules: bool = False) -> None:
        self._sink = sink
        self._search = MarkupSearch({tool.name: tool for tool in tools}, rules=rules)
        self._is_open = not tools
        self._passed = 0
        self._pending: list[tuple[bool, str]] = []

    @property
    def held(self) -> str:
        """The text held back, from where the possible call begins."""
        self._settle()
        return "".join(piece for is_text, piece in self._pending if is_text)[self._search.settled - self._passed :]

    def text(self, text: str) -> None:
        """Visible text."""
        if self._is_open:
            self._sink.text(text)
            return
        self._search.feed(text)
        if not self._pending and self._search.found is None:
            self._passed += len(text)
            self._sink.text(text)
        else:
            self._pending.append((True, text))
            self._release()

    def thinking(self, text: str) -> None:
        """Reasoning; it keeps its place among text that is held."""
        if self._pending:
            self._pending.append((False, text))
        else:
            self._sink.thinking(text)

    def tool(self, index: int, call_id: str, name: str) -> None:
        """A real call: the upstream's parser works, so whatever was held is text."""
        if not self._is_open:
            self.flush()
        self._sink.tool(index, call_id, name)

    def arguments(self, index: int, fragment: str) -> None:
        """A piece of a real call's input."""
        self._sink.arguments(index, fragment)

    def flush(self) -> None:
        """Let everything held through, as it came, and hold nothing from now on."""
        self._is_open = True
        for is_text, piece in self._pending:
            (self._sink.text if is_text else self._sink.thinking)(piece)
        self._pending.clear()
        self._passed = self._search.settled

    def drop(self) -> str:
        """Take away and return what is held; text before the possible call goes on."""
        held = self.held
        head = self._search.settled - self._passed
        for is_text, piece in self._pending:
            if not is_text:
                self._sink.thinking(piece)
            elif head > 0:
                self._sink.text(piece[:head])
                head = 0
        self._pending.clear()
        self._passed = self._search.settled
        self._is_open = True
        return held

    def _settle(self) -> None:
        if self._pending:
            self._search.tail()
            self._release()

    def _release(self) -> None:
        """Let the fragments go that lie wholly before the possible call."""
        settled = self._search.settled
        count = 0
        for is_text, piece in self._pending:
            if is_text:
                if self._passed + len(piece) > settled:
                    break
                self._passed += len(piece)
                self._sink.text(piece)
            else:
                self._sink.thinking(piece)
            count += 1
        del self._pending[:count]
