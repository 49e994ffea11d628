"""The client's stop sequences, found in visible text as it streams."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.proxy.blocks import BlockSink


class StopSequences:
    """Passes an answer up to the stop that begins earliest in its text (the shortest of those), and nothing after.

    Only text that may still become a stop is held back. `on_match` is called once, at the match.
    """

    __slots__ = ("_begins", "_held", "_on_match", "_sink", "_stops", "matched")

    def __init__(self, stops: Sequence[str], sink: BlockSink, on_match: Callable[[], None] | None = None) -> None:
        self._stops = sorted((one for one in set(stops) if one), key=len)
        begins = "".join(sorted({re.escape(one[0]) for one in self._stops}))
        self._begins = re.compile(f"[{begins}]" if begins else "(?!)")
        self._sink = sink
        self._held = ""
        self._on_match = on_match
        self.matched: str | None = None
        """The stop that ended the text."""

    def thinking(self, text: str) -> None:
        """Reasoning is not searched; text held before it comes first."""
        if self.matched is None:
            self.flush()
        if self.matched is None:
            self._sink.thinking(text)

    def tool(self, index: int, call_id: str, name: str) -> None:
        """A stop does not reach across a tool call."""
        if self.matched is None:
            self.flush()
        if self.matched is None:
            self._sink.tool(index, call_id, name)

    def arguments(self, index: int, fragment: str) -> None:
        """Arguments are not searched."""
        if self.matched is None:
            self._sink.arguments(index, fragment)

    def text(self, text: str) -> None:
        """Visible text."""
        if self.matched is not None:
            return
        if not self._held and self._begins.search(text) is None:
            self._sink.text(text)
            return
        text = self._held + text
        at, stop = self._earliest(text)
        hopeful = self._hopeful(text)
        if stop is None or hopeful < at:
            self._held = text[hopeful:]
            if hopeful:
                self._sink.text(text[:hopeful])
        else:
            self._match(text[:at], stop)

    def flush(self) -> None:
        """The text has ended: what was held is text, unless it holds a stop that a longer one kept waiting."""
        held, self._held = self._held, ""
        if not held:
            return
        at, stop = self._earliest(held)
        if stop is None:
            self._sink.text(held)
        else:
            self._match(held[:at], stop)

    def _match(self, before: str, stop: str) -> None:
        self._held = ""
        self.matched = stop
        if before:
            self._sink.text(before)
        if self._on_match is not None:
            self._on_match()

    def _earliest(self, text: str) -> tuple[int, str | None]:
        found: tuple[int, str | None] = (len(text), None)
        for stop in self._stops:
            at = text.find(stop, 0, found[0] + len(stop) - 1)
            if at >= 0:
                found = (at, stop)
        return found

    def _hopeful(self, text: str) -> int:
        """Where the longest beginning of a stop at the end of `text` starts; its length when there is none."""
        longest = len(self._stops[-1])
        for at in range(max(0, len(text) - longest + 1), len(text)):
            tail = text[at:]
            if any(len(one) > len(tail) and one.startswith(tail) for one in self._stops):
                return at
        return len(text)
