"""Cuts a session back to recent turns after malformed ones, so that the model stops copying its own mistakes.

The client knows nothing of a cut and sends the whole history again: the cut is remembered and made again, at the same
message, for as long as that message is there.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.core.proxy_events import Action, Guardrail
from specdash.proxy.guardrails import Note
from specdash.proxy.guardrails.history import calls_of, digest, head_end, is_boundary
from specdash.proxy.guardrails.history import cut as cut_messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.proxy.messages import Message, MessagesRequest
    from specdash.proxy.settings import ProxySettings

MARKER = (
    "[SESSION RESET: previous turns contained malformed tool-call formatting artifacts. "
    "Continue from the recent context below and emit valid tool calls only.]"
)


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a history was cut: before the message at `index`, which `digest` identifies."""

    index: int
    digest: str


def cut_back(
    request: MessagesRequest, streak: int, cut: Cut | None, settings: ProxySettings
) -> tuple[MessagesRequest, Cut | None, Note | None]:
    """Cut after `streak` malformed turns in a row, else make the session's earlier `cut` again.

    A Note tells of a new cut only; the streak has been dealt with then. A history too short for it stays whole. A cut
    whose message is not there any more (the client compacted its history) is forgotten.
    """
    if not settings.session_contamination_breaker:
        return request, cut, None
    messages = request.messages
    if cut is not None and not _matches(messages, cut):
        cut = None
    note = None
    if streak >= settings.session_contamination_threshold:
        index = _boundary(messages, settings.session_contamination_keep_last)
        if index > (cut.index if cut is not None else head_end(messages)):
            cut = Cut(index, _name(messages[index]))
            removed = index - head_end(messages)
            facts = {"streak": streak, "removed": removed, "kept": len(messages) - removed}
            note = Note(Guardrail.CONTAMINATION, Action.APPLIED, facts)
    if cut is None:
        return request, None, None
    return dataclasses.replace(request, messages=cut_messages(messages, cut.index, MARKER)), cut, note


def _boundary(messages: Sequence[Message], keep_last: int) -> int:
    """The latest boundary that keeps at least `keep_last` messages; 0 when there is none."""
    latest = min(len(messages) - keep_last, len(messages) - 1)
    return next((index for index in range(latest, 0, -1) if is_boundary(messages, index)), 0)


def _matches(messages: Sequence[Message], cut: Cut) -> bool:
    at = cut.index
    return at < len(messages) and is_boundary(messages, at) and _name(messages[at]) == cut.digest


def _name(message: Message) -> str:
    """What the message said and called. Thinking is left out: clients drop it from older turns."""
    texts = [block["text"] for block in message.content if block["type"] == "text"]
    return digest(texts, [[call["id"], call["name"], call["input"]] for call in calls_of(message)])
