"""Derives how well the drafter does, position by position, and which draft length would do better. docs/views.md."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from specdash.core.readings import Source
from specdash.core.speculation import PUBLISHED, Rollback
from specdash.insight.picture import Basis, DrafterPicture, PositionBin, ReferenceCurve
from specdash.insight.request import NO_DRAFTS, DraftTally, ended_drafts
from specdash.insight.speculation import acceptance, checkpoints, speculation
from specdash.insight.speculation.drafting import unseen
from specdash.insight.speedup.estimate import draft_costs_of
from specdash.insight.speedup.speedup import verify_costs_of
from specdash.insight.speedup.verdict import WITHOUT, advice
from specdash.system.text import ordinal, percent

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


ENOUGH_STEPS = 20
"""Verification steps below which no draft length is recommended."""
LONGEST = 64
"""Positions looked at."""
SINGLE = 16
"""So many positions are shown one by one."""
LEAST_GAIN = 0.02
"""Two starts of one configuration differ by as much."""
HEAVY = 0.5
"""Share of draft tokens rejected from which n-gram drafts are called too long."""
CLAMPED, REDUCED = "draft_clamped", "synth_limit_reduced"
_CLAMP = re.compile(r"n_max=(\d+).*block size (\d+) -- clamping to (\d+)")
_REDUCE = re.compile(r"reduced from (\d+) to (\d+)")


class _Lengths(Struct, frozen=True):
    asked: int | None
    block: int | None
    effective: int | None
    clamps: tuple[str, ...]


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
    chain = checkpoints.chain_of(state)
    main = next((spec_type for spec_type in chain if spec_type.reads_draft_model), chain[0] if chain else None)
    if main is None:
        off = speculation.is_active(state) is False
        return DrafterPicture(verdict="It does not speculate." if off else "")
    own = _own(state, now, window_s, chain, main)
    lengths = _lengths(state, now, main, own)
    replays = way is Rollback.CHECKPOINT
    known = _Costing(
        call=paying.break_even_length,
        acceptance=paying.break_even_acceptance,
        share=paying.draft_share,
        basis=paying.basis,
        assumed=replace(_assumed(state, main, lengths, own), replays=replays),
        replays=replays,
        is_block=main.block_margin is not None,
    )
    judged = _judged(own, lengths, main, known)
    found = DrafterPicture(
        type=main.name,
        asked_length=lengths.asked,
        block_size=lengths.block,
        effective_length=lengths.effective,
        clamps=lengths.clamps,
        per_position=own.positions,
        per_position_basis=own.basis,
        of_chain=own.of_chain,
        bins=bins(own.positions),
        steps=own.drafts.steps or None,
        references=references(main.name),
        acceptance=judged.acceptance,
        mean_accepted_length=judged.length,
        break_even_length=judged.break_even_length,
        break_even_acceptance=judged.break_even_acceptance,
        break_even_basis=judged.basis,
        best_length=judged.best_length,
        best_gain=judged.best_gain,
        longer_gain=None if judged.is_limited else judged.longer_gain,
    )
    if speculation.is_active(state) is False:
        return replace(found, verdict="It does not speculate.")
    # The sentence gives the advice that the verdict gives, and no other.
    _, _, fix = advice(paying, found)
    advised = next((int(value) for key, value in fix if key == "LLAMA_DRAFT_MAX" and value), None)
    judged = replace(judged, is_advised=bool(fix), none_pays=fix == WITHOUT, unseen=unseen(state))
    return replace(found, advised_length=advised, verdict=verdict_of(judged))


def _own(state: TargetState, now: float, window_s: float, chain: tuple[SpecType, ...], main: SpecType) -> _Own:
    """The drafter's figures: of the window, else since the start; its own in a chain, where the log tells them."""
    if len(chain) > 1:
        figures = next((figure for figure in state.log.drafting.figures() if figure.type == main.name), None)
        # Where checkpoints are restored, these count replays too.
        if figures is not None and figures.drafts and not state.log.step_totals.total.replays:
            return _Own(
                figures.acceptance_per_position,
                "lifetime",
                DraftTally(figures.tokens_drafted, figures.tokens_accepted, figures.drafts),
            )
    scrape = state.counters.last
    if scrape is None or scrape.counters.verification_steps is None:
        return _logged(state, now, window_s, of_chain=len(chain) > 1)
    last = scrape.counters
    length = len(last.accepted_per_position) if last.accepted_per_position else None
    bounds = state.window(now, window_s)
    done = acceptance.between(*bounds) if bounds is not None else None
    basis = "window"
    if done is None or not done.steps or not done.drafted:
        life = state.counters.life
        done, basis = acceptance.between(*life) if life is not None else None, "lifetime"
    if done is None or not done.steps:
        return _Own(length=length)
    return _Own((done.acceptance_per_position or ())[:LONGEST], basis, done, len(chain) > 1, length)


