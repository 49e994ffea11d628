"""The max_tokens sent upstream: not below the floor, not above what the context window has left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.proxy_events import Action, Guardrail
from specdash.proxy.guardrails import Note

if TYPE_CHECKING:
    from specdash.proxy.messages import MessagesRequest
    from specdash.proxy.settings import ProxySettings

PROBE = 512
"""Largest max_tokens, without tools, of a request that wants a short answer and gets no floor: titles, summaries."""
PROBE_WITH_TOOLS = 64
"""The same with tools: quota and warm-up probes."""
LEAST_CAP = 1024
"""The cap never takes an answer below this: a short overflow is better told by the upstream than made here."""
MARGIN = 256
MARGIN_SHARE = 0.02
"""What is left free for the error of the prompt's estimate: this share of the window, but at least `MARGIN` tokens."""


def max_tokens(
    request: MessagesRequest, prompt_tokens: int, window: int | None, settings: ProxySettings
) -> tuple[int, Note | None]:
    """The max_tokens to send for a prompt of `prompt_tokens`; a `window` of None or 0 is unknown and caps nothing."""
    requested = request.max_tokens
    sent = requested
    if requested > (PROBE_WITH_TOOLS if request.tools else PROBE):
        sent = max(requested, settings.max_tokens_floor)
    if settings.max_tokens_cap and window:
        left = window - prompt_tokens - max(MARGIN, int(window * MARGIN_SHARE))
        sent = min(sent, max(left, min(requested, LEAST_CAP)))
    if sent == requested:
        return requested, None
    return sent, Note(Guardrail.MAX_TOKENS, Action.APPLIED, {"requested": requested, "sent": sent})
