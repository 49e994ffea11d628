"""What changed in a prompt since the one it goes on from: its system prompt, its tools, or a message in the middle.

Prompts are kept as short digests with a salt of this process: nothing of their text, and nothing to compare with
another day's.
"""

from __future__ import annotations

import secrets
from collections import Counter, OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Struct

from specdash.core.proxy_events import PromptChange

if TYPE_CHECKING:
    from collections.abc import Mapping

KEPT = 256
"""Prompts that are remembered: of about as many conversations."""
MOST_PIECES = 4096


class Fingerprint(Struct, frozen=True):
    """A prompt's pieces in the order in which a template prints them: what each is, its digest, and its size."""

    kinds: tuple[str, ...]
    digests: tuple[bytes, ...]
    sizes: tuple[int, ...]
    messages: frozenset[bytes]
    """Digests of its messages, in any order."""


class PromptBook:
    """The newest prompt of each conversation."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(16)
        self._kept: OrderedDict[tuple[bytes, ...], Fingerprint] = OrderedDict()

    def change(self, body: Mapping[str, Any]) -> PromptChange | None:
        """What a chat completions body changed of the prompt that it goes on from; None for a new conversation."""
        now = self._fingerprint(body)
        before = max(self._kept.values(), key=lambda kept: len(kept.messages & now.messages), default=None)
        if before is None or 2 * len(before.messages & now.messages) < max(1, len(before.messages)):
            before = None
        else:
            self._kept.pop(before.digests)
        self._kept[now.digests] = now
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return _change(before, now) if before is not None else None

    def _fingerprint(self, body: Mapping[str, Any]) -> Fingerprint:
        messages, tools = body.get("messages"), body.get("tools")
        listed = messages[:MOST_PIECES] if isinstance(messages, list) else []
        system = [message for message in listed if isinstance(message, dict) and message.get("role") == "system"][:1]
        rest = [message for message in listed if not system or message is not system[0]]
        pieces = [("system", system), ("tools", tools), *((f"message {i}", m) for i, m in enumerate(rest, 1))]
        texts = [orjson.dumps(piece, default=str) for _, piece in pieces]
        digests = tuple(blake2b(text, digest_size=8, key=self._salt).digest() for text in texts)
        kinds = tuple(kind for kind, _ in pieces)
        return Fingerprint(kinds, digests, tuple(map(len, texts)), frozenset(digests[2:]))


def _change(before: Fingerprint, now: Fingerprint) -> PromptChange:
    total = sum(now.sizes) or 1
    same, left = 0, Counter(before.digests)
    for mine, its in zip(now.digests, before.digests, strict=False):
        if mine != its:
            break
        same += 1
    # Where the former prompt ends, this one goes on: that is no change.
    what = "" if same >= len(before.digests) else now.kinds[same] if same < len(now.kinds) else "messages left out"
    known = 0
    for digest, size in zip(now.digests, now.sizes, strict=True):
        # A text that stands there twice was read twice.
        known += size if left[digest] > 0 else 0
        left[digest] -= 1
    return PromptChange(what, round(sum(now.sizes[:same]) / total, 4), round(known / total, 4))