def _logged(state: TargetState, now: float, window_s: float, *, of_chain: bool) -> _Own:
    """Without counters: the log's lines at the end of the latest requests."""
    for basis, since in (("window", now - window_s), ("lifetime", float("-inf"))):
        ended = ended_drafts(islice(state.log.recent, state.log.ended_here), since)
        if ended.drafts.steps:
            return _Own(ended.positions[:LONGEST], basis, ended.drafts, of_chain=of_chain)
    return _Own()


def _lengths(state: TargetState, now: float, main: SpecType, own: _Own) -> _Lengths:
    printed = state.log.implementations.get(main.name, {})
    asked = speculation.asked_length(state, main)
    props: Props | None = state.value(Source.PROPS)
    block = speculation.whole(printed.get("block_size"))
    if block is None and main.block_margin is not None and props is not None and props.draft is not None:
        block = props.draft.block_size
    clamps, limits = _clamps(state, now)
    alone = own.length if not own.of_chain else None
    asked = asked or (alone if main.block_margin is None else None)
    known = [limit for limit in (asked, main.longest_draft(block), alone, *limits) if limit]
    return _Lengths(asked, block if main.block_margin is not None else None, min(known, default=None), clamps)


def _clamps(state: TargetState, now: float) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """What the engine reduced, in words, and to what."""
    if not state.log.storms.count(CLAMPED) and not state.log.storms.count(REDUCED):
        return (), ()
    words, limits = [], []
    for view in state.log.storms.view(now):
        if view.is_former:
            continue
        if view.warning == CLAMPED and (found := _CLAMP.search(view.sample)):
            asked, block, limit = found.groups()
            words.append(f"{asked} asked, {limit} drafted: the draft's block has {block} tokens")
            limits.append(int(limit))
        elif view.warning == REDUCED and (found := _REDUCE.search(view.sample)):
            asked, limit = found.groups()
            words.append(f"{asked} asked, {limit} drafted: the limit of synthetic acceptance")
            limits.append(int(limit))
    return tuple(words), tuple(limits)


def bins(positions: tuple[float, ...]) -> tuple[PositionBin, ...]:
    """The positions one by one while they are few, else 0, 1, 2, 3, 4 to 7, 8 to 15, …"""
    found = []
    first = 0
    while first < len(positions):
        last = first if len(positions) <= SINGLE or first < 4 else 2 * first - 1
        part = positions[first : last + 1]
        found.append(PositionBin(first, min(last, len(positions) - 1), sum(part) / len(part)))
        first = last + 1
    return tuple(found)


def references(type_name: str) -> tuple[ReferenceCurve, ...]:
    """What was published of the type."""
    return tuple(
        ReferenceCurve(known.name, known.source, known.per_position, known.mean_accepted_length, known.acceptance)
        for known in PUBLISHED
        if known.type == type_name
    )


def _assumed(state: TargetState, main: SpecType, lengths: _Lengths, own: _Own) -> StepCosts:
    """What a step costs where nothing is measured."""
    drafted = own.drafts.drafted / own.drafts.steps if own.drafts.steps else float(lengths.effective or 1)
    draft = draft_costs_of((main,), drafted)[1]
    is_block = main.block_margin is not None
    return StepCosts(
        draft_token=0.0 if is_block else draft,
        draft_block=draft * max(drafted, 1.0) if is_block else 0.0,
        verify_token=verify_costs_of(state)[1],
    )


class _Costing(Struct, frozen=True):
    """From what the cost of a step is known. `call` is a decode call's, in decodes of one token."""

    call: float | None
    acceptance: float | None
    share: float | None
    basis: Basis
    assumed: StepCosts
    replays: bool
    is_block: bool


def _judged(own: _Own, lengths: _Lengths, main: SpecType, known: _Costing) -> DrafterFigures:
    length = min(lengths.effective or len(own.positions), LONGEST)
    told = DrafterFigures(
        drafts_with_model=main.reads_draft_model,
        steps=own.drafts.steps or 0.0,
        drafted=own.drafts.drafted / own.drafts.steps if own.drafts.steps else float(length),
        longest=length or None,
        acceptance=own.drafts.acceptance,
        length=own.drafts.mean_accepted_length,
        shares=survival(own.positions, length) if own.positions else (),
        of_chain=own.of_chain,
        is_limited=known.is_block and lengths.effective == main.longest_draft(lengths.block),
    )
    return _with_costs(told, known)


