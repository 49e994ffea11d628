"""Derives how well the drafter does, position by position, and which draft length would do better. docs/views.md."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from specdash.core.readings import Source
from specdash.core.speculation import PUBLISHED, Rollback
from specdash.insight.log.counter_log import between
from specdash.insight.picture import Basis, DrafterPicture
from specdash.insight.request import NO_DRAFTS, DraftTally
from specdash.insight.speculation import speculation
from specdash.insight.speculation.drafting import unseen
from specdash.insight.speedup.estimate import draft_costs_of
from specdash.insight.speedup.speedup import verify_costs_of
from specdash.insight.speedup.verdict import advice
from specdash.system.text import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.core.readings import Props
    from specdash.core.speculation import SpecType
    from specdash.insight.picture import SpeedUpPicture
    from specdash.insight.state import TargetState


# Which draft length would be the fastest, from what was accepted at the present one. Pure.
#
# Acceptance per position changes with the draft length: a shorter draft restarts where a longer one goes on, so a
# curve that is cut off says too little. Accepted runs are replayed instead: a step that accepted r tokens of K stands
# for r tokens that can be drafted and one that cannot, and shorter drafts walk over the same tokens in more steps. A
# run that was accepted to its end may go on; that is taken to be as likely as at the last position. Positions beyond
# the present length were never tried and are not estimated.


class Round(Struct, frozen=True):
    """What one verification step of some draft length does on average."""

    tokens: float
    """That it brings: those accepted and one."""
    rejecting: float
    """How often it rejects any token."""
    repeated: float
    """Tokens that a step which rejects would have to decode again, over all steps."""


class StepCosts(Struct, frozen=True):
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
    before = bounds[longest - 1]
    goes_on = (weight / before if before > 0 else 0.0) if left < length else 1.0
    # A run that goes on shares its last step with the run after it.
    steps += weight * (full + (1.0 - goes_on) + goes_on * (left + 1) / (length + 1))
    rejecting += weight * (1.0 - goes_on)
    repeated += weight * (1.0 - goes_on) * (left + 1)
    return Round(tokens / steps, rejecting / steps, repeated / steps)


@lru_cache(maxsize=64)
def speeds(shares: tuple[float, ...], drafted: float, costs: StepCosts) -> tuple[float, ...]:
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


ENOUGH_STEPS = 20
"""Verification steps below which no draft length is recommended."""
LONGEST = 64
"""Positions looked at."""
_REDUCED = {
    "draft_clamped": re.compile(r"n_max=(\d+).*block size (\d+) -- clamping to (\d+)"),
    "synth_limit_reduced": re.compile(r"reduced from (\d+) to (\d+)"),
}


class _Own(Struct, frozen=True):
    """What the drafter did, over one time. `positions` may lack trailing ones, which were never accepted."""

    positions: tuple[float, ...] = ()
    basis: str = ""
    drafts: DraftTally = NO_DRAFTS
    of_chain: bool = False
    length: int | None = None
    """Positions that the server counts: the longest draft of the chain."""


def derive(
    state: TargetState, now: float, window_s: float, paying: SpeedUpPicture, way: Rollback | None
) -> DrafterPicture:
    """This part of the picture. The caller holds the state's lock; `paying` is the speed-up of the same moment, and
    `way` how rejected tokens are taken back."""
    chain = speculation.chain_of(state)
    main = next((kind for kind in chain if kind.reads_draft_model), chain[0] if chain else None)
    off = speculation.is_active(state) is False
    if main is None:
        return DrafterPicture(verdict="It does not speculate." if off else "")
    own = _own(state, now, window_s, chain, main)
    asked, block, clamps, limits = _lengths(state, main, own)
    effective = min(limits, default=None)
    found = DrafterPicture(
        type=main.name,
        asked_length=asked,
        block_size=block if main.block_margin is not None else None,
        effective_length=effective,
        clamps=clamps,
        per_position=own.positions,
        per_position_basis=own.basis,
        of_chain=own.of_chain,
        steps=own.drafts.steps or None,
        references=tuple(known for known in PUBLISHED if known.type == main.name),
        acceptance=own.drafts.acceptance,
        mean_accepted_length=own.drafts.mean_accepted_length,
    )
    length = min(effective or len(own.positions), LONGEST)
    shares = survival(own.positions, length) if own.positions else ()
    drafted = own.drafts.drafted / own.drafts.steps if own.drafts.steps else float(length)
    if length and drafted > 0:
        found = _with_costs(found, main, paying, (shares, drafted, length), verify_costs_of(state)[1], way)
    if off:
        return replace(found, verdict="It does not speculate.")
    # The sentence gives the advice that the verdict gives, and no other.
    words, _, fix = advice(paying, found)
    advised = next((int(value) for key, value in fix if key == "LLAMA_DRAFT_MAX" and value), None)
    return replace(found, advised_length=advised, verdict=verdict_of(found, words, unseen(state)))


def _own(state: TargetState, now: float, window_s: float, chain: tuple[SpecType, ...], main: SpecType) -> _Own:
    """The drafter's figures: of the window, else since the start; its own in a chain, where the log has them."""
    if len(chain) > 1:
        figures = next((figure for figure in state.log.by_type if figure.type == main.name), None)
        # Where checkpoints are restored, these count replays too.
        if figures is not None and figures.drafts_generated and not state.log.step_totals.total.replays:
            return _Own(
                figures.acceptance_per_position or (),
                "lifetime",
                DraftTally(figures.tokens_generated, figures.tokens_accepted, figures.drafts_generated),
            )
    scrape, ended = state.counters.last, state.log.requests_exact
    length, drafts = None, [ended.since(now - window_s), ended.total]
    if scrape is not None and scrape.counters.verification_steps is not None:
        length = len(scrape.counters.accepted_per_position or ()) or None
        counted = (state.window(now, window_s), state.counters.life)
        drafts = [between(*bounds) or NO_DRAFTS if bounds is not None else NO_DRAFTS for bounds in counted]
    for basis, done in zip(("window", "lifetime"), drafts, strict=True):
        if done.steps and done.drafted:
            return _Own((done.acceptance_per_position or ())[:LONGEST], basis, done, len(chain) > 1, length)
    return _Own(length=length)


