"""Derives what is known about speculation: whether it is active, with what, and how much of it is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from specdash.core.readings import ReadingStatus, Source
from specdash.core.speculation import spec_type
from specdash.insight.log.counter_log import between, resolution
from specdash.insight.picture import Acceptance, MeasuredFigure, SpeculationPicture
from specdash.insight.speculation.drafting import PROBLEM_CLASSES, unseen

if TYPE_CHECKING:
    from specdash.core.readings import Slots
    from specdash.core.speculation import SpecType
    from specdash.insight.request import DraftTally
    from specdash.insight.state import TargetState

LIVE_SPAN_S = 10.0
COUNTER_ERROR = 0.0025
"""A window whose counters are rounded by more than this share of its drafts is taken from the log instead."""
TYPE_PARAMETER = "spec-type"


def derive(state: TargetState, now: float, window_s: float) -> SpeculationPicture:
    """The speculation part of the picture. The caller holds the state's lock; nothing in it is changed."""
    scrape = state.counters.last
    counters = scrape.counters if scrape else None
    drafted = _window(state, now, window_s)
    life = state.counters.life
    lifetime = between(*life) if life is not None else None
    bounds = state.window(now, window_s)
    counted = between(*bounds) if bounds is not None else None
    lengths = drafted[0] if drafted is not None and drafted[0].steps else lifetime
    active = is_active(state)
    warnings = (storm.seen for storm in state.log.storms.newest_first)
    return SpeculationPicture(
        active=active,
        types=types_of(state),
        parameters=state.target.parameters,
        draft_tokens_total=lifetime.drafted if lifetime else None,
        accepted_tokens_total=lifetime.accepted if lifetime else None,
        verification_steps_total=lifetime.steps if lifetime else None,
        mean_accepted_length=lengths.mean_accepted_length if lengths else None,
        accepted_per_position=counters.accepted_per_position if counters else None,
        acceptance_per_position_window=counted.acceptance_per_position if counted else None,
        acceptance_per_position_lifetime=lifetime.acceptance_per_position if lifetime else None,
        acceptance=Acceptance(
            window=_windowed(state, drafted, now, window_s),
            lifetime=_dated(_measured(lifetime, Source.METRICS, None, "lifetime"), state.totals_stale_s(now)),
            live=_measured(state.log.live_steps(now, LIVE_SPAN_S), Source.LOG, LIVE_SPAN_S, "live"),
        ),
        tokens_per_decode=_gain(state, now),
        problem="" if active else next((seen.sample for seen in warnings if seen.warning in PROBLEM_CLASSES), ""),
        unseen=unseen(state),
    )


def _window(state: TargetState, now: float, window_s: float, *, held: bool = False) -> tuple[DraftTally, Source] | None:
    """What was drafted in the window before `now`, and from what it is known: the counters, else, and where those are
    rounded or not of now, the log's exact figures. Of a `held` window the counters need not be of now."""
    exact = state.log.requests_exact.since(now - window_s)
    logged = (exact, Source.LOG) if exact.drafted else None
    bounds = state.counters.window(now, window_s)
    counted = between(*bounds) if bounds is not None else None
    if bounds is None or counted is None:
        return logged
    error = resolution(bounds[1].counters.draft_tokens) / max(counted.drafted, 1.0)
    rounded = (bounds[1].counters.draft_tokens or 0.0) >= 1e6 and error > COUNTER_ERROR
    stale = not held and state.totals_stale_s(now) is not None
    return logged if logged is not None and (rounded or stale) else (counted, Source.METRICS)


def _windowed(
    state: TargetState, drafted: tuple[DraftTally, Source] | None, now: float, window_s: float
) -> MeasuredFigure:
    """The acceptance of the window; while the server is idle that of the one that ended with the newest drafts."""
    if drafted is not None and drafted[0].acceptance is not None:
        known = _measured(*drafted, window_s, "window")
        return known if drafted[1] is Source.LOG else _dated(known, state.totals_stale_s(now))
    moments = [at for at in (state.counters.drafted_at, state.log.requests_exact.newest) if at is not None]
    at = min(now, max(moments, default=now))
    held = _window(state, at, window_s, held=True) if moments else None
    return _dated(_measured(*held, window_s, "held"), now - at) if held is not None else MeasuredFigure()


def _dated(measured: MeasuredFigure, age_s: float | None) -> MeasuredFigure:
    """The figure as it was so long ago; that of now where `age_s` is None."""
    if age_s is None or measured.value is None:
        return measured
    return replace(
        measured, status=ReadingStatus.STALE, age_s=age_s, basis="held" if measured.window_s else measured.basis
    )


def _measured(drafted: DraftTally | None, source: Source, window_s: float | None, basis: str) -> MeasuredFigure:
    if drafted is None or drafted.acceptance is None:
        return MeasuredFigure()
    return MeasuredFigure(drafted.acceptance, ReadingStatus.KNOWN, source, window_s, 0.0, basis)


def _gain(state: TargetState, now: float) -> MeasuredFigure:
    if state.gain is None:
        return MeasuredFigure()
    age = now - state.gain.at
    known = age <= LIVE_SPAN_S and state.totals_stale_s(now) is None
    status, basis = (ReadingStatus.KNOWN, "live") if known else (ReadingStatus.STALE, "held")
    return MeasuredFigure(state.gain.value, status, state.gain.source, LIVE_SPAN_S, age, basis)


def is_active(state: TargetState) -> bool | None:
    """Whether the server speculates, None when that is not known."""
    slots: Slots | None = state.value(Source.SLOTS)
    if slots is not None:
        flags = [slot.speculative for slot in slots.slots if slot.speculative is not None]
        if flags:
            return any(flags)
    scrape = state.counters.last
    if scrape is not None and scrape.counters.draft_tokens:
        return True
    return None


def types_of(state: TargetState) -> tuple[str, ...] | None:
    """With what it speculates, as it says itself, else as it was started; None when that is not known."""
    slots: Slots | None = state.value(Source.SLOTS)
    if slots is not None:
        seen = {kind: None for slot in slots.slots for kind in slot.speculative_types or ()}
        if seen:
            return tuple(seen)
    for name, value in state.target.parameters:
        if name == TYPE_PARAMETER:
            return tuple(part for part in value.split(",") if part)
    return None


def chain_of(state: TargetState) -> tuple[SpecType, ...]:
    """The types with which the server speculates, as far as anything shows them."""
    names = types_of(state) or tuple(state.log.implementations)
    return tuple(item for name in names if (item := spec_type(name)) is not None)


def asked_length(state: TargetState, kind: SpecType) -> int | None:
    """The longest draft that a type was started with, or has by nature; None where that is not known."""
    given = dict(state.target.parameters).get(kind.max_parameter or "")
    printed = state.log.implementations.get(kind.name, {}).get("n_max")
    return whole(given) or whole(printed) or kind.fixed_draft_length


def whole(text: str | None) -> int | None:
    """The whole number that a parameter or the log says; None where it is none."""
    return int(text) if text is not None and text.isdecimal() else None
