"""Derives how well the drafter does, position by position, and which draft length would do better. docs/views.md."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from specdash.core.published_acceptance import distance, nearest
from specdash.core.readings import Source
from specdash.core.speculation import Rollback
from specdash.insight import acceptance, checkpoints, speculation
from specdash.insight.draft_length import Round, StepCosts, fitted, hazards, replayed, speeds, survival
from specdash.insight.drafter_picture import DrafterPicture, PositionBin, ReferenceCurve
from specdash.insight.drafter_verdict import Judged, verdict_of
from specdash.insight.ended_drafts import ended_drafts
from specdash.insight.speedup import verify_costs_of
from specdash.insight.speedup_model import draft_costs_of
from specdash.insight.speedup_picture import Basis

if TYPE_CHECKING:
    from specdash.core.observations import Props
    from specdash.core.speculation import SpecType
    from specdash.insight.speedup_picture import SpeedUpPicture
    from specdash.insight.state import TargetState

ENOUGH_STEPS = 20
"""Verification steps below which no draft length is recommended."""
LONGEST = 64
"""Positions looked at."""
SINGLE = 16
"""So many positions are shown one by one."""
CLAMPED, REDUCED = "draft_clamped", "synth_limit_reduced"
_CLAMP = re.compile(r"n_max=(\d+).*block size (\d+) -- clamping to (\d+)")
_REDUCE = re.compile(r"reduced from (\d+) to (\d+)")


@dataclass(frozen=True, slots=True)
class _Lengths:
    asked: int | None
    block: int | None
    effective: int | None
    clamps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Own:
    """What the drafter did, over one time. `positions` may lack trailing ones, which were never accepted."""

    positions: tuple[float, ...] = ()
    basis: str = ""
    steps: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    of_chain: bool = False
    length: int | None = None
    """Positions that the server counts: the longest draft of the chain."""


def derive(
    state: TargetState, now: float, window_s: float, paying: SpeedUpPicture, way: Rollback | None
) -> DrafterPicture:
    """This part of the picture. The caller holds the state's lock; `paying` is the speed-up of the same moment, and
    `way` how rejected tokens are taken back."""
    chain = checkpoints.chain_of(state)
    main = next((one for one in chain if one.reads_draft_model), chain[0] if chain else None)
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
    return DrafterPicture(
        type=main.name,
        asked_length=lengths.asked,
        block_size=lengths.block,
        effective_length=lengths.effective,
        clamps=lengths.clamps,
        per_position=own.positions,
        per_position_basis=own.basis,
        of_chain=own.of_chain,
        bins=bins(own.positions),
        steps=own.steps or None,
        references=references(main.name, own.positions),
        acceptance=judged.acceptance,
        mean_accepted_length=judged.length,
        break_even_length=judged.break_even_length,
        break_even_acceptance=judged.break_even_acceptance,
        break_even_basis=judged.basis,
        best_length=judged.best_length,
        best_gain=judged.best_gain,
        verdict=verdict_of(judged) if speculation.is_active(state) is not False else "It does not speculate.",
    )


def _own(state: TargetState, now: float, window_s: float, chain: tuple[SpecType, ...], main: SpecType) -> _Own:
    """The drafter's figures: of the window, else since the start; its own in a chain, where the log tells them."""
    if len(chain) > 1:
        figures = next((one for one in state.log.drafting.figures() if one.type == main.name), None)
        # Where checkpoints are restored, these count replays too.
        if figures is not None and figures.drafts and not state.log.step_totals.total.replays:
            return _Own(
                figures.acceptance_per_position,
                "lifetime",
                figures.drafts,
                figures.tokens_drafted,
                figures.tokens_accepted,
            )
    scrape = state.counters.last
    if scrape is None or scrape.counters.verification_steps is None:
        return _logged(state, now, window_s, of_chain=len(chain) > 1)
    last = scrape.counters
    length = len(last.accepted_per_position) if last.accepted_per_position else None
    bounds = state.window(now, window_s)
    done = acceptance.between(*bounds) if bounds is not None else None
    before = bounds[0].counters.accepted_per_position if bounds is not None else None
    basis = "window"
    if done is None or not done.steps or not done.generated:
        done, before, basis = acceptance.since_start(last), None, "lifetime"
    if done is None or not done.steps:
        return _Own(length=length)
    positions = acceptance.per_position(before, last.accepted_per_position, done.steps) or ()
    return _Own(positions[:LONGEST], basis, done.steps, done.generated, done.accepted, len(chain) > 1, length)


