"""Derives whether the server really speculates, and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.insight.drafter_picture import DraftingPicture

if TYPE_CHECKING:
    from specdash.insight.state import TargetState


def derive(state: TargetState, now: float, wall: float, window_s: float) -> DraftingPicture:
    """This part of the picture. The caller holds the state's lock."""
    del state, now, wall, window_s
    return DraftingPicture()
