"""The filters an answer passes on its way to the client, put together for one upstream call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.proxy.filters import PrefillEcho, ThinkingGate
from specdash.proxy.guardrails.history import instruction_of
from specdash.proxy.guardrails.repetition import RepetitionCut, RepetitionWatch
from specdash.proxy.guardrails.text_gate import PseudoCallGate
from specdash.proxy.stop_sequences import StopSequences

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.proxy.answer import Answer
    from specdash.proxy.blocks import BlockSink, ToolCall
    from specdash.proxy.messages import MessagesRequest, Tool
    from specdash.proxy.settings import ProxySettings


class CallFilter:
    """Passes the tool calls a client can take: at most `limit`, and only of tools it offered.

    What is left out is counted: `extra` calls past the limit, `unknown` names of tools that do not exist.
    """

    def __init__(
        self, names: frozenset[str] | None, limit: int | None, sink: BlockSink, on_extra: Callable[[], None]
    ) -> None:
        self._names = names
        self._on_extra = on_extra
        self.limit = limit
        self._sink = sink
        self._passed: set[int] = set()
        self.extra = 0
        self.unknown: list[str] = []
        self.thinking = sink.thinking
        self.text = sink.text

    def tool(self, index: int, call_id: str, name: str) -> None:
        if self._names is not None and name not in self._names:
            self.unknown.append(name)
        elif self.limit is not None and len(self._passed) >= self.limit:
            self.extra += 1
            self._on_extra()
        else:
            self._passed.add(index)
            self._sink.tool(index, call_id, name)

    def arguments(self, index: int, fragment: str) -> None:
        if index in self._passed:
            self._sink.arguments(index, fragment)


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
            head = self.stops = StopSequences(request.stop_sequences, head, on_match=self._cut)
        self.echo: PrefillEcho | None = None
        if prefill:
            head = self.echo = PrefillEcho(prefill, head)
        head = self.thinking = ThinkingGate(thinking, head)
        self.repetition: RepetitionCut | None = None
        if settings.repetition_cut:
            asked = instruction_of(request.last_user) if request.last_user is not None else ""
            head = self.repetition = RepetitionCut(RepetitionWatch(settings, asked), head, self._cut)
        self.head = head

    @property
    def stop_text(self) -> str | None:
        """The stop sequence that ended the text."""
        return self.stops.matched if self.stops is not None else None

    @property
    def repeated(self) -> bool:
        """True when the text was cut because it repeated itself."""
        return self.repetition is not None and self.repetition.tripped

    @property
    def held(self) -> str:
        """Text that may be an unparsed tool call and was held back."""
        return self.gate.held if self.gate is not None else ""

    def calls_of(self, answer: Answer) -> list[ToolCall]:
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
