"""Derives the views of the speculation screen: one module a view."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.insight import checkpoints, drafter, drafting, prefix_cache, router
from specdash.insight.drafter_picture import SpeculationViews

if TYPE_CHECKING:
    from specdash.insight.speedup_picture import SpeedUpPicture
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
    """Only what the rules read. The caller holds the state's lock."""
    return SpeculationViews(drafting=drafting.derive(state, now, wall, window_s))
