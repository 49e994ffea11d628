"""Small steps an answer passes on its way to the client, and the stop reason it ends with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdash.proxy.blocks import BlockSink


class Filter:
    """Passes everything on; the base of steps that change one thing."""

    __slots__ = ("_sink",)

    def __init__(self, sink: BlockSink) -> None:
        self._sink = sink

    def thinking(self, text: str) -> None:
        """Reasoning text."""
        self._sink.thinking(text)

    def text(self, text: str) -> None:
        """Visible text."""
        self._sink.text(text)

    def tool(self, index: int, call_id: str, name: str) -> None:
        """A tool call begins."""
        self._sink.tool(index, call_id, name)

    def arguments(self, index: int, fragment: str) -> None:
        """A piece of a call's input."""
        self._sink.arguments(index, fragment)


class PrefillEcho(Filter):
    """Takes the prefill off the start of the text when the upstream repeats it, as llama.cpp does; else passes all.

    An echo may lack some of the white space at the end of the prefill, where a chat template trims it.
    """

    __slots__ = ("_core", "_held", "_prefill")

    def __init__(self, prefill: str, sink: BlockSink) -> None:
        super().__init__(sink)
        self._core = len(prefill.rstrip())
        self._prefill = prefill if self._core else ""
        self._held = ""

    def text(self, text: str) -> None:
        """Visible text, held while it may be the prefill."""
        if not self._prefill:
            self._sink.text(text)
            return
        self._held += text
        if len(self._held) >= len(self._prefill) or not self._prefill.startswith(self._held):
            self.flush()

    def tool(self, index: int, call_id: str, name: str) -> None:
        """A call comes after the text that was held."""
        self.flush()
        self._sink.tool(index, call_id, name)

    def flush(self) -> None:
        """Decide on what is held; no echo can follow."""
        held, prefill = self._held, self._prefill
        self._held = ""
        if not held:
            return
        self._prefill = ""
        same = next((at for at, (a, b) in enumerate(zip(held, prefill, strict=False)) if a != b), -1)
        same = same if same >= 0 else min(len(held), len(prefill))
        rest = held[same:] if same >= self._core else held
        if rest:
            self._sink.text(rest)


class ThinkingGate(Filter):
    """Keeps reasoning from a client that did not ask for it; what it kept is `held`."""

    __slots__ = ("_kept", "_wanted")

    def __init__(self, wanted: bool, sink: BlockSink) -> None:
        super().__init__(sink)
        self._wanted = wanted
        self._kept: list[str] = []

    @property
    def held(self) -> str:
        """Reasoning the client did not get."""
        return "".join(self._kept)

    def thinking(self, text: str) -> None:
        """Reasoning text, passed when wanted."""
        if self._wanted:
            self._sink.thinking(text)
        else:
            self._kept.append(text)


class OneCall(Filter):
    """Passes the first tool call only, for clients that allow one a turn; `extra` counts the others."""

    __slots__ = ("_first", "extra")

    def __init__(self, sink: BlockSink) -> None:
        super().__init__(sink)
        self._first: int | None = None
        self.extra = 0

    def tool(self, index: int, call_id: str, name: str) -> None:
        """A tool call begins."""
        if self._first is None:
            self._first = index
            self._sink.tool(index, call_id, name)
        else:
            self.extra += 1

    def arguments(self, index: int, fragment: str) -> None:
        """A piece of a call's input."""
        if index == self._first:
            self._sink.arguments(index, fragment)


def stop_reason_of(finish_reason: str | None, has_calls: bool, stop_text: str | None) -> str:
    """The Messages API's `stop_reason` of an upstream's finish reason.

    A client runs calls only on `tool_use`, so calls outrank a stop sequence; an answer cut by its token limit says so
    even with calls, for the last may be incomplete. A stream without a finish reason counts as ended: whoever cares
    that it broke off must ask before.
    """
    if finish_reason == "length" and stop_text is None:
        return "max_tokens"
    if finish_reason == "content_filter":
        return "refusal"
    if has_calls:
        return "tool_use"
    return "stop_sequence" if stop_text is not None else "end_turn"
