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
        cost = f", {seconds(self.seconds, ms=True)}" if self.seconds is not None else ""
        return f"{self.tokens} tokens read again{cost}: {self.reason}{where}{at}"


def read_again(request: ServedRequest, *, dropped: bool = False) -> ReadAgain | None:
    """Why this request read what had been read before; None where it did not. `dropped`: the prompt cache in host
    memory had dropped prompts by then."""
    length, cached = request.prompt_tokens, request.cached_tokens
    if not length or cached is None:
        return None
    least = max(LEAST_TOKENS, LEAST_SHARE * length)
    change = request.changed
    if change is not None:
        known, begin = (request.known_share or 0.0) * length, (request.changed_at or 0.0) * length
        is_change = bool(change) and begin - cached < least
    else:
        held = _held(request, length)
        if held is None:
            return None
        known, begin = held
        is_change = begin - cached < least
    again = known - cached
    if again < least:
        return None
    at = begin / length if is_change else None
    cost = again / request.prefill_rate if request.prefill_rate else None
    reason, detail = _reason(request, dropped) if not is_change else _changed(change)
    return ReadAgain(reason, round(again), at, cost, detail)


def _held(request: ServedRequest, length: int) -> tuple[float, float] | None:
    """By the log alone: how many tokens of such a prompt the slot held, and how many of them at its start were the
    same; None where it held another one's."""
    if request.selected != "lcp" or request.similarity is None or request.similarity < SAME_TEXT:
        return None
    same = request.similarity * length
    held = min(float(length), same / request.kept) if request.kept else same
    return held, same


def _changed(what: str | None) -> tuple[Reason, str]:
    if what is None:
        return Reason.TEXT, ""
    found = _CHANGES.get(what)
    return (found, "") if found is not None else (Reason.MESSAGE, what)


def _reason(request: ServedRequest, dropped: bool) -> tuple[Reason, str]:
    if request.no_checkpoint:
        return Reason.CHECKPOINT, ""
    if request.selected in ("lru", "id"):
        return (Reason.CACHE_FULL if dropped and request.selected == "lru" else Reason.SLOT), ""
    return Reason.UNKNOWN, ""


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
    for reason, all_of_it in by_reason.items():
        known = [one.seconds for one in all_of_it if one.seconds is not None]
        tokens = sum(one.tokens for one in all_of_it)
        sums.append(ReadAgainSum(reason, len(all_of_it), tokens, sum(known) if known else None))
    return tuple(sorted(sums, key=lambda one: -one.tokens))
