"""A conversation as guardrails cut and compare it: what is one exchange, where it can be cut, what is equal.

A history can be cut before an assistant message that answers a user one: then every call keeps its results and the
roles still alternate. Whether a message is such a boundary depends on what is before it only, never on what follows.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from specdash.core.proxy_events import Guardrail, GuardrailAction
from specdash.proxy.guardrails import GuardrailNote
from specdash.proxy.translate.parse import Message
from specdash.proxy.translate.translate import without_reminders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.proxy.settings import ProxySettings
    from specdash.proxy.translate.parse import Block, MessagesRequest


RECALL_CHARS = 4000
"""Longest text of a removed instruction that is kept beside the marker."""


def is_boundary(messages: Sequence[Message], index: int) -> bool:
    """True when the history can be cut before `messages[index]`."""
    before = (messages[at].role for at in range(index - 1, -1, -1))
    return messages[index].role == "assistant" and next((role for role in before if role != "system"), "") == "user"


def head_end(messages: Sequence[Message]) -> int:
    """How many messages are always kept: those before the first answer to a user."""
    return next((index for index in range(len(messages)) if is_boundary(messages, index)), len(messages))


def instruction_of(message: Message) -> str:
    """What a user asks for in words; empty for results of tools and for reminders of the client."""
    if message.role != "user" or blocks_of(message, "tool_result"):
        return ""
    return "\n".join(filter(None, (without_reminders(text).strip() for text in texts_of(message))))


def recalled(messages: Sequence[Message], start: int, end: int) -> str:
    """The latest instruction in `messages[start:end]` as text for the model, which must not forget its task."""
    text = next(filter(None, (instruction_of(messages[at]) for at in range(end - 1, start - 1, -1))), "")
    if len(text) > RECALL_CHARS:
        text = f"{text[: RECALL_CHARS * 3 // 4]}\n...[TRUNCATED]...\n{text[-RECALL_CHARS // 4 :]}"
    return f"[The user's latest instruction among the removed messages:]\n{text}" if text else ""


def cut_messages(messages: Sequence[Message], at: int, marker: str) -> tuple[Message, ...]:
    """The messages always kept, with `marker` at the end of their last user message, and those from boundary `at`."""
    head = list(messages[: head_end(messages)])
    place = max(index for index, message in enumerate(head) if message.role == "user")
    texts = filter(None, (marker, recalled(messages, len(head), at)))
    head[place] = with_text(head[place], *texts)
    return (*head, *messages[at:])


def with_text(message: Message, *texts: str) -> Message:
    """The message with text blocks added at its end."""
    return Message(message.role, (*message.content, *({"type": "text", "text": text} for text in texts)))


def digest(*values: Any) -> str:
    """A short name of JSON values; equal for equal values, in any order of their keys."""
    return blake2b(msgspec.json.encode(values, order="sorted"), digest_size=12).hexdigest()


def blocks_of(message: Message, kind: str) -> list[Block]:
    """The blocks of one type of a message."""
    return [block for block in message.content if block["type"] == kind]


def texts_of(message: Message) -> list[str]:
    """The texts of a message."""
    return [block["text"] for block in blocks_of(message, "text")]


# Cuts a session back to recent turns after malformed ones, so that the model stops copying its own mistakes.
#
# The client knows nothing of a cut and sends the whole history again: the cut is remembered and made again, at the
# same message, for as long as that message is there.


RESET_MARKER = (
    "[SESSION RESET: previous turns contained malformed tool-call formatting artifacts. "
    "Continue from the recent context below and emit valid tool calls only.]"
)


class HistoryCut(Struct, frozen=True):
    """Where a history was cut: before the message at `index`, which `digest` identifies."""

    index: int
    digest: str


def cut_back(
    request: MessagesRequest, streak: int, cut: HistoryCut | None, settings: ProxySettings
) -> tuple[MessagesRequest, HistoryCut | None, GuardrailNote | None]:
    """Cut after `streak` malformed turns in a row, else make the session's earlier `cut` again.

    Only a new cut has a note; the streak has been dealt with then. A history too short for it stays whole. A cut
    whose message is not there any more (the client compacted its history) is forgotten.
    """
    if not settings.session_contamination_breaker:
        return request, cut, None
    messages = request.messages
    at = cut.index if cut is not None else 0
    if cut is not None and not (at < len(messages) and is_boundary(messages, at) and _name(messages[at]) == cut.digest):
        cut = None
    note = None
    if streak >= settings.session_contamination_threshold:
        # The latest boundary that keeps enough messages.
        latest = min(len(messages) - settings.session_contamination_keep_last, len(messages) - 1)
        index = next((index for index in range(latest, 0, -1) if is_boundary(messages, index)), 0)
        if index > (cut.index if cut is not None else head_end(messages)):
            cut = HistoryCut(index, _name(messages[index]))
            removed = index - head_end(messages)
            facts = {"streak": streak, "removed": removed, "kept": len(messages) - removed}
            note = GuardrailNote(Guardrail.CONTAMINATION, GuardrailAction.APPLIED, facts)
    if cut is None:
        return request, None, None
    return msgspec.structs.replace(request, messages=cut_messages(messages, cut.index, RESET_MARKER)), cut, note


def _name(message: Message) -> str:
    """The words and calls of the message. Thinking is left out: clients drop it from older turns."""
    return digest(blocks_of(message, "text"), blocks_of(message, "tool_use"))


# Estimates of prompt tokens from the size of what is sent; the session's scale calibrates them with real counts.
#
# A message's estimate depends on that message alone, so that a growing history keeps its estimates.

BYTES_PER_TOKEN = 3.5
"""UTF-8 bytes of a token: near the truth for code and prose, and on the safe side of it for scripts of 3-byte signs."""
IMAGE_TOKENS = 1000
MESSAGE_TOKENS = 4
"""What a chat template writes around a message, a call, a result or a tool."""


def text_tokens(value: Any) -> int:
    """Tokens of a text, or of the JSON of anything else; 0 only for an empty text."""
    data = value.encode("utf-8", "replace") if isinstance(value, str) else msgspec.json.encode(value)
    return -int(-len(data) // BYTES_PER_TOKEN)


def message_tokens(message: Message) -> int:
    """Tokens of one message, its frame included. Thinking counts: it is sent back as reasoning."""
    return MESSAGE_TOKENS + sum(_block_tokens(block) for block in message.content)


def overhead_tokens(request: MessagesRequest) -> int:
    """Tokens of what is sent besides the messages: the system prompt and the tools that can be called."""
    system = sum(text_tokens(block["text"]) for block in request.system)
    choice = request.tool_choice
    sent = [tool for tool in request.tools if choice.kind != "tool" or tool.name == choice.name]
    tools = sum(
        MESSAGE_TOKENS + text_tokens(tool.name) + text_tokens(tool.description) + text_tokens(tool.schema)
        for tool in sent
    )
    return system + tools + (MESSAGE_TOKENS if request.system else 0)


def request_tokens(request: MessagesRequest) -> int:
    """Tokens of the whole prompt."""
    return overhead_tokens(request) + sum(message_tokens(message) for message in request.messages)


def _block_tokens(block: Block) -> int:
    match block["type"]:
        case "text":
            return text_tokens(block["text"])
        case "tool_use":
            return MESSAGE_TOKENS + text_tokens(block["name"]) + text_tokens(block["input"])
        case "tool_result":
            content = block.get("content") or ""
            inner = [{"type": "text", "text": content}] if isinstance(content, str) else content
            return MESSAGE_TOKENS + sum(map(_block_tokens, inner))
        case "thinking":
            return text_tokens(block["thinking"])
        case _:
            return IMAGE_TOKENS


# The max_tokens sent upstream: not below the floor. llama-server ends an answer itself where the context is full.

PROBE = 512
"""Largest max_tokens, without tools, of a request that wants a short answer and gets no floor: titles, summaries."""
PROBE_WITH_TOOLS = 64
"""The same with tools: quota and warm-up probes."""


def max_tokens(request: MessagesRequest, settings: ProxySettings) -> tuple[int, GuardrailNote | None]:
    """The max_tokens to send."""
    requested, sent = request.max_tokens, max(request.max_tokens, settings.max_tokens_floor)
    if sent == requested or requested <= (PROBE_WITH_TOOLS if request.tools else PROBE):
        return requested, None
    return sent, GuardrailNote(Guardrail.MAX_TOKENS, GuardrailAction.APPLIED, {"requested": requested, "sent": sent})


# Removes old messages when a conversation outgrows its share of the context window.
#
# Clients send the whole history with every request, so the cut is found by simulating how the history grew: message
# by message, and each time its size reaches the threshold the cut moves on to where the rest is below the target.
# What was decided for a history holds for every longer one, without any memory, and the upstream's prefix cache
# survives between two moves.


PRUNED_MARKER = (
    "[CONTEXT PRUNED: {messages} older messages (~{tokens} tokens) were removed to fit within the context window. "
    "The conversation continues from recent context below.]"
)
MARKER_TOKENS = 64
"""No marker is larger."""


def prune(
    request: MessagesRequest, window: int, settings: ProxySettings, scale: float = 1.0
) -> tuple[MessagesRequest, GuardrailNote | None]:
    """The request with its old messages removed when it is too large, else the same object.

    `window` is in tokens; `scale` is real tokens per estimated one, and a cut is steady only as long as it is. Kept are
    the messages before the first answer, the last exchange, and all from a boundary on; see `history`.
    """
    threshold, target = settings.context_prune_threshold, settings.context_prune_target_fraction
    if threshold >= 1 or scale <= 0:
        return request, None
    messages = request.messages
    sizes = [message_tokens(message) for message in messages]
    overhead = overhead_tokens(request)
    head = head_end(messages)
    fixed, room = overhead + sum(sizes[:head]), window / scale
    # Nothing can be done about a system prompt with tools that is larger than the target: then the shares are of what
    # it leaves, because a conversation cut to its last exchange at every turn is of no use.
    taken = fixed if fixed < target * room else 0
    room -= fixed - taken
    if room <= 0 or sum(sizes[head:]) < threshold * room - taken:
        return request, None
    cut = _grown(messages, sizes, head, threshold * room - taken, target * room - taken)
    if cut == head:
        return request, None
    removed = sum(sizes[head:cut])
    # The number is unscaled, because a marker that changes changes the prefix.
    kept = cut_messages(messages, cut, PRUNED_MARKER.format(messages=cut - head, tokens=removed))
    after = overhead + sum(message_tokens(message) for message in kept)
    facts = {
        "removed": cut - head,
        "removed_tokens": round(removed * scale),
        "kept": len(kept),
        "before": round((overhead + sum(sizes)) * scale),
        "after": round(after * scale),
        "window": window,
    }
    note = GuardrailNote(Guardrail.CONTEXT_PRUNE, GuardrailAction.APPLIED, facts)
    return msgspec.structs.replace(request, messages=kept), note


def _grown(messages: Sequence[Message], sizes: Sequence[int], head: int, limit: float, goal: float) -> int:
    """The first message kept behind the head, once the history has grown, message by message, to what it is.

    Whenever it is a request that is too large, the cut moves over boundaries before the last user message until the
    rest reaches the goal.
    """
    cut, last_user, boundaries = head, 0, deque[int]()
    body = 0
    """Size of the messages from the cut on, as they are sent."""
    removed = 0
    """Size of the text that stands for what was removed."""
    for index in range(head, len(messages)):
        body += sizes[index]
        if messages[index].role == "assistant":
            if index > head and is_boundary(messages, index):
                boundaries.append(index)
            continue
        if messages[index].role == "user":
            last_user = index
        if body + removed < limit:
            continue
        while boundaries and boundaries[0] < last_user and body + removed >= goal:
            boundary = boundaries.popleft()
            body -= sum(sizes[cut:boundary])
            recall = recalled(messages, cut, boundary)
            if recall or not removed:
                removed = MARKER_TOKENS + text_tokens(recall)
            cut = boundary
    return cut
