"""Removes old messages when a conversation outgrows its share of the context window.

Clients send the whole history with every request, so the cut is found by simulating how the history grew: message by
message, and each time its size reaches the threshold the cut moves on to where the rest is below the target. What was
decided for a history holds for every longer one, without any memory, and the upstream's prefix cache survives between
two moves.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdash.core.proxy_events import Action, Guardrail
from specdash.proxy.guardrails import Note
from specdash.proxy.guardrails.estimate import message_tokens, overhead_tokens, text_tokens
from specdash.proxy.guardrails.history import cut as cut_messages
from specdash.proxy.guardrails.history import head_end, is_boundary, recalled, shorten
from specdash.proxy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.proxy.messages import Block, MessagesRequest
    from specdash.proxy.settings import ProxySettings

MARKER = (
    "[CONTEXT PRUNED: {messages} older messages (~{tokens} tokens) were removed to fit within the context window. "
    "The conversation continues from recent context below.]"
)
MARKER_TOKENS = 64
"""No marker is larger, whatever its numbers."""
RECENT = 4
"""Exchanges that are kept whole as long as shortening their tool results is enough."""
OVERSIZED = 2000
"""Characters from which a tool result's text can be shortened, to `HEAD` from its start and `TAIL` from its end."""
HEAD = 1000
TAIL = 500


def prune(
    request: MessagesRequest, window: int, settings: ProxySettings, scale: float = 1.0
) -> tuple[MessagesRequest, Note | None]:
    """The request with its old messages removed when it is too large, else the same object.

    `window` is in tokens; `scale` is real tokens per estimated one, and a cut is steady only as long as it is. Kept are
    the messages before the first answer, the last exchange, and all from a boundary on; see `history`.
    """
    if settings.context_prune_threshold >= 1 or window <= 0 or scale <= 0:
        return request, None
    messages = request.messages
    sizes = [message_tokens(message) for message in messages]
    overhead = overhead_tokens(request)
    before = overhead + sum(sizes)
    if before * scale < settings.context_prune_threshold * window:
        return request, None
    head = head_end(messages)
    limits = _limits(overhead + sum(sizes[:head]), window / scale, settings)
    if limits is None:
        return request, None
    growth = _Growth(messages, sizes, head, *limits)
    growth.run()
    if growth.cut == head and not growth.shortened:
        return request, None
    kept = growth.kept()
    after = overhead + sum(message_tokens(message) for message in kept)
    facts = {
        "removed": growth.cut - head,
        "removed_tokens": round(sum(sizes[head : growth.cut]) * scale),
        "shortened": len(growth.shortened),
        "kept": len(kept),
        "before": round(before * scale),
        "after": round(after * scale),
        "window": window,
    }
    note = Note(Guardrail.CONTEXT_PRUNE, Action.APPLIED, facts)
    return dataclasses.replace(request, messages=kept), note


def _limits(fixed: int, window: float, settings: ProxySettings) -> tuple[float, float] | None:
    """How much the messages after the head may take: the size that prunes, and the size pruning aims at.

    A system prompt with tools can be larger than the target, and nothing can be done about it: then the shares apply
    to the room it leaves, because a conversation cut to its last exchange at every turn is of no use. None: no room.
    """
    threshold, target = settings.context_prune_threshold, settings.context_prune_target_fraction
    room = window - fixed
    if room <= 0:
        return None
    if fixed >= target * window:
        return threshold * room, target * room
    return threshold * window - fixed, target * window - fixed


@dataclass(slots=True)
class _Growth:
    """The fold over a history. `cut` is the first kept message after the head, `shortened` those with cut results."""

    messages: Sequence[Message]
    sizes: list[int]
    head: int
    limit: float
    goal: float
    cut: int = field(init=False)
    body: int = 0
    """Size of the messages from the cut on, as they are sent."""
    removed: int = 0
    """Size of the text that stands for what was removed."""
    boundaries: list[int] = field(default_factory=list)
    """Where the cut can still move to."""
    shortened: dict[int, Message] = field(default_factory=dict)
    sent: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.cut = self.head
        self.sent = list(self.sizes)

    def run(self) -> None:
        """Let the history grow, and cut whenever it is a request that is too large."""
        last_user = 0
        for index in range(self.head, len(self.messages)):
            role = self.messages[index].role
            self.body += self.sent[index]
            if role == "assistant":
                if index > self.head and is_boundary(self.messages, index):
                    self.boundaries.append(index)
                continue
            if role == "user":
                last_user = index
            if self.body + self.removed >= self.limit:
                self._fit(last_user)

    def kept(self) -> tuple[Message, ...]:
        """The messages to send."""
        messages = [self.shortened.get(index, message) for index, message in enumerate(self.messages)]
        if self.cut == self.head:
            return tuple(messages)
        # The numbers are unscaled, because a marker that changes changes the prefix.
        tokens = sum(self.sizes[self.head : self.cut])
        return cut_messages(messages, self.cut, MARKER.format(messages=self.cut - self.head, tokens=tokens))

    def _fit(self, last_user: int) -> None:
        """Reach the goal with the least loss: older exchanges, then parts of old results, then recent exchanges."""
        possible = sum(1 for boundary in self.boundaries if boundary < last_user)
        fits = self._move(possible - RECENT + 1)
        if not fits:
            fits = self._shorten(last_user)
        if not fits:
            self._move(sum(1 for boundary in self.boundaries if boundary < last_user))

    def _move(self, most: int) -> bool:
        """Move the cut over at most `most` boundaries."""
        moved = 0
        while moved < most and self._is_large():
            boundary = self.boundaries[moved]
            moved += 1
            self.body -= sum(self.sent[self.cut : boundary])
            recall = recalled(self.messages, self.cut, boundary)
            if recall or not self.removed:
                self.removed = MARKER_TOKENS + text_tokens(recall)
            self.cut = boundary
        del self.boundaries[:moved]
        self.shortened = {index: one for index, one in self.shortened.items() if index >= self.cut}
        return not self._is_large()

    def _shorten(self, last_user: int) -> bool:
        for index in range(self.cut, last_user):
            if not self._is_large():
                return True
            if index in self.shortened:
                continue
            message = shortened_results(self.messages[index])
            if message is not self.messages[index]:
                self.shortened[index] = message
                size = message_tokens(message)
                self.body -= self.sent[index] - size
                self.sent[index] = size
        return not self._is_large()

    def _is_large(self) -> bool:
        return self.body + self.removed >= self.goal


def shortened_results(message: Message) -> Message:
    """The message with its oversized tool result texts shortened; the same object when it has none."""
    content = tuple(_shortened_block(block) if block["type"] == "tool_result" else block for block in message.content)
    unchanged = all(new is old for new, old in zip(content, message.content, strict=True))
    return message if unchanged else Message(message.role, content)


def _shortened_block(block: Block) -> Block:
    content = block.get("content") or ""
    if isinstance(content, str):
        return {**block, "content": shorten(content, HEAD, TAIL)} if len(content) > OVERSIZED else block
    if not any(_is_oversized(one) for one in content):
        return block
    parts = [{**one, "text": shorten(one["text"], HEAD, TAIL)} if _is_oversized(one) else one for one in content]
    return {**block, "content": parts}


def _is_oversized(block: Block) -> bool:
    return bool(block["type"] == "text" and len(block["text"]) > OVERSIZED)
