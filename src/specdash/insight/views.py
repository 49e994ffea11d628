"""Derives the views of the speculation screen: one module a view."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.insight import router
from specdash.insight.picture import SpeculationViews
from specdash.insight.proxy import prefix_cache
from specdash.insight.speculation import checkpoints, drafter, drafting

if TYPE_CHECKING:
    from specdash.insight.picture import SpeedUpPicture
    from specdash.insight.state import TargetState


def derive(state: TargetState, now: float, wall: float, window_s: float, paying: SpeedUpPicture) -> SpeculationViews:
    """All of them. The caller holds the state's lock; `paying` is the speed-up of the same moment."""
    replays = checkpoints.derive(state, now, wall, window_s)
    return SpeculationViews(
        drafting=drafting.derive(state, now, wall, window_s),
        drafter=drafter.derive(state, now, window_s, paying, replays.rollback),
        checkpoints=replays,
        prefix_cache=prefix_cache.derive(state, now, wall, window_s),
        router=router.derive(state, now, wall, window_s),
    )


def judged(state: TargetState, now: float, wall: float, window_s: float) -> SpeculationViews:
    """Only what the rules and the row of a fleet read. The caller holds the state's lock."""
    return SpeculationViews(
        drafting=drafting.derive(state, now, wall, window_s), router=router.derive(state, now, wall, window_s)
    )
