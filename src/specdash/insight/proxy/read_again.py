"""Why a request read its prompt again: what changed, where, and what it cost. From the proxy's event and the log."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.system.text import percent, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.insight.request import ServedRequest

LEAST_TOKENS = 128
"""Fewer are read in no time."""
LEAST_SHARE = 0.05
"""Of the prompt: its digests have sizes in characters, and the text of the template is in none of them."""
SAME_TEXT = 0.5
"""A slot that held less of a prompt held another conversation's."""


class Reason(StrEnum):
    """What made it necessary."""

    SYSTEM = "its system prompt changed"
    TOOLS = "its tools changed"
    MESSAGE = "a message in the middle changed"
    LEFT_OUT = "messages were left out"
    TEXT = "its text changed"
    SLOT = "it went to another slot"
    CACHE_FULL = "the prompt cache was full"
    CHECKPOINT = "no checkpoint was left to go back to"
    UNKNOWN = "what the server held of it was gone"


_CHANGES = {"system": Reason.SYSTEM, "tools": Reason.TOOLS, "messages left out": Reason.LEFT_OUT}
OF_CLIENT = frozenset({Reason.SYSTEM, Reason.TOOLS, Reason.MESSAGE, Reason.LEFT_OUT})
"""What the client can leave."""


class ReadAgain(Struct, frozen=True):
    """One prompt that was read again, in part or from its start."""

    reason: Reason
    tokens: int
    """Read although they had been read before."""
    at: float | None = None
    """Share of the prompt before the change; None where it did not change."""
    seconds: float | None = None
    detail: str = ""
    """Which message."""

    @property
    def words(self) -> str:
        """One sentence without a full stop."""
        where = f" ({self.detail})" if self.detail else ""
        at = f" at {percent(self.at)} of the prompt" if self.at is not None else ""
        cost = f", {seconds(self.seconds)}" if self.seconds is not None else ""
        return f"{self.tokens} tokens read again{cost}: {self.reason}{where}{at}"


def read_again(request: ServedRequest, *, dropped: bool = False) -> ReadAgain | None:
    """Why this request read what had been read before; None where it did not. `dropped`: the prompt cache in host
    memory had dropped prompts by then."""
    length, cached, change = request.prompt_tokens, request.cached_tokens, request.changed
    if not length or cached is None:
        return None
    least = max(LEAST_TOKENS, LEAST_SHARE * length)
    if change is not None:
        known, begin = (request.known_share or 0.0) * length, (request.changed_at or 0.0) * length
    elif request.selected == "lcp" and (request.similarity or 0.0) >= SAME_TEXT:
        # By the log alone: of such a prompt the slot held so many tokens, and this many at its start were the same.
        begin = (request.similarity or 0.0) * length
        known = min(float(length), begin / request.kept) if request.kept else begin
    else:
        return None
    again = known - cached
    if again < least:
        return None
    at, detail, reason = None, "", Reason.UNKNOWN
    if change != "" and begin - cached < least:
        at, reason = begin / length, _CHANGES.get(change or "", Reason.MESSAGE) if change else Reason.TEXT
        detail = (change or "") if reason is Reason.MESSAGE else ""
    elif request.no_checkpoint:
        reason = Reason.CHECKPOINT
    elif request.selected in ("lru", "id"):
        reason = Reason.CACHE_FULL if dropped and request.selected == "lru" else Reason.SLOT
    cost = again / request.prefill_rate if request.prefill_rate else None
    return ReadAgain(reason, round(again), at, cost, detail)


class ReadAgainSum(Struct, frozen=True):
    """All of one reason."""

    reason: Reason
    requests: int
    tokens: int
    seconds: float | None
    """None where of none of them it is known."""


def summed(found: Iterable[ReadAgain]) -> tuple[ReadAgainSum, ...]:
    """By reason, the most tokens first."""
    by_reason: dict[Reason, list[ReadAgain]] = {}
    for one in found:
        by_reason.setdefault(one.reason, []).append(one)
    sums = []
    for reason, ones in by_reason.items():
        known = [one.seconds for one in ones if one.seconds is not None]
        sums.append(ReadAgainSum(reason, len(ones), sum(one.tokens for one in ones), sum(known) if known else None))
    return tuple(sorted(sums, key=lambda one: -one.tokens))
