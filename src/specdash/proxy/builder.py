"""A whole answer, kept: for clients that do not stream, and for guardrails that look before the client sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdash.proxy.block_order import TEXT, THINKING, TOOL, BlockOrder, OrderedBlock, signature_of
from specdash.proxy.blocks import ToolCall
from specdash.proxy.json_text import object_of

if TYPE_CHECKING:
    from specdash.proxy.blocks import BlockSink


class MessageBuilder(BlockOrder):
    """Collects an answer; its blocks are those that `SseWriter` would stream."""

    __slots__ = ()

    def content(self) -> list[dict[str, Any]]:
        """Blocks of the Messages API. A tool input that is not a JSON object is `{}`."""
        return [_block(one) for one in self.blocks]

    def replay(self, sink: BlockSink) -> None:
        """Give the answer to another sink, each block in one piece."""
        for one in self.blocks:
            joined = "".join(one.pieces)
            if one.kind == TEXT:
                sink.text(joined)
            elif one.kind == THINKING:
                sink.thinking(joined)
            else:
                sink.tool(one.index, one.call_id, one.name)
                if joined:
                    sink.arguments(one.index, joined)

    def tool_calls(self) -> list[ToolCall]:
        """The calls as the model wrote them."""
        return [ToolCall(one.call_id, one.name, "".join(one.pieces)) for one in self.blocks if one.kind == TOOL]

    def visible_text(self) -> str:
        """All text blocks, joined."""
        return "".join("".join(one.pieces) for one in self.blocks if one.kind == TEXT)


def _block(one: OrderedBlock) -> dict[str, Any]:
    joined = "".join(one.pieces)
    if one.kind == TEXT:
        return {"type": TEXT, "text": joined}
    if one.kind == THINKING:
        return {"type": THINKING, "thinking": joined, "signature": signature_of(joined)}
    return {"type": TOOL, "id": one.call_id, "name": one.name, "input": object_of(joined) or {}}
