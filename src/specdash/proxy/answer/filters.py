"""The steps an answer passes on its way to the client, put together for one upstream call, and what it ends with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from specdash.proxy.answer.blocks import Cut, Filter
from specdash.proxy.guardrails.markup_search import PseudoCallGate
from specdash.proxy.guardrails.repetition import RepetitionCut, RepetitionWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.proxy.answer.assembler import AnswerAssembler
    from specdash.proxy.answer.blocks import BlockSink, ToolCall
    from specdash.proxy.settings import ProxySettings
    from specdash.proxy.translate.parse import MessagesRequest, Tool


# The client's stop sequences, found in visible text as it streams.


class StopSequences(Cut):
    """Passes an answer up to the stop that begins earliest in its text (the shortest of those), and nothing after.

    Only text that may still become a stop is held back. Reasoning and arguments are not searched, and a stop does not
    reach across them.
    """

    __slots__ = ("_begins", "_held", "_stops", "matched")

    def __init__(self, stops: Sequence[str], sink: BlockSink, on_cut: Callable[[], None] | None = None) -> None:
        super().__init__(sink, on_cut)
        self._stops = sorted((stop for stop in set(stops) if stop), key=len)
        begins = "".join(sorted({re.escape(stop[0]) for stop in self._stops}))
        self._begins = re.compile(f"[{begins}]" if begins else "(?!)")
        self._held = ""
        self.matched: str | None = None
        """The stop that ended the text."""

    def thinking(self, text: str) -> None:
        self.flush()
        super().thinking(text)

    def tool(self, index: int, call_id: str, name: str) -> None:
        self.flush()
        super().tool(index, call_id, name)

    def text(self, text: str) -> None:
        if self.is_cut:
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
        self.cut()

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
            if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._stops):
                return at
        return len(text)


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
        if not self._prefill:
            self._sink.text(text)
            return
        self._held += text
        if len(self._held) >= len(self._prefill) or not self._prefill.startswith(self._held):
            self.flush()

    def tool(self, index: int, call_id: str, name: str) -> None:
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
        if self._wanted:
            self._sink.thinking(text)
        else:
            self._kept.append(text)


class CallFilter:
    """Passes the tool calls a client can take: at most `limit`, and only of tools it offered."""

    def __init__(
        self, names: frozenset[str] | None, limit: int | None, sink: BlockSink, on_extra: Callable[[], None]
    ) -> None:
        self._sink = sink
        # Every piece of text comes here: it is the sink's own method that takes it.
        self.text, self.thinking = sink.text, sink.thinking
        self._names = names
        self._on_extra = on_extra
        self.limit = limit
        self._passed: set[int] = set()

    def tool(self, index: int, call_id: str, name: str) -> None:
        if self._names is not None and name not in self._names:
            return
        if self.limit is not None and len(self._passed) >= self.limit:
            self._on_extra()
        else:
            self._passed.add(index)
            self._sink.tool(index, call_id, name)

    def arguments(self, index: int, fragment: str) -> None:
        if index in self._passed:
            self._sink.arguments(index, fragment)


class VisibleContent(Filter):
    """Remembers whether visible text, thinking and which calls the client was given; `begin` is called before the
    first piece.
    """

    __slots__ = ("_begin", "call_ids", "calls", "has_text", "has_thinking")

    def __init__(self, sink: BlockSink, begin: Callable[[], None] | None = None) -> None:
        super().__init__(sink)
        self._begin = begin
        self.has_text = False
        self.has_thinking = False
        self.calls: list[str] = []
        self.call_ids: set[str] = set()

    def thinking(self, text: str) -> None:
        self._first()
        self.has_thinking = True
        self._sink.thinking(text)

    def text(self, text: str) -> None:
        # Blanks alone do not count as shown.
        if not self.has_text:
            self._first()
            self.has_text = bool(text) and not text.isspace()
        self._sink.text(text)

    def tool(self, index: int, call_id: str, name: str) -> None:
        self._first()
        self.calls.append(name)
        self.call_ids.add(call_id)
        self._sink.tool(index, call_id, name)

    def _first(self) -> None:
        if self._begin is not None:
            self._begin()
            self._begin = None


class Chain:
    """The filters of one upstream call, from `head`, which the answer feeds, to the sink given.

    The order matters: what ends the text (repetition, stop sequences) sees it as the model wrote it; what judges it
    (the gate for unparsed tool calls) sees what the client would see.
    """

    def __init__(
        self,
        request: MessagesRequest,
        tools: Sequence[Tool],
        settings: ProxySettings,
        sink: BlockSink,
        *,
        prefill: str,
        thinking: bool,
    ) -> None:
        self.cut_short = False
        """True once the rest of the answer is not wanted."""
        self.on_cut: Callable[[], None] | None = None
        """Called at that moment."""
        guarded = bool(tools) and settings.malformed_tool_guardrail
        choice = request.tool_choice
        refused = choice.kind == "none" and not choice.is_ours and bool(tools)
        limit = 0 if refused else None if choice.parallel else 1
        names = frozenset(tool.name for tool in tools) if guarded else None
        self.calls = CallFilter(names, limit, sink, self._cut)
        head: BlockSink = self.calls if names is not None or limit is not None else sink
        self.gate: PseudoCallGate | None = None
        if guarded:
            head = self.gate = PseudoCallGate(tools, head, rules=settings.agentic_supplement_mode != "off")
        self.stops: StopSequences | None = None
        if request.stop_sequences:
            head = self.stops = StopSequences(request.stop_sequences, head, self._cut)
        self.echo: PrefillEcho | None = None
        if prefill:
            head = self.echo = PrefillEcho(prefill, head)
        head = self.thinking = ThinkingGate(thinking, head)
        self.repetition: RepetitionCut | None = None
        if settings.repetition_cut:
            head = self.repetition = RepetitionCut(RepetitionWatch(settings), head, self._cut)
        self.head = head

    @property
    def stop_text(self) -> str | None:
        """The stop sequence that ended the text."""
        return self.stops.matched if self.stops is not None else None

    @property
    def repeated(self) -> bool:
        """True when the text was cut because it repeated itself."""
        return self.repetition is not None and self.repetition.is_cut

    @property
    def held(self) -> str:
        """Text that may be an unparsed tool call and was held back."""
        return self.gate.held if self.gate is not None else ""

    def calls_of(self, answer: AnswerAssembler) -> list[ToolCall]:
        """The calls of a complete answer that count: those past the client's limit do not, nor need they be whole."""
        return answer.tool_calls()[: self.calls.limit]

    def end(self) -> None:
        """No more will come: let through what was held for a match that cannot come any more, except `held`."""
        if self.echo is not None:
            self.echo.flush()
        if self.stops is not None:
            self.stops.flush()

    def release(self) -> str:
        """Let `held` through: it is no tool call. Returns nothing held."""
        if self.gate is not None:
            self.gate.flush()
        return ""

    def drop(self) -> str:
        """Throw `held` away, and return it."""
        return self.gate.drop() if self.gate is not None else ""

    def _cut(self) -> None:
        self.cut_short = True
        if self.on_cut is not None:
            self.on_cut()


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
