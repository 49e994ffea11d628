"""Derives how rejected tokens are taken back, and what that costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.insight.drafter_picture import CheckpointsPicture

if TYPE_CHECKING:
    from specdash.insight.state import TargetState


def derive(state: TargetState, now: float, wall: float, window_s: float) -> CheckpointsPicture:
    """This part of the picture. The caller holds the state's lock."""
    del state, now, wall, window_s
    return CheckpointsPicture()
