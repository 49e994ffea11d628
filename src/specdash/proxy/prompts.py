"""What changed in a prompt since the one it goes on from: its system prompt, its tools, or a message in the middle.

Prompts are kept as hashes that are salted for this process: nothing of their text, and nothing to compare with another
day's.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from specdash.core.proxy_events import PromptChange

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_SESSIONS = 256
MOST_OF_SESSION = 4
"""Prompts that are remembered of one: agents and small requests for titles alternate in it."""
MOST_MESSAGES = 1024
"""Messages that are looked at: the loop stands still meanwhile."""


class Fingerprint(Struct, frozen=True):
    """A prompt's pieces in the order in which a template prints them: system prompt, tools, messages."""

    hashes: tuple[int, ...]
    sizes: tuple[int, ...]
    messages: frozenset[int]


class PromptBook:
    """The newest prompts of each session."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, list[Fingerprint]] = OrderedDict()

    def change(self, session: str, body: Mapping[str, Any]) -> PromptChange | None:
        """What a chat completions body changed of the prompt that it goes on from; None for a new conversation."""
        now, kept = _fingerprint(body), self._kept.pop(session, [])
        before = max(kept, key=lambda prompt: len(prompt.messages & now.messages), default=None)
        if before is not None and 2 * len(before.messages & now.messages) < max(1, len(before.messages)):
            before = None
        self._kept[session] = [*(prompt for prompt in kept if prompt is not before), now][-MOST_OF_SESSION:]
        if len(self._kept) > MOST_SESSIONS:
            self._kept.popitem(last=False)
        return _change(before, now) if before is not None else None


def _fingerprint(body: Mapping[str, Any]) -> Fingerprint:
    messages, tools = body.get("messages"), body.get("tools")
    listed = messages[:MOST_MESSAGES] if isinstance(messages, list) else []
    system = next(
        (message for message in listed if isinstance(message, dict) and message.get("role") == "system"), None
    )
    rest = (message for message in listed if message is not system)
    texts = [msgspec.json.encode(piece) for piece in (system, tools, *rest)]
    hashes = tuple(map(hash, texts))
    return Fingerprint(hashes, tuple(map(len, texts)), frozenset(hashes[2:]))


def _change(before: Fingerprint, now: Fingerprint) -> PromptChange:
    total = sum(now.sizes) or 1
    pairs = enumerate(zip(now.hashes, before.hashes, strict=False))
    same = next((at for at, (mine, its) in pairs if mine != its), min(len(now.hashes), len(before.hashes)))
    # Where the former prompt ends, this one goes on: that is no change.
    what = ""
    if same < len(before.hashes):
        names = ("system", "tools", *(f"message {number}" for number in range(1, len(now.hashes) - 1)))
        what = names[same] if same < len(now.hashes) else "messages left out"
    known, left = 0, Counter(before.hashes)
    for piece, size in zip(now.hashes, now.sizes, strict=True):
        # A text that stands there twice was read twice.
        known += size if left[piece] > 0 else 0
        left[piece] -= 1
    return PromptChange(what, round(sum(now.sizes[:same]) / total, 4), round(known / total, 4))