def _logged(state: TargetState, now: float, window_s: float, *, of_chain: bool) -> _Own:
    """Without counters: what the log said at the end of the latest requests."""
    for basis, since in (("window", now - window_s), ("lifetime", float("-inf"))):
        ended = ended_drafts(islice(state.log.recent, state.log.ended_here), since)
        if ended.steps:
            return _Own(ended.positions[:LONGEST], basis, ended.steps, ended.drafted, ended.accepted, of_chain=of_chain)
    return _Own()


def _lengths(state: TargetState, now: float, main: SpecType, own: _Own) -> _Lengths:
    said = state.log.implementations.get(main.name, {})
    asked = speculation.asked_length(state, main)
    props: Props | None = state.value(Source.PROPS)
    block = speculation.whole(said.get("block_size"))
    if block is None and main.block_margin is not None and props is not None and props.draft is not None:
        block = props.draft.block_size
    clamps, limits = _clamps(state, now)
    alone = own.length if not own.of_chain else None
    asked = asked or (alone if main.block_margin is None else None)
    known = [one for one in (asked, main.longest_draft(block), alone, *limits) if one]
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


@lru_cache(maxsize=64)
def references(type_name: str, positions: tuple[float, ...]) -> tuple[ReferenceCurve, ...]:
    """What was published of the type, the nearest first."""
    return tuple(
        ReferenceCurve(
            one.name,
            one.source,
            one.per_position,
            one.mean_accepted_length,
            one.acceptance,
            distance(one.per_position, positions) if one.per_position and positions else None,
        )
        for one in nearest(type_name, positions)
    )


def _assumed(state: TargetState, main: SpecType, lengths: _Lengths, own: _Own) -> StepCosts:
    """What a step costs where nothing is measured."""
    drafted = own.drafted / own.steps if own.steps else float(lengths.effective or 1)
    draft = draft_costs_of((main,), drafted)[1]
    is_block = main.block_margin is not None
    return StepCosts(
        draft_token=0.0 if is_block else draft,
        draft_block=draft * max(drafted, 1.0) if is_block else 0.0,
        verify_token=verify_costs_of(state)[1],
    )


@dataclass(frozen=True, slots=True)
class _Costing:
    """From what the cost of a step is known. `call` is a decode call's, in decodes of one token."""

    call: float | None
    acceptance: float | None
    share: float | None
    basis: Basis
    assumed: StepCosts
    replays: bool
    is_block: bool


def _judged(own: _Own, lengths: _Lengths, main: SpecType, known: _Costing) -> Judged:
    length = min(lengths.effective or len(own.positions), LONGEST)
    told = Judged(
        type=main.name,
        drafts_with_model=main.reads_draft_model,
        steps=own.steps,
        drafted=own.drafted / own.steps if own.steps else float(length),
        longest=length or None,
        acceptance=min(1.0, own.accepted / own.drafted) if own.drafted else None,
        length=1.0 + own.accepted / own.steps if own.steps else None,
        shares=survival(own.positions, length) if own.positions else (),
        of_chain=own.of_chain,
        is_limited=known.is_block and lengths.effective == main.longest_draft(lengths.block),
    )
    return _with_costs(told, known)


@lru_cache(maxsize=64)
def _with_costs(told: Judged, known: _Costing) -> Judged:
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
        best_speed=found[best],
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