@lru_cache(maxsize=64)
def _with_costs(told: DrafterFigures, known: _Costing) -> DrafterFigures:
    """With break-even and the best length. What comes in changes only when a request has ended."""
    if not told.longest or told.drafted <= 0:
        return told
    done = replayed(told.shares, told.longest) if told.shares else Round(1.0, 0.0, 0.0)
    assumed = known.assumed
    again = done.rejecting if known.replays else 0.0
    call, needed = known.call, known.acceptance
    if call is None:
        call = assumed.of(told.drafted, done) / (1.0 + again)
        needed = (call - 1.0) * (1.0 + again) / told.drafted
    needed = needed if needed is not None and needed <= 1.0 else None
    told = replace(told, break_even_length=call, break_even_acceptance=needed, basis=_words(known))
    if told.steps < ENOUGH_STEPS or not told.shares or told.of_chain or not told.drafts_with_model:
        return told
    step = call * (1.0 + again)
    draft = assumed.draft_block + assumed.draft_token * told.drafted if known.share is None else known.share * step
    costs = fitted(step, told.drafted, done, draft, is_block=known.is_block, replays=known.replays)
    found = speeds(told.shares, told.drafted, costs)
    best = max(range(len(found)), key=lambda place: found[place])
    longer = speeds((*told.shares, told.shares[-1] * hazards(told.shares)[-1]), told.drafted + 1.0, costs)
    return replace(
        told,
        best_length=best + 1,
        best_gain=found[best] / found[-1] - 1.0,
        longer_gain=longer[-1] / longer[-2] - 1.0,
    )


def _words(known: _Costing) -> str:
    if known.call is not None and known.basis is Basis.MEASURED:
        return "measured"
    costs = known.assumed
    verify = f"verifying a draft token costs {costs.verify_token:.2g} of a decode"
    if known.call is not None and known.share is not None:
        return f"drafting measured; assumed: {verify}"
    if costs.draft_block:
        return f"assumed: {verify}, drafting a block {costs.draft_block:.2g}"
    return f"assumed: {verify}, drafting one {costs.draft_token:.2g}"


class DrafterFigures(Struct, frozen=True):
    """The figures behind the sentence; see `DrafterPicture`."""

    drafts_with_model: bool
    steps: float = 0.0
    drafted: float = 0.0
    """Draft tokens a step."""
    longest: int | None = None
    acceptance: float | None = None
    length: float | None = None
    shares: tuple[float, ...] = ()
    of_chain: bool = False
    is_limited: bool = False
    """No longer draft can be asked for."""
    break_even_length: float | None = None
    break_even_acceptance: float | None = None
    basis: str = ""
    best_length: int | None = None
    best_gain: float | None = None
    longer_gain: float | None = None
    """What one token more would gain, were it accepted like the last one."""
    is_advised: bool = True
    """Whether the verdict gives any advice; it gives none where others slow the server down."""
    none_pays: bool = False
    """Whether its advice is to draft nothing."""
    unseen: str = ""
    """What is missing to see drafts."""


def verdict_of(told: DrafterFigures) -> str:
    """One sentence, "" where there is nothing to say."""
    if told.acceptance is None:
        return f"Drafts cannot be seen: it needs {told.unseen}." if told.unseen else "No draft was verified yet."
    if told.acceptance == 0.0:
        return f"Not one of its draft tokens was accepted in {told.steps:,.0f} steps: the draft does not fit the model."
    paying = _paying(told)
    length = _length(told)
    # Even with a measured baseline the cost of other lengths is a straight line through two points.
    guessed = bool(length) and (told.best_length is not None or told.basis != "measured")
    return f"{paying}{'; ' if length else ''}{length}{' (estimate)' if guessed else ''}."


def _paying(told: DrafterFigures) -> str:
    words = f"{percent(told.acceptance or 0.0, bounded=True)} accepted"
    if told.break_even_length is None:
        return words
    if told.break_even_acceptance is None:
        return f"{words}; drafts of this length cost more than they save even when every token is accepted"
    needed = percent(told.break_even_acceptance, bounded=True)
    return f"{words}, {'' if told.basis == 'measured' else 'about '}{needed} needed to pay"


def _length(told: DrafterFigures) -> str:
    """What another draft length would do."""
    best, gain = told.best_length, told.best_gain
    if told.none_pays and told.longest is not None:
        return f"no draft length up to {told.longest} would pay"
    if best is None or gain is None or told.longest is None:
        return _wasted(told)
    if not told.is_advised:
        return f"no shorter draft would be faster than {told.longest}" if gain < LEAST_GAIN else ""
    if best < told.longest and gain >= LEAST_GAIN:
        share = told.shares[best]
        return (
            f"the {ordinal(best + 1)} draft token is accepted in {percent(share, bounded=True)} of steps: "
            f"a draft length of {best} would be {percent(gain)} faster"
        )
    if told.longer_gain is not None and told.longer_gain >= LEAST_GAIN and not told.is_limited:
        last = percent(told.shares[-1], bounded=True)
        return f"the {ordinal(told.longest)} draft token is still accepted in {last} of steps: try longer"
    return f"no shorter draft would be faster than {told.longest}"


def _wasted(told: DrafterFigures) -> str:
    if told.drafts_with_model or told.of_chain or told.drafted <= 0 or told.length is None:
        return ""
    accepted = told.length - 1.0
    if accepted / told.drafted > 1.0 - HEAVY:
        return ""
    return f"of {told.drafted:.0f} tokens a draft {accepted:.1f} are used: shorter ones would waste less"
