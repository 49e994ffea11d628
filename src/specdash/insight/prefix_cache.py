"""Derives how much of the prompts was there already, and what that saves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.insight.drafter_picture import PrefixCachePicture

if TYPE_CHECKING:
    from specdash.insight.state import TargetState


def derive(state: TargetState, now: float, wall: float, window_s: float) -> PrefixCachePicture:
    """This part of the picture. The caller holds the state's lock."""
    del state, now, wall, window_s
    return PrefixCachePicture()
