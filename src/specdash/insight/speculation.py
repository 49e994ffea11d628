"""Derives what is known about speculation: whether it is active, with what, and how much of it is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.readings import Source, Status
from specdash.insight import acceptance
from specdash.insight.drafting import PROBLEM_CLASSES
from specdash.insight.picture import Acceptance, Measured, SpeculationPicture

if TYPE_CHECKING:
    from specdash.core.observations import Slots
    from specdash.insight.acceptance import DraftWindow
    from specdash.insight.counter_log import Scrape
    from specdash.insight.state import TargetState

LIVE_SPAN_S = 10.0
COUNTER_ERROR = 0.0025
"""A window whose counters are rounded by more than this share of its drafts is taken from the log instead."""
TYPE_PARAMETER = "spec-type"


def derive(state: TargetState, now: float, window_s: float) -> SpeculationPicture:
    """The speculation part of the picture. The caller holds the state's lock."""
    scrape = state.counters.last
    counters = scrape.counters if scrape else None
    bounds = state.counters.window(now, window_s)
    drafted = _window(state, bounds, now, window_s)
    lifetime = acceptance.since_start(counters) if counters else None
    if drafted is not None and drafted.rate is not None:
        state.held_window = (now, drafted)
    lengths = drafted if drafted is not None and drafted.steps else lifetime
    active = is_active(state)
    return SpeculationPicture(
        active=active,
        types=types_of(state),
        parameters=state.target.parameters,
        draft_tokens_total=counters.draft_tokens if counters else None,
        accepted_tokens_total=acceptance.exact_accepted(counters) if counters else None,
        verification_steps_total=counters.verification_steps if counters else None,
        mean_accepted_length=lengths.mean_accepted_length if lengths else None,
        accepted_per_position=counters.accepted_per_position if counters else None,
        acceptance_per_position_window=_positions(bounds),
        acceptance_per_position_lifetime=(
            acceptance.per_position(None, counters.accepted_per_position, counters.verification_steps)
            if counters
            else None
        ),
        acceptance=Acceptance(
            window=_windowed(state, drafted, now, window_s),
            lifetime=_measured(lifetime, Source.METRICS, None, "lifetime"),
            live=_live(state, now),
        ),
        tokens_per_decode=_gain(state, now),
        problem="" if active else _problem(state, now),
    )


def _window(
    state: TargetState, bounds: tuple[Scrape, Scrape] | None, now: float, window_s: float
) -> DraftWindow | None:
    exact = state.log.requests_exact.window(now, window_s)
    if bounds is None:
        return exact
    counted = acceptance.between(*bounds)
    if counted is None:
        return exact
    error = acceptance.resolution(bounds[1].counters.draft_tokens) / max(counted.generated, 1.0)
    rounded = (bounds[1].counters.draft_tokens or 0.0) >= 1e6 and error > COUNTER_ERROR
    return exact if rounded and exact is not None else counted


def _windowed(state: TargetState, drafted: DraftWindow | None, now: float, window_s: float) -> Measured:
    if drafted is not None and drafted.rate is not None:
        return Measured(drafted.rate, Status.KNOWN, Source.METRICS, window_s, 0.0, "window")
    if state.held_window is not None:
        at, held = state.held_window
        return Measured(held.rate, Status.STALE, Source.METRICS, window_s, now - at, "held")
    return Measured()


def _measured(drafted: DraftWindow | None, source: Source, window_s: float | None, basis: str) -> Measured:
    if drafted is None or drafted.rate is None:
        return Measured()
    return Measured(drafted.rate, Status.KNOWN, source, window_s, 0.0, basis)


def _live(state: TargetState, now: float) -> Measured:
    return _measured(state.log.steps_exact.window(now, LIVE_SPAN_S), Source.LOG, LIVE_SPAN_S, "live")


def _gain(state: TargetState, now: float) -> Measured:
    if state.gain is None:
        return Measured()
    age = now - state.gain.at
    known = age <= LIVE_SPAN_S
    status, basis = (Status.KNOWN, "live") if known else (Status.STALE, "held")
    return Measured(state.gain.value, status, state.gain.source, LIVE_SPAN_S, age, basis)


def _positions(bounds: tuple[Scrape, Scrape] | None) -> tuple[float, ...] | None:
    if bounds is None:
        return None
    first, last = bounds[0].counters, bounds[1].counters
    steps = (last.verification_steps or 0.0) - (first.verification_steps or 0.0)
    return acceptance.per_position(first.accepted_per_position, last.accepted_per_position, steps)


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


def _problem(state: TargetState, now: float) -> str:
    for view in state.log.storms.view(now):
        if view.warning in PROBLEM_CLASSES:
            return view.sample
    return ""
