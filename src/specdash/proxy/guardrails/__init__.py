"""Guardrails: each a small module with its own settings, counters and tests; `answer` orders them.

A guardrail is a pure function of the request or the answer and of what the session remembers. It returns what to do
and the `GuardrailNote`s to tell; it changes nothing by itself, and a healthy turn passes it unchanged.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from specdash.system.data import dataclass

if TYPE_CHECKING:
    from specdash.core.proxy_events import Guardrail, GuardrailAction


@dataclass(frozen=True, slots=True)
class GuardrailNote:
    """What a guardrail did, for events, counters and the log. `facts` are numbers and names, never prompt text."""

    guardrail: Guardrail
    action: GuardrailAction
    facts: dict[str, Any] = field(default_factory=dict)
