"""Guardrails: each a small module with its own settings, counters and tests; `answer` orders them.

A guardrail is a pure function of the request or the answer and of what the session remembers. It returns what to do
and the `GuardrailNote`s to tell; it changes nothing by itself, and a healthy turn passes it unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

if TYPE_CHECKING:
    from specdash.core.proxy_events import Guardrail, GuardrailAction


class GuardrailNote(Struct, frozen=True):
    """What a guardrail did, for events, counters and the log. `facts` are numbers and names, never prompt text."""

    guardrail: Guardrail
    action: GuardrailAction
    facts: dict[str, Any] = field(default_factory=dict)