def _lengths(
    state: TargetState, main: SpecType, own: _Own
) -> tuple[int | None, int | None, tuple[str, ...], list[int]]:
    """The longest draft that was asked for, the block that the draft was trained on, what the engine reduced, in words,
    and all limits that are known."""
    printed = state.log.implementations.get(main.name, {})
    props: Props | None = state.value(Source.PROPS)
    block = speculation.whole(printed.get("block_size"))
    if block is None and main.block_margin is not None and props is not None and props.draft is not None:
        block = props.draft.block_size
    clamps, limits = _clamps(state)
    alone = own.length if not own.of_chain else None
    asked = speculation.asked_length(state, main) or (alone if main.block_margin is None else None)
    return asked, block, clamps, [limit for limit in (asked, main.longest_draft(block), alone, *limits) if limit]


def _clamps(state: TargetState) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """What the engine reduced, in words, and to what."""
    words, limits = [], []
    for view in (storm.seen for storm in state.log.storms.newest_first):
        found = _REDUCED[view.warning].search(view.sample) if view.warning in _REDUCED and not view.is_former else None
        if found is not None:
            asked, *block, limit = found.groups()
            why = f"the draft's block has {block[0]} tokens" if block else "the limit of synthetic acceptance"
            words.append(f"{asked} asked, {limit} drafted: {why}")
            limits.append(int(limit))
    return tuple(words), tuple(limits)


def _with_costs(
    found: DrafterPicture,
    main: SpecType,
    paying: SpeedUpPicture,
    drafts: tuple[tuple[float, ...], float, int],
    verify_cost: float,
    way: Rollback | None,
) -> DrafterPicture:
    """With break-even and the best length. `drafts` are the shares accepted by position, the draft tokens a step, and
    the longest draft."""
    shares, drafted, length = drafts
    replays, is_block = way is Rollback.CHECKPOINT, main.block_margin is not None
    cost = draft_costs_of((main,), drafted)[1]
    assumed = StepCosts(
        draft_token=0.0 if is_block else cost,
        draft_block=cost * max(drafted, 1.0) if is_block else 0.0,
        verify_token=verify_cost,
        replays=replays,
    )
    done = replayed(shares, length) if shares else Round(1.0, 0.0, 0.0)
    again = done.rejecting if replays else 0.0
    call, needed = paying.break_even_length, paying.break_even_acceptance
    if call is None:
        call = assumed.of(drafted, done) / (1.0 + again)
        needed = (call - 1.0) * (1.0 + again) / drafted
    found = replace(
        found,
        break_even_length=call,
        break_even_acceptance=needed if needed is not None and needed <= 1.0 else None,
        break_even_basis=_words(paying, assumed),
    )
    if (found.steps or 0) < ENOUGH_STEPS or not shares or found.of_chain or not main.reads_draft_model:
        return found
    step = call * (1.0 + again)
    draft = assumed.draft_block + assumed.draft_token * drafted
    costs = fitted(step, drafted, done, draft, is_block=is_block, replays=replays)
    rates = speeds(shares, drafted, costs)
    best = max(range(len(rates)), key=lambda place: rates[place])
    return replace(found, best_length=best + 1, best_gain=rates[best] / rates[-1] - 1.0)


def _words(paying: SpeedUpPicture, assumed: StepCosts) -> str:
    """What the cost of a step rests on."""
    if paying.break_even_length is not None and paying.basis is Basis.MEASURED:
        return "measured"
    verify = f"verifying a draft token costs {assumed.verify_token:.2g} of a decode"
    if assumed.draft_block:
        return f"assumed: {verify}, drafting a block {assumed.draft_block:.2g}"
    return f"assumed: {verify}, drafting one {assumed.draft_token:.2g}"


def verdict_of(found: DrafterPicture, advised: str = "", unseen: str = "") -> str:
    """One sentence. `advised` is what would be faster, and `unseen` what is missing to see drafts."""
    if found.acceptance is None:
        return f"Drafts cannot be seen: it needs {unseen}." if unseen else "No draft was verified yet."
    if found.acceptance == 0.0:
        steps = f"{found.steps or 0.0:,.0f} steps"
        return f"Not one of its draft tokens was accepted in {steps}: the draft does not fit the model."
    words = f"{percent(found.acceptance, bounded=True)} accepted"
    measured = found.break_even_basis == "measured"
    if found.break_even_acceptance is not None:
        needed = percent(found.break_even_acceptance, bounded=True)
        words += f", {'' if measured else 'about '}{needed} needed to pay"
    elif found.break_even_length is not None:
        words += "; drafts of this length cost more than they save even when every token is accepted"
    # Even with a measured baseline the cost of other lengths is a straight line through two points.
    guessed = bool(advised) and (found.best_length is not None or not measured)
    return f"{words}{'; ' if advised else ''}{advised}{' (estimate)' if guessed else ''}."
