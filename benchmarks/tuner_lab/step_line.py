"""What a step costs by its draft length, from two points of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def step_line(off_seconds: float, seconds: float, length: int) -> Callable[[int], float]:
    """Seconds of a step by draft length, from those without drafts and with drafts of `length`, drafting and verifying
    together. Good below the cliff alone.

    On a machine where the second point is faster than the first, drafts are taken to cost nothing.
    """
    each = max(seconds - off_seconds, 0.0) / length
    return lambda drafted: off_seconds + each * drafted
