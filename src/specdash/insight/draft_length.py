"""Which draft length would be the fastest, from what was accepted at the present one. Pure.

Acceptance per position changes with the draft length: a shorter draft begins anew where a longer one goes on, so a
curve that is cut off says too little. Accepted runs are replayed instead: a step that accepted r tokens of K stands for
r tokens that can be drafted and one that cannot, and shorter drafts walk over the same tokens in more steps. A run that
was accepted to its end may go on; that is taken to be as likely as at the last position. Positions beyond the present
length were never tried, and nothing is said of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Round:
    """What one verification step of some draft length does on average."""

    tokens: float
    """That it brings: those accepted and one."""
    rejecting: float
    """How often it rejects any token."""
    repeated: float
    """Tokens that a step which rejects would have to decode again, over all steps."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What a step costs beside the decode of one token, in decodes of one token."""

    draft_token: float = 0.0
    draft_block: float = 0.0
    """Of a block, however much of it is used."""
    verify_token: float = 0.0
    replays: bool = False
    """A step that rejects is followed by a decode of what it accepted, which brings one token more."""

    def of(self, drafted: float, done: Round) -> float:
        """A step with so many draft tokens, and its replay."""
        cost = 1.0 + self.draft_block + (self.draft_token + self.verify_token) * drafted
        return cost + done.rejecting + self.verify_token * done.repeated if self.replays else cost


def survival(per_position: Sequence[float], length: int) -> tuple[float, ...]:
    """The shares of `length` positions, none above the one before it."""
    shares: list[float] = []
    for place in range(length):
        share = per_position[place] if place < len(per_position) else 0.0
        shares.append(min(max(share, 0.0), shares[-1] if shares else 1.0))
    return tuple(shares)


def hazards(shares: Sequence[float]) -> tuple[float, ...]:
    """How often a position is accepted when the one before it was."""
    before = (1.0, *shares)
    return tuple(share / last if last > 0 else 0.0 for share, last in zip(shares, before, strict=False))


def replayed(shares: Sequence[float], length: int) -> Round:
    """A step with drafts of `length` tokens, where drafts of `len(shares)` tokens were accepted with `shares`."""
    longest = len(shares)
    bounds = (1.0, *shares, 0.0)
    steps = tokens = rejecting = repeated = 0.0
    for run in range(longest):
        weight = bounds[run] - bounds[run + 1]
        full, left = divmod(run, length + 1)
        steps += weight * (full + 1)
        tokens += weight * (run + 1)
        if left < length:
            rejecting += weight
            repeated += weight * (left + 1)
    weight = bounds[longest]
    full, left = divmod(longest, length + 1)
    tokens += weight * (longest + 1)
    goes_on = hazards(shares)[-1] if left < length else 1.0
    # A run that goes on shares its last step with the run after it.
    steps += weight * (full + (1.0 - goes_on) + goes_on * (left + 1) / (length + 1))
    rejecting += weight * (1.0 - goes_on)
    repeated += weight * (1.0 - goes_on) * (left + 1)
    return Round(tokens / steps, rejecting / steps, repeated / steps)


def speeds(shares: Sequence[float], drafted: float, costs: StepCosts) -> tuple[float, ...]:
    """Decode's speed against no speculation with drafts of 1, 2, … `len(shares)` tokens, `drafted` of them on average
    now."""
    found = []
    for length in range(1, len(shares) + 1):
        done = replayed(shares, length)
        tokens = done.tokens + (done.rejecting if costs.replays else 0.0)
        found.append(tokens / costs.of(min(float(length), drafted), done))
    return tuple(found)


def fitted(step: float, drafted: float, done: Round, draft: float, *, is_block: bool, replays: bool) -> StepCosts:
    """The costs of a step that, with its replay, takes `step` decodes of one token, of which `draft` go into drafting
    `drafted` tokens. What is left is verification."""
    draft = min(max(draft, 0.0), max(0.0, step - 1.0 - (done.rejecting if replays else 0.0)))
    rest = step - 1.0 - draft - (done.rejecting if replays else 0.0)
    verified = drafted + (done.repeated if replays else 0.0)
    return StepCosts(
        draft_token=0.0 if is_block or drafted <= 0 else draft / drafted,
        draft_block=draft if is_block else 0.0,
        verify_token=max(0.0, rest) / verified if verified > 0 else 0.0,
        replays=replays,
    )
